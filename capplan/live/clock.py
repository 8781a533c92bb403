"""Real time for the control plane of the simulation: callers, limits and samples run as they are.

A simulated clock jumps to its next event; this one waits for it. What comes from outside, such as
an answer, enters by :meth:`LiveClock.happened`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from capplan.simulation.clock import Clock, Rank


class LiveClock(Clock):
    """The events of a :class:`~capplan.simulation.clock.Clock`, each called when its time has come.

    An event that is called late keeps its own time as long as no later one has been called: a
    request that leaves late still intended to start on time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()
        self._end: asyncio.Future[float] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf
        self._busy: Callable[[], bool] = lambda: True
        self._until_s = -math.inf

    def read(self) -> float:
        """Return the time since :meth:`play` began, s."""
        return self._loop.time() - self._start_s

    def at(self, time_s: float, rank: int, call: Callable[[Any], object], argument: Any) -> None:
        """Schedule ``call(argument)``."""
        super().at(time_s, rank, call, argument)
        if time_s < self._due_s:
            self._arm()

    def happened(self, call: Callable[[Any], object], argument: Any) -> None:
        """Call ``call(argument)`` at once; nothing happens after the end."""
        if self._end.done():
            return
        self._go_on(partial(self._call_now, call, argument))

    async def play(self, busy: Callable[[], bool], until_s: float) -> float:
        """Call events as they fall due, as :meth:`run_while` does; return the time reached, s."""
        self._busy, self._until_s = busy, until_s
        self._start_s = self._loop.time()
        self._arm()
        try:
            return await self._end
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def stop(self) -> None:
        """End the run now."""
        if not self._end.done():
            self._end.set_result(self.read())

    def _arm(self) -> None:
        """Set the timer to the next event, or to the end of the run."""
        if self._timer is not None:
            self._timer.cancel()
        queue: list[Any] = self._queue
        self._due_s = min(queue[0][0] if queue else math.inf, self._until_s)
        if math.isfinite(self._due_s) and not self._end.done():
            due_s = self._start_s + self._due_s
            self._timer = self._loop.call_at(due_s, self._go_on, self._call_due)

    def _call_due(self) -> None:
        queue: list[Any] = self._queue
        while queue and queue[0][0] <= min(self.read(), self._until_s):
            self.step()

    def _call_now(self, call: Callable[[Any], object], argument: Any) -> None:
        self._reach(self.read(), Rank.ARRIVE)
        call(argument)

    def _go_on(self, call: Callable[[], object]) -> None:
        """Make a call, then wait on, or end; an exception of the call ends the run with it."""
        try:
            call()
            over = not (self.under_way or self._busy()) or self.read() >= self._until_s
        except Exception as err:  # raised again by play
            if not self._end.done():
                self._end.set_exception(err)
            return
        if over:
            self.stop()
        else:
            self._arm()
