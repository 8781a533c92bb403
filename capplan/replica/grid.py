"""Functions given at points: straight between them.

Step times that were measured or sampled come as tables. They are kept as plain lists, because the
step loop asks for one value at a time and an array costs more than the arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


def place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """Return the interval of a value on an axis, and how far along it lies.

    Before the first point it is 0 along; after the last the final interval goes on straight.

    >>> place([1.0, 2.0, 4.0], 3.0), place([1.0, 2.0, 4.0], 8.0), place([1.0, 2.0, 4.0], 0.0)
    ((1, 0.5), (1, 3.0), (0, 0.0))
    """
    low = bisect_right(axis, value) - 1
    if low < 0:
        return 0, 0.0
    low = min(low, len(axis) - 2)
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


@dataclass(frozen=True, slots=True)
class Curve:
    """A function of one number."""

    axis: tuple[float, ...]
    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_axis(self.axis)
        if len(self.levels) != len(self.axis):
            msg = f"one value per point, got {len(self.levels)} for {len(self.axis)}"
            raise ValueError(msg)

    def at(self, x: float) -> float:
        """Return the value at a point.

        >>> Curve((0.0, 10.0), (1.0, 2.0)).at(5.0)
        1.5
        """
        low, part = place(self.axis, x)
        left = self.levels[low]
        return left + part * (self.levels[low + 1] - left)


@dataclass(frozen=True, slots=True)
class Plane:
    """A function of two numbers; ``rows[i][j]`` stands at ``first[i]``, ``second[j]``."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _check_axis(self.first)
        _check_axis(self.second)
        if len(self.rows) != len(self.first) or any(
            len(row) != len(self.second) for row in self.rows
        ):
            msg = f"{len(self.first)} rows of {len(self.second)} values"
            raise ValueError(msg)

    def at(self, x: float, y: float) -> float:
        """Return the value at a point.

        >>> Plane((0.0, 1.0), (0.0, 1.0), ((0.0, 1.0), (2.0, 3.0))).at(0.5, 0.5)
        1.5
        """
        i, along = place(self.first, x)
        j, across = place(self.second, y)
        return self.between(i, along, j, across)

    def between(self, i: int, along: float, j: int, across: float) -> float:
        """Return the value in a cell, so far along and across it."""
        here, there = self.rows[i], self.rows[i + 1]
        left = here[j] + across * (here[j + 1] - here[j])
        right = there[j] + across * (there[j + 1] - there[j])
        return left + along * (right - left)


def _check_axis(axis: Sequence[float]) -> None:
    if len(axis) < 2 or any(b <= a for a, b in pairwise(axis)):  # noqa: PLR2004
        msg = f"an axis of at least two rising points, got {tuple(axis)[:5]}"
        raise ValueError(msg)
