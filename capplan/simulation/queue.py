"""A bounded queue in front of something: how many may wait, and how long."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from capplan.replica.waiting import waiting_line
from capplan.scenario.batching import QueuePolicy
from capplan.scenario.layers import Queue
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Alarm, Clock, Rank


class BoundedQueue:
    """A waiting line with the limits of a scenario's queue.

    The wait limit is the same for all of its attempts, so one alarm, for the one that has waited
    longest, is enough. ``expired(attempt, failure)`` is called for each that has waited too long,
    after it has left the line.
    """

    def __init__(
        self,
        rules: Queue,
        *,
        layer: str,
        clock: Clock,
        expired: Callable[[Attempt, Failure], None],
        line: Any = None,
    ) -> None:
        self.line: Any = waiting_line(rules) if line is None else line
        self.refused = 0
        self.is_limited = rules.length is not None
        self._length = rules.length
        self._limit_s = math.inf if rules.wait_limit_s is None else rules.wait_limit_s
        self._clock = clock
        self._expired = expired
        self._alarm: Alarm | None = None
        answer = rules.status, rules.retry_after_s
        self.full = Failure("rejected", layer, Queue.full.reason, *answer)
        self.overdue = Failure("rejected", layer, QueuePolicy.overdue.reason, *answer)
        self._late = Failure("timed_out", layer, Queue.waited.reason)

    def enter(self, attempt: Attempt, *, room: int = 0) -> bool:
        """Add an attempt; return False if the queue is full.

        ``room`` is how many of the waiting do not count, because places behind are free for them.
        """
        if self._length is not None and len(self.line) >= self._length + room:
            self.refused += 1
            return False
        now_s = self._clock.now
        self.line.push(attempt, now_s)
        if self._alarm is None and self._limit_s < math.inf:
            self._arm(now_s + self._limit_s)
        return True

    def clear(self) -> None:
        """Cancel the alarm of a line that was emptied."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _arm(self, time_s: float) -> None:
        self._alarm = self._clock.alarm(time_s, Rank.TIMER, self._ring)

    def _ring(self, _: None) -> None:
        """End the attempts that have waited too long; the alarm stays set until all have left.

        So attempts that enter in this instant because of them set no second one.
        """
        while oldest := self.line.oldest():
            since_s, attempt = oldest
            if since_s + self._limit_s > self._clock.now:
                self._arm(since_s + self._limit_s)
                return
            self.line.remove(attempt)
            self._expired(attempt, self._late)
        self._alarm = None
