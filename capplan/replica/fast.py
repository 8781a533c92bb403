"""Continuous batching by compiled steps: :class:`FastEngine` does what ContinuousEngine does.

It runs ahead of the clock: it knows the ends of several steps to come, is asked again only at the
last of them, and whenever somebody comes, goes or looks, it first lets that be over which is over
by then. :func:`unsupported` says which pools must use the engine that is not compiled.
"""

from __future__ import annotations

import math
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from capplan.replica import compiled
from capplan.replica.engine import Batch
from capplan.replica.fair import takes_turns
from capplan.replica.job import Job
from capplan.replica.limits import Limits
from capplan.replica.prefix import block_keys
from capplan.replica.steplaw import step_law
from capplan.replica.waiting import rank_of
from capplan.scenario.batching import ContinuousBatching

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from numpy.typing import NDArray

    from capplan.replica.step_time import StepTime
    from capplan.scenario.layers import Queue

HANDLED = frozenset(
    {
        "kind",
        "max_num_seqs",
        "max_num_batched_tokens",
        "chunked_prefill",
        "long_prefill_token_threshold",
        "max_num_partial_prefills",
        "max_long_partial_prefills",
        "watermark",
        "async_scheduling",
        "speculation",
        "prefix_caching",
        "beam_width",
        "block_size",
        "kv_blocks",
        "gpu_memory_utilization",
        "hybrid_kv_context_tokens",
        "max_model_len",
        "stream_interval",
        "cancel_frees",
        "scheduler",
        "step_time",
    }
)
"""Fields of continuous batching that the compiled steps heed."""


def unsupported(batching: ContinuousBatching, step_time: StepTime) -> list[str]:
    """Return what of a pool's batching the compiled steps cannot do; empty = they can all."""
    found = _not_compiled(batching)
    if step_law(step_time) is None:
        found.append(f"step_time ({type(step_time).__name__})")
    return found


def _not_compiled(batching: ContinuousBatching) -> list[str]:
    found = [
        name
        for name, field in type(batching).model_fields.items()
        if name not in HANDLED
        and getattr(batching, name) != field.get_default(call_default_factory=True)
    ]
    return [*found, "scheduler.order"] if takes_turns(batching.scheduler) else found


class Timepiece(Protocol):
    """How far time has come.

    Within one instant, things happen by rank; ``reached`` is the highest rank so far.
    """

    reached: int

    @property
    def now(self) -> float:
        """Return the time, s."""


class FastEngine:
    """The batching state of one replica, some steps ahead of the clock.

    Attributes
    ----------
    waiting
        The scheduler queue.
    end_s
        When :meth:`finish` is due: the end of the last step that is known, inf without one. A
        job that comes or goes makes it the end of the step that runs then.
    """

    joins_running = True
    has_kv = True
    wake_s = math.inf

    def __init__(
        self,
        batching: ContinuousBatching,
        *,
        law: NDArray[np.float64],
        kv_blocks: int,
        clock: Timepiece,
        rank: int,
    ) -> None:
        """Begin empty; ``law`` is the step time (:func:`capplan.replica.steplaw.step_law`)."""
        if missing := _not_compiled(batching):
            msg = f"batching that is compiled, got {', '.join(missing)}"
            raise ValueError(msg)
        self._rules = batching
        self._block = batching.block_size
        self.kv_blocks = kv_blocks
        self._width = batching.beam_width
        self.places = batching.max_num_seqs // self._width
        self.end_s = math.inf
        self._clock = clock
        self._stream_interval = batching.stream_interval
        self.rank = rank
        draft = batching.speculation
        self._drafted = 0 if draft is None else draft.num_speculative_tokens
        self._max_model_len = batching.max_model_len
        self._rank = _rank(batching.scheduler)
        rows = max(2 * batching.max_num_seqs + 16, batching.block_size)
        size = max(batching.max_num_seqs + 1, compiled.PLAN_STEPS)
        self._state = _state(batching, kv_blocks)
        self._table = np.zeros(0, compiled.JOB)
        self._lists = np.zeros((compiled.LISTS, rows, 3), np.int64)
        self._tables = np.zeros((compiled.TABLES, size, len(compiled.LEFT)))
        self._left = self._tables[1]
        self._first_left = self._left[0]
        self._law = law
        self._cache = _cache(batching, kv_blocks)
        self.kv = FastCache(self, kv_blocks) if batching.prefix_caching else None
        self._numbers = self._state.view(np.int64)
        self._waiting_count = self._state["waiting"]
        self._slots: dict[Job, int] = {}
        self._jobs: list[Job] = []
        self._free: list[int] = []
        self._add_slots(min(batching.max_num_seqs, 256) + 64)
        if self.kv is not None:
            self.kv.empty()
        self.waiting = FastLine(self, remembers=batching.scheduler.wait_limit_s is not None)
        self._seen_s = math.nan
        self._seen: list[int] = []
        self._step_end_s = math.inf

    @property
    def engine(self) -> Batch:
        """Return itself: it drives its own steps."""
        return self

    @property
    def prefilling(self) -> int:
        """Return how many running sequences have no token yet."""
        return self._look(_RUNNING) - self._look(_DECODING)

    @property
    def decoding(self) -> int:
        """Return how many running sequences decode."""
        return self._look(_DECODING)

    @property
    def running(self) -> list[Job]:
        """Return the jobs that the running step holds."""
        self._look(_STEPS)
        return [self._jobs[slot] for slot in self._in_batch()]

    @property
    def steps(self) -> int:
        """Return how many steps have begun."""
        return self._look(_STEPS)

    @property
    def sequences(self) -> int:
        """Return how many sequences were scheduled, over all steps."""
        return self._look(_SEQUENCES)

    @property
    def prefill_tokens(self) -> int:
        """Return the prompt tokens computed."""
        return self._look(_PREFILL_TOKENS)

    @property
    def output_tokens(self) -> int:
        """Return the tokens made."""
        return self._look(_OUTPUT_TOKENS)

    @property
    def preemptions(self) -> int:
        """Return how many sequences were preempted."""
        return self._look(_PREEMPTIONS)

    @property
    def begun_s(self) -> float:
        """Return the length of all steps begun, s."""
        self._look(_STEPS)
        return float(self._state["begun_s"].item())

    @property
    def step_end_s(self) -> float:
        """Return when the running step ends, s; inf without one."""
        self._look(_STEPS)
        return self._step_end_s

    @property
    def kv_usage_fraction(self) -> float:
        """Return the share of KV blocks in use, in whole widths."""
        free, width = self._look(_FREE_BLOCKS), self._width
        return 1.0 - (free // width) / (self.kv_blocks // width)

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        tokens = job.prompt_tokens + job.output_tokens
        if tokens > self._max_model_len:
            return "max_model_len"
        width = 1 if job.greedy else self._width
        stored = tokens - 1 + 2 * self._drafted
        return "kv_capacity" if stored > self.kv_blocks // width * self._block else None

    def limit(self, limits: Limits) -> None:
        """Hold the batches from the next step on within limits, instead of those before."""
        sequences, tokens = limits.of_continuous(self._rules)
        self.places = sequences // self._width
        self._seen_s = math.nan
        self.end_s = compiled.limit(
            self._address, sequences, tokens, self._clock.now, self._inclusive
        )

    def start(self, now_s: float) -> None:
        """Form the next step of a free replica."""
        self._seen_s = math.nan
        _, self.end_s = compiled.go_on(self._address, now_s, True)

    def finish(self, *, stops: bool) -> list[Job]:
        """End the step that ends at ``end_s``; return the jobs that leave.

        The next has begun, unless there are any and it ``stops`` then: :meth:`start` is due.
        """
        self._seen_s = math.nan
        now_s = self.end_s
        leaving, self.end_s = compiled.go_on(self._address, now_s, stops)
        return self._told(leaving, now_s) if leaving else []

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves when the step ends."""
        slot = self._slots[job]
        waits = job in self.waiting
        self._seen_s = math.nan
        self.end_s = compiled.withdraw(self._address, slot, self._clock.now, self._inclusive)
        if waits:
            compiled.tell(self._address, 0, slot)
            self._told(1, math.nan)
        return waits

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were waiting or running."""
        begun_s = self.begun_s
        if self.end_s < math.inf:
            begun_s -= self.step_end_s - self._clock.now
        state, table = self._state[0], self._table
        waiting, running = self._in_line(), self._in_batch()
        for slot in running:
            job = table[slot]
            if job["finish_step"]:
                left = max(job["finish_step"] - state["tick"], 0)
                job["generated_tokens"] = job["output_tokens"] - left
        jobs = [self._written(int(slot)) for slot in (*waiting, *running)]
        for job in jobs:
            self._vacate(self._slots[job])
        _empty(state)
        if self.kv is not None:
            self.kv.empty()
        state["begun_s"] = begun_s
        table["ticket"] = table["running"] = table["partial"] = 0
        self._lists[3] = 0
        self.waiting.forget()
        self._seen_s, self.end_s = math.nan, math.inf
        return jobs

    def move_end(self, end_s: float) -> None:
        """Refuse: a step that changes its speed must be known one at a time."""
        msg = f"steps that run ahead keep their ends, got {end_s!r}"
        raise RuntimeError(msg)

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""
        tick = self._look(_TICK)
        row = self._table[self._slots[job]]
        if not row["finish_step"]:
            return int(row["generated_tokens"])
        return int(row["output_tokens"] - max(row["finish_step"] - tick, 0))

    def write(self) -> None:
        """Write on all jobs that are still here what has happened to them until now."""
        self._look(_STEPS)
        for slot in self._slots.values():
            self._written(slot)

    def join(self, job: Job, now_s: float) -> None:
        """Let a job wait from now on."""
        if not self._free:
            self._add_slots(len(self._jobs))
        slot = self._free.pop()
        self._slots[job] = slot
        self._jobs[slot] = job
        job.stream_interval = self._stream_interval
        job.beam_width = width = 1 if job.greedy else self._width
        if self.kv is not None:
            self.kv.name(self._table[slot], slot, job)
        self._seen_s = math.nan
        self.end_s = compiled.join(
            self._address,
            slot,
            job.prompt_tokens,
            job.output_tokens,
            job.priority,
            0 if self._rank is None else self._rank(job, now_s),
            width,
            now_s,
            self._clock.reached > self.rank,
        )

    @property
    def block_size(self) -> int:
        """Return the tokens of a KV block."""
        return self._block

    @property
    def cached_blocks(self) -> int:
        """Return how many blocks only the prefix cache holds."""
        return self._look(_CACHED)

    def known_tokens(self, keys: NDArray[np.int64], tokens: int) -> int:
        """Return how many of the first tokens are in the prefix cache, but for the last."""
        self._look(_CACHED)
        most = (tokens - 1) // self._block
        known = compiled.known_blocks(self._address, keys.ctypes.data, len(keys), most)
        return known * self._block

    def empty_cache(self) -> None:
        """Let the prefix cache know nothing."""
        compiled.empty_cache(self._address)

    def ticket(self, job: Job) -> int:
        """Return a job's place in the order of coming; 0 = it does not wait."""
        slot = self._slots.get(job)
        return 0 if slot is None else int(self._table["ticket"][slot])

    def jobs_waiting(self) -> list[Job]:
        """Return who waits, in the order of coming."""
        return [self._jobs[slot] for slot in self._in_line()]

    def waits(self) -> int:
        """Return how many wait."""
        return int(self._waiting_count.item(0))

    @property
    def _inclusive(self) -> bool:
        return self._clock.reached > self.rank

    def _look(self, field: int) -> int:
        """Return a number of the state, after all that is over by now."""
        now_s = self._clock.now
        if self._seen_s != now_s:
            step_end_s = compiled.settle(self._address, now_s, self._inclusive)
            self._seen = self._numbers.tolist()
            self._step_end_s = step_end_s
            self._seen_s = now_s if self._inclusive else math.nan
        return self._seen[field]

    def _in_line(self) -> list[Any]:
        tickets = self._table["ticket"]
        return sorted(np.flatnonzero(tickets), key=lambda slot: abs(tickets[slot]))

    def _in_batch(self) -> list[Any]:
        order = self._table["admission"]
        return sorted(np.flatnonzero(self._table["running"]), key=lambda slot: order[slot])

    def _told(self, count: int, end_s: float) -> list[Job]:
        """Write what happened on jobs that leave, and free their slots."""
        jobs = []
        for row in [self._first_left.tolist()] if count == 1 else self._left[:count].tolist():
            job = self._vacate(int(row[0]))
            _write(job, row)
            if row[1]:
                job.decode_end_s = end_s
            jobs.append(job)
        return jobs

    def _written(self, slot: int) -> Job:
        compiled.tell(self._address, 0, slot)
        job = self._jobs[slot]
        _write(job, self._left[0].tolist())
        return job

    def _vacate(self, slot: int) -> Job:
        job = self._jobs[slot]
        self._free.append(slot)
        del self._slots[job]
        return job

    def _add_slots(self, count: int) -> None:
        first = len(self._jobs)
        self._jobs += [_NOBODY] * count
        self._free += range(first + count - 1, first - 1, -1)
        self._table = np.concatenate([self._table, np.zeros(count, compiled.JOB)])
        grown = np.zeros((compiled.LISTS, max(2 * len(self._jobs), len(self._lists[0])), 3), int)
        grown[:, : len(self._lists[0])] = self._lists
        self._lists = grown
        arrays = self._state, self._table, self._lists, self._tables, self._law, *self._cache
        self._where = _addresses(*arrays)
        self._address = self._where.ctypes.data


class FastCache:
    """The prefix cache of a :class:`FastEngine`, as far as others look into it."""

    def __init__(self, engine: FastEngine, blocks: int) -> None:
        self._engine = engine
        self._total = blocks
        self._numbers: dict[Hashable, int] = {}
        self._keys: dict[int, NDArray[np.int64]] = {}

    @property
    def cached_fraction(self) -> float:
        """Return the share of the blocks that only the cache holds."""
        return self._engine.cached_blocks / self._total

    def known_tokens(self, job: Job) -> int:
        """Return how many tokens of a prompt are in the cache by their ids; 0 without ids."""
        if not len(job.prefix_blocks):
            return 0
        return self._engine.known_tokens(self._named(job), job.prompt_tokens)

    def empty(self) -> None:
        """Lose everything, as in a crash."""
        self._engine.empty_cache()

    def name(self, row: np.void, slot: int, job: Job) -> None:
        """Write on a slot what the blocks of its job are known by."""
        row["share"], row["keys"] = -1, 0
        if len(job.prefix_blocks):
            keys = self._keys[slot] = self._named(job)
            row["keys_at"], row["keys"] = keys.ctypes.data, len(keys)
        elif job.cached_fraction:
            found = int(job.cached_fraction * job.prompt_tokens)
            row["share"] = found // self._engine.block_size

    def _named(self, job: Job) -> NDArray[np.int64]:
        """Return the keys of a job's blocks as whole numbers above 0."""
        if job.block_keys is None:
            job.block_keys = block_keys(job, self._engine.block_size)
        numbers = self._numbers
        found = [numbers.setdefault(key, len(numbers) + 1) for key in job.block_keys]
        return np.array(found, np.int64)


class FastLine:
    """The scheduler queue of a :class:`FastEngine`, with the methods of a WaitingLine.

    Attributes
    ----------
    push
        ``push(job, now_s)`` lets a job wait from now on.
    """

    def __init__(self, engine: FastEngine, *, remembers: bool) -> None:
        self._engine = engine
        self.push: Callable[[Job, float], None] = self._join if remembers else engine.join
        self._arrivals: deque[tuple[float, int, Job]] = deque()

    def __len__(self) -> int:
        return self._engine.waits()

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and self._engine.ticket(job) != 0

    def __iter__(self) -> Iterator[Job]:
        return iter(self._engine.jobs_waiting())

    def _join(self, job: Job, now_s: float) -> None:
        """Let a job wait, and remember since when."""
        self._engine.join(job, now_s)
        self._arrivals.append((now_s, self._engine.ticket(job), job))

    def remove(self, job: Job) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""
        return job in self and self._engine.abort(job)

    def oldest(self) -> tuple[float, Job] | None:
        """Return since when the longest waiting job waits, and the job; None if nobody does."""
        arrivals = self._arrivals
        while arrivals:
            since_s, ticket, job = arrivals[0]
            if self._engine.ticket(job) == ticket:
                return since_s, job
            arrivals.popleft()
        return None

    def forget(self) -> None:
        """Forget who came when."""
        self._arrivals.clear()


_FIELDS = compiled.STATE.names or ()
_CACHED = _FIELDS.index("cached")
_DECODING, _FREE_BLOCKS, _OUTPUT_TOKENS, _PREEMPTIONS, _PREFILL_TOKENS = map(
    _FIELDS.index,
    ("decoding", "free_blocks", "output_tokens", "preemptions", "prefill_tokens"),
)
_RUNNING, _SEQUENCES, _STEPS, _TICK = map(_FIELDS.index, ("running", "sequences", "steps", "tick"))
_HIGHEST, _LOWEST = 2**62, -(2**63)
_NUMBER, _WHOLE = Struct("<d"), Struct("<q")
_NOBODY = Job(prompt_tokens=0, output_tokens=0)


def _addresses(*arrays: NDArray[Any]) -> NDArray[np.int64]:
    """Return where arrays are and how long (``compiled.ADDRESSES``)."""
    _, jobs, lists, tables, law, blocks, known, held, stacks = arrays
    sizes = len(jobs), lists.shape[1], tables.shape[1], len(law), len(blocks), len(known)
    where = [array.ctypes.data for array in arrays]
    return np.array([*where, *sizes, *held.shape, stacks.shape[1]], np.int64)


def _cache(rules: ContinuousBatching, blocks: int) -> tuple[NDArray[Any], ...]:
    """Return the arrays of a prefix cache: blocks, known keys, what is held, stacks."""
    rows = width = 1
    if rules.prefix_caching:
        drafted = 0 if rules.speculation is None else rules.speculation.num_speculative_tokens
        rows = rules.max_num_seqs + 1
        width = (rules.max_model_len + 3 * drafted) // rules.block_size + 4
    else:
        blocks = 1
    return (
        np.zeros(blocks, compiled.BLOCK),
        np.zeros((_entries(blocks), 3), np.int64),
        np.zeros((rows, width), np.int64),
        np.zeros((2, max(blocks, rows)), np.int64),
    )


def _entries(blocks: int) -> int:
    """Return how many entries a table of as many keys has: a power of two, half of them empty."""
    return 1 << (2 * blocks).bit_length()


def _rank(rules: Queue) -> Callable[[Job, float], int] | None:
    """Return the rank of a job in a queue, as a whole number; None if all are alike."""
    if rules.order == "fifo" and not rules.ageing_per_s:
        return None
    if rules.order == "priority" and not rules.ageing_per_s:
        return lambda job, since_s: job.priority
    rank = rank_of(rules)
    return lambda job, since_s: _ordered(rank(job, since_s))


def _ordered(rank: float) -> int:
    """Return a whole number that orders as a number does.

    Of two floats of a sign, the larger has the larger bits. Source: IEEE 754-2019, section 5.10.

    >>> _ordered(-2.0) < _ordered(-1.5) < _ordered(0) < _ordered(0.5) < _ordered(1) < _ordered(2.5)
    True
    """
    (bits,) = _WHOLE.unpack(_NUMBER.pack(rank + 0.0))
    return int(bits if bits >= 0 else _LOWEST - bits)


def _state(batching: ContinuousBatching, kv_blocks: int) -> NDArray[np.void]:
    rules, draft = batching, batching.speculation
    state = np.zeros(1, compiled.STATE)
    state["sequences_limit"] = rules.max_num_seqs
    state["tokens_limit"] = rules.max_num_batched_tokens
    state["block_tokens"] = rules.block_size
    state["kv_blocks"] = kv_blocks
    state["chunked"] = rules.chunked_prefill
    state["by_priority"] = rules.scheduler.order == "priority"
    state["watermark"] = int(rules.watermark * kv_blocks)
    state["threshold"] = rules.long_prefill_token_threshold or _HIGHEST
    state["most_partial"] = rules.max_num_partial_prefills or _HIGHEST
    state["most_long"] = rules.max_long_partial_prefills or _HIGHEST
    state["ahead"] = rules.async_scheduling
    state["caching"] = rules.prefix_caching
    state["mask"] = _entries(kv_blocks) - 1
    state["ticks_per_step"] = 1.0
    if draft is not None:
        state["drafted"] = draft.num_speculative_tokens
        state["ticks_per_step"] = draft.tokens_per_step
        state["draft_steps"] = draft.num_speculative_tokens * draft.draft_cost_fraction
    _empty(state[0])
    return state


def _empty(state: np.void) -> None:
    """Let nothing run or wait; the limits, the totals and the count of steps stay."""
    for name in (
        *("running", "decoding", "branches", "seats", "context_tokens", "waiting"),
        *("waiting_rows", "ends_rows", "chunks", "partials", "aborted", "planned", "passed"),
    ):
        state[name] = 0
    state["newest"] = -1
    state["free_blocks"] = state["kv_blocks"]
    state["began_s"] = state["ended_s"] = math.nan


def _write(job: Job, row: list[float]) -> None:
    """Write a row of what is said of a job onto it."""
    _, _, job.batch_in_s, job.prefill_end_s, job.batch_id, job.batch_size, done, made, found = row
    job.prefilled_tokens, job.generated_tokens = int(done), int(made)
    job.cached_tokens = int(found)
