"""Iteration-level continuous batching with paged KV, one step at a time.

The scheduler of vLLM's V1 engine: each step serves the running sequences first, then admits from
the waiting line within a token budget; KV blocks are allocated as tokens are computed, and when
they run out the last admitted sequence (with priorities: the last admitted of the lowest) is
preempted, to be computed again later.
Source: vLLM project, ``vllm/v1/core/sched/scheduler.py``, ``Scheduler.schedule``, version 0.11.

With asynchronous scheduling a step is formed while the one before it runs, so a request that
arrives meanwhile joins the step after it. Here only the arrivals are late: places and blocks that
a step frees are there for the next, one step sooner than in the real engine.
Source: vLLM project, ``vllm/v1/engine/core.py``, ``step_with_batch_queue``, version 0.14.

The engine knows no clock: whoever owns it calls :meth:`ContinuousEngine.begin`, waits for as long
as it says, and calls :meth:`ContinuousEngine.end`. Each call costs O(1) and what changes: the
decoding sequences all advance together, so their context is one sum, the steps at which they end
are one heap, and the blocks they need are counted by phase.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from capplan.replica.job import Job
from capplan.replica.kv import KvBlocks, KvCache
from capplan.replica.prefix import PrefixCache
from capplan.replica.waiting import WaitingLine

if TYPE_CHECKING:
    from capplan.replica.latency import StepTime
    from capplan.scenario import ContinuousBatching


class ContinuousEngine:
    """The batching state of one replica.

    Attributes
    ----------
    waiting
        The scheduler queue.
    steps, sequences, prefill_tokens, output_tokens, preemptions
        Totals since the start: steps begun, sequences scheduled over all steps, tokens computed,
        sequences preempted.
    """

    joins_running = True
    has_kv = True
    wake_s = math.inf
    """When a free engine wants to be asked again: never, only a new job changes its mind."""

    def __init__(
        self, batching: ContinuousBatching, *, step_time: StepTime, kv_blocks: int
    ) -> None:
        self.waiting: WaitingLine[Job] = WaitingLine(batching.scheduler.order)
        self.kv_blocks = kv_blocks
        kind = PrefixCache if batching.prefix_caching else KvBlocks
        self.kv: KvCache = kind(kv_blocks, block_size=batching.block_size)
        self.places = batching.max_num_seqs
        self.steps = self.sequences = self.prefill_tokens = self.output_tokens = 0
        self.preemptions = 0
        self._by_priority = batching.scheduler.order == "priority"
        self._max_tokens = batching.max_num_batched_tokens
        self._max_model_len = batching.max_model_len
        self._chunked = batching.chunked_prefill
        self._block = batching.block_size
        self._ahead = batching.async_scheduling
        self._seconds = step_time.seconds
        self._step = 0
        self._admissions = 0
        self._reset()

    def _reset(self) -> None:
        self._running: dict[Job, None] = {}
        self.kv.clear()
        self._decoding = 0
        self._context = 0
        self._ends: list[tuple[int, int, Job]] = []
        self._phases: list[dict[Job, None]] = [{} for _ in range(self._block)]
        self._partial: Job | None = None
        self._chunks: list[tuple[Job, int]] = []
        self._aborted: list[Job] = []
        self._begun_s = self._ended_s = math.nan

    @property
    def prefilling(self) -> int:
        """Return how many running sequences have no token yet."""
        return len(self._running) - self._decoding

    @property
    def decoding(self) -> int:
        """Return how many running sequences decode."""
        return self._decoding

    @property
    def kv_usage_fraction(self) -> float:
        """Return the share of KV blocks in use."""
        return self.kv.usage_fraction

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        if job.prompt_tokens + job.output_tokens > self._max_model_len:
            return "max_model_len"
        if self._blocks(job.prompt_tokens + job.output_tokens - 1) > self.kv_blocks:
            return "kv_capacity"
        return None

    def begin(self, now_s: float) -> float | None:
        """Form the next step; return how long it takes, None if there is nothing to do."""
        preempted = self.preemptions
        self._chunks = []
        self._decode_blocks()
        budget, pairs = self._max_tokens - self._decoding, 0.0
        if self._partial is not None:
            chunk, pairs = self._continue_prefill(self._partial, budget)
            budget -= chunk
        formed_s = self._begun_s if self._formed_ahead(now_s) else now_s
        self._begun_s = now_s
        if self.waiting and self.preemptions == preempted:
            pairs += self._admit(budget, now_s, formed_s)
        if not self._running:
            return None
        tokens = sum(chunk for _, chunk in self._chunks)
        self.steps += 1
        self.prefill_tokens += tokens
        self.sequences += self._decoding + len(self._chunks)
        return self._seconds(tokens, pairs, self._decoding, self._context)

    def end(self, now_s: float) -> list[Job]:
        """End the step; return the jobs that leave.

        They are those whose last token was made (``decode_end_s`` is set), and those aborted
        since the step began.
        """
        self._step = step = self._step + 1
        self._ended_s = now_s
        self._context += self._decoding
        self.output_tokens += self._decoding
        left: list[Job] = []
        ends = self._ends
        while ends and ends[0][0] <= step:
            _, _, job = heappop(ends)
            if job.finish_step == step:
                left.append(self._finish(job, now_s))
        for job, chunk in self._chunks:
            self._computed(job, chunk, now_s, left)
        if self._aborted:
            left += self._let_go()
        return left

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves at the end of the step."""
        if self.waiting.remove(job):
            return True
        self._aborted.append(job)
        return False

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were waiting or running."""
        jobs = [*self.waiting.clear(), *self._running]
        for job in self._running:
            if job.finish_step:
                job.generated_tokens = self._generated(job)
        self._reset()
        return jobs

    def _formed_ahead(self, now_s: float) -> bool:
        """Return whether the step that begins was formed when the one before it began."""
        return self._ahead and self._ended_s == now_s and bool(self._running)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _generated(self, job: Job) -> int:
        return job.output_tokens - (job.finish_step - self._step)

    def _decode_blocks(self) -> None:
        """Allocate what decoding needs in this step, preempting where there is not enough."""
        due = self._phases[-self._step % self._block]
        while len(due) > self.kv.free:
            self._preempt(self._victim())
        self.kv.extend(due)

    def _continue_prefill(self, job: Job, budget: int) -> tuple[int, float]:
        """Schedule the next chunk of a prefill, preempting where blocks are short."""
        before = job.computed_tokens
        chunk = min(job.known_tokens - before, budget)
        while self.kv.needed(job, before + chunk) > self.kv.free:
            victim = self._victim()
            self._preempt(victim, started=True)
            if victim is job:
                return 0, 0.0
        return self._schedule(job, chunk)

    def _victim(self) -> Job:
        newest_first = reversed(self._running)
        if self._by_priority:
            return max(newest_first, key=lambda job: job.priority)
        return next(newest_first)

    def _preempt(self, job: Job, *, started: bool = False) -> None:
        """Send a job back to the queue; ``started``: it may hold its block of this step."""
        self._release(job, ahead=int(started))
        self.preemptions += 1
        self.waiting.push_front(job)

    def _admit(self, budget: int, now_s: float, formed_s: float) -> float:
        """Admit from the waiting line while tokens, places and blocks last; return the pairs.

        Who came after ``formed_s`` is not known yet.
        """
        new: list[Job] = []
        pairs = 0.0
        running, waiting = self._running, self.waiting
        while budget > 0 and len(running) < self.places and (job := waiting.first()):
            if job.scheduler_queue_in_s > formed_s:
                break
            known = job.prompt_tokens + job.generated_tokens
            found = self.kv.found(job, known)
            if known - found > budget and not self._chunked:
                break
            chunk = min(known - found, budget)
            if not self.kv.has_room(job, found, found + chunk, spare_blocks=0):
                break
            waiting.pop()
            self._admissions += 1
            job.admission = self._admissions
            job.known_tokens, job.computed_tokens = known, found
            self.kv.admit(job, found)
            running[job] = None
            pairs += self._schedule(job, chunk)[1]
            budget -= chunk
            if math.isnan(job.batch_in_s):
                job.batch_in_s, job.cached_tokens = now_s, found
                new.append(job)
        size = self._decoding + len(self._chunks)
        for job in new:
            job.batch_id, job.batch_size = self.steps + 1, size
        return pairs

    def _schedule(self, job: Job, chunk: int) -> tuple[int, float]:
        """Give a prefill its chunk of this step; return its tokens and attended pairs."""
        before = job.computed_tokens
        self.kv.grow(job, before + chunk)
        self._chunks.append((job, chunk))
        self._partial = job if before + chunk < job.known_tokens else None
        return chunk, chunk * (before + chunk / 2)

    def _computed(self, job: Job, chunk: int, now_s: float, left: list[Job]) -> None:
        job.computed_tokens += chunk
        job.prefilled_tokens += chunk
        if job.computed_tokens < job.known_tokens:
            return
        job.generated_tokens += 1
        self.output_tokens += 1
        if math.isnan(job.prefill_end_s):
            job.prefill_end_s = now_s
        if job.generated_tokens >= job.output_tokens:
            left.append(self._finish(job, now_s))
            return
        job.finish_step = self._step + job.output_tokens - job.generated_tokens
        job.phase = (job.known_tokens - self._step) % self._block
        self._phases[job.phase][job] = None
        self._decoding += 1
        self._context += job.known_tokens + 1
        heappush(self._ends, (job.finish_step, job.admission, job))

    def _finish(self, job: Job, now_s: float) -> Job:
        self._release(job)
        job.decode_end_s = now_s
        return job

    def _let_go(self) -> list[Job]:
        gone = []
        for job in self._aborted:
            if job in self._running:
                self._release(job)
                gone.append(job)
        self._aborted = []
        return gone

    def _release(self, job: Job, *, ahead: int = 0) -> None:
        """Take a sequence out of the running batch and free its blocks.

        ``ahead``: tokens of the next step that decoding already has room for.
        """
        del self._running[job]
        if not job.finish_step:
            self.kv.release(job, job.kv_tokens, job.computed_tokens)
            if job is self._partial:
                self._partial = None
            return
        job.generated_tokens = self._generated(job)
        context = job.prompt_tokens + job.generated_tokens
        self.kv.release(job, context - 1 + ahead, context - 1)
        del self._phases[job.phase][job]
        self._decoding -= 1
        self._context -= context
        job.finish_step = 0
