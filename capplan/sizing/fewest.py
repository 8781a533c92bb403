"""The fewest replicas that hold, and how far that number moves with the error of step times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.replica.step_error import StepError, known_error
from capplan.sizing.loss import Loss
from capplan.sizing.points import Evaluator, Point

LEAST_GAIN = 0.01
"""Share of the missed promises that the next number must mend for the search to go on by steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinError:
    """The fewest replicas that hold under a loss, if step times are off by their known error."""

    lose: Loss
    error: StepError
    low: int
    """With the shortest step times."""
    high: int | None
    """With the longest; None = no number that was tried holds."""

    def __str__(self) -> str:
        """Return the numbers and the error in words."""
        if self.low == self.high:
            return f"{self.low} also with {self.error}"
        most = "none that was tried" if self.high is None else f"{self.high}"
        return f"{self.low} to {most} with {self.error}"

    def to_json(self) -> dict[str, Any]:
        """Return the numbers and the error as plain values."""
        return {
            "lost": self.lose.count,
            "replicas": [self.low, self.high],
            **self.error.to_json(),
        }


def fewest_by_loss(
    evaluate: Evaluator, losses: Sequence[Loss], n_max: int
) -> dict[Loss, Point | None]:
    """Return the point of the fewest replicas for each loss, from the smallest loss on."""
    chosen: dict[Loss, Point | None] = {}
    least, start = losses[0].count + 1, evaluate.pool.replicas
    for i, lose in enumerate(losses):
        point = _search(evaluate, lose, least=least, start=start, n_max=n_max)
        chosen[lose] = point
        if point is None:  # a greater loss needs at least as many
            return chosen | dict.fromkeys(losses[i + 1 :])
        more = losses[min(i + 1, len(losses) - 1)].count
        least, start = max(point.replicas, more + 1), point.replicas + more - lose.count
    return chosen


def _search(evaluate: Evaluator, lose: Loss, *, least: int, start: int, n_max: int) -> Point | None:
    """Return the point of the fewest replicas, at least ``least``, that hold; None if none does.

    Where the budget says that serving alone breaks a promise, or more replicas mend nothing, the
    most replicas are tried at once: if these fail, so does every number.
    """
    low, high = least - 1, min(max(start, least), n_max)
    gap, hopeless, before = high - low, evaluate.cause is not None, None
    found = evaluate.point(high, lose)
    while not found.holds:
        if hopeless or (before is not None and not _missed_fewer(found, before)):
            if not evaluate.point(n_max, lose).holds:
                return None
            hopeless = False
        if high == n_max:
            return None
        before, low, high, gap = found, high, min(high + gap, n_max), 2 * gap
        found = evaluate.point(high, lose)
    while high - low > 1:
        evaluate.expect(math.ceil(math.log2(high - low)))
        middle = (low + high) // 2
        point = evaluate.point(middle, lose)
        if point.holds:
            high, found = middle, point
        else:
            low = middle
    return found


def _missed_fewer(more: Point, fewer: Point) -> bool:
    """Return whether more replicas let fewer requests miss a promise, by a hundredth at least."""
    return more.missed < (1 - LEAST_GAIN) * fewer.missed


def within_error(
    evaluate: Evaluator, chosen: Mapping[Loss, Point | None], n_max: int
) -> WithinError | None:
    """Return the fewest replicas with the shortest and longest step times that the error allows.

    Of the loss that asks for most, on the same requests and with the limits that the scenario sets.
    Two runs show it if the number stays: the number itself with longer steps, and one fewer with
    shorter ones. None if the pool's error is unknown, or no number is shown to hold.
    """
    error = known_error(evaluate.pool)
    shown = [p for p in chosen.values() if p is not None and not p.open]
    if error is None or not shown or len(shown) < len(chosen):
        return None
    most = max(shown, key=lambda point: (point.replicas, point.lose.count))
    lose, count = most.lose, most.replicas
    slower = _search(evaluate.at_error(longer=True), lose, least=count, start=count, n_max=n_max)
    return WithinError(
        lose=lose,
        error=error,
        low=_fewest_below(evaluate.at_error(longer=False), lose, least=lose.count + 1, most=count),
        high=None if slower is None else slower.replicas,
    )


def _fewest_below(evaluate: Evaluator, lose: Loss, *, least: int, most: int) -> int:
    """Return the fewest replicas, at least ``least``, that hold, if ``most`` do."""
    high, gap = most, 1
    while high > least and evaluate.point(max(high - gap, least), lose).holds:
        high, gap = max(high - gap, least), 2 * gap
    low = max(high - gap, least - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if evaluate.point(middle, lose).holds else (middle, high)
    return high
