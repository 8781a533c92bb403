"""Quantiles and moments of the length laws of a request class."""

from __future__ import annotations

import math
from statistics import NormalDist

from capplan.scenario.classes import FixedLength, Length, LognormalLength

_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)


def length_quantile(law: Length, quantile: float) -> int:
    """Return a quantile of a length law, tokens.

    >>> length_quantile(LognormalLength(p50_tokens=100, p95_tokens=400), 0.95)
    400
    """
    if isinstance(law, FixedLength):
        return law.tokens
    mu, sigma = _parameters(law)
    z = _NORMAL.inv_cdf(quantile * _kept(law)) if sigma > 0 else 0.0
    return min(law.max_tokens, max(1, math.ceil(round(math.exp(mu + sigma * z), 6))))


def length_moment(law: Length, order: int) -> float:
    """Return the mean of a length to the power of ``order``, tokens to that power.

    The law is a log-normal cut at ``max_tokens``; that lengths are whole numbers is left out.
    Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", vol. 1, 2nd ed.,
    1994, chapter 14 (moments of the truncated log-normal law).

    >>> length_moment(FixedLength(tokens=10), 2)
    100.0
    """
    if isinstance(law, FixedLength):
        return float(law.tokens) ** order
    mu, sigma = _parameters(law)
    if sigma == 0:
        return float(law.p50_tokens) ** order
    whole = math.exp(order * mu + (order * sigma) ** 2 / 2)
    end = (math.log(law.max_tokens) - mu) / sigma
    return whole * _NORMAL.cdf(end - order * sigma) / _NORMAL.cdf(end)


def _parameters(law: LognormalLength) -> tuple[float, float]:
    mu = math.log(law.p50_tokens)
    return mu, (math.log(law.p95_tokens) - mu) / _Z95


def _kept(law: LognormalLength) -> float:
    """Return the share of the uncut law that lies below ``max_tokens``."""
    mu, sigma = _parameters(law)
    return _NORMAL.cdf((math.log(law.max_tokens) - mu) / sigma)
