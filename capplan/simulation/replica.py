"""One replica: an engine, the clock that steps it, and the limits of its scheduler queue."""

from __future__ import annotations

import math
from typing import Any, Protocol

from capplan.replica.dynamic import QUEUE_FULL, DynamicEngine
from capplan.replica.engine import Batch
from capplan.replica.job import Job
from capplan.replica.limits import Limits
from capplan.replica.multi_model import ResidentEngine
from capplan.replica.prefix import cache_of
from capplan.scenario.layers import Queue
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Alarm, Clock, Rank
from capplan.simulation.queue import BoundedQueue
from capplan.simulation.shared_host import Share
from capplan.simulation.steps import Steps

CRASH = "crash"
BAD_REQUEST, ENGINE_ERROR, BAD_GATEWAY = 400, 500, 502


class Upstream(Protocol):
    """What a replica tells the pool it belongs to."""

    def answered(self, attempt: Attempt) -> None:
        """Take an attempt whose last token is made."""

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Take an attempt that ended in the replica without an answer."""

    def freed(self) -> None:
        """Know that a replica may take more."""

    def restored(self) -> None:
        """Know that a replica is back in service."""

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits for room in a replica or in a layer before."""


class Replica:
    """One replica of a pool.

    Attributes
    ----------
    in_flight
        Attempts it holds, including those given up that have not left yet.
    draining
        It takes no more, and is gone when it is empty.
    avoided
        Why the router sends it nothing, though it is there; empty = it does.
    """

    def __init__(
        self,
        name: str,
        *,
        steps: Steps,
        scheduler: Queue,
        clock: Clock,
        pool: Upstream,
        share: Share | None = None,
        cancels: bool = True,
    ) -> None:
        self.name = name
        self.engine: Batch = steps.engine
        self.up = True
        self.draining = False
        self.avoided: set[object] = set()
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
            self.engine.drop = self._drop
        self._steps = steps
        self._rank = steps.rank
        self._end_s = math.inf
        self._start: Alarm | None = None
        self._start_s = 0.0
        self._ending = False
        self._share = share
        self._cancels = cancels
        self._joining: dict[Attempt, None] = {}

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
        """Return whether the replica computes nothing and holds nothing."""
        return self._steps.end_s == math.inf and not self.in_flight

    def holds_model(self, attempt: Attempt) -> bool:
        """Return whether the model that an attempt needs is here, or is being loaded."""
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
            self._pool.failed(attempt, Failure("rejected", "scheduler_queue", reason, BAD_REQUEST))
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

    def _room(self, attempt: Attempt) -> int:
        """Return how many of those in line a free engine takes at once."""
        engine = self.engine
        if isinstance(engine, ResidentEngine):
            return engine.room(attempt)
        return engine.places - engine.prefilling - engine.decoding

    def _wait_for_step(self, attempt: Attempt) -> None:
        """Book the wait until the running step ends; a dynamic batch is no step to wait for."""
        if self.engine.joins_running:
            self._set_end()
            attempt.batch_window_s = self._end_s - attempt.scheduler_queue_in_s
            if self._share is not None:
                self._joining[attempt] = None

    def withdraw(self, attempt: Attempt) -> None:
        """Give an attempt up: from the queue at once, from a running batch when the step ends.

        A replica that does not cancel goes on with it, for nobody. One whose answer is made in
        this instant is here no longer.
        """
        if not attempt.is_held:
            return
        if not self._cancels:
            attempt.seen_tokens = self._steps.made(attempt)
            return
        gone = self._steps.abort(attempt)
        self._set_end()
        if gone:
            self._left(attempt)
            self._pool.freed()

    def crash(self, reason: str = CRASH) -> None:
        """Stop: everything here fails, until :meth:`restore`."""
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
            self._pool.failed(attempt, Failure("failed", attempt.layer, reason, BAD_GATEWAY))

    def limit(self, limits: Limits) -> None:
        """Hold the batches from the next on within limits; who waits may then go."""
        self.engine.limit(limits)
        self._set_end()
        if self.up and self._steps.end_s == math.inf and self.engine.waiting:
            self._start_at(self._clock.now)

    def write(self) -> None:
        """Write on all attempts that are still here what has happened to them."""
        self._steps.write()

    def restore(self) -> None:
        """Return empty."""
        self.up = True
        self._pool.restored()

    def _start_at(self, time_s: float) -> None:
        if self._start is not None:
            if self._start_s <= time_s:
                return
            self._start.cancel()
        self._start_s = time_s
        self._start = self._clock.alarm(time_s, Rank.START, self._on_start)

    def _on_start(self, _: None) -> None:
        self._start = None
        self._begin()

    def _begin(self) -> None:
        self._ending = True  # who is dropped may come again at once, before a batch is formed
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
        self._leave_host()
        left = self._steps.finish(stops=self._pool.has_waiting)
        if left:
            self._ending = True
            self._tell(left)
            self._ending = False
        if self._steps.end_s < math.inf:
            self._set_end()
        else:
            self._begin()

    def end_moves(self, end_s: float) -> None:
        """Know that the host gives the running step or batch another speed."""
        self._steps.move_end(end_s)
        self._set_end()
        for attempt in self._joining:
            attempt.batch_window_s = end_s - attempt.scheduler_queue_in_s

    def _leave_host(self) -> None:
        if self._share is not None:
            self._share.end(self)
            self._joining.clear()

    def _set_end(self) -> None:
        """Wake up when the known steps end, and no longer when they were to end before."""
        end_s = self._steps.end_s
        if end_s == self._end_s:
            return
        self._end_s = end_s
        if end_s < math.inf:
            self._clock.at(end_s, self._rank, self._on_end, end_s)

    def _tell(self, left: list[Any]) -> None:
        self.in_flight -= len(left)
        for attempt in left:
            attempt.is_held = False
        for attempt in left:
            if attempt.decode_end_s == attempt.decode_end_s:  # not NaN
                self._pool.answered(attempt)
            elif attempt.outcome == "in_flight":
                self._fail(attempt)
        self._pool.freed()

    def _fail(self, attempt: Attempt) -> None:
        """Pass on that the engine failed on an attempt, for the reason that stands on it."""
        reason, attempt.reason = str(attempt.reason), None
        self._pool.failed(attempt, Failure("failed", attempt.layer, reason, ENGINE_ERROR))

    def _left(self, attempt: Attempt) -> None:
        attempt.is_held = False
        self.in_flight -= 1
        self._end_window(attempt)

    def _end_window(self, attempt: Attempt) -> None:
        """Cut the wait for the running step at the moment the attempt leaves unserved."""
        waited_s = self._clock.now - attempt.scheduler_queue_in_s
        attempt.batch_window_s = min(attempt.batch_window_s, waited_s)
        self._joining.pop(attempt, None)

    def _drop(self, job: Job) -> None:
        """Refuse who has waited for too long in a level of a dynamic batcher."""
        self._expired(_attempt(job), self._queue.overdue)

    def _expired(self, attempt: Attempt, failure: Failure) -> None:
        self._set_end()
        self._left(attempt)
        self._pool.failed(attempt, failure)
        self._pool.freed()


def _attempt(job: Job) -> Attempt:
    if not isinstance(job, Attempt):
        msg = f"a replica of the simulation holds attempts, got {job!r}"
        raise TypeError(msg)
    return job
