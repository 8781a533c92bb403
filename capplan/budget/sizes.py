"""Quantiles and means of the size laws of requests that are not made of tokens."""

from __future__ import annotations

import math
from statistics import NormalDist

from capplan.scenario.classes import ChoiceSize, FixedSize, LognormalSize, Size

_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)


def size_quantile(law: Size, quantile: float) -> float:
    """Return a quantile of a size law, in the law's unit.

    >>> size_quantile(ChoiceSize(values=(4.0, 1.0), weights=(1.0, 9.0)), 0.95)
    4.0
    """
    match law:
        case FixedSize(value=value):
            return value
        case ChoiceSize(values=values, weights=weights):
            return _choice_quantile(values, weights, quantile)
        case LognormalSize(p50=p50):
            sigma = _sigma(law)
            z = _NORMAL.inv_cdf(quantile * _kept(law)) if sigma > 0 else 0.0
            return min(law.max, p50 * math.exp(sigma * z))


def size_mean(law: Size) -> float:
    """Return the mean of a size law; that of a log-normal cut at its ``max``.

    Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", vol. 1, 2nd ed.,
    1994, chapter 14 (moments of the truncated log-normal law).

    >>> size_mean(ChoiceSize(values=(4.0, 1.0), weights=(1.0, 9.0)))
    1.3
    """
    match law:
        case FixedSize(value=value):
            return value
        case ChoiceSize(values=values, weights=weights):
            return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
        case LognormalSize(p50=p50):
            sigma = _sigma(law)
            if sigma == 0:
                return p50
            end = math.log(law.max / p50) / sigma
            whole = p50 * math.exp(sigma**2 / 2)
            return whole * _NORMAL.cdf(end - sigma) / _NORMAL.cdf(end)


def _choice_quantile(
    values: tuple[float, ...], weights: tuple[float, ...], quantile: float
) -> float:
    left = quantile * sum(weights)
    for value, weight in sorted(zip(values, weights, strict=True)):
        left -= weight
        if left <= 0:
            return value
    return max(values)


def _sigma(law: LognormalSize) -> float:
    return math.log(law.p95 / law.p50) / _Z95


def _kept(law: LognormalSize) -> float:
    """Return the share of the uncut law that lies below ``max``."""
    return _NORMAL.cdf(math.log(law.max / law.p50) / _sigma(law))
