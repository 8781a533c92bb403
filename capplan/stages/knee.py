"""The knee of the throughput–latency curve, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.results.cost import served_by
from capplan.results.requests import outcome_is

if TYPE_CHECKING:
    from capplan.scenario.pools import Pool
    from capplan.stages.stage import Stage

Floats = npt.NDArray[np.float64]

BATCHES = 20
RESAMPLES = 1000
FEWEST_STEPS = 4
FEWEST = 100
"""Successes of a step below which its batch means say nothing."""
SOURCE = (
    'Satopää, Albrecht, Irwin and Raghavan, "Finding a Kneedle in a Haystack: Detecting Knee '
    'Points in System Behavior", ICDCS Workshops, 2011, section III; interval: bootstrap over '
    "batch means, widened to the neighbouring steps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where latency begins to rise faster than the load; NaN where the curve has no knee."""

    pool: str
    load_rps: float
    low_rps: float
    high_rps: float
    found_fraction: float
    """Share of the resampled curves that have a knee."""
    steps: int
    run_id: str | None = None
    """Run of the step at the knee."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the knee as plain values."""
        return {
            "load_rps": self.load_rps,
            "interval": [self.low_rps, self.high_rps],
            "pool": self.pool,
            "run_id": self.run_id,
            "found_fraction": self.found_fraction,
            "steps": self.steps,
            "reason": self.reason,
            "method": "Kneedle on mean E2E of successes over offered load",
            "source": SOURCE,
        }


def knee_of(steps: Sequence[Stage], pool: Pool, *, rng: np.random.Generator) -> Knee:
    """Return the knee of a pool's mean end-to-end latency over the offered load.

    Steps that do not count, or where the client was the limit, are left out. The interval holds
    95 % of the knees of resampled curves (each step's batch means drawn with replacement), widened
    to the next step on either side: between two steps nothing was measured.
    """
    points = [(s, batch) for s in steps if s.counts and (batch := _batches(s, pool)) is not None]
    if len(points) < FEWEST_STEPS:
        return _none(
            pool, len(points), f"{len(points)} of {FEWEST_STEPS} steps that are needed count"
        )
    loads = np.array([s.load_rps for s, _ in points])
    table = np.stack([batch for _, batch in points])
    at = kneedle(loads, table.mean(axis=1))
    picks = rng.integers(BATCHES, size=(RESAMPLES, len(points), BATCHES))
    means = np.take_along_axis(table[None], picks, axis=2).mean(axis=2)
    found = np.array([i for curve in means if (i := kneedle(loads, curve)) is not None])
    share = len(found) / RESAMPLES
    if at is None:
        return _none(pool, len(points), "latency rises no faster than the load", share)
    ends = np.quantile(found, [0.025, 0.975]) if len(found) else np.array([at, at])
    low = max(math.floor(min(ends[0], at)) - 1, 0)
    high = min(math.ceil(max(ends[1], at)) + 1, len(points) - 1)
    return Knee(
        pool=pool.name,
        load_rps=float(loads[at]),
        low_rps=float(loads[low]),
        high_rps=float(loads[high]),
        found_fraction=share,
        steps=len(points),
        run_id=points[at][0].run_id,
    )


def kneedle(x: Floats, y: Floats) -> int | None:
    """Return the place of the knee of a convex, rising curve; None if it has none.

    Both axes are scaled to 0..1; the knee is where the curve lies farthest below its chord, if
    that is more than the mean step of x (the method's sensitivity S = 1). Source: :data:`SOURCE`.

    >>> x = np.arange(1.0, 10.0)
    >>> kneedle(x, 1 / (10 - x)), kneedle(x, 3 * x)
    (6, None)
    """
    rise = float(y[-1] - y[0])
    if not rise > 0:
        return None
    below = (x - x[0]) / (x[-1] - x[0]) - (y - y[0]) / rise
    at = int(np.argmax(below))
    return at if below[at] > 1 / (len(x) - 1) else None


def _batches(stage: Stage, pool: Pool) -> Floats | None:
    """Return the batch means of the end-to-end latency of a pool's successes; None if too few."""
    own = stage.of(served_by(stage.scenario, pool))
    latency = own.loc[outcome_is(own, "succeeded"), "e2e_s"].to_numpy(np.float64)
    if latency.size < FEWEST:
        return None
    size = latency.size // BATCHES
    means: Floats = latency[latency.size - size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
    return means


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
