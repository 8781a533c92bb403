"""The single next change: the crossed limit moved, at the same load, on the same requests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.slo import Reason, worst
from capplan.stages.breaks import broken
from capplan.stages.playing import step
from capplan.stages.rules import amplification, starves
from capplan.statistics import quantile, share_interval

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.slo import Outcome
    from capplan.stages.degradation import Degradation
    from capplan.stages.limits import Limit
    from capplan.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """The first degradation's load again, with one field changed."""

    limit: Limit
    before: Stage
    after: Stage | None
    """None where the change makes no scenario; ``reasons`` says why."""
    reasons: tuple[Reason, ...]

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the rules."""
        return worst(r.outcome for r in self.reasons)

    def to_json(self) -> dict[str, Any]:
        """Return the candidate as plain values."""
        return {
            "change": self.limit.to_json(),
            "load_rps": self.before.load_rps,
            "baseline_run_id": self.before.run_id,
            "stage": None if self.after is None else self.after.to_json(),
            "verdict": {
                "outcome": self.outcome,
                "reasons": [r.to_json() for r in self.reasons],
            },
        }


def run_next(scenario: Scenario, point: Degradation, *, seed: int) -> Candidate:
    """Return the load at which a promise first broke, run with the crossed limit moved."""
    limit, before = point.limit, point.stage
    try:
        changed = with_values(scenario, {limit.field: limit.candidate})
        after, _ = step(
            changed,
            before.load_rps,
            before_rps=before.load_rps / scenario.stages.factor,
            name="next",
            kind="next",
            seed=seed,
        )
    except DataError as err:
        return Candidate(limit=limit, before=before, after=None, reasons=(_infeasible(err),))
    reasons = tuple(_compared(scenario, point, after))
    return Candidate(limit=limit, before=before, after=after, reasons=reasons)


def _infeasible(err: DataError) -> Reason:
    return Reason(
        rule="candidate_runs",
        outcome="fail",
        value=None,
        limit=None,
        evidence=str(err),
        next_action="move another field of the same layer",
    )


def _compared(scenario: Scenario, point: Degradation, after: Stage) -> Iterator[Reason]:
    """Yield the rules on a change: it mends, costs nobody else, and is no mere purchase."""
    mended = _share(after.table, point, scenario)
    was = point.found.share.value if point.found else math.nan
    allowed = point.found.allowed_fraction if point.found else 0.0
    better = not after.broken if point.found is None else mended < was
    held = not after.broken if point.found is None else mended <= allowed
    yield _reason(
        "promise_mended",
        held,
        value=mended,
        limit=allowed,
        evidence=f"{point.request_class} {point.promise}: {was:.2%} broke it, {mended:.2%} after "
        f"{point.limit.field} = {point.limit.candidate:g} (runs {point.stage.run_id}, "
        f"{after.run_id})",
        action="move the limit further, or look at what breaks now",
    )
    worse = list(_worse(scenario, point.stage.table, after.table))
    told = ", ".join(worse) or "nothing got worse"
    yield _reason(
        "tail_better_at_a_price",
        not (better and worse),
        value=len(worse),
        limit=0.0,
        evidence=told,
        action="reallocate the budget: what one layer gains another pays for",
    )
    bought = after.throughput_rps > point.stage.throughput_rps and not better
    yield _reason(
        "throughput_bought",
        not bought,
        value=after.throughput_rps,
        limit=point.stage.throughput_rps,
        evidence=f"throughput {point.stage.throughput_rps:.4g} to {after.throughput_rps:.4g}/s, "
        f"the broken promise {'better' if better else 'no better'}",
        action="revert it, or split the queue",
    )
    only_capacity = point.limit.field.endswith(".replicas")
    yield _reason(
        "more_than_new_accelerators",
        not (only_capacity and held),
        value=point.limit.field,
        limit=None,
        evidence="only more accelerators mend it: that is no protective action"
        if only_capacity
        else f"{point.limit.field} is a limit, not capacity",
        action="beside the replicas, set the limit that refuses what they cannot serve",
    )


def _share(table: pd.DataFrame, point: Degradation, scenario: Scenario) -> float:
    if point.found is None:
        return math.nan
    own = table[table["request_class"] == point.request_class]
    promises = scenario.request_class(point.request_class).promises
    return broken(own, promises, point.promise).share.value


def _worse(scenario: Scenario, before: pd.DataFrame, after: pd.DataFrame) -> Iterator[str]:
    """Yield what surely got worse: errors, retries, the starvation of a class."""
    for outcome in ("rejected", "failed", "timed_out"):
        was = float((before["outcome"] == outcome).mean())
        now = share_interval(int((after["outcome"] == outcome).sum()), len(after))
        if now.low > was:
            yield f"{outcome}: {was:.2%} to {now.value:.2%}"
    was, now_retries = amplification(before), amplification(after)
    if now_retries > 1.01 * was:
        yield f"attempts a request: {was:.3f} to {now_retries:.3f}"
    names = [c.name for c in scenario.classes]
    for low in names:
        for high in names:
            if low != high and starves(after, low, high) and not starves(before, low, high):
                yield f"{low} starves"
    for name in names:
        tails = [
            quantile(t.loc[t["request_class"] == name, "e2e_censored_s"], 0.5)
            for t in (before, after)
        ]
        if tails[1] > 1.2 * tails[0]:
            yield f"median E2E of {name}: {tails[0]:.3g} to {tails[1]:.3g} s"


def _reason(
    rule: str,
    held: bool,
    *,
    value: float | str,
    limit: float | None,
    evidence: str,
    action: str,
) -> Reason:
    return Reason(
        rule=rule,
        outcome="pass" if held else "fail",
        value=value,
        limit=limit,
        evidence=evidence,
        next_action="" if held else action,
    )
