"""A surge of the load and its runs: whether the service comes back, when, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.formatting import counted
from capplan.widgets.protection import ProtectiveActions, protected

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.stages.run_load import Loads
    from capplan.traffic.trace import Trace

SHOWN_REQUESTS = 1500
"""Requests that are simulated anew for each choice, at the strength that the page opens with."""
BEFORE, AFTER, LATER = 3, 9, 1
"""How long the usual load lasts before the surge and after it, in lengths of the surge; and how
long it goes on, unjudged, so that the last requests meet the same load to their end."""
LONGEST_S = 30.0
"""Longest surge, s."""
WINDOWS = 3
"""Windows that a surge is drawn in."""
MOST_POINTS = 400
"""Points of a queue's line; of those between, the highest is drawn."""
AS_IS = ProtectiveActions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """The usual load, for a short time a multiple of the planned peak, and the usual load again."""

    usual_rps: float
    peak_rps: float
    length_s: float

    @property
    def times_s(self) -> tuple[float, float]:
        """Return when it begins and ends, s."""
        return BEFORE * self.length_s, (BEFORE + 1) * self.length_s

    @property
    def judged_s(self) -> float:
        """Return until when requests are judged, s."""
        return (BEFORE + 1 + AFTER) * self.length_s

    def scenario(self, scenario: Scenario, strength: float) -> Scenario:
        """Return the scenario under a surge of that many planned peaks, without other faults."""
        from capplan.stages.run_load import in_sequence, steady, under_load

        lengths = (BEFORE, 1, AFTER + LATER)
        rates = (self.usual_rps, strength * self.peak_rps, self.usual_rps)
        parts = [(steady(r), n * self.length_s) for r, n in zip(rates, lengths, strict=True)]
        duration_s = sum(lengths) * self.length_s
        return under_load(scenario, in_sequence(*parts), duration_s=duration_s)


def no_surge(scenario: Scenario, loads: Loads) -> str | None:
    """Return why a scenario can have no surge; None if it can."""
    shape = scenario.traffic.shape
    if shape.kind == "closed":
        return (
            f"The {counted(shape.users, 'user')} of the closed loop wait for their answers before "
            "they send again: a slow service gets less load, so no surge exceeds what it "
            "serves."
        )
    for planned, rate_rps in (("load", loads.planned_rps), ("peak", loads.peak_rps)):
        if not (math.isfinite(rate_rps) and rate_rps > 0):
            return (
                f"The planned {planned} is unknown, so there is nothing that a surge could exceed."
            )
    return None


def surge_of(loads: Loads, *, strength: float) -> Surge:
    """Return the surge that takes about :data:`SHOWN_REQUESTS` at a strength.

    Raises
    ------
    ValueError
        For a strength that is not positive.
    """
    if not strength > 0:
        msg = f"the strength of a surge must be positive, got {strength}"
        raise ValueError(msg)
    per_s = (BEFORE + AFTER + LATER) * loads.planned_rps + strength * loads.peak_rps
    length_s = min(SHOWN_REQUESTS / per_s, LONGEST_S)
    places = 1 - math.floor(math.log10(length_s))
    length_s = round(length_s, places)
    return Surge(usual_rps=loads.planned_rps, peak_rps=loads.peak_rps, length_s=length_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What a surge did: shares of good requests, when the service was back, and what it cost.

    ``back_s`` counts from the end of the surge: 0 = good again at once, inf = not within the time
    shown, NaN = unknown, as every figure that was not measured.
    """

    good_before_fraction: float
    good_surge_fraction: float
    good_after_fraction: float
    back_s: float
    attempts_per_request: float
    wasted_tokens: float
    wasted_token_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overload:
    """One run of a surge: its figures, its flows over time, and its queues over time by layer."""

    aftermath: Aftermath
    flows: pd.DataFrame
    queues: Mapping[str, pd.DataFrame]

    def longest(self, layer: str) -> float:
        """Return the most requests that wait in a layer at once; NaN for a layer without queue."""
        return float(self.queues[layer]["value"].max()) if layer in self.queues else math.nan


@dataclass(slots=True, kw_only=True, eq=False)
class SurgeRuns:
    """A service under a surge; each strength is drawn once, and each choice under it runs once."""

    scenario: Scenario
    surge: Surge
    seed: int = 0
    base: Trace | None = None
    drawn: dict[float, tuple[Scenario, Trace]] = field(default_factory=dict)
    runs: dict[tuple[float, ProtectiveActions], Overload] = field(default_factory=dict)

    def run(self, strength: float, choice: ProtectiveActions = AS_IS) -> Overload:
        """Return what a surge of a strength does under a choice, on the same requests each time."""
        from capplan.traffic.draw import draw
        from capplan.traffic.sample import base_trace

        if self.base is None:
            self.base = base_trace(self.scenario.traffic)
        if strength not in self.drawn:
            surged = self.surge.scenario(self.scenario, strength)
            self.drawn[strength] = surged, draw(surged, seed=self.seed, base=self.base)
        if (strength, choice) not in self.runs:
            surged, trace = self.drawn[strength]
            changed = protected(surged, choice)
            self.runs[strength, choice] = overloaded(self.surge, changed, trace, seed=self.seed)
        return self.runs[strength, choice]


def overloaded(surge: Surge, scenario: Scenario, trace: Trace, *, seed: int = 0) -> Overload:
    """Return what a surge, drawn as ``trace``, does to a scenario that has its shape."""
    from capplan.results import per_request
    from capplan.simulation import simulate

    result = simulate(scenario, trace=trace, seed=seed)
    table = per_request(result)
    return Overload(
        aftermath=_aftermath(surge, result, table),
        flows=_flows(surge, result, table),
        queues=dict(_queues(surge, result)),
    )


def _aftermath(surge: Surge, result: RunResult, table: pd.DataFrame) -> Aftermath:
    from capplan.results.headline import wasted_token_fraction

    begin, end = surge.times_s
    start = table["intended_start_s"]
    usual, during = table[start < begin], table[(start >= begin) & (start < end)]
    after = table[(start >= end) & (start < surge.judged_s)]
    since = table.loc[(start >= begin) & (start < surge.judged_s)]
    attempts = result.requests[result.requests["request_id"].isin(since["request_id"])]
    return Aftermath(
        good_before_fraction=_good(usual),
        good_surge_fraction=_good(during),
        good_after_fraction=_good(after),
        back_s=_back(surge, usual, after),
        attempts_per_request=float(since["attempts"].mean()),
        wasted_tokens=float(since["wasted_tokens"].sum(skipna=False)),
        wasted_token_fraction=wasted_token_fraction(attempts),
    )


def _good(table: pd.DataFrame) -> float:
    return float(table["good"].mean(skipna=False)) if len(table) else math.nan


def _back(surge: Surge, usual: pd.DataFrame, after: pd.DataFrame) -> float:
    """Return when requests were as good as before the surge, from its end; see ``Aftermath``.

    They are not in a part of the time whose share of failures is surely above the upper end of
    what it may have been before.
    """
    from capplan.stages.recovery import errors_back
    from capplan.statistics import share_interval

    good = usual["good"].to_numpy(np.float64)
    if not good.size or np.isnan(good).any() or after["good"].isna().any() or after.empty:
        return math.nan
    bad = share_interval(int(good.size - good.sum()), good.size).high
    table = after.assign(success=after["good"].astype(bool))
    found = errors_back(table, surge.times_s[1], surge.judged_s, usual=bad)
    return math.inf if math.isnan(found) else found


def _flows(surge: Surge, result: RunResult, table: pd.DataFrame) -> pd.DataFrame:
    """Return rates by window of the start of a request or attempt: time_s, figure, flow_rps."""
    width = surge.length_s / WINDOWS
    edges = np.arange((BEFORE + 1 + AFTER) * WINDOWS + 1) * width
    start = table["intended_start_s"].to_numpy(np.float64)
    tried = result.requests["intended_start_s"].to_numpy(np.float64)
    good = table["good"].to_numpy(np.float64)
    counts = {
        "attempts": np.histogram(tried, edges)[0],
        "offered": np.histogram(start, edges)[0],
        "goodput": np.histogram(start, edges, weights=good)[0],
    }
    parts = [
        pd.DataFrame({"time_s": edges[:-1], "figure": figure, "flow_rps": found / width})
        for figure, found in counts.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _queues(surge: Surge, result: RunResult) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each layer with the number waiting in it over time, summed over its replicas."""
    rows = result.timeline
    rows = rows[(rows["metric"] == "length") & (rows["time_s"] <= surge.judged_s)]
    for layer, own in rows.dropna(subset="value").groupby("layer", observed=True, sort=False):
        waiting = own.groupby("time_s", as_index=False)["value"].sum()
        some = waiting.groupby(waiting.index // math.ceil(len(waiting) / MOST_POINTS))
        yield (
            str(layer),
            pd.DataFrame({"time_s": some["time_s"].min(), "value": some["value"].max()}),
        )
