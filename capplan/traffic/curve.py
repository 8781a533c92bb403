"""A planned rate over time: straight pieces and jumps, with its integral and inverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class RateCurve:
    """A rate that is linear between knots; two knots at one time are a jump.

    No request arrives before the first knot or after the last. Integral and inverse are exact:
    on a piece that starts at rate r and rises by s per second, r·x + s·x²/2 requests arrive in x
    seconds, so n requests need x = 2n / (r + sqrt(r² + 2·s·n)).
    Raises ValueError for knots out of order, a negative or infinite rate, or fewer than two knots.

    >>> ramp = curve([0, 10], [0, 4])
    >>> float(ramp.rate_at(5)), float(ramp.expected_by(5)), float(ramp.time_of(5))
    (2.0, 5.0, 5.0)
    """

    time_s: Floats
    """Knots, shape (k,), not decreasing, k >= 2, s."""
    rate_rps: Floats
    """Rate at each knot, shape (k,), requests/s."""

    def __post_init__(self) -> None:
        time, rate = self.time_s, self.rate_rps
        if len(time) != len(rate) or len(time) < 2:  # noqa: PLR2004
            msg = f"a rate curve needs two or more knots, got {len(time)} times, {len(rate)} rates"
            raise ValueError(msg)
        if not (np.isfinite(time).all() and np.isfinite(rate).all()):
            raise ValueError("times and rates of a rate curve must be finite")
        if (np.diff(time) < 0).any() or (rate < 0).any():
            msg = "times of a rate curve must not decrease and rates must not be negative"
            raise ValueError(msg)

    @property
    def end_s(self) -> float:
        """Return the end of the plan, s."""
        return float(self.time_s[-1])

    @property
    def expected(self) -> float:
        """Return the number of requests expected in the whole plan."""
        return float(self._expected_by_knot[-1])

    @property
    def peak_rps(self) -> float:
        """Return the highest planned rate, requests/s."""
        return float(self.rate_rps.max())

    @cached_property
    def _expected_by_knot(self) -> Floats:
        pieces = np.diff(self.time_s) * (self.rate_rps[1:] + self.rate_rps[:-1]) / 2
        return np.concatenate([[0.0], np.cumsum(pieces)])

    def rate_at(self, time_s: ArrayLike) -> Floats:
        """Return the rate at each time, just after a jump; 0 outside the plan."""
        t = np.asarray(time_s, dtype=float)
        piece = self._piece(self.time_s, t)
        rate = self._between(piece, t)
        return np.where((t >= self.time_s[0]) & (t < self.time_s[-1]), rate, 0.0)

    def expected_by(self, time_s: ArrayLike) -> Floats:
        """Return the number of requests expected up to each time."""
        t = np.clip(np.asarray(time_s, dtype=float), self.time_s[0], self.time_s[-1])
        piece = self._piece(self.time_s, t)
        x = t - self.time_s[piece]
        part = self.rate_rps[piece] * x + self._slope(piece) * x**2 / 2
        return np.asarray(self._expected_by_knot[piece] + part)

    def time_of(self, count: ArrayLike) -> Floats:
        """Return the time at which the expected count is reached; NaN outside [0, expected]."""
        n = np.asarray(count, dtype=float)
        piece = self._piece(self._expected_by_knot, n)
        left = np.maximum(n - self._expected_by_knot[piece], 0.0)
        rate = self.rate_rps[piece]
        root = np.sqrt(np.maximum(rate**2 + 2 * self._slope(piece) * left, 0.0))
        x = np.divide(2 * left, rate + root, out=np.zeros_like(left), where=left > 0)
        time = np.minimum(self.time_s[piece] + x, self.time_s[piece + 1])
        return np.where((n >= 0) & (n <= self.expected), time, np.nan)

    def until(self, end_s: float) -> RateCurve:
        """Return the plan cut off at ``end_s``; ValueError for a time before its start.

        >>> curve([0, 10], [4, 4]).until(2.5).expected
        10.0
        """
        if end_s <= self.time_s[0]:
            raise ValueError(f"end_s must be after the start of the plan, got {end_s}")
        if end_s >= self.end_s:
            return self
        keep = self.time_s < end_s
        rate = self._between(np.asarray(np.count_nonzero(keep) - 1), np.asarray(end_s))
        return RateCurve(
            time_s=np.append(self.time_s[keep], end_s),
            rate_rps=np.append(self.rate_rps[keep], rate),
        )

    def scaled(self, factor: float) -> RateCurve:
        """Return the plan with every rate times ``factor``."""
        return RateCurve(time_s=self.time_s, rate_rps=self.rate_rps * factor)

    def times(self, other: RateCurve) -> RateCurve:
        """Return the product of two plans over the time that both cover.

        One of the two must be constant between jumps: ValueError if both slope.
        """
        return _combined(self, other, multiply=True)

    def plus(self, other: RateCurve) -> RateCurve:
        """Return the sum of two plans over the time that both cover."""
        return _combined(self, other, multiply=False)

    def _piece(self, knots: Floats, values: Floats) -> NDArray[np.intp]:
        return np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(knots) - 2)

    def _between(self, piece: NDArray[np.intp], time_s: Floats) -> Floats:
        """Return the rate on a piece as a weighted mean of its ends, which stays positive."""
        width = self.time_s[piece + 1] - self.time_s[piece]
        x = time_s - self.time_s[piece]
        share = np.divide(x, width, out=np.zeros_like(x), where=width > 0)
        start, end = self.rate_rps[piece], self.rate_rps[piece + 1]
        return np.where(start == end, start, start * (1 - share) + end * share)

    def _slope(self, piece: NDArray[np.intp]) -> Floats:
        width = self.time_s[piece + 1] - self.time_s[piece]
        rise = self.rate_rps[piece + 1] - self.rate_rps[piece]
        return np.divide(rise, width, out=np.zeros_like(width), where=width > 0)


def curve(time_s: Sequence[float] | Any, rate_rps: Sequence[float] | Any) -> RateCurve:
    """Return the curve through the knots."""
    return RateCurve(
        time_s=np.asarray(time_s, dtype=float), rate_rps=np.asarray(rate_rps, dtype=float)
    )


def levels(edges_s: Sequence[float] | Any, rate_rps: Sequence[float] | Any) -> RateCurve:
    """Return the curve that holds ``rate_rps[i]`` from ``edges_s[i]`` to ``edges_s[i + 1]``.

    >>> levels([0, 10, 30], [1, 2]).expected
    50.0
    """
    edges, rates = np.asarray(edges_s, dtype=float), np.asarray(rate_rps, dtype=float)
    if len(edges) != len(rates) + 1:
        raise ValueError(f"levels need one edge more than rates, got {len(edges)} and {len(rates)}")
    return RateCurve(time_s=np.repeat(edges, 2)[1:-1], rate_rps=np.repeat(rates, 2))


def _combined(a: RateCurve, b: RateCurve, *, multiply: bool) -> RateCurve:
    start, end = max(a.time_s[0], b.time_s[0]), min(a.end_s, b.end_s)
    if start >= end:
        raise ValueError("two rate curves that share no time cannot be combined")
    edges = np.unique(np.concatenate([a.time_s, b.time_s]))
    edges = edges[(edges > start) & (edges < end)]
    edges = np.concatenate([[start], edges, [end]])
    left_a, right_a = _sides(a, edges)
    left_b, right_b = _sides(b, edges)
    if multiply and ((left_a != right_a) & (left_b != right_b)).any():
        msg = "the product of two rate curves needs one of them to be constant in each piece"
        raise ValueError(msg)
    left = left_a * left_b if multiply else left_a + left_b
    right = right_a * right_b if multiply else right_a + right_b
    return RateCurve(
        time_s=np.repeat(edges, 2)[1:-1], rate_rps=np.column_stack([left, right]).ravel()
    )


def _sides(c: RateCurve, edges: Floats) -> tuple[Floats, Floats]:
    """Return the rate just after the start and just before the end of each interval."""
    piece = c._piece(c.time_s, edges[:-1])
    return c._between(piece, edges[:-1]), c._between(piece, edges[1:])
