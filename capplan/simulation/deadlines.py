"""When callers give up: one alarm for many, because nearly every answer comes in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from capplan.simulation.attempt import Attempt
from capplan.simulation.clock import Clock, Rank


class Deadlines:
    """The deadlines of attempts in flight.

    They mostly come in order, so they stand in a line with one alarm, for the first whose attempt
    is still in flight when it is set; who is earlier than the last of the line gets an own alarm.
    """

    def __init__(self, give_up: Callable[[Attempt], None], *, clock: Clock) -> None:
        self._give_up = give_up
        self._clock = clock
        self._line: deque[tuple[float, Attempt]] = deque()
        self._armed = False

    def watch(self, attempt: Attempt, time_s: float) -> None:
        """Give an attempt up at that time, if it is still in flight."""
        line = self._line
        if line and time_s < line[-1][0]:
            self._clock.at(time_s, Rank.TIMER, self._pass, attempt)
            return
        line.append((time_s, attempt))
        if not self._armed:
            self._armed = True
            self._clock.at(time_s, Rank.TIMER, self._ring, None)

    def _pass(self, attempt: Attempt) -> None:
        if attempt.outcome == "in_flight":
            self._give_up(attempt)

    def _ring(self, _: None) -> None:
        line, now_s = self._line, self._clock.now
        while line and (line[0][0] <= now_s or line[0][1].outcome != "in_flight"):
            self._pass(line.popleft()[1])
        self._armed = bool(line)
        if line:
            self._clock.at(line[0][0], Rank.TIMER, self._ring, None)
