"""The loads of the stages: what is planned, what the pools can serve, where the ramp starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.budget import allocate
from capplan.traffic.draw import draw

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

PEAK_S = 60.0
START_RPS = 10.0
START_FRACTION = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Rates that the stages are run at, requests/s, and where each comes from."""

    planned_rps: float
    peak_rps: float
    estimate_rps: float
    """Load at which the first pool is full, by the wait budget's drain rates; NaN unknown."""
    start_rps: float
    share: dict[str, float]
    """Share of each class of all requests."""
    evidence: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the loads as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def loads_of(scenario: Scenario, *, seed: int = 0) -> Loads:
    """Return the loads of a scenario's stages; its plan stands before what is derived."""
    plan = scenario.stages
    trace = draw(scenario, seed=seed)
    mean, peak = rates(trace)
    share = trace.frame["request_class"].value_counts(normalize=True).to_dict()
    estimate = estimate_rps(scenario, trace)
    start = START_RPS if math.isnan(estimate) else START_FRACTION * estimate
    told = "its plan"
    return Loads(
        planned_rps=plan.planned_rps or mean,
        peak_rps=plan.peak_rps or max(peak, plan.planned_rps or mean),
        estimate_rps=estimate,
        start_rps=plan.start_rps or start,
        share={str(name): float(value) for name, value in share.items()},
        evidence={
            "planned_rps": told if plan.planned_rps else "mean of the scenario's traffic",
            "peak_rps": told if plan.peak_rps else f"busiest {PEAK_S:g} s of the same",
            "start_rps": told
            if plan.start_rps
            else "20 % of the estimate"
            if not math.isnan(estimate)
            else "the default without an estimate",
            "estimate_rps": "drain rates of the wait budget, at the mix of the traffic",
        },
    )


def rates(trace: Trace) -> tuple[float, float]:
    """Return the mean rate of a trace and that of its busiest minute, requests/s."""
    arrival = trace.frame["arrival_s"].to_numpy(np.float64)
    last = float(arrival[-1])
    span = max(trace.duration_s or last, last)
    if span <= 0:
        return float(len(arrival)), float(len(arrival))
    width = min(PEAK_S, span)
    counts = np.bincount((arrival // width).astype(np.int64))[: max(int(span // width), 1)]
    return len(arrival) / span, float(counts.max()) / width


def estimate_rps(scenario: Scenario, trace: Trace) -> float:
    """Return the load at which the first pool is full; NaN where the budget knows no drain rate.

    A pool is full when its classes arrive at the sum of their drain rates; all classes keep their
    share of the load.
    """
    budget = allocate(scenario, trace=trace)
    total = sum(c.rate_rps for c in budget.classes)
    found = []
    for pool in scenario.pools:
        own = [c for c in budget.classes if c.pool == pool.name]
        drain, rate = sum(c.drain_rps for c in own), sum(c.rate_rps for c in own)
        if drain > 0 and rate > 0:
            found.append(drain * total / rate)
    return min(found, default=math.nan)
