"""What several ramps over other requests find together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.stages.degradation import degradation_of
from capplan.stages.knee import knee_of
from capplan.stages.ramp import Found, LoadRamp, ramp_of
from capplan.statistics import replication_mean
from capplan.traffic.streams import stream
from capplan.workers import worker_pool

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.degradation import Degradation
    from capplan.stages.knee import Knee
    from capplan.stages.run_load import Loads
    from capplan.stages.stage import Stage

BOOTSTRAP = 20
"""Random stream of the resampled curves; draws of traffic and simulation use those below."""
METHOD = (
    "Student's t over independent replications of the ramp, widened to the mean of their own "
    "intervals: between two steps nothing was measured"
)
Given = tuple["Scenario", "Stage | None", "Loads", int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What one ramp found; ``runs`` are its steps' run ids, by load."""

    replication: int
    knees: Mapping[str, Found]
    """By pool."""
    first_degradation: Found
    crossed: str
    """Class, promise and layer of the first degradation; empty if nothing broke."""
    acceptable: Mapping[str, Found]
    """By class."""
    runs: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replications:
    """What several ramps found together."""

    each: tuple[Replication, ...]

    def knee(self, pool: str) -> Mapping[str, Any]:
        """Return the knee of a pool over the replications."""
        return together([r.knees[pool] for r in self.each])

    @property
    def first_degradation(self) -> Mapping[str, Any]:
        """Return the load of the first degradation over the replications."""
        return together([r.first_degradation for r in self.each])

    def acceptable(self, request_class: str) -> Mapping[str, Any]:
        """Return the acceptable load of a class over the replications."""
        return together([r.acceptable[request_class] for r in self.each])

    def to_json(self) -> dict[str, Any]:
        """Return the replications as plain values."""
        one = self.each[0]
        return {
            "count": len(self.each),
            "method": METHOD,
            "knees": {pool: self.knee(pool) for pool in one.knees},
            "first_degradation": {
                **self.first_degradation,
                "crossed": [r.crossed for r in self.each],
            },
            "acceptable_load": {name: self.acceptable(name) for name in one.acceptable},
            "runs": [{"replication": r.replication, "loads_rps": dict(r.runs)} for r in self.each],
        }


def together(found: Sequence[Found]) -> dict[str, Any]:
    """Return the mean of some loads and the interval of it, of those that found one.

    >>> together([Found(load_rps=r, low_rps=r - 1, high_rps=r + 1) for r in (10.0, 10.0)])
    {'mean_rps': 10.0, 'interval': [9.0, 11.0], 'loads_rps': [10.0, 10.0], 'found': 2}
    """
    known = [f for f in found if math.isfinite(f.load_rps)]
    loads = [f.load_rps for f in found]
    if not known:
        return {
            "mean_rps": math.nan, "interval": [math.nan, math.nan], "loads_rps": loads, "found": 0,
        }  # fmt: skip
    mean = replication_mean([f.load_rps for f in known])
    lows, highs = np.array([[f.low_rps, f.high_rps] for f in known]).T
    low = min(mean.low, float(lows.mean())) if not np.isnan(lows).any() else math.nan
    return {
        "mean_rps": mean.value,
        "interval": [
            low if math.isnan(low) else max(low, 0.0),
            max(mean.high, float(highs.mean())),
        ],
        "loads_rps": loads,
        "found": len(known),
    }


def knees_of(
    scenario: Scenario, ramp: LoadRamp, *, seed: int, replication: int = 0
) -> tuple[Knee, ...]:
    """Return the knee of each pool on the curve of a ramp."""
    return tuple(
        knee_of(ramp.steps, pool, rng=stream(seed, index, BOOTSTRAP + replication))
        for index, pool in enumerate(scenario.pools)
    )


def replication_of(
    scenario: Scenario,
    ramp: LoadRamp,
    knees: Sequence[Knee],
    point: Degradation | None,
    *,
    replication: int = 0,
) -> Replication:
    """Return what one ramp found."""
    return Replication(
        replication=replication,
        knees={k.pool: Found.of(k) for k in knees},
        first_degradation=Found.of(point),
        crossed=f"{point.request_class} {point.promise} in {point.layer}" if point else "",
        acceptable={c.name: ramp.acceptable(c.name) for c in scenario.classes},
        runs={s.run_id: s.load_rps for s in ramp.steps},
    )


def further(
    scenario: Scenario, baseline: Stage | None, *, loads: Loads, seed: int, jobs: int
) -> tuple[Replication, ...]:
    """Return what the ramps of the plan's further replications find, in ``jobs`` processes."""
    numbers = range(1, scenario.stages.replications)
    given: list[Given] = [(scenario, baseline, loads, seed, n) for n in numbers]
    workers = min(jobs, len(given))
    if workers <= 1:
        return tuple(map(_replicate, given))
    with worker_pool(workers) as pool:
        return tuple(pool.map(_replicate, given))


def _replicate(given: Given) -> Replication:
    scenario, baseline, loads, seed, number = given
    ramp = ramp_of(scenario, loads, seed=seed, replication=number)
    knees = knees_of(scenario, ramp, seed=seed, replication=number)
    point = degradation_of(ramp.steps, baseline, counted=True)
    return replication_of(scenario, ramp, knees, point, replication=number)
