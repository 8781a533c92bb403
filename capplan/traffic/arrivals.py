"""Arrival times: a unit-rate renewal process on a clock that runs with the planned rate."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from capplan.scenario.traffic import Even, GammaGaps, GapLaw, Modulated, Poisson, WeibullGaps
from capplan.traffic.curve import RateCurve, levels

CHUNK = 1 << 14
"""Gaps drawn at once; a constant, so that fewer requests are the first of more requests."""


def arrival_times_s(
    plan: RateCurve, arrivals: GapLaw, *, rng: np.random.Generator, limit: int | None = None
) -> NDArray[np.float64]:
    """Return arrival times of one replication, in order, at most ``limit`` of them, s.

    The points of a renewal process of rate 1 are times on a clock of the requests expected so far,
    so the expected number up to t is the plan's for every law of the gaps, and no gap is cut.
    Source: Cinlar, "Introduction to Stochastic Processes", 1975, section 4.7 (Poisson);
    Gerhardt and Nelson, "Transforming renewal processes for simulation of nonstationary arrival
    processes", INFORMS Journal on Computing 21(4), 2009, section 3 (other gaps).
    Raises ValueError for a ``limit`` below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    parts, drawn = [], 0
    for points in _points(arrivals, rng):
        inside = points[points <= plan.expected]
        parts.append(inside)
        drawn += len(inside)
        if len(inside) < len(points) or (limit is not None and drawn >= limit):
            break
    return plan.time_of(np.concatenate(parts)[:limit])


def _points(arrivals: GapLaw, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Yield the points of the unit-rate process, chunk by chunk."""
    last = first_gap(arrivals, rng)
    yield np.array([last])
    while True:
        points = last + np.cumsum(gaps(arrivals, CHUNK, rng))
        last = float(points[-1])
        yield points


def gaps(arrivals: GapLaw, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return n gaps of mean 1."""
    match arrivals:
        case Poisson() | Modulated():
            return rng.standard_exponential(n)
        case GammaGaps(cv=cv):
            return rng.standard_gamma(cv**-2, n) * cv**2
        case Even():
            return np.ones(n)
        case WeibullGaps(cv=cv):
            shape = weibull_shape(cv)
            return rng.weibull(shape, n) / math.gamma(1 + 1 / shape)


def first_gap(arrivals: GapLaw, rng: np.random.Generator) -> float:
    """Return the time to the first request: the rest of a gap that began before the start.

    It has the equilibrium law: a uniform part of a gap drawn in proportion to its length (for
    gamma gaps of shape k: gamma of shape k + 1; for Weibull gaps of shape k: the k-th root of a
    gamma of shape 1 + 1/k); so the process is stationary and the rate
    exact from the first second. An ordinary first gap gives bursty traffic (cv² - 1)/2 requests
    too many.
    Source: Cox, "Renewal Theory", 1962, sections 2.2 and 5.4.
    """
    match arrivals:
        case Poisson() | Modulated():
            return float(rng.standard_exponential())
        case GammaGaps(cv=cv):
            return float(rng.random() * rng.standard_gamma(cv**-2 + 1) * cv**2)
        case Even():
            return float(rng.random())
        case WeibullGaps(cv=cv):
            shape = weibull_shape(cv)
            longer = rng.standard_gamma(1 + 1 / shape) ** (1 / shape)
            return float(rng.random() * longer / math.gamma(1 + 1 / shape))


def weibull_shape(cv: float) -> float:
    """Return the shape of the Weibull law with that coefficient of variation.

    Solves 1 + cv² = Γ(1 + 2/k) / Γ(1 + 1/k)² for k by bisection; the left side falls with k.
    Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", vol. 1, 2nd ed.,
    1994, chapter 21.

    >>> round(weibull_shape(1.0), 6)
    1.0
    """
    wanted = math.log1p(cv**2)
    low, high = 0.05, 1000.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        found = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)
        low, high = (middle, high) if found > wanted else (low, middle)
    return math.sqrt(low * high)


def modulated(plan: RateCurve, law: Modulated, *, rng: np.random.Generator) -> RateCurve:
    """Return the plan of one replication under calm and busy times.

    Times alternate, exponential of mean ``calm_s`` and ``busy_s``, begun in the stationary law;
    the rate in calm times is the plan's times (busy + calm) / (ratio · busy + calm), so that its
    mean over replications is the plan's at every moment.
    Source: Fischer and Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook",
    Performance Evaluation 18, 1993, sections 1 and 2.
    """
    cycle_s = law.busy_s + law.calm_s
    begins_busy = rng.random() < law.busy_s / cycle_s
    means = [law.busy_s, law.calm_s] if begins_busy else [law.calm_s, law.busy_s]
    calm = cycle_s / (law.ratio * law.busy_s + law.calm_s)
    rates = [calm * law.ratio, calm] if begins_busy else [calm, calm * law.ratio]
    lasting = np.zeros(0)
    while lasting.sum() < plan.end_s:
        lasting = np.append(lasting, rng.standard_exponential((CHUNK // 2, 2)) * means)
    edges = np.concatenate([[0.0], np.cumsum(lasting)])
    edges = edges[: np.searchsorted(edges, plan.end_s) + 1]
    return plan.times(levels(edges, np.resize(rates, len(edges) - 1)))
