"""A replica that can hang, slow down and be emptied, where a scenario has such faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from itertools import chain, count
from typing import Any

from capplan.scenario.faults import Fault, Hang, ModelReload, Slow
from capplan.scenario.pools import Pool
from capplan.simulation.attempt import Attempt
from capplan.simulation.paced import PacedSteps
from capplan.simulation.replica import CRASH, Replica


def changes_pace(pool: Pool, faults: Iterable[Fault]) -> bool:
    """Return whether the steps of a pool, under its faults, change their speed."""
    return bool(pool.step_factors) or any(isinstance(fault, Hang | Slow) for fault in faults)


def is_frail(pool: Pool, faults: Collection[Fault]) -> bool:
    """Return whether a pool needs replicas of this kind."""
    return changes_pace(pool, faults) or any(isinstance(f, ModelReload) for f in faults)


class FrailReplica(Replica):
    """A replica whose steps can stand still or take longer; else it does what a replica does.

    A hung replica takes requests and holds them; nothing moves on, its running step neither. It
    is not busy meanwhile. Once it recovers, its step goes on from where it stood.

    Attributes
    ----------
    hangs
        What keeps it standing still: each hang that is not over, by a number of its own. A crash
        ends them all.
    emptied
        Called when the last request has left; None = nobody wants to know.
    """

    def __init__(self, *args: Any, base_factor: float = 1.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.hangs: set[int] = set()
        self._hung = count()
        self.emptied: Callable[[], None] | None = None
        self._left_s: float | None = None
        self._factors = [base_factor]
        if base_factor != 1.0:
            self._paced.factor = base_factor

    @property
    def is_hung(self) -> bool:
        """Return whether it stands still."""
        return bool(self.hangs)

    @property
    def idle(self) -> bool:
        """Return whether the replica computes nothing and holds nobody who waits for it."""
        return super().idle or (self.is_hung and not any(self._waited_for()))

    def submit(self, attempt: Attempt) -> None:
        """Take an attempt into the scheduler queue, or refuse it."""
        super().submit(attempt)
        if self._left_s is not None and attempt.is_held and self.engine.joins_running:
            self._joining[attempt] = None

    def hang(self) -> int:
        """Stand still until :meth:`recover`; return the number of this hang."""
        if not self.hangs:
            self._left_s = self._halt()
        number = next(self._hung)
        self.hangs.add(number)
        return number

    def recover(self, hang: int) -> None:
        """End a hang; go on from where it stood if it was the last."""
        self.hangs.remove(hang)
        if self.hangs:
            return
        left_s, self._left_s = self._left_s, None
        if left_s is not None:
            self._resume(left_s)
        elif self.engine.waiting:
            self._start_at(self._clock.now)

    def slow(self, factor: float) -> None:
        """Let steps take that many times longer, the running one from now on."""
        self._factors.append(factor)
        self._change_pace()

    def speed_up(self, factor: float) -> None:
        """Take back a :meth:`slow` of that factor."""
        self._factors.remove(factor)
        self._change_pace()

    def crash(self, reason: str = CRASH) -> None:
        """Stop: everything here fails, until it is restored."""
        self.hangs.clear()
        self._left_s = None
        super().crash(reason)
        self._joining.clear()
        self._tell_emptied()

    @property
    def _paced(self) -> PacedSteps:
        if not isinstance(self._steps, PacedSteps):
            msg = f"steps that can change their speed, got {type(self._steps).__name__}"
            raise TypeError(msg)
        return self._steps

    def _waited_for(self) -> list[bool]:
        held = chain(self.engine.waiting, self.engine.running)
        return [isinstance(job, Attempt) and job.place == "replica" for job in held]

    def _change_pace(self) -> None:
        factor = math.prod(self._factors)
        ratio, self._paced.factor = factor / self._paced.factor, factor
        if self._left_s is not None:
            self._left_s *= ratio
            return
        left_s = self._halt()
        if left_s is not None:
            self._resume(left_s * ratio)

    def _halt(self) -> float | None:
        """Let the running step stand still; return what is left of it, s, None without one."""
        if self._steps.end_s == math.inf:
            return None
        left_s = self._steps.end_s - self._clock.now
        if self._share is not None:
            left_s = self._share.left_s(self)
            self._share.end(self)
        self._paced.halt()
        self._set_end()
        return left_s

    def _resume(self, left_s: float) -> None:
        end_s = self._clock.now + left_s
        self._paced.resume(end_s)
        self._set_end()
        for attempt in self._joining:
            attempt.batch_window_s = end_s - attempt.scheduler_queue_in_s
        if self._share is not None:
            self._share.begin(self, left_s)

    def _on_start(self, _: None) -> None:
        self._start = None
        if not self.is_hung:
            self._begin()

    def _room(self, attempt: Attempt) -> int:
        return 0 if self.is_hung else super()._room(attempt)

    def _wait_for_step(self, attempt: Attempt) -> None:
        super()._wait_for_step(attempt)
        if self.engine.joins_running:
            self._joining[attempt] = None

    def _leave_host(self) -> None:
        super()._leave_host()
        self._joining.clear()

    def _tell(self, left: list[Any]) -> None:
        super()._tell(left)
        self._tell_emptied()

    def _left(self, attempt: Attempt) -> None:
        super()._left(attempt)
        self._tell_emptied()

    def _tell_emptied(self) -> None:
        if self.emptied is not None and not self.in_flight:
            tell, self.emptied = self.emptied, None
            tell()
