"""The clock of a simulation: SimPy's environment, with absolute times and ranks.

What repeats by itself is a SimPy process that waits for :meth:`Clock.until`: samples of the
timeline, checks of breakers, scaling, failures of units. Requests, steps and deadlines are
callbacks on the same heap (:meth:`Clock.at`): each request needs several of them, and an event
that resumes a process takes twice as long as a callback (1.3 against 0.6 µs).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Any

import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, Event

Events = Generator[Event, Any, None]
"""A process: it yields the events that it waits for."""
ROOM = 1_000_000
"""Ranks between two kinds of events, for ranks of their own."""


class Rank:
    """The order of events at the same instant; ties in order of scheduling.

    An answer that arrives exactly at its deadline is in time; work that ends exactly when a
    replica crashes is done; a step that starts takes everything that has arrived by then.
    """

    ARRIVE = 0
    """Something reaches a layer: a request, an answer, the end of an overhead."""
    STEP = ROOM
    """A step or batch ends: of the first replica first."""
    FAULT = 2 * ROOM
    """A replica crashes or returns."""
    TIMER = 3 * ROOM
    """A deadline, a timeout or a wait limit passes."""
    START = 4 * ROOM
    """A free replica starts a step or batch."""
    SETTLE = 5 * ROOM
    """Shared hosts set the speed of what runs on them."""
    CHECK = 6 * ROOM
    """Breakers and autoscalers read their metrics, and act."""
    SAMPLE = 7 * ROOM
    """The timeline is sampled."""
    STOP = 8 * ROOM
    """The run ends."""


class Alarm:
    """A scheduled call that can be cancelled."""

    __slots__ = ("_call", "time_s")

    def __init__(self, time_s: float, call: Callable[[Any], None]) -> None:
        self.time_s = time_s
        self._call: Callable[[Any], None] | None = call

    def ring(self, argument: Any) -> None:
        """Call, unless cancelled."""
        if self._call is not None:
            self._call(argument)

    def cancel(self) -> None:
        """Prevent the call."""
        self._call = None


class Moment(Event):
    """An event at an absolute time and rank."""

    def __init__(self, clock: Clock, time_s: float, rank: int) -> None:
        super().__init__(clock)
        self._ok, self._value = True, None
        clock.at(time_s, rank, _happen, self)


class Clock(simpy.Environment):
    """SimPy's environment, with events at absolute times.

    SimPy schedules by delay, and ``now + (t - now)`` is not always ``t``. Times in the log must
    not depend on such rounding, so absolute times go onto the heap as they are.

    Attributes
    ----------
    now
        The time, s: an attribute, because each request reads it ten times.
    reached
        The highest rank of the events at this instant so far.
    under_way
        How many requests are under way; callers count them.
    """

    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.reached = -1
        self.under_way = 0
        self._step_ranks = count(Rank.STEP)

    def at(self, time_s: float, rank: int, call: Callable[[Any], object], argument: Any) -> None:
        """Schedule ``call(argument)`` at a time that is not past."""
        heappush(self._queue, (time_s, rank, next(self._eid), call, argument))  # type: ignore[misc]

    def until(self, time_s: float, rank: int) -> Moment:
        """Return an event at a time that is not past, for a process to wait for."""
        return Moment(self, time_s, rank)

    def alarm(self, time_s: float, rank: int, call: Callable[[Any], None]) -> Alarm:
        """Schedule ``call(None)`` at a time that is not past; return what can cancel it."""
        alarm = Alarm(time_s, call)
        self.at(time_s, rank, alarm.ring, None)
        return alarm

    def step_rank(self) -> int:
        """Return a rank for the ends of one replica's steps, after those of earlier replicas."""
        return next(self._step_ranks)

    def schedule(self, event: Event, priority: Any = NORMAL, delay: float = 0) -> None:
        """Schedule an event of SimPy, such as the start of a process."""
        self.at(self.now + delay, priority, _happen, event)

    def step(self) -> None:
        """Process the next event."""
        time_s, rank, _, call, argument = heappop(self._queue)  # type: ignore[misc]
        self._reach(time_s, rank)
        call(argument)

    def _reach(self, time_s: float, rank: int) -> None:
        if time_s > self.now:
            self.now = self._now = time_s
            self.reached = rank
        elif rank > self.reached:
            self.reached = rank

    def run_while(self, busy: Callable[[], bool], until_s: float) -> float:
        """Process events up to ``until_s``, as long as ``busy()``; return the time reached.

        ``busy`` is not called while anything is ``under_way``. (:meth:`step` is inlined, because
        calls cost as much as the rest.)
        """
        queue: list[Any] = self._queue
        self.at(until_s, Rank.STOP, _stop, None)
        with suppress(StopSimulation):
            while self.under_way or busy():
                time_s, rank, _, call, argument = heappop(queue)
                if time_s > self.now:
                    self.now = self._now = time_s
                    self.reached = rank
                elif rank > self.reached:
                    self.reached = rank
                call(argument)
        return self.now


def _stop(_: None) -> None:
    raise StopSimulation(None)


def _happen(event: Event) -> None:
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    for callback in callbacks:
        callback(event)
    if not (event._ok or event._defused):  # a process has raised
        raise event._value
