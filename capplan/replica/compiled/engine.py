"""Continuous batching by compiled steps: the same decisions as ``ContinuousEngine``, sooner.

The engine runs ahead of the clock: it knows the ends of several steps to come, and is asked again
only at the last of them. Whenever a job comes or goes, or a figure is read, the steps that have
ended by then are ended first. :func:`not_compiled` says which pools need the reference engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capplan.replica.compiled import steps
from capplan.replica.compiled.arrays import STATE, clear, laid_out, new_arrays
from capplan.replica.compiled.laws import step_law
from capplan.replica.compiled.step_laws import StepTime
from capplan.replica.compiled.views import NO_NAMES, CompiledCache, CompiledLine, whole_rank
from capplan.replica.engine import Batch, Limits
from capplan.replica.job import Job
from capplan.replica.kv import blocks_beside
from capplan.replica.kv_capacity import NO_ROOM, SequenceRoom
from capplan.replica.kv_layouts import kv_cache
from capplan.replica.preference import Preference
from capplan.replica.waiting import WaitingLine, waiting_line
from capplan.scenario.batching import ContinuousBatching

_FIELDS = STATE.names or ()
_EMPTY = Job(prompt_tokens=0, output_tokens=0)


def not_compiled(batching: ContinuousBatching, step_time: StepTime) -> list[str]:
    """Return the fields whose parts have no compiled form; empty = all have."""
    line: WaitingLine[Job] = waiting_line(batching.scheduler)
    kv = kv_cache(batching, batching.beam_width, 0.0, stored=lambda job: 0)
    asked = [line.not_compiled, kv.not_compiled, *Preference.asked_by(batching)]
    if step_law(step_time) is None:
        asked.append(f"step_time ({type(step_time).__name__})")
    return [name for name in asked if name]


class Timepiece(Protocol):
    """The time of the simulation.

    Within one instant, things happen by rank; ``reached`` is the highest rank so far.
    """

    reached: int

    @property
    def now(self) -> float:
        """Return the time, s."""


def _count(name: str) -> Any:
    """Return a property: a number of the state, after the steps that have ended by now."""
    field = _FIELDS.index(name)
    return property(lambda engine: engine.numbers()[field], doc=f"``{name}``, see ``Batch``.")


class CompiledEngine:
    """The batching state of one replica, some steps ahead of the clock.

    Attributes
    ----------
    waiting
        The scheduler queue.
    kv
        The prefix cache, None without one.
    end_s
        When :meth:`finish` is due: the end of the last step that is known, inf without one. A
        job that comes or goes makes it the end of the step that runs then.
    """

    joins_running = True
    has_kv = True
    wake_s = math.inf
    decoding = _count("decoding")
    steps = _count("steps")
    sequences = _count("sequences")
    prefill_tokens = _count("prefill_tokens")
    output_tokens = _count("output_tokens")
    preemptions = _count("preemptions")
    cached_blocks = _count("cached")
    _tick = _count("tick")
    _running = _count("running")
    _free_blocks = _count("free_blocks")

    def __init__(
        self,
        batching: ContinuousBatching,
        *,
        step_time: StepTime,
        kv_blocks: int,
        clock: Timepiece,
        rank: int,
        room: SequenceRoom = NO_ROOM,
    ) -> None:
        """Begin empty; ValueError for what has no compiled form."""
        law, lacking = step_law(step_time), not_compiled(batching, step_time)
        if law is None or lacking:
            raise ValueError(f"no compiled form of {', '.join(lacking)}")
        self._room = room if room.taken else None
        self._rules = batching
        self.block_size = batching.block_size
        self.kv_blocks = kv_blocks
        self._width = batching.beam_width
        self.places = batching.max_num_seqs // self._width
        self.end_s = math.inf
        self._clock = clock
        self.rank = rank
        draft = batching.speculation
        self._drafted = 0 if draft is None else draft.num_speculative_tokens
        self._rank = whole_rank(batching.scheduler)
        self._slots: dict[Job, int] = {}
        self._jobs: list[Job] = []
        self._free: list[int] = []
        self.parts = new_arrays(batching, kv_blocks, *law)
        self._add_slots(min(batching.max_num_seqs, 256) + 64)
        self.kv = CompiledCache(self) if batching.prefix_caching else None
        self.waiting = CompiledLine(self, remembers=batching.scheduler.wait_limit_s is not None)
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
        return int(self._running - self.decoding)

    @property
    def running(self) -> list[Job]:
        """Return the jobs that the running step holds."""
        self.numbers()
        return [self._jobs[slot] for slot in self._running_slots()]

    @property
    def begun_s(self) -> float:
        """Return the length of all steps begun, s."""
        self.numbers()
        return float(self.parts.state["begun_s"].item())

    @property
    def step_end_s(self) -> float:
        """Return when the running step ends, s; inf without one."""
        self.numbers()
        return self._step_end_s

    @property
    def kv_usage_fraction(self) -> float:
        """Return the share of KV blocks in use, in whole widths."""
        free = self._free_blocks // self._width
        return float(1.0 - free / (self.kv_blocks // self._width))

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        tokens = job.prompt_tokens + job.output_tokens
        if tokens > self._rules.max_model_len:
            return "max_model_len"
        width = 1 if job.greedy else self._width
        stored = tokens - 1 + 2 * self._drafted
        blocks = self.kv_blocks // width - blocks_beside(self._room, job, self.block_size)
        return "kv_capacity" if stored > blocks * self.block_size else None

    def limit(self, limits: Limits) -> None:
        """Hold the batches from the next step on within limits, instead of those before."""
        sequences, tokens = limits.of_continuous(self._rules)
        self.places = sequences // self._width
        self._seen_s = math.nan
        now_s, inclusive = self._clock.now, self._inclusive
        self.end_s = steps.limit(self._memory, sequences, tokens, now_s, inclusive)

    def start(self, now_s: float) -> None:
        """Form the next step of a free replica."""
        self._seen_s = math.nan
        _, self.end_s = steps.go_on(self._memory, now_s, True)

    def finish(self, *, stops: bool) -> list[Job]:
        """End the step that ends at ``end_s``; return the jobs that leave.

        The next has begun, unless there are any and it ``stops`` then: :meth:`start` is due.
        """
        self._seen_s = math.nan
        now_s = self.end_s
        leaving, self.end_s = steps.go_on(self._memory, now_s, stops)
        return self._left(leaving, now_s) if leaving else []

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves when the step ends."""
        slot = self._slots[job]
        waits = job in self.waiting
        self._seen_s = math.nan
        self.end_s = steps.withdraw(self._memory, slot, self._clock.now, self._inclusive)
        if waits:
            self._written(slot)
            self._vacate(slot)
        return waits

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were waiting or running."""
        begun_s = self.begun_s
        if self.end_s < math.inf:
            begun_s -= self.step_end_s - self._clock.now
        state, table = self.parts.state[0], self.parts.jobs
        waiting, running = self._waiting_slots(), self._running_slots()
        for slot in running:
            table[slot]["generated_tokens"] = self._made(slot, state["tick"])
        jobs = [self._written(slot) for slot in (*waiting, *running)]
        for slot in (*waiting, *running):
            self._vacate(slot)
        clear(self.parts)
        state["begun_s"] = begun_s
        self.waiting.forget()
        self._seen_s, self.end_s = math.nan, math.inf
        return jobs

    def move_end(self, end_s: float) -> None:
        """Refuse: a step that changes its speed must be known one at a time."""
        raise RuntimeError(f"steps that run ahead keep their ends, got {end_s!r}")

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""
        return self._made(self._slots[job], self._tick)

    def write(self) -> None:
        """Write on all jobs that are still here what has happened to them until now."""
        self.numbers()
        for slot in self._slots.values():
            self._written(slot)

    def join(self, job: Job, now_s: float) -> None:
        """Add a job to the queue; it waits from now on."""
        if not self._free:
            self._add_slots(len(self._jobs))
        names = NO_NAMES if self.kv is None else self.kv.name_blocks(job)
        slot = self._free.pop()
        self._slots[job] = slot
        self._jobs[slot] = job
        job.stream_interval = self._rules.stream_interval
        job.beam_width = width = 1 if job.greedy else self._width
        if self._room:
            beside = blocks_beside(self._room, job, self.block_size)
            self.parts.jobs["beside"][slot] = beside
        self._seen_s = math.nan
        self.end_s = steps.join(
            self._memory,
            slot,
            job.prompt_tokens,
            job.output_tokens,
            job.priority,
            0 if self._rank is None else self._rank(job, now_s),
            width,
            *names,
            now_s,
            self._clock.reached > self.rank,
        )

    def known_tokens(self, keys: NDArray[np.int64], per_key: int, named: int, tokens: int) -> int:
        """Return how many of the first tokens are in the prefix cache, without the last."""
        most = min((tokens - 1) // self.block_size, named)
        now_s, inclusive = self._clock.now, self._inclusive
        blocks = steps.known_blocks(self._memory, keys, per_key, most, now_s, inclusive)
        return int(blocks) * self.block_size

    def ticket(self, job: Job) -> int:
        """Return a job's place in the order of arrival; 0 = it does not wait."""
        slot = self._slots.get(job)
        return 0 if slot is None else int(self.parts.jobs["ticket"][slot])

    def waiting_jobs(self) -> list[Job]:
        """Return the waiting jobs in the order of arrival."""
        return [self._jobs[slot] for slot in self._waiting_slots()]

    def waiting_count(self) -> int:
        """Return how many jobs wait."""
        return int(self._waiting_count.item(0))

    @property
    def slots(self) -> Iterable[int]:
        """Return the slots of the jobs that are here."""
        return self._slots.values()

    def numbers(self) -> list[int]:
        """Return the numbers of the state, after the steps that have ended by now."""
        now_s = self._clock.now
        if self._seen_s != now_s:
            self._step_end_s = steps.settle(self._memory, now_s, self._inclusive)
            self._seen = self._numbers.tolist()
            self._seen_s = now_s if self._inclusive else math.nan
        return self._seen

    @property
    def _inclusive(self) -> bool:
        return self._clock.reached > self.rank

    def _made(self, slot: int, tick: int) -> int:
        row = self.parts.jobs[slot]
        if not row["finish_step"]:
            return int(row["generated_tokens"])
        return int(row["output_tokens"] - max(row["finish_step"] - tick, 0))

    def _waiting_slots(self) -> list[int]:
        tickets = self.parts.jobs["ticket"]
        return sorted(np.flatnonzero(tickets).tolist(), key=lambda slot: abs(tickets[slot]))

    def _running_slots(self) -> list[int]:
        order, running = self.parts.jobs["admission"], self.parts.jobs["running"]
        return sorted(np.flatnonzero(running).tolist(), key=lambda slot: order[slot])

    def _left(self, count: int, end_s: float) -> list[Job]:
        """Write their records on jobs that leave, and free their slots."""
        jobs = []
        for row in [self._first_left.tolist()] if count == 1 else self.parts.left[:count].tolist():
            job = self._vacate(int(row[0]))
            _write(job, row)
            if row[1]:
                job.decode_end_s = end_s
            jobs.append(job)
        return jobs

    def _written(self, slot: int) -> Job:
        """Write the record of a job that is here on it; return the job."""
        steps.record(self._memory, slot)
        job = self._jobs[slot]
        _write(job, self._first_left.tolist())
        return job

    def _vacate(self, slot: int) -> Job:
        job = self._jobs[slot]
        self._free.append(slot)
        del self._slots[job]
        return job

    def _add_slots(self, count: int) -> None:
        first = len(self._jobs)
        self._jobs += [_EMPTY] * count
        self._free += range(first + count - 1, first - 1, -1)
        self.lay_out(
            jobs=_longer(self.parts.jobs, first + count),
            waiting=_longer(self.parts.waiting, 2 * (first + count)),
            aside=_longer(self.parts.aside, max(first + count, len(self.parts.partials))),
        )

    def lay_out(self, **changed: NDArray[Any]) -> None:
        """Lay the arrays out anew, some of them changed."""
        self._memory, self.parts = laid_out(self.parts._replace(**changed))
        self._numbers = self.parts.state.view(np.int64)
        self._waiting_count = self.parts.state["waiting"]
        self._first_left = self.parts.left[0]


def _longer(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an array with more rows, zeros in the new ones."""
    longer = np.zeros((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _write(job: Job, row: list[float]) -> None:
    """Write the record of a job on it."""
    _, _, job.batch_in_s, job.prefill_end_s, job.batch_id, job.batch_size, done, made, found = row
    job.prefilled_tokens, job.generated_tokens = int(done), int(made)
    job.cached_tokens = int(found)
