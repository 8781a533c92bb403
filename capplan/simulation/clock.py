"""The clock of a simulation: SimPy's event heap, with callbacks instead of processes."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappush
from typing import Any

import simpy


class Rank(IntEnum):
    """What happens first among events of the same instant; ties in order of scheduling.

    An answer that arrives exactly at its deadline is in time; work that ends exactly when a
    replica crashes is done; and a step that starts takes everything that has arrived by then.
    """

    ARRIVE = 0
    """Something reaches a layer: a request, an answer, the end of an overhead."""
    STEP = 1
    """A step or batch ends."""
    FAULT = 2
    """A replica crashes or returns."""
    TIMER = 3
    """A deadline, a timeout or a wait limit passes."""
    START = 4
    """A free replica starts a step or batch."""
    SAMPLE = 5
    """The timeline is sampled."""


class Alarm:
    """A scheduled call. It has the parts of a SimPy event that the event loop touches."""

    __slots__ = ("_defused", "_ok", "_value", "argument", "call", "callbacks")

    def __init__(self, call: Callable[[Any], None], argument: Any) -> None:
        self.call = call
        self.argument = argument
        self.callbacks: tuple[Callable[[Alarm], None], ...] | None = _RING
        self._ok = True

    def cancel(self) -> None:
        """Let the moment pass without the call."""
        if self.callbacks is not None:
            self.callbacks = ()


def _ring(alarm: Alarm) -> None:
    alarm.call(alarm.argument)


_RING = (_ring,)


class Clock(simpy.Environment):
    """SimPy's environment, with calls at absolute times.

    SimPy schedules by delay, and ``now + (t - now)`` is not always ``t``; moments that the log
    keeps must not depend on such rounding, so absolute times go onto the heap as they are.
    """

    def at(self, time_s: float, rank: Rank, call: Callable[[Any], None], argument: Any) -> Alarm:
        """Schedule ``call(argument)`` at a time that is not past; return the alarm."""
        alarm = Alarm(call, argument)
        heappush(self._queue, (time_s, rank, next(self._eid), alarm))  # type: ignore[misc]
        return alarm

    def run_while(self, busy: Callable[[], bool], until_s: float) -> float:
        """Process events up to ``until_s``, as long as ``busy()``; return the time reached."""
        queue = self._queue
        while busy():
            if not queue or queue[0][0] > until_s:
                self._now = until_s
                break
            self.step()
        return float(self.now)
