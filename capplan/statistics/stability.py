"""When a run is steady: where its start-up ends, and whether its backlog keeps growing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capplan.formatting import percent
from capplan.statistics.estimates import Estimate, replication_mean, trend

Floats = npt.NDArray[np.float64]

BATCHES = 20
FEWEST = 200
"""Arrivals below which stability is unknown: a batch would hold fewer than ten."""
TOLERANCE = 0.02
"""Growth of the backlog, as a share of the arrivals, that still counts as none."""
MATERIAL = 0.01
"""Growth, as a share of the arrivals, below which even a significant drift is no finding."""
LITTLE = 0.25
"""Departure from Little's law above which a seemingly flat backlog proves nothing."""
TRANSIENT = 0.1
"""Share of the arrivals' span left out at the start where no warm-up is stated."""
WARMUP_BATCH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """The gate's answer, ``stable`` True, False or None (not enough evidence), and its grounds.

    ``drift_fraction`` is the growth of the backlog per arrival with its interval (0.1 = one
    arrival in ten is not worked off), ``completion_ratio`` departures per arrival in the window,
    ``little_residual`` L / (λ W) - 1.
    """

    stable: bool | None
    reason: str
    drift_fraction: Estimate
    completion_ratio: float
    little_residual: float
    arrivals: int


def stability(
    arrival_s: npt.ArrayLike,
    departure_s: npt.ArrayLike,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
) -> Stability:
    """Return whether the number in the system is stationary between ``start_s`` and ``end_s``.

    ``departure_s`` pairs with ``arrival_s``; NaN = still inside. The window defaults to the span
    of the arrivals without its first tenth, so neither the fill-up nor the drain is judged.

    Unstable: the mean change of the backlog over twenty batches is above zero with 97.5 %
    confidence (for an overloaded queue the changes are independent, so Student's t holds) and the
    growth is at least 1 % of the arrivals. Stable: the trend of the batch-mean backlog, its error
    inflated for autocorrelation, is below 2 % of the arrivals with 97.5 % confidence and L = λ W
    holds within a quarter. Anything else is None.
    Sources: Little, "A Proof for the Queuing Formula L = λW", Operations Research 9, 1961; Loynes,
    "The stability of a queue with non-independent inter-arrival and service times", 1962 (a
    single queue is stable iff its mean drift is negative); the thresholds are this project's own.
    """
    arrived, left = _clean(arrival_s, departure_s)
    start, end = _window(arrived, start_s, end_s)
    inside = (arrived >= start) & (arrived <= end)
    count = int(inside.sum())
    if count < FEWEST or end <= start:
        return _unknown(f"{count} arrivals in the window, {FEWEST} needed", count)
    edges = np.linspace(start, end, BATCHES + 1)
    levels = _level(arrived, left, edges)
    changes = replication_mean(np.diff(levels) / (count / BATCHES))
    arrivals = np.arange(BATCHES) * (count / BATCHES)
    growth = trend(arrivals, _batch_levels(arrived, left, edges))
    ratio = float(((left > start) & (left <= end)).sum()) / count
    residual = _little_residual(arrived, left, inside, start, end)
    stable, reason = _decide(changes, growth, residual)
    return Stability(
        stable=stable,
        reason=reason,
        drift_fraction=changes if stable is False else growth,
        completion_ratio=ratio,
        little_residual=residual,
        arrivals=count,
    )


def _decide(changes: Estimate, growth: Estimate, residual: float) -> tuple[bool | None, str]:
    if changes.low > 0 and changes.value >= MATERIAL:
        return False, f"the backlog grows by {percent(changes.value)} of the arrivals"
    if growth.high > TOLERANCE:
        most = percent(growth.high)
        return None, f"growth of the backlog up to {most} of the arrivals is possible"
    if math.isnan(residual):
        return None, "a request is still inside: Little's law cannot be checked"
    if abs(residual) > LITTLE:
        return None, f"Little's law is off by {residual:+.0%}"
    return True, "the backlog does not grow"


def _clean(arrival_s: npt.ArrayLike, departure_s: npt.ArrayLike) -> tuple[Floats, Floats]:
    arrived = np.asarray(arrival_s, dtype=np.float64)
    left = np.asarray(departure_s, dtype=np.float64)
    if arrived.shape != left.shape:
        msg = f"arrivals and departures must pair, got {arrived.size} and {left.size}"
        raise ValueError(msg)
    return arrived, np.where(np.isnan(left), np.inf, left)


def _window(arrived: Floats, start_s: float | None, end_s: float | None) -> tuple[float, float]:
    if arrived.size == 0:
        return 0.0, 0.0
    first, last = float(arrived.min()), float(arrived.max())
    start = first + TRANSIENT * (last - first) if start_s is None else start_s
    return start, last if end_s is None else end_s


def _level(arrived: Floats, left: Floats, times: Floats) -> Floats:
    """Return how many are inside at each time."""
    entered = np.searchsorted(np.sort(arrived), times, side="right")
    gone = np.searchsorted(np.sort(left), times, side="right")
    return (entered - gone).astype(np.float64)


def _batch_levels(arrived: Floats, left: Floats, edges: Floats) -> Floats:
    """Return the time-average number inside, for each batch between two edges."""
    area = _area(arrived, edges) - _area(left[np.isfinite(left)], edges)
    levels: Floats = np.diff(area) / np.diff(edges)
    return levels


def _area(moments: Floats, times: Floats) -> Floats:
    """Return the integral over time, up to each of ``times``, of the count of past moments."""
    ordered = np.sort(moments)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    past = np.searchsorted(ordered, times, side="right")
    area: Floats = past * times - sums[past]
    return area


def _little_residual(
    arrived: Floats, left: Floats, inside: npt.NDArray[np.bool_], start: float, end: float
) -> float:
    """Return L / (λ W) - 1 of the window; NaN while a request of the window is still inside."""
    stays = left[inside] - arrived[inside]
    total = float(stays.sum())
    if not math.isfinite(total):
        return math.nan
    overlap = np.minimum(left, end) - np.maximum(arrived, start)
    return float(np.maximum(overlap, 0.0).sum()) / total - 1 if total > 0 else 0.0


def _unknown(reason: str, arrivals: int) -> Stability:
    nothing = replication_mean([])
    return Stability(
        stable=None,
        reason=reason,
        drift_fraction=nothing,
        completion_ratio=math.nan,
        little_residual=math.nan,
        arrivals=arrivals,
    )


def mser5(values: npt.ArrayLike) -> int | None:
    """Return how many leading values to discard as warm-up, or None if the series never settles.

    The truncation point minimises the squared standard error of the mean of what is kept, over
    means of batches of five; a minimum in the second half of the run means that the run is too
    short to tell.
    Source: White, Cobb and Spratt, "A Comparison of Five Steady-State Truncation Heuristics for
    Simulation", Proc. Winter Simulation Conference, 2000 (MSER-5).

    >>> mser5([40.0, 30.0, 20.0, 10.0, 5.0] + [1.0, 2.0] * 50)
    5
    >>> mser5(range(100)) is None
    True
    """
    series = np.asarray(values, dtype=np.float64)
    count = series.size // WARMUP_BATCH
    if count < 4 or not np.isfinite(series).all():  # noqa: PLR2004  (too few batches for a minimum)
        return None
    means = series[: count * WARMUP_BATCH].reshape(count, WARMUP_BATCH).mean(axis=1)
    kept = np.arange(count, 0, -1)  # batches kept when the first 0, 1, … are cut
    totals = np.cumsum(means[::-1])[::-1]
    centred = means - means.mean()
    squares = np.cumsum((centred**2)[::-1])[::-1]
    spread = squares - kept * (totals / kept - means.mean()) ** 2
    scores = (np.maximum(spread, 0.0) / kept.astype(np.float64) ** 2)[: count - WARMUP_BATCH + 1]
    if scores.size < 2:  # noqa: PLR2004
        return None
    cut = int(np.argmin(scores))
    return None if cut > count // 2 else cut * WARMUP_BATCH
