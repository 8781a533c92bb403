"""Dynamic batching by size and window: a whole batch starts together and ends together.

Source: NVIDIA, "Triton Inference Server User Guide", section "Dynamic Batcher"
(``max_batch_size``, ``max_queue_delay_microseconds``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from capplan.replica.fair import waiting_line
from capplan.replica.job import Job
from capplan.replica.levels import LevelLine
from capplan.replica.limits import NO_LIMITS, Limits

if TYPE_CHECKING:
    from capplan.replica.waiting import WaitingLine
    from capplan.scenario.batching import DynamicBatching, QueuePolicy


QUEUE_FULL = "queue_full"


class DynamicEngine:
    """The batching state of one replica; same calls as the continuous engine.

    ``drop(job)`` is told who leaves the queue because its level's timeout has passed.
    ``batch_seconds(items, size)`` gives the service time of one batch. Attributes and totals are
    those of :class:`capplan.replica.continuous.ContinuousEngine`; a step is a batch, and there is
    no KV.
    """

    joins_running = False
    has_kv = False
    kv_usage_fraction = math.nan
    preemptions = 0
    decoding = 0

    def __init__(
        self,
        batching: DynamicBatching,
        *,
        batch_seconds: Callable[[int, float], float] | None = None,
    ) -> None:
        self._levels = _levels(batching)
        one_line: WaitingLine[Job] = waiting_line(batching.scheduler)
        self.waiting = one_line if self._levels is None else self._levels
        self.drop: Callable[[Job], None] = _forget
        self.wake_s = math.inf
        self.steps = self.sequences = self.prefill_tokens = self.output_tokens = 0
        self._rules = batching
        self.limit(NO_LIMITS)
        self._batch_seconds = batch_seconds
        self._batch: list[Job] = []
        self._aborted: set[Job] = set()
        self._free_since_s = 0.0

    @property
    def running(self) -> Iterable[Job]:
        """Return the requests of the running batch."""
        return self._batch

    @property
    def prefilling(self) -> int:
        """Return how many requests are in the running batch."""
        return len(self._batch)

    def refusal(self, job: Job) -> str | None:
        """Return ``queue_full`` if its level takes nobody more; a batch takes any."""
        if self._levels is not None and self._levels.level_of(job).full:
            return QUEUE_FULL
        return None

    def limit(self, limits: Limits) -> None:
        """Hold the batches that start from now on within limits, instead of those before."""
        rules = self._rules
        self.places = most = int(min(rules.max_batch_size, limits.sequences))
        self._delay_s = min(rules.max_queue_delay_s, limits.window_s)
        preferred = rules.preferred_batch_sizes or (most,)
        self._sizes = tuple(size for size in preferred if size <= most) or (most,)

    def begin(self, now_s: float) -> float | None:
        """Start a batch if it is due; return how long it takes, else None.

        With None, ``wake_s`` says when the window of the longest waiting job ends.
        """
        if self._levels is not None:
            for job in self._levels.expire(now_s):
                self.drop(job)
        oldest = self.waiting.oldest() if self.places else None
        self.wake_s = math.inf if oldest is None else oldest[0] + self._delay_s
        size = self._due(now_s)
        if not size:
            return None
        batch = [self.waiting.pop() for _ in range(size)]
        self._count_window(batch, now_s)
        self.steps += 1
        self.sequences += len(batch)
        for job in batch:
            job.batch_in_s = now_s
            job.batch_id, job.batch_size = self.steps, len(batch)
        self._batch = batch
        return self._service_s(batch, now_s)

    def _due(self, now_s: float) -> int:
        """Return how many are to be served now: a preferred number, or all whose window ends."""
        waiting = len(self.waiting)
        preferred = max((size for size in self._sizes if size <= waiting), default=0)
        late = now_s >= self.wake_s
        return preferred or (min(waiting, self.places) if late else 0)

    def _service_s(self, batch: list[Job], now_s: float) -> float:
        """Return how long a batch takes, s."""
        if self._batch_seconds is None:
            msg = "a service time, to serve a batch"
            raise ValueError(msg)
        return self._batch_seconds(len(batch), sum(job.batch_items for job in batch))

    def _count_window(self, batch: list[Job], now_s: float) -> None:
        """Book the time since the replica was free as waiting for the window."""
        if now_s <= self._free_since_s:
            return
        for job in [*batch, *self.waiting]:
            job.batch_window_s += now_s - max(job.scheduler_queue_in_s, self._free_since_s)

    def end(self, now_s: float) -> list[Job]:
        """End the batch; return its jobs. Those aborted meanwhile have no ``decode_end_s``."""
        left, self._batch = self._batch, []
        for job in left:
            self._count(job)
        if left:
            self._served(left, now_s)
        for job in self._aborted:
            job.prefill_end_s = job.decode_end_s = math.nan
        self._aborted.clear()
        self._free_since_s = now_s
        return left

    def _count(self, job: Job) -> None:
        job.prefilled_tokens, job.generated_tokens = job.prompt_tokens, job.output_tokens

    def _served(self, batch: list[Job], now_s: float) -> None:
        """Write on a batch when it was served, and add to the totals."""
        for job in batch:
            job.prefill_end_s = job.decode_end_s = now_s
            self.prefill_tokens += job.prompt_tokens
            self.output_tokens += job.output_tokens

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if its batch goes on with it."""
        if self.waiting.remove(job):
            return True
        self._aborted.add(job)
        return False

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now: none before the batch ends."""
        return job.generated_tokens

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were waiting or in the batch."""
        jobs = [*self.waiting.clear(), *self._batch]
        self._batch = []
        self._aborted.clear()
        return jobs


def _levels(batching: DynamicBatching) -> LevelLine | None:
    """Return the line of a batching whose requests wait in levels."""
    if not batching.has_levels:
        return None
    policies: dict[int, QueuePolicy] = {0: batching.queue_policy}
    policies |= {policy.level: policy for policy in batching.level_policies}
    return LevelLine(
        policies,
        levels=batching.priority_levels,
        default=batching.default_priority_level,
        scheduler=batching.scheduler,
    )


def _forget(job: Job) -> None:
    """Do nothing with a job that left."""
