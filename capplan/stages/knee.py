"""The knee of a pool: the load at which throughput divided by latency is greatest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.results.cost import served_by
from capplan.results.requests import outcome_is
from capplan.stages.violations import MOST_IDS
from capplan.statistics import in_batches

if TYPE_CHECKING:
    from capplan.scenario.pools import Pool
    from capplan.stages.stage import Stage

Floats = npt.NDArray[np.float64]

BATCHES = 20
RESAMPLES = 500
FEWEST_STEPS = 4
FEWEST = 100
"""Successes of a step below which its batch means say nothing."""
NEAR = 0.8
"""Part of the greatest power above which steps belong to the parabola through its top. By trial on
M/M/c of 1, 8 and 64 servers: its 95 % intervals hold the true knee in 95 % of 60 seeds each; wider
parts (0.5, 0.7) in 80 to 92 %."""
METHOD = "load of the greatest power: successes per second over their mean E2E"
SOURCE = (
    'Kleinrock, "Power and Deterministic Rules of Thumb for Probabilistic Problems in Computer '
    'Communications", ICC 1979; Millsap, "Thinking Clearly about Performance", ACM Queue 8(9), '
    "2010 (M/M/1: half the capacity, M/M/8: 74 %); interval: bootstrap over batch means, at "
    "least half way to the neighbouring steps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where mean latency begins to rise in greater proportion than the load; NaN if nowhere.

    It does not depend on where the ramp begins or ends, as long as the knee lies between.
    """

    pool: str
    load_rps: float
    low_rps: float
    high_rps: float
    found_fraction: float
    """Share of the resampled curves that have a knee."""
    steps: int
    run_id: str | None = None
    """Run of the step nearest to the knee."""
    span_s: tuple[float, float] = (math.nan, math.nan)
    """Window of that step, s."""
    request_ids: tuple[str, ...] = ()
    """Its slowest successes of the pool, which carry the rise."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the knee as plain values."""
        return {
            "load_rps": self.load_rps,
            "interval": [self.low_rps, self.high_rps],
            "pool": self.pool,
            "run_id": self.run_id,
            "span_s": list(self.span_s),
            "request_ids": list(self.request_ids),
            "found_fraction": self.found_fraction,
            "steps": self.steps,
            "reason": self.reason,
            "method": METHOD,
            "source": SOURCE,
        }


def knee_of(steps: Sequence[Stage], pool: Pool, *, rng: np.random.Generator) -> Knee:
    """Return the knee of a pool on a ramp, with its 95 % interval.

    Steps that do not count, or where the client was the limit, are left out.
    """
    points, loads, table = _measured(steps, pool)
    if len(points) < FEWEST_STEPS:
        why = f"{len(points)} of {FEWEST_STEPS} steps that are needed count"
        return _none(pool, len(points), why)
    at, low, high, share = knee_interval(loads, table, rng=rng)
    if math.isnan(at):
        rises = int(np.argmax(_power(loads, table.sum(axis=1)))) > 0
        why = "latency rises no faster than the load up to the highest step"
        why = why if rises else "latency rises faster than the load from the lowest step on"
        return _none(pool, len(points), why, share)
    nearest = points[int(np.argmin(np.abs(loads - at)))]
    own = _successes(nearest, pool).nlargest(MOST_IDS, "e2e_s")
    return Knee(
        pool=pool.name,
        load_rps=at,
        low_rps=low,
        high_rps=high,
        found_fraction=share,
        steps=len(points),
        run_id=nearest.run_id,
        span_s=(nearest.start_s, nearest.end_s),
        request_ids=tuple(map(str, own["request_id"])),
    )


def loads_beside_knee(steps: Sequence[Stage], pool: Pool, *, ratio: float) -> list[float]:
    """Return loads to measure between the knee's step and its neighbours farther than ``ratio``."""
    points, loads, table = _measured(steps, pool)
    if len(points) < FEWEST_STEPS:
        return []
    at = knee_at(loads, _power(loads, table.sum(axis=1)))
    if math.isnan(at):
        return []
    nearest = int(np.argmin(np.abs(loads - at)))
    around = loads[max(nearest - 1, 0) : nearest + 2]
    return [math.sqrt(a * b) for a, b in pairwise(around) if b > a * ratio * (1 + 1e-9)]


def lies_beyond(steps: Sequence[Stage], pool: Pool) -> bool:
    """Return whether a pool's power still rises at the highest load that was measured."""
    points, loads, table = _measured(steps, pool)
    if len(points) < FEWEST_STEPS:
        return False
    return int(np.argmax(_power(loads, table.sum(axis=1)))) == len(points) - 1


def knee_interval(
    loads: Floats, table: Floats, *, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    """Return the knee, the ends of its 95 % interval, and the share of curves that have one.

    ``table`` has for each load and batch the requests, the successes and their summed latency, s.
    Curves are resampled by drawing each load's batches with replacement; one whose power is
    greatest at an end of the ramp counts as that load. Between two loads nothing was measured, so
    the interval reaches half way to the neighbours of the nearest load.
    """
    at = knee_at(loads, _power(loads, table.sum(axis=1)))
    steps, batches, _ = table.shape
    picks = rng.integers(batches, size=(RESAMPLES, steps, batches, 1))
    sums = np.take_along_axis(table[None], picks, axis=2).sum(axis=2)
    curves = [_power(loads, one) for one in sums]
    found = np.array([knee_at(loads, one) for one in curves])
    share = float(np.isfinite(found).mean())
    found = np.where(np.isnan(found), loads[np.argmax(curves, axis=1)], found)
    if math.isnan(at):
        return math.nan, math.nan, math.nan, share
    nearest = int(np.argmin(np.abs(loads - at)))
    middle = (loads[:-1] + loads[1:]) / 2
    low, high = np.quantile(found, [0.025, 0.975])
    low = min(low, at, *middle[max(nearest - 1, 0) : nearest])
    high = max(high, at, *middle[nearest : nearest + 1])
    return at, float(low), float(high), share


def knee_at(loads: Floats, power: Floats) -> float:
    """Return the load of the greatest power; NaN if it is the lowest or the highest load.

    It is the top of the parabola through the loads around the greatest whose power is near it;
    for M/M/1 power is a parabola, λ (μ - λ).

    >>> load = np.arange(1.0, 10.0)
    >>> round(knee_at(load, load * (10 - load)), 6), knee_at(load, load)
    (5.0, nan)
    """
    top = int(np.argmax(power))
    if top in (0, len(power) - 1):
        return math.nan
    far = power < NEAR * power[top]
    low = int(np.flatnonzero(far[:top])[-1]) + 1 if far[:top].any() else 0
    high = top + int(np.flatnonzero(far[top:])[0]) if far[top:].any() else len(power)
    low, high = min(low, top - 1), max(high, top + 2)
    curve, slope, _ = np.polyfit(loads[low:high], power[low:high], 2)
    if curve >= 0:
        return float(loads[top])
    return float(np.clip(-slope / (2 * curve), loads[low], loads[high - 1]))


def _power(loads: Floats, sums: Floats) -> Floats:
    """Return throughput over mean latency, of requests, successes and summed latency."""
    requests, successes, latency_s = sums.T
    rates = loads * successes**2 / requests
    power: Floats = np.divide(rates, latency_s, out=np.zeros_like(rates), where=latency_s > 0)
    return power


def _measured(steps: Sequence[Stage], pool: Pool) -> tuple[list[Stage], Floats, Floats]:
    """Return the steps with enough successes, their loads, and the table of their batches."""
    points = [s for s in steps if s.counts and len(_successes(s, pool)) >= FEWEST]
    loads = np.array([s.load_rps for s in points])
    return points, loads, np.array([_batches(s, pool) for s in points])


def _batches(stage: Stage, pool: Pool) -> Floats:
    own = stage.of(served_by(stage.scenario, pool))
    good = outcome_is(own, "succeeded")
    latency_s = np.where(good, own["e2e_s"], 0.0)
    columns = (np.ones(len(own)), np.asarray(good, np.float64), latency_s)
    return np.column_stack([in_batches(column, BATCHES) for column in columns])


def _successes(stage: Stage, pool: Pool) -> Any:
    own = stage.of(served_by(stage.scenario, pool))
    return own[outcome_is(own, "succeeded")]


def _none(pool: Pool, steps: int, reason: str, share: float = math.nan) -> Knee:
    return Knee(
        pool=pool.name,
        load_rps=math.nan,
        low_rps=math.nan,
        high_rps=math.nan,
        found_fraction=share,
        steps=steps,
        reason=reason,
    )
