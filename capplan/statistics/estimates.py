"""Point estimates with confidence intervals.

Quantiles get distribution-free intervals from order statistics; means of one autocorrelated run
get batch means; means over independent replications get Student's t.
Only ``scipy.special`` is used (it loads in a tenth of the time of ``scipy.stats``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Values = npt.ArrayLike

TAIL = 0.025
"""Probability beyond either end of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % confidence interval ``[low, high]`` from ``n`` observations.

    An end that the data cannot bound is -inf or +inf; an unmeasured value is NaN.

    >>> print(Estimate(value=1.2345, low=1.19, high=1.28, n=40))
    1.23 [1.19, 1.28]
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Return half the width of the interval; +inf if an end is not bounded."""
        return (self.high - self.low) / 2 if self.low < self.high else 0.0 * self.value

    def __str__(self) -> str:
        """Return the value and its interval, rounded to the half-width."""
        ends = (round_to(end, self.half_width) for end in (self.low, self.high))
        return f"{round_to(self.value, self.half_width)} [{', '.join(ends)}]"


def round_to(value: float, half_width: float) -> str:
    """Return a value as text, with the digits that its half-width supports.

    The half-width keeps one significant digit, two if that digit would be 1, and the value is cut
    at the same place; an unknown or zero half-width leaves four significant digits.
    Source: Particle Data Group, "Review of Particle Physics", 2022, section 5.3 (the rule that an
    error of 0.10 to 0.35 keeps two digits), simplified.

    >>> round_to(1.23456, 0.04), round_to(1.23456, 0.012), round_to(1234.5, 30)
    ('1.23', '1.235', '1230')
    >>> round_to(1.23456, float("nan")), round_to(float("inf"), 1.0), round_to(-0.001, 0.04)
    ('1.235', 'inf', '0.00')
    """
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if not math.isfinite(half_width) or half_width <= 0:
        return f"{value:.4g}"
    place = math.floor(math.log10(half_width))
    if half_width / 10**place < 2:  # noqa: PLR2004  (a leading 1 keeps a second digit)
        place -= 1
    return f"{round(value, -place) + 0.0:.{max(0, -place)}f}"  # no minus before nought


def quantiles(values: Values, probabilities: Sequence[float]) -> list[float]:
    """Return sample quantiles, linear between order statistics; NaN for no values.

    +inf values are allowed: a quantile that touches one is +inf; any NaN value gives NaN.
    Source: Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American
    Statistician 50, 1996, definition 7.

    >>> quantiles([1.0, 2.0, 3.0, math.inf], [0.5, 2 / 3, 0.9])
    [2.5, 3.0, inf]
    """
    found = np.asarray(values, dtype=np.float64)
    if found.size == 0 or np.isnan(found).any():
        return [math.nan] * len(probabilities)
    positions = [(found.size - 1) * p for p in probabilities]
    ranks = {min(_rank(p) + i, found.size - 1) for p in positions for i in (0, 1)}
    ordered = np.partition(found, sorted(ranks))  # a third of the time of sorting
    return [_between(ordered, position) for position in positions]


def quantile(values: Values, probability: float) -> float:
    """Return one sample quantile; see :func:`quantiles`."""
    return quantiles(values, [probability])[0]


def _rank(position: float) -> int:
    return math.floor(position + 1e-9)


def _between(ordered: Floats, position: float) -> float:
    low = _rank(position)
    part = max(0.0, position - low)
    here = float(ordered[low])
    if part < 1e-9 or low + 1 == ordered.size:  # noqa: PLR2004
        return here
    after = float(ordered[low + 1])
    return here if here == after else here + part * (after - here)


def quantile_interval(values: Values, probability: float) -> Estimate:
    """Return a quantile with its distribution-free interval from order statistics.

    The number of n independent values below the true quantile is binomial(n, p), so the interval
    from the r-th to the s-th smallest value covers it with probability P(r <= B < s). An end that
    would need more values than there are is -inf or +inf. Values must be independent or nearly
    so; the interval is too short for strongly autocorrelated ones.
    Source: Conover, "Practical Nonparametric Statistics", 3rd ed., 1999, section 3.2.

    >>> found = quantile_interval(range(1, 101), 0.5)
    >>> found.low, found.value, found.high
    (40.0, 50.5, 61.0)
    >>> quantile_interval([1.0, 2.0, 3.0], 0.99).high
    inf
    """
    _check_probability(probability)
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = ordered.size
    if n == 0 or np.isnan(ordered[-1]):
        return _within(math.nan, math.nan, n=n)
    lower, upper = _ranks(n, probability, TAIL)
    return Estimate(
        value=_between(ordered, (n - 1) * probability),
        low=float(ordered[lower - 1]) if lower >= 1 else -math.inf,
        high=float(ordered[upper - 1]) if upper <= n else math.inf,
        n=n,
    )


def _ranks(n: int, probability: float, tail: float) -> tuple[int, int]:
    """Return the ranks (from 1) of the interval's ends: 0 or n + 1 where there is none."""
    from scipy.special import bdtr

    reach = 12 * math.sqrt(n * probability * (1 - probability)) + 12  # all but 1e-30 of B
    first = max(0, math.floor(n * probability - reach))
    last = min(n, math.ceil(n * probability + reach))
    below = np.asarray(bdtr(np.arange(first, last + 1), n, probability))  # P(B <= k)
    lower = first + int(np.searchsorted(below, tail, side="right"))  # P(B <= lower - 1) <= tail
    upper = first + int(np.searchsorted(below, 1 - tail, side="left")) + 1  # P(B >= upper) <= tail
    return lower, upper


def share_interval(successes: int, n: int) -> Estimate:
    """Return a share with its exact binomial interval.

    Source: Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case
    of the Binomial", Biometrika 26, 1934.

    >>> print(share_interval(0, 300))
    0.000 [0.000, 0.012]
    """
    from scipy.special import betaincinv

    if not 0 <= successes <= n:
        msg = f"successes must lie in 0..{n}, got {successes}"
        raise ValueError(msg)
    if n == 0:
        return _within(math.nan, math.nan, n=0)
    low = betaincinv(successes, n - successes + 1, TAIL) if successes else 0.0
    high = betaincinv(successes + 1, n - successes, 1 - TAIL) if successes < n else 1.0
    return Estimate(
        value=successes / n,
        low=float(low),
        high=float(high),
        n=n,
    )


def batch_means(values: Values, *, batches: int = 20) -> Estimate:
    """Return the mean of one stationary, autocorrelated run, by nonoverlapping batch means.

    The run is cut into ``batches`` equal parts (a remainder is left out at the start), whose
    means are taken as independent and normal. Fewer than two values a batch give an unbounded
    interval. Source: Law, "Simulation Modeling and Analysis", 5th ed., 2015, section 9.5.3.

    >>> batch_means([1.0, 2.0] * 50, batches=10).value
    1.5
    """
    if batches < 2:  # noqa: PLR2004
        msg = f"batches must be at least 2, got {batches}"
        raise ValueError(msg)
    series = np.asarray(values, dtype=np.float64)
    length = series.size // batches
    if length < 2:  # noqa: PLR2004
        mean = float(series.mean()) if series.size else math.nan
        return _within(mean, math.inf, n=series.size)
    return _student(in_batches(series, batches), n=series.size)


def in_batches(values: Values, batches: int) -> Floats:
    """Return the means of equal consecutive batches; a remainder is left out at the start."""
    series = np.asarray(values, dtype=np.float64)
    length = series.size // batches
    means: Floats = series[series.size - length * batches :].reshape(batches, length).mean(axis=1)
    return means


def trend(x: Values, levels: Values, *, confidence: float = 0.95) -> Estimate:
    """Return the least-squares slope of a level over x, with its interval.

    Give batch means; the error is inflated for what correlation the residuals still have (lag
    one, as an autoregression of order one). Fewer than three levels have no slope: NaN.
    Sources: Law, "Simulation Modeling and Analysis", 5th ed., 2015, section 9.5.3 (batch means);
    Bartlett, "Some aspects of the time-correlation problem", J. Royal Statistical Society 98, 1935
    (the effective sample size (1 - r) / (1 + r)).

    >>> print(trend([0, 1, 2, 3, 4], [1.0, 3.1, 4.9, 7.0, 9.0]))
    1.99 [1.91, 2.07]
    """
    from scipy.special import stdtrit

    at, level = np.asarray(x, dtype=np.float64), np.asarray(levels, dtype=np.float64)
    n = level.size
    if n < 3:  # noqa: PLR2004
        return _within(math.nan, math.nan, n=n)
    at = at - at.mean()
    slope = float(at @ level / (at @ at))
    rest = level - level.mean() - slope * at
    spread = float(rest @ rest)
    lag = float(rest[1:] @ rest[:-1]) / spread if spread > 0 else 0.0
    lag = min(max(lag, 0.0), 0.9)
    error = math.sqrt(spread / (n - 2) / float(at @ at) * (1 + lag) / (1 - lag))
    width = float(stdtrit(n - 2, (1 + confidence) / 2)) * error
    return _within(slope, width, n=n)


def replication_mean(values: Values, *, confidence: float = 0.95) -> Estimate:
    """Return the mean over independent replications, with Student's t interval.

    Source: Law, "Simulation Modeling and Analysis", 5th ed., 2015, section 9.4.1.

    >>> print(replication_mean([9.8, 10.1, 10.0, 10.3, 9.9]))
    10.0 [9.8, 10.3]
    """
    series = np.asarray(values, dtype=np.float64)
    return _student(series, n=series.size, confidence=confidence)


def _student(values: Floats, *, n: int, confidence: float = 0.95) -> Estimate:
    from scipy.special import stdtrit

    _check_probability(confidence)
    if values.size == 0 or np.isnan(values).any():
        return _within(math.nan, math.nan, n=n)
    mean = float(values.mean())
    if values.size == 1 or math.isinf(mean):
        return _within(mean, math.inf, n=n)
    spread = float(values.std(ddof=1)) / math.sqrt(values.size)
    width = float(stdtrit(values.size - 1, (1 + confidence) / 2)) * spread
    return _within(mean, width, n=n)


def _within(value: float, half_width: float, *, n: int) -> Estimate:
    """Return an estimate with an interval to both sides; a half-width of inf bounds nothing."""
    low, high = value - half_width, value + half_width
    if math.isinf(half_width):
        low, high = -math.inf, math.inf
    return Estimate(value=value, low=low, high=high, n=n)


def _check_probability(value: float) -> None:
    if not 0 < value < 1:
        msg = f"a probability must lie strictly between 0 and 1, got {value}"
        raise ValueError(msg)
