"""One replica: an engine, the clock that steps it, and the limits of its scheduler queue."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, count
from typing import Any, Protocol

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.engine import Batch, Limits
from capplan.replica.job import Job
from capplan.replica.multi_model import ResidentEngine
from capplan.replica.prefix_cache import cache_of
from capplan.replica.whole_batch import QUEUE_FULL, DynamicEngine
from capplan.scenario.ending import Ending, endings
from capplan.scenario.faults import Crash
from capplan.scenario.layers import Queue
from capplan.simulation.attempt import Attempt, Downstream, Failure
from capplan.simulation.clock import Alarm, Clock, Rank
from capplan.simulation.queue import BoundedQueue
from capplan.simulation.shared_host import Share
from capplan.simulation.steps import StepByStep, Steps


class Home(Downstream, Protocol):
    """The pool of a replica, as the replica calls it."""

    def freed(self) -> None:
        """Send waiting requests: a replica may have room."""

    def restored(self) -> None:
        """Route to a replica again: it is back in service."""


class Replica:
    """One replica of a pool.

    A hung replica takes requests and holds them, but nothing moves, including its running step;
    meanwhile it is not busy. After the last hang its step continues from where it stopped.

    Attributes
    ----------
    in_flight
        Attempts it holds, including cancelled ones that have not left yet.
    draining
        It takes no more requests and leaves the pool when it is empty.
    avoided
        Reasons why the router sends it nothing although it is up; empty = it sends.
    hangs
        The hangs that have not ended, each with its own number. A crash ends all.
    version
        What it reports: the version of its model and engine; empty = not known.
    on_empty
        Called once when the last request has left; None = no call.
    """

    def __init__(
        self,
        name: str,
        *,
        steps: Steps,
        scheduler: Queue,
        clock: Clock,
        pool: Home,
        share: Share | None = None,
        cancels: bool = True,
        step_factor: float = 1.0,
        version: str = "",
    ) -> None:
        self.name = name
        self.version = version
        self.engine: Batch = steps.engine
        self.up = True
        self.draining = False
        self.avoided: set[object] = set()
        self.hangs: set[int] = set()
        self.on_empty: Callable[[], None] | None = None
        self.in_flight = 0
        self._clock = clock
        self._pool = pool
        self._queue = BoundedQueue(
            scheduler,
            layer="scheduler_queue",
            clock=clock,
            expired=self._expired,
            line=self.engine.waiting,
        )
        if isinstance(self.engine, DynamicEngine):
            overdue = self._queue.overdue
            self.engine.drop = lambda job: self._expired(_attempt(job), overdue)
        self._steps = steps
        self._rank = steps.rank
        self._end_s = math.inf
        self._start: Alarm | None = None
        self._ending = False
        self._share = share
        self._cancels = cancels
        self._joining: dict[Attempt, None] = {}
        """Attempts that wait for the end of the running step, in order of arrival."""
        self._hang_numbers = count()
        self._suspended_s: float | None = None
        """What is left of the step that a hang suspends, s."""
        self._factors = [step_factor]
        if step_factor != 1.0:
            self._step_by_step.factor = step_factor

    @property
    def refused(self) -> int:
        """Return how many attempts found the scheduler queue full."""
        return self._queue.refused

    @property
    def begun_s(self) -> float:
        """Return the length of all steps begun, including all of the running one, s."""
        return self._steps.begun_s

    @property
    def busy_s(self) -> float:
        """Return for how long the replica has computed until now, s."""
        if self._steps.end_s == math.inf:
            return self._steps.begun_s
        return self._steps.begun_s - (self._steps.step_end_s - self._clock.now)

    @property
    def idle(self) -> bool:
        """Return whether the replica computes nothing and holds no request that can end."""
        held = chain(self.engine.waiting, self.engine.running)
        if self.hangs and not any(getattr(job, "place", "") == "replica" for job in held):
            return True
        return self._steps.end_s == math.inf and not self.in_flight

    def holds_model(self, attempt: Attempt) -> bool:
        """Return whether the model that an attempt needs is resident or loading."""
        return not isinstance(self.engine, ResidentEngine) or self.engine.holds(attempt)

    def cached_tokens(self, attempt: Attempt) -> int:
        """Return how many tokens of a prompt the prefix cache holds by their ids; 0 without one."""
        cache = cache_of(self.engine)
        return 0 if cache is None else cache.known_tokens(attempt)

    def submit(self, attempt: Attempt) -> None:
        """Take an attempt into the scheduler queue, or refuse it."""
        engine, now_s = self.engine, self._clock.now
        attempt.place, attempt.replica = "replica", self.name
        attempt.scheduler_queue_in_s = now_s
        if reason := engine.refusal(attempt):
            if reason == QUEUE_FULL:
                self._queue.refused += 1
                self._pool.failed(attempt, self._queue.full)
                return
            self._pool.failed(attempt, Failure.of(endings()[reason], "scheduler_queue"))
            return
        free = self._steps.end_s == math.inf
        room = self._room(attempt) if free and self._queue.is_limited else 0
        if not self._queue.enter(attempt, room=room):
            self._pool.failed(attempt, self._queue.full)
            return
        self.in_flight += 1
        attempt.is_held = True
        attempt.batch_window_s = 0.0
        if not free:
            self._wait_for_step(attempt)
        elif not self._ending:
            self._start_at(now_s)
        if self._suspended_s is not None and engine.joins_running:
            self._joining[attempt] = None

    def withdraw(self, attempt: Attempt) -> None:
        """Cancel an attempt: in the queue at once, in a running batch when the step ends.

        A replica that does not cancel computes it to the end. An attempt whose answer is made in
        this instant has left already.
        """
        if not attempt.is_held:
            return
        if not self._cancels:
            attempt.seen_tokens = self._steps.made(attempt)
            return
        gone = self._steps.abort(attempt)
        self._set_end()
        if gone:
            self._release(attempt)
            self._pool.freed()

    def limit(self, limits: Limits) -> None:
        """Set the limits of the batches from the next on; waiting requests may start."""
        self.engine.limit(limits)
        self._set_end()
        if self.up and self._steps.end_s == math.inf and self.engine.waiting:
            self._start_at(self._clock.now)

    def write(self) -> None:
        """Write the current state of the attempts here on them."""
        self._steps.write()

    def crash(self, ending: Ending = Crash.ending) -> None:
        """Stop: everything here fails, until :meth:`restore`."""
        self.hangs.clear()
        self._suspended_s = None
        lost = self._steps.clear()
        self._leave_host()
        self._queue.clear()
        self._set_end()
        if self._start is not None:
            self._start.cancel()
            self._start = None
        self.up, self.in_flight = False, 0
        for job in lost:
            attempt = _attempt(job)
            attempt.is_held = False
            self._end_window(attempt)
            self._pool.failed(attempt, Failure.of(ending, attempt.layer, outcome="failed"))
        self._check_empty()

    def restore(self) -> None:
        """Return to service, empty."""
        self.up = True
        self._pool.restored()

    def hang(self) -> int:
        """Suspend everything until :meth:`recover`; return the number of this hang."""
        if not self.hangs:
            self._suspended_s = self._suspend()
        number = next(self._hang_numbers)
        self.hangs.add(number)
        return number

    def recover(self, hang: int) -> None:
        """End a hang; after the last one, continue from where the step stopped."""
        self.hangs.remove(hang)
        if self.hangs:
            return
        left_s, self._suspended_s = self._suspended_s, None
        if left_s is not None:
            self._resume(left_s)
        elif self.engine.waiting:
            self._start_at(self._clock.now)

    def slow_down(self, factor: float) -> None:
        """Multiply the length of steps, of the running one from now on."""
        self._factors.append(factor)
        self._change_pace()

    def speed_up(self, factor: float) -> None:
        """Undo a :meth:`slow_down` by that factor."""
        self._factors.remove(factor)
        self._change_pace()

    def lose_kv(self, blocks: int) -> None:
        """Lose free KV blocks, until a crash or a reload."""
        if not isinstance(self.engine, ContinuousEngine):
            raise TypeError(f"an engine of single steps, got {type(self.engine).__name__}")
        self.engine.kv.lose(blocks)

    def end_moves(self, end_s: float) -> None:
        """Move the end of the running step or batch: its shared host changed its speed."""
        self._steps.move_end(end_s)
        self._end_moved(end_s)

    @property
    def _step_by_step(self) -> StepByStep:
        if not isinstance(self._steps, StepByStep):
            raise TypeError(f"steps that can change their pace, got {type(self._steps).__name__}")
        return self._steps

    def _change_pace(self) -> None:
        factor, steps = math.prod(self._factors), self._step_by_step
        ratio, steps.factor = factor / steps.factor, factor
        if self._suspended_s is not None:
            self._suspended_s *= ratio
        elif (left_s := self._suspend()) is not None:
            self._resume(left_s * ratio)

    def _suspend(self) -> float | None:
        """Suspend the running step; return what is left of it, s, None without one."""
        if self._steps.end_s == math.inf:
            return None
        left_s = self._steps.end_s - self._clock.now
        if self._share is not None:
            left_s = self._share.left_s(self)
            self._share.end(self)
        self._step_by_step.halt()
        self._set_end()
        return left_s

    def _resume(self, left_s: float) -> None:
        end_s = self._clock.now + left_s
        self._step_by_step.resume(end_s)
        self._end_moved(end_s)
        if self._share is not None:
            self._share.begin(self, left_s)

    def _end_moved(self, end_s: float) -> None:
        self._set_end()
        for attempt in self._joining:
            attempt.batch_window_s = end_s - attempt.scheduler_queue_in_s

    def _room(self, attempt: Attempt) -> int:
        """Return how many of the waiting requests a free engine takes at once."""
        engine = self.engine
        if self.hangs:
            return 0
        if isinstance(engine, ResidentEngine):
            return engine.room(attempt)
        return engine.places - engine.prefilling - engine.decoding

    def _wait_for_step(self, attempt: Attempt) -> None:
        """Book the wait until the running step ends; none where requests do not join batches."""
        if self.engine.joins_running:
            self._set_end()
            attempt.batch_window_s = self._end_s - attempt.scheduler_queue_in_s
            self._joining[attempt] = None

    def _start_at(self, time_s: float) -> None:
        if self._start is not None:
            if self._start.time_s <= time_s:
                return
            self._start.cancel()
        self._start = self._clock.alarm(time_s, Rank.START, self._on_start)

    def _on_start(self, _: None) -> None:
        self._start = None
        if not self.hangs:
            self._begin()

    def _begin(self) -> None:
        self._ending = True  # a dropped request may return at once, before a batch is formed
        self._steps.start(self._clock.now)
        self._ending = False
        if self._steps.end_s < math.inf:
            self._set_end()
            if self._share is not None:
                self._share.begin(self, self._end_s - self._clock.now)
        elif self.engine.waiting:
            self._start_at(self.engine.wake_s)

    def _on_end(self, end_s: float) -> None:
        if end_s != self._end_s:
            return
        self._end_s = math.inf
        self._joining.clear()
        if self._share is not None:
            self._share.end(self)
        left = self._steps.finish(stops=self._pool.has_waiting)
        if left:
            self._ending = True
            self._pass_on(left)
            self._ending = False
        if self._steps.end_s < math.inf:
            self._set_end()
        else:
            self._begin()

    def _leave_host(self) -> None:
        self._joining.clear()
        if self._share is not None:
            self._share.end(self)

    def _set_end(self) -> None:
        """Schedule the end of the known steps; an earlier call for another end has no effect."""
        end_s = self._steps.end_s
        if end_s == self._end_s:
            return
        self._end_s = end_s
        if end_s < math.inf:
            self._clock.at(end_s, self._rank, self._on_end, end_s)

    def _pass_on(self, left: list[Any]) -> None:
        """Pass the answers and failures of a step on to the pool."""
        self.in_flight -= len(left)
        for attempt in left:
            attempt.is_held = False
        for attempt in left:
            if attempt.decode_end_s == attempt.decode_end_s:  # not NaN
                self._pool.answered(attempt)
            elif attempt.outcome == "in_flight" and (reason := attempt.reason) is not None:
                attempt.reason = None
                failure = Failure.of(endings()[reason], attempt.layer, outcome="failed")
                self._pool.failed(attempt, failure)
        self._pool.freed()
        if self.on_empty is not None:
            self._check_empty()

    def _release(self, attempt: Attempt) -> None:
        attempt.is_held = False
        self.in_flight -= 1
        self._end_window(attempt)
        self._check_empty()

    def _check_empty(self) -> None:
        if self.on_empty is not None and not self.in_flight:
            call, self.on_empty = self.on_empty, None
            call()

    def _end_window(self, attempt: Attempt) -> None:
        """End the wait for the running step: the attempt leaves unserved."""
        waited_s = self._clock.now - attempt.scheduler_queue_in_s
        attempt.batch_window_s = min(attempt.batch_window_s, waited_s)
        self._joining.pop(attempt, None)

    def _expired(self, attempt: Attempt, failure: Failure) -> None:
        self._set_end()
        self._release(attempt)
        self._pool.failed(attempt, failure)
        self._pool.freed()


def _attempt(job: Job) -> Attempt:
    if not isinstance(job, Attempt):
        raise TypeError(f"a replica of the simulation holds attempts, got {job!r}")
    return job
