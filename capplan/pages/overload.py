"""A short overload: whether the service refuses what it cannot serve, and whether it recovers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.pages.loads import busiest
from capplan.pages.telling import told

if TYPE_CHECKING:
    from capplan.pages.page import Page
    from capplan.results import RunResult
    from capplan.traffic.trace import Trace

QUEUES = ("gateway", "service_queue", "scheduler_queue")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overload:
    """A run with a stretch of overload in its middle third."""

    result: RunResult
    requests: pd.DataFrame
    begin_s: float
    end_s: float
    factor: float

    @property
    def window_s(self) -> float:
        """Return a window that cuts the run into about sixty, s."""
        return max(1.0, round(float(self.requests["intended_start_s"].max()) / 60))

    @property
    def recovery_s(self) -> float:
        """Return how long after the overload the last request failed that started after it, s.

        0 where none did; NaN where the last requests of the run still fail.
        """
        late = self.requests[self.requests["intended_start_s"] > self.end_s]
        bad = late["outcome"] != "succeeded"
        if late.empty or bad.iloc[-1]:
            return float("nan")
        return float(late.loc[bad, "intended_start_s"].max() - self.end_s) if bad.any() else 0.0

    @property
    def queues_empty_s(self) -> float:
        """Return how long after the overload the queues were all empty again; NaN if never, s."""
        rows = self.result.timeline
        rows = rows[(rows["metric"] == "length") & rows["layer"].isin(QUEUES)]
        waiting = rows.groupby("time_s")["value"].sum()
        empty = waiting.index[(waiting.index >= self.end_s) & (waiting == 0)]
        return float(empty[0] - self.end_s) if len(empty) else float("nan")

    def shares(self) -> dict[str, float]:
        """Return the share of requests that kept every promise before, during and after."""
        start = self.requests["intended_start_s"]
        parts = {
            "before": start < self.begin_s,
            "during": (start >= self.begin_s) & (start <= self.end_s),
            "after": start > self.end_s,
        }
        return {name: float(self.requests.loc[m, "good"].mean()) for name, m in parts.items()}

    def actions(self) -> pd.DataFrame:
        """Return which layer ended how many requests, and how."""
        bad = self.requests[self.requests["outcome"] != "succeeded"]
        counts = bad.groupby(["outcome_layer", "outcome", "reason"], observed=True, dropna=False)
        return counts.size().rename("requests").reset_index()

    def said(self) -> str:
        """Return what the overload did, in a sentence."""
        shares = self.shares()
        return (
            f"While {told(self.factor)} times the load arrived, for "
            f"{told(self.end_s - self.begin_s, '_s')}, {told(shares['during'], '_fraction')} of "
            f"the requests kept every promise (before: {told(shares['before'], '_fraction')}, "
            f"after: {told(shares['after'], '_fraction')}). The queues were empty "
            f"{told(self.queues_empty_s, '_s')} after it; the last failure of a later request came "
            f"{told(self.recovery_s, '_s')} after it."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the overload as an artefact."""
        return {
            "factor": self.factor,
            "begin_s": self.begin_s,
            "end_s": self.end_s,
            "good_fraction": self.shares(),
            "recovery": {
                "queues_empty_s": self.queues_empty_s,
                "error_rate_back_s": self.recovery_s,
            },
            "protective_actions": self.actions().to_dict("records"),
        }


def overloaded(page: Page, *, requests: int, factor: float) -> Overload:
    """Return a run in which the middle third of the requests arrives ``factor`` times as fast."""
    from capplan.results import per_request
    from capplan.scenario.files import with_values
    from capplan.simulation import simulate

    trace, begin, end = with_overload(busiest(page.draw(), requests), factor)
    scenario = with_values(page.scenario, {"warmup_s": 0.0})
    result = simulate(scenario, trace=trace, seed=page.seed)
    return Overload(
        result=result, requests=per_request(result), begin_s=begin, end_s=end, factor=factor
    )


def with_overload(trace: Trace, factor: float) -> tuple[Trace, float, float]:
    """Return the trace with the gaps of its middle third divided, and when that begins and ends."""
    if factor <= 0:
        msg = f"the overload factor must be positive, got {factor}"
        raise ValueError(msg)
    arrival = trace.frame["arrival_s"].to_numpy(np.float64)
    first, last = len(arrival) // 3, 2 * len(arrival) // 3
    gaps = np.diff(arrival, prepend=0.0)
    gaps[first:last] /= factor
    moments = np.cumsum(gaps)
    frame = trace.frame.assign(arrival_s=moments)
    changed = replace(trace, frame=frame, duration_s=float(moments[-1]))
    return changed, float(moments[first]), float(moments[max(first, last - 1)])
