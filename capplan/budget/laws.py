"""Quantiles and moments of the length and size laws of a request class."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from capplan.scenario.classes import (
    ChoiceSize,
    FixedLength,
    FixedSize,
    Length,
    LognormalSize,
    Size,
)
from capplan.traffic.laws import lognormal_sigma

_NORMAL = NormalDist()


class _CutLognormal(NamedTuple):
    """A log-normal law cut at ``most``.

    Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", vol. 1, 2nd ed.,
    1994, chapter 14 (moments of the truncated log-normal law).
    """

    p50: float
    p95: float
    most: float

    def quantile(self, quantile: float) -> float:
        sigma = lognormal_sigma(self.p50, self.p95)
        if sigma == 0:
            return self.p50
        kept = _NORMAL.cdf(math.log(self.most / self.p50) / sigma)
        return self.p50 * math.exp(sigma * _NORMAL.inv_cdf(quantile * kept))

    def moment(self, order: int) -> float:
        sigma = lognormal_sigma(self.p50, self.p95)
        if sigma == 0:
            return self.p50**order
        end = math.log(self.most / self.p50) / sigma
        whole = self.p50**order * math.exp((order * sigma) ** 2 / 2)
        return whole * _NORMAL.cdf(end - order * sigma) / _NORMAL.cdf(end)


def length_quantile(law: Length, quantile: float) -> int:
    """Return a quantile of a length law, tokens.

    >>> from capplan.scenario.classes import LognormalLength
    >>> length_quantile(LognormalLength(p50_tokens=100, p95_tokens=400), 0.95)
    400
    """
    if isinstance(law, FixedLength):
        return law.tokens
    found = _CutLognormal(law.p50_tokens, law.p95_tokens, law.max_tokens).quantile(quantile)
    return min(law.max_tokens, max(1, math.ceil(round(found, 6))))


def length_moment(law: Length, order: int) -> float:
    """Return the mean of a length to the power of ``order``, tokens to that power.

    Lengths count as real numbers here, though they are whole.

    >>> length_moment(FixedLength(tokens=10), 2)
    100.0
    """
    if isinstance(law, FixedLength):
        return float(law.tokens) ** order
    return _CutLognormal(law.p50_tokens, law.p95_tokens, law.max_tokens).moment(order)


def size_quantile(law: Size, quantile: float) -> float:
    """Return a quantile of a size law, in the law's unit.

    >>> size_quantile(ChoiceSize(values=(4.0, 1.0), weights=(1.0, 9.0)), 0.95)
    4.0
    """
    match law:
        case FixedSize(value=value):
            return value
        case ChoiceSize(values=values, weights=weights):
            left = quantile * sum(weights)
            for value, weight in sorted(zip(values, weights, strict=True)):
                left -= weight
                if left <= 0:
                    return value
            return max(values)
        case LognormalSize(p50=p50, p95=p95, max=most):
            return min(most, _CutLognormal(p50, p95, most).quantile(quantile))


def size_mean(law: Size) -> float:
    """Return the mean of a size law.

    >>> size_mean(ChoiceSize(values=(4.0, 1.0), weights=(1.0, 9.0)))
    1.3
    """
    match law:
        case FixedSize(value=value):
            return value
        case ChoiceSize(values=values, weights=weights):
            return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
        case LognormalSize(p50=p50, p95=p95, max=most):
            return _CutLognormal(p50, p95, most).moment(1)
