"""A loss of replicas in a run: when it strikes, how long it lasts, what it breaks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from capplan.budget import varied
from capplan.scenario.faults import Crash
from capplan.scenario.files import with_values
from capplan.slo import judge
from capplan.slo.promises import LATENCIES, SHARES
from capplan.stages.failure_stage import model_load_s, unloaded_s
from capplan.stages.recovery import errors_back
from capplan.stages.stage import windowed

if TYPE_CHECKING:
    import pandas as pd

    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.verdict import Reason

Floats = npt.NDArray[np.float64]

STRETCH_S = 60.0
"""Length of the busiest stretch for a loss whose end is unknown: that of the busiest minute."""
WATCHED = 5
"""Outages after its start for which a loss is watched: queues built up in one drain in a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Replicas that crash in the run, at ``at_s`` (None = when their absence hurts most).

    They are back after ``down_s`` in all, with their model loaded; None = never.
    """

    count: int
    kind: str = "replica"
    at_s: float | None = None
    down_s: float | None = None

    def __str__(self) -> str:
        """Return the loss in words."""
        if self.count == 0:
            return "none lost"
        when = "" if self.at_s is None else f" at {self.at_s:g} s"
        return f"{self.count} lost{when} " + (
            "for good" if self.down_s is None else f"for {self.down_s:.4g} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A loss in one run: from ``at_s`` until ``until_s`` (inf = to the end).

    ``window_s`` is the part of the run that is judged for it: the outage, prolonged until each
    class has the samples that its promises need.
    """

    at_s: float
    until_s: float
    window_s: tuple[float, float]


def with_loss(
    scenario: Scenario, pool: Pool, replicas: int, lose: Loss, *, at_s: float = 0.0
) -> Scenario:
    """Return the scenario with this many replicas in a pool, some of which crash at a moment.

    ``at_s`` holds if the loss states none. The pool's autoscaler is left out: it would change the
    number that is asked about. Numbers that the wait budget derives are those of this many.
    """
    fixed = {} if pool.autoscaler is None else {f"pools.{pool.name}.autoscaler": None}
    changed = varied(scenario, {f"pools.{pool.name}.replicas": replicas} | fixed)
    if lose.count == 0:
        return changed
    down_s = lose.down_s
    if down_s is not None:  # a returning replica loads its model, which takes part of that time
        down_s = unloaded_s(down_s, model_load_s(scenario, pool))
    at_s = at_s if lose.at_s is None else lose.at_s
    crash = Crash(pool=pool.name, at_s=at_s, count=lose.count, down_s=down_s)
    return with_values(changed, {"faults": (*changed.faults, crash)})


def outage_of(served: pd.DataFrame, lose: Loss, needed: Mapping[str, int]) -> Outage:
    """Return when a loss strikes the requests of a run, and the part that is judged for it.

    Parameters
    ----------
    served
        The pool's requests (``request_class``, ``intended_start_s``, ascending) with none lost.
    lose
        The loss. Without a moment of its own it strikes where most requests start in its length
        (in a minute, if it has no end), at the start of a run without requests: nothing is known
        of that one, wherever it strikes.
    needed
        Samples that the promises of each class need.
    """
    start = served["intended_start_s"].to_numpy(np.float64)
    lasts_s = math.inf if lose.down_s is None else lose.down_s
    if not start.size:
        at_s = lose.at_s or 0.0
        return Outage(at_s=at_s, until_s=at_s + lasts_s, window_s=(at_s, at_s))
    last = float(start[-1])
    at_s = _busiest_start(start, STRETCH_S if math.isinf(lasts_s) else lasts_s)
    if lose.at_s is not None:
        at_s = lose.at_s
    if at_s > last:
        msg = f"at_s must be at most {last:.4g} s, when the last request starts, got {at_s}"
        raise ValueError(msg)
    low, high = at_s, min(at_s + lasts_s, last)
    for name, count in needed.items():
        own = start[(served["request_class"] == name).to_numpy()]
        if not own.size:
            continue
        begin = int(np.searchsorted(own, at_s))
        high = max(high, float(own[min(begin + count, own.size) - 1]))
        low = min(low, float(own[max(min(begin, own.size - count), 0)]), at_s)
    return Outage(at_s=at_s, until_s=at_s + lasts_s, window_s=(low, math.nextafter(high, math.inf)))


def _busiest_start(start: Floats, width_s: float) -> float:
    """Return the start of the stretch of this length in which most requests start, s."""
    ends = np.searchsorted(start, start + width_s)
    inside = start + width_s <= start[-1]
    counts = np.where(inside, ends - np.arange(start.size), 0)
    return float(start[int(counts.argmax())])


def broken_by(runs: Sequence[RunResult], outages: Sequence[Outage]) -> list[Reason]:
    """Return the promises that surely break in the judged parts of the runs, taken together."""
    parts = [windowed(run, *one.window_s) for run, one in zip(runs, outages, strict=True)]
    where = f"from {outages[0].window_s[0]:.4g} to {outages[0].window_s[1]:.4g} s, the loss at "
    where += f"{outages[0].at_s:.4g} s"
    return [
        replace(reason, evidence=f"{reason.evidence} ({where})")
        for reason in judge(parts).reasons
        if reason.outcome == "fail" and reason.rule in {*SHARES, *LATENCIES}
    ]


def recovery_s(
    lossy: Sequence[pd.DataFrame],
    whole: Sequence[pd.DataFrame],
    outages: Sequence[Outage],
    *,
    allowed: float = 0.0,
) -> float:
    """Return how long after the loss too many requests miss a promise, s.

    ``lossy`` and ``whole`` hold the pool's requests with and without the loss; of several runs the
    longest counts. Too many: surely more than without the loss and than the share ``allowed`` by
    the promises. 0 = never; NaN = still so when the watch ends, ``WATCHED`` outages after the loss,
    or not known.
    """
    found = []
    for with_it, without, outage in zip(lossy, whole, outages, strict=True):
        last = float(with_it["intended_start_s"].max())
        end = min(outage.at_s + WATCHED * (outage.until_s - outage.at_s), last)
        watched = [t[t["intended_start_s"].between(outage.at_s, end)] for t in (with_it, without)]
        table, usual = (part.assign(success=part["good"] == 1.0) for part in watched)
        if any(part.empty or part["good"].isna().any() for part in watched):
            return math.nan
        share = 1.0 - float(usual["success"].mean())
        end = math.nextafter(end, math.inf)
        found.append(errors_back(table, outage.at_s, end, usual=max(share, allowed)))
    return math.nan if any(map(math.isnan, found)) else max(found)


def missed(
    tables: Iterable[pd.DataFrame], outages: Iterable[Outage], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return, for each class, the requests of the judged parts, and how many missed a promise.

    Keys of a class: offered, missed, rejected, timed_out, failed.
    """
    parts = [
        table[table["intended_start_s"].between(*one.window_s)]
        for table, one in zip(tables, outages, strict=True)
    ]
    found = {}
    for name in names:
        own = [part[part["request_class"] == name] for part in parts]
        ended = {
            outcome: sum(int((part["outcome"] == outcome).sum()) for part in own)
            for outcome in ("rejected", "timed_out", "failed")
        }
        missing = sum(int((part["good"] == 0).sum()) for part in own)
        found[name] = {"offered": sum(map(len, own)), "missed": missing, **ended}
    return found
