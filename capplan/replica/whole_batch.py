"""Dynamic and static batching: a whole batch starts together and ends together.

*Dynamic*: by size and window. Source: NVIDIA, "Triton Inference Server User Guide", section
"Dynamic Batcher" (``max_batch_size``, ``max_queue_delay_microseconds``).

*Priority levels*: each has its own limits; timeouts apply when a batch is formed, and a delayed
request comes after all of its level that are in time, before the next level. Source: NVIDIA,
"Triton Inference Server", ``model_config.proto`` (``ModelQueuePolicy``, ``priority_levels``) and
``dynamic_batch_scheduler.cc``, 2025.

*Static*: for comparison with continuous batching. A batch of ``n`` computes ``n`` prompts of the
longest length at once, then as many decode steps as the longest answer needs, each of all ``n``
sequences; none joins, and all answers go back when the last is made. Source: Yu et al., "Orca: A
Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, section 3.1
(challenge C1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from capplan.replica.compiled.step_laws import StepTime
from capplan.replica.engine import NO_LIMITS, JoinedLines, Limits
from capplan.replica.job import Job
from capplan.replica.kv_capacity import kv_tokens
from capplan.replica.step_time import step_time
from capplan.replica.waiting import WaitingLine, waiting_line
from capplan.scenario.batching import DynamicBatching, QueuePolicy, StaticBatching
from capplan.scenario.layers import Queue
from capplan.scenario.pools import Pool
from capplan.schema import DataError

QUEUE_FULL = "queue_full"


class Level:
    """The waiting jobs of one level: those in time, and the delayed ones after them."""

    def __init__(self, policy: QueuePolicy, scheduler: Queue) -> None:
        self.policy = policy
        self.in_time: WaitingLine[Job] = waiting_line(scheduler)
        self.delayed: WaitingLine[Job] = waiting_line(scheduler)

    def __len__(self) -> int:
        return len(self.in_time) + len(self.delayed)

    @property
    def full(self) -> bool:
        """Return whether no more jobs may wait here."""
        most = self.policy.max_queue_size
        return most is not None and len(self) >= most

    def expire(self, now_s: float) -> list[Job]:
        """Remove or delay the jobs that have waited too long; return the removed ones."""
        removed: list[Job] = []
        timeout_s = self.policy.timeout_s
        while timeout_s is not None and (oldest := self.in_time.oldest()):
            since_s, job = oldest
            if since_s + timeout_s > now_s:
                break
            self.in_time.remove(job)
            if self.policy.timeout_action == "delay":
                self.delayed.push(job, since_s)
            else:
                removed.append(job)
        return removed


class LevelLine(JoinedLines):
    """A waiting line of levels, served from the lowest number up.

    ``levels`` 0 puts all jobs into one. A priority outside 1 … ``levels`` counts as ``default``.
    """

    def __init__(
        self, policies: dict[int, QueuePolicy], *, levels: int, default: int, scheduler: Queue
    ) -> None:
        self._levels = {
            level: Level(policies.get(level, policies[0]), scheduler)
            for level in range(1, max(levels, 1) + 1)
        }
        self._default = default
        super().__init__(
            [line for level in self._levels.values() for line in (level.in_time, level.delayed)],
            lambda job: self.level_of(job).in_time,
        )

    def level_of(self, job: Job) -> Level:
        """Return the level that a job waits in."""
        level = job.priority if job.priority in self._levels else self._default
        return self._levels[level]

    def pop(self) -> Job:
        """Remove and return the job to serve next; IndexError if none waits."""
        line = next((line for line in self._lines if line), self._lines[0])
        return line.pop()

    def expire(self, now_s: float) -> list[Job]:
        """Apply the timeouts; return the jobs that leave for them."""
        return [job for level in self._levels.values() for job in level.expire(now_s)]

    def clear(self) -> list[Job]:
        """Empty the line; return its jobs, level by level."""
        return [job for line in self._lines for job in line.clear()]


class DynamicEngine:
    """The batching state of one replica: an ``Engine`` whose step is a batch, without KV.

    ``drop(job)`` is called for each job that leaves the queue because its level's timeout has
    passed. ``batch_seconds(items, size)`` gives the service time of one batch.
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
        self.drop: Callable[[Job], None] = lambda job: None
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
        """Return ``queue_full`` if its level is full; a batch takes any job."""
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
        """Return how many jobs to serve now: a preferred number, or all whose window ends."""
        waiting = len(self.waiting)
        preferred = max((size for size in self._sizes if size <= waiting), default=0)
        late = now_s >= self.wake_s
        return preferred or (min(waiting, self.places) if late else 0)

    def _service_s(self, batch: list[Job], now_s: float) -> float:
        """Return how long a batch takes, s."""
        if self._batch_seconds is None:
            raise ValueError("batch_seconds: needed to serve a batch")
        return self._batch_seconds(len(batch), sum(job.batch_items for job in batch))

    def _count_window(self, batch: list[Job], now_s: float) -> None:
        """Count the time since the replica was free as waiting for the window."""
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


def static_step_time(pool: Pool) -> StepTime:
    """Return the step time of a statically batching pool whose memory holds its batches.

    Raises :class:`DataError` if the memory is too small, with what is missing; ``ValueError`` for a
    pool that batches otherwise.
    """
    batching = pool.batching
    if not isinstance(batching, StaticBatching):
        raise ValueError(f"pool {pool.name}: a pool of static batching, got {batching.kind}")
    alike = pool.model_copy(update={"batching": batching.as_continuous})
    if pool.model is not None and pool.accelerator is not None:
        most = int(kv_tokens(alike, batching.max_model_len))
        need = batching.max_batch_size * batching.max_model_len
        if need > most:
            rule = (
                f"KV for max_batch_size · max_model_len = {need} tokens in memory for {most}, "
                f"{need - most} too many"
            )
            raise DataError(rule, where=f"pool {pool.name}", field="batching")
    return step_time(alike)


def padded_s(law: StepTime, n: int, prompt: float, output: float) -> tuple[float, float]:
    """Return the time of the prompts and of the answers of a batch padded to these lengths, s."""
    prefill_s = law.seconds(n * prompt, n * prompt * prompt / 2, 0, 0)
    made = range(1, round(output))
    return prefill_s, sum(law.seconds(0, 0, n, n * (prompt + done)) for done in made)


class StaticEngine(DynamicEngine):
    """The batching state of one replica; a step is a whole batch, tokens include the padding."""

    def __init__(self, batching: StaticBatching, *, step_time: StepTime) -> None:
        super().__init__(batching.as_dynamic)
        self._max_model_len = batching.max_model_len
        self._law = step_time
        self._begun_s = self._prefill_s = self._whole_s = 0.0

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        too_long = job.prompt_tokens + job.output_tokens > self._max_model_len
        return "max_model_len" if too_long else None

    def _service_s(self, batch: list[Job], now_s: float) -> float:
        n, prompt, output = _shape(batch)
        prefill_s, decode_s = padded_s(self._law, n, prompt, output)
        self._begun_s, self._prefill_s, self._whole_s = now_s, prefill_s, prefill_s + decode_s
        return self._whole_s

    def _count(self, job: Job) -> None:
        job.prefilled_tokens, job.generated_tokens = job.prompt_tokens, job.output_tokens
        job.streams = False

    def _served(self, batch: list[Job], now_s: float) -> None:
        n, prompt, output = _shape(batch)
        self.prefill_tokens += n * prompt
        self.output_tokens += n * output
        took_s, prefill_s = now_s - self._begun_s, self._prefill_s
        if now_s != self._begun_s + self._whole_s:  # its speed differed, or changed on the way
            prefill_s *= took_s / self._whole_s
        first_token_s = self._begun_s + prefill_s
        for job in batch:
            job.prefill_end_s, job.decode_end_s = first_token_s, now_s


def _shape(batch: list[Job]) -> tuple[int, int, int]:
    """Return the number of jobs, the longest prompt and the longest answer."""
    return (
        len(batch),
        max(job.prompt_tokens for job in batch),
        max(job.output_tokens for job in batch),
    )
