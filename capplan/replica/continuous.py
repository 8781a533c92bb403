"""Iteration-level continuous batching, one step at a time.

The scheduler of vLLM's V1 engine: each step serves the running sequences first, then admits from
the waiting line within a token budget; KV blocks are allocated as tokens are computed, and when
they run out the last admitted sequence (with priorities: the last admitted of the lowest) is
preempted, to be computed again later.
Source: vLLM project, ``vllm/v1/core/sched/scheduler.py``, ``Scheduler.schedule``, version 0.11.
The limits on partial prefills are those of ``vllm/core/scheduler.py`` (V0). Two differences: if
several prompts are in progress and the budget is short, decoding goes before them, in whatever
order they were admitted; and a job of low priority that preempts itself stops no job behind it.

With asynchronous scheduling a step is formed while the one before it runs, so a request that
arrives meanwhile joins the step after it. Here only the arrivals are late: places and blocks that
a step frees are there for the next, one step sooner than in the real engine.
Source: vLLM project, ``vllm/v1/engine/core.py``, ``step_with_batch_queue``, version 0.14.

The engine has no clock: its owner calls :meth:`ContinuousEngine.begin`, which returns the length
of the step, and at its end :meth:`ContinuousEngine.end`. Each call costs O(1) and what changes: all
decoding sequences advance together, one *tick* per token, so their context is one sum, the ticks at
which they end are one heap, and the blocks they need are kept by phase. A step is one tick; under
speculation, as many as the expected tokens of all steps so far allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

from capplan.replica.compiled.step_laws import StepTime
from capplan.replica.engine import NO_LIMITS, Limits
from capplan.replica.job import Job
from capplan.replica.kv_capacity import NO_ROOM, SequenceRoom
from capplan.replica.kv_layouts import kv_cache
from capplan.replica.preference import Preference
from capplan.replica.waiting import WaitingLine, waiting_line
from capplan.scenario.batching import ContinuousBatching


class ContinuousEngine:
    """The batching state of one replica.

    ``copy_s_per_token`` is the time that compaction of contiguous KV takes, ``room`` what each
    sequence holds beside the KV that grows.

    Attributes
    ----------
    waiting
        The scheduler queue.
    kv
        The memory of keys and values.
    admits
        Whether a waiting job may be admitted now; one that may not stops those behind it.
    steps, sequences, prefill_tokens, output_tokens, preemptions
        Totals since the start, see ``Batch``.
    """

    joins_running = True
    has_kv = True
    wake_s = math.inf
    """When a free engine begins again by itself: never, only a new job makes it."""

    def __init__(
        self,
        batching: ContinuousBatching,
        *,
        step_time: StepTime,
        kv_blocks: int,
        copy_s_per_token: float = 0.0,
        room: SequenceRoom = NO_ROOM,
    ) -> None:
        self.waiting: WaitingLine[Job] = waiting_line(batching.scheduler)
        self.kv = kv_cache(batching, kv_blocks, copy_s_per_token, stored=self.stored, room=room)
        self._prefers: Preference | None = None
        if Preference.asked_by(batching):
            self._prefers = Preference(self, batching, kv_blocks)
        self.steps = self.sequences = self.prefill_tokens = self.output_tokens = 0
        self.preemptions = 0
        self.admits: Callable[[Job], bool] = lambda _: True
        self._by_priority = batching.scheduler.order == "priority"
        self._rules = batching
        self._threshold = batching.long_prefill_token_threshold or math.inf
        self._most_partial = batching.max_num_partial_prefills or math.inf
        self._most_long = batching.max_long_partial_prefills or math.inf
        self._width = batching.beam_width
        self._watermark = int(batching.watermark * kv_blocks)
        draft = batching.speculation
        self._drafted = 0 if draft is None else draft.num_speculative_tokens
        self._ticks_per_step = 1.0 if draft is None else draft.tokens_per_step
        self._draft_steps = 0.0 if draft is None else self._drafted * draft.draft_cost_fraction
        self._block = batching.block_size
        self._ahead = batching.async_scheduling
        self._seconds = step_time.seconds
        self._decode_steps = self._tick = self.admissions = 0
        self.limit(NO_LIMITS)
        self._reset()

    def _reset(self) -> None:
        self.running: dict[Job, None] = {}
        self.kv.clear()
        self.decoding = self._branches = self.seats = self._context = 0
        self._ends: list[tuple[int, int, Job]] = []
        self._phases: list[dict[Job, None]] = [{} for _ in range(self._block)]
        self._partial: dict[Job, None] = {}
        self._chunks: dict[Job, int] = {}
        self._aborted: list[Job] = []
        self._begun_s = self._ended_s = math.nan
        self._budget = self._ticks = 0

    @property
    def prefilling(self) -> int:
        """Return how many running jobs have no token yet."""
        return len(self.running) - self.decoding

    @property
    def kv_usage_fraction(self) -> float:
        """Return the share of the KV memory in use."""
        return self.kv.usage_fraction

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        tokens = job.prompt_tokens + job.output_tokens
        if tokens > self._rules.max_model_len:
            return "max_model_len"
        if not self.kv.can_ever_hold(job, tokens - 1 + 2 * self._drafted):
            return "kv_capacity"
        return None

    def begin(self, now_s: float) -> float | None:
        """Form the next step; return how long it takes, None if there is nothing to do."""
        preempted = self.preemptions
        self._chunks = {}
        self._ticks = math.floor((self._decode_steps + 1) * self._ticks_per_step) - self._tick
        self._decode_blocks()
        self._budget = max(self._limit_tokens - self._branches * (1 + self._drafted), 0)
        for job in list(self._partial):
            if job in self._partial:
                self._continue_prefill(job)
        is_formed_ahead = self._ahead and self._ended_s == now_s and self.running
        formed_s = self._begun_s if is_formed_ahead else now_s
        self._begun_s = now_s
        if self.waiting and self.preemptions == preempted:
            self._admit(now_s, formed_s)
        if not self.running:
            return None
        self.steps += 1
        self.prefill_tokens += sum(self._chunks.values())
        self.sequences += self._branches + len(self._chunks)
        return self._step_s()

    def _step_s(self) -> float:
        """Return the length of the formed step, s."""
        tokens: float = sum(self._chunks.values())
        pairs = sum(
            chunk * (job.computed_tokens + chunk / 2) for job, chunk in self._chunks.items()
        )
        decoding, context = self._branches, self._context
        drafted = self._drafted
        if not drafted or not decoding:
            return self._seconds(tokens, pairs, decoding, context) + self.kv.pause_s()
        draft_s = self._draft_steps * self._seconds(0, 0, decoding, context)
        tokens += drafted * decoding
        pairs += drafted * (context + decoding * drafted / 2)
        return self._seconds(tokens, pairs, decoding, context) + draft_s

    def end(self, now_s: float) -> list[Job]:
        """End the step; return the jobs that leave.

        They are those whose last token was made (``decode_end_s`` is set), and those aborted
        since the step began.
        """
        self._decode_steps += 1
        self._ended_s = now_s
        self._tick = tick = self._tick + self._ticks
        self._context += self._branches * self._ticks
        self.output_tokens += self._branches * self._ticks
        left: list[Job] = []
        ends = self._ends
        while ends and ends[0][0] <= tick:
            finish_step, admission, job = heappop(ends)
            if (job.finish_step, job.admission) == (finish_step, admission):
                left.append(self._finish(job, now_s))
        for job, chunk in self._chunks.items():
            self._computed(job, chunk, now_s, left)
        if self._aborted:
            left += self.let_go()
        return left

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves at the end of the step."""
        if self.waiting.remove(job):
            return True
        self._aborted.append(job)
        return False

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were waiting or running."""
        jobs = [*self.waiting.clear(), *self.running]
        for job in self.running:
            job.generated_tokens = self.made(job)
        self._reset()
        return jobs

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""
        if not job.finish_step:
            return job.generated_tokens
        return job.output_tokens - max(job.finish_step - self._tick, 0)

    def limit(self, limits: Limits) -> None:
        """Hold the batches from the next step on within limits, instead of those before."""
        self._limit_seqs, self._limit_tokens = limits.of_continuous(self._rules)
        self.places = self._limit_seqs // self._width

    def stored(self, job: Job) -> int:
        """Return the tokens of a running job whose KV exists."""
        if not job.finish_step:
            return job.computed_tokens
        return job.prompt_tokens + self.made(job) - 1

    def _decode_blocks(self) -> None:
        """Allocate the blocks that decoding needs in this step; preempt while there are too few."""
        if not self.kv.grows:
            return
        for ahead in range(self._ticks):
            due = self._phases[-(self._tick + ahead) % self._block]
            while self.kv.count(due) > self.kv.free:
                self._preempt(self._victim(), ahead=ahead)
            self.kv.extend(due)

    def _continue_prefill(self, job: Job) -> None:
        """Schedule the next chunk of a prefill; preempt while there are too few blocks."""
        chunk = min(job.known_tokens - job.computed_tokens, self._threshold, self._budget)
        tokens = self._room(job, int(chunk))
        while self.kv.needed(job, tokens) > self.kv.free:
            victim = self._victim()
            self._preempt(victim, ahead=self._ticks)
            if victim is job:
                return
        self._schedule(job, int(chunk))

    def _room(self, job: Job, chunk: int) -> int:
        """Return the tokens that need room after a chunk; after the last, the draft too."""
        tokens = job.computed_tokens + chunk
        return tokens + self._drafted if tokens == job.known_tokens else tokens

    def _victim(self) -> Job:
        newest_first = reversed(self.running)
        if self._by_priority:
            return max(newest_first, key=lambda job: job.priority)
        return next(newest_first)

    def _preempt(self, job: Job, *, ahead: int) -> None:
        """Send a job back to the line; ``ahead``: ticks for which decoding has room already."""
        if job.finish_step:
            self._budget += job.beam_width * (1 + self._drafted)
        else:
            self._budget += self._chunks.pop(job, 0)
        self._release(job, ahead=ahead)
        self.preemptions += 1
        self.waiting.push_front(job)

    def _admit(self, now_s: float, formed_s: float) -> None:
        """Admit from the waiting line while tokens, places and blocks last.

        A job that came after ``formed_s`` is not known yet.
        """
        new: list[Job] = []
        waiting = self.waiting
        while self._budget > 0 and (job := waiting.first()):
            if job.scheduler_queue_in_s > formed_s or not self.admits(job):
                break
            chunk = self._first_chunk(job)
            if chunk is None:
                waiting.pass_over()
                continue
            if not chunk:
                break
            waiting.pop()
            self.admissions += 1
            job.admission, job.beam_width = self.admissions, 1 if job.greedy else self._width
            self.seats += job.beam_width
            job.stream_interval = self._rules.stream_interval
            self.running[job] = None
            self.kv.admit(job, job.computed_tokens)
            if math.isnan(job.batch_in_s):
                job.batch_in_s, job.cached_tokens = now_s, job.computed_tokens
                new.append(job)
            self._schedule(job, chunk)
        waiting.return_passed()
        size = self._branches + len(self._chunks)
        for job in new:
            job.batch_id, job.batch_size = self.steps + 1, size

    def _first_chunk(self, job: Job) -> int | None:
        """Return the tokens of a waiting job's first chunk.

        0: neither the job nor one behind it is admitted; None: the job is not, but one behind may.
        """
        prefers, width = self._prefers, 1 if job.greedy else self._width
        finds = prefers.finds_place(job, width) if prefers else self.free_places >= width
        if not finds:
            return None if finds is None else 0
        job.known_tokens = known = job.prompt_tokens + job.generated_tokens
        job.computed_tokens = found = self.kv.found(job, known)
        chunk = int(min(known - found, self._threshold))
        if chunk > self._budget and not self._rules.chunked_prefill:
            return 0
        chunk = min(chunk, self._budget)
        if chunk < known - found and len(self._partial) >= self._most_partial:
            return 0
        if known - found > self._threshold and self._long_prefills() >= self._most_long:
            return None
        room = (prefers.finds_room if prefers else self.has_room)(job, found, chunk)
        return chunk if room else (None if room is None else 0)

    @property
    def free_places(self) -> int:
        """Return how many more sequences may run."""
        return self._limit_seqs - self.seats

    def has_room(self, job: Job, found: int, chunk: int, *, kept: int = 0) -> bool:
        """Return whether there are blocks for a first chunk, ``kept`` of them for others."""
        spare = kept + (self._watermark if self.decoding or self._chunks else 0)
        return self.kv.has_room(job, found, self._room(job, chunk), spare_blocks=spare)

    def make_way(self, priority: int) -> bool:
        """Preempt a running job of a lower priority; return whether there was one."""
        victim = self._victim() if self.running else None
        if victim is None or victim.priority <= priority:
            return False
        self._preempt(victim, ahead=self._ticks)
        return True

    def _long_prefills(self) -> int:
        left = (job.known_tokens - job.computed_tokens for job in self._partial)
        return sum(tokens > self._threshold for tokens in left)

    def _schedule(self, job: Job, chunk: int) -> None:
        """Give a prefill its chunk of this step."""
        self.kv.grow(job, self._room(job, chunk))
        self._chunks[job] = chunk
        self._budget -= chunk
        if job.computed_tokens + chunk < job.known_tokens:
            self._partial[job] = None
        else:
            self._partial.pop(job, None)

    def _computed(self, job: Job, chunk: int, now_s: float, left: list[Job]) -> None:
        job.computed_tokens += chunk
        job.prefilled_tokens += chunk
        if job.computed_tokens < job.known_tokens:
            return
        job.generated_tokens += 1
        self.output_tokens += job.beam_width
        if math.isnan(job.prefill_end_s):
            job.prefill_end_s = now_s
        if job.generated_tokens >= job.output_tokens:
            left.append(self._finish(job, now_s))
            return
        job.finish_step = self._tick + job.output_tokens - job.generated_tokens
        job.phase = (job.known_tokens + self._drafted - self._tick) % self._block
        self._phases[job.phase][job] = None
        self.decoding += 1
        self._branches += job.beam_width
        self._context += job.beam_width * (job.known_tokens + 1)
        heappush(self._ends, (job.finish_step, job.admission, job))

    def _finish(self, job: Job, now_s: float) -> Job:
        self._release(job)
        job.decode_end_s = now_s
        return job

    def let_go(self) -> list[Job]:
        """Release the running jobs that were given up; return them. Only between two steps."""
        gone = []
        for job in self._aborted:
            if job in self.running:
                self._release(job)
                gone.append(job)
        self._aborted = []
        return gone

    def _release(self, job: Job, *, ahead: int = 0) -> None:
        """Take a job out of the running batch and free its blocks; ``ahead`` as in _preempt."""
        del self.running[job]
        self.seats -= job.beam_width
        if not job.finish_step:
            self.kv.release(job, job.kv_tokens, job.computed_tokens)
            self._partial.pop(job, None)
            return
        context = job.prompt_tokens + job.output_tokens - (job.finish_step - self._tick)
        job.generated_tokens = self.made(job)
        self.kv.release(job, context - 1 + self._drafted + ahead, context - 1)
        del self._phases[job.phase][job]
        self.decoding -= 1
        self._branches -= job.beam_width
        self._context -= job.beam_width * context
        job.finish_step = 0
