"""Several models on one replica: what each takes of it, which are resident, whose step is next.

Each model has an engine of its own, with its own line and its share of the KV memory. The rules:

- *Compute*: one step at a time, in turn, of the resident models that have something to do. Without
  a service that merges them, the processes of a device run one at a time (NVIDIA, "Multi-Process
  Service", section "When to use MPS", 2025); that a turn is one step is an assumption.
- *Memory*: a model whose request is first in line is loaded as soon as it fits. If it does not,
  idle models (nothing runs, no request before that one waits) are unloaded, the least recently
  used first, but none before they are enough; until then no request that came later (or of lower
  priority) is admitted, so the models become idle. Source: Ollama, ``docs/faq``,
  "How does Ollama handle concurrent requests?", 2025.
- *Loads*: one at a time, each after the unloads that made room for it; steps of other models go on
  beside it at full speed (an assumption). At the start, and after a crash, the first models of
  the list that fit together are resident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from capplan.catalog import model
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.engine import JoinedLines, Limits
from capplan.replica.job import Job
from capplan.replica.memory import GIB, memory_use, pool_kv_bytes_per_token, weight_bytes
from capplan.replica.waiting import rank_of
from capplan.scenario.layers import Queue
from capplan.scenario.pools import Pool, ResidentModel
from capplan.schema import DataError

FULL = 1.0 + 1e-9
"""All of a replica's memory, with the rounding of a sum of shares."""

Turn = tuple[float, float]
"""Rank and arrival of a job: lower is served first, over all models. Flows take turns within a
model; between models the arrival counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hosted:
    """One model, and what it takes of the replica while it is resident."""

    name: str
    engine: ContinuousEngine
    footprint_fraction: float
    kv_fraction: float
    load_s: float
    unload_s: float


def _total(name: str) -> Any:
    """Return a property: a number of the engines, summed."""
    return property(
        lambda self: sum(getattr(engine, name) for engine in self._engines),
        doc=f"``{name}`` over all models, see ``Batch``.",
    )


class ResidentEngine:
    """The batching state of a replica with several models; see the module.

    ``model_of`` names the model of a job, ``now`` is the time.

    Attributes
    ----------
    loads, evictions
        Totals since the start; what is resident at the start was not loaded.
    """

    joins_running = True
    has_kv = True
    sequences = _total("sequences")
    prefill_tokens = _total("prefill_tokens")
    output_tokens = _total("output_tokens")
    preemptions = _total("preemptions")
    prefilling = _total("prefilling")
    decoding = _total("decoding")

    def __init__(
        self,
        hosted: Sequence[Hosted],
        *,
        model_of: Callable[[Job], str],
        scheduler: Queue,
        now: Callable[[], float],
    ) -> None:
        self._hosted = {one.name: one for one in hosted}
        self._model_of = model_of
        self._rank = rank_of(scheduler)
        self._now = now
        self._engines = [one.engine for one in hosted]
        for engine in self._engines:
            engine.admits = self._admits
        self.waiting = JoinedLines(
            [engine.waiting for engine in self._engines], lambda job: self._engine_of(job).waiting
        )
        self.places = self._engines[0].places
        self.steps = self.loads = self.evictions = 0
        self._booked_s = 0.0
        self._start()

    def _start(self) -> None:
        self._ready_s: dict[str, float] = {}
        """From when each resident model can run, least recently used first."""
        self._free_s = -math.inf
        self._last: Turn = (math.inf, math.inf)
        self._stepping: Hosted | None = None
        for name, one in self._hosted.items():
            if self.held_fraction + one.footprint_fraction <= FULL:
                self._ready_s[name] = -math.inf

    @property
    def held_fraction(self) -> float:
        """Return the share of the memory that resident and loading models take."""
        return sum(self._hosted[name].footprint_fraction for name in self._ready_s)

    @property
    def resident(self) -> list[str]:
        """Return the models that can run, least recently used first."""
        now_s = self._now()
        return [name for name, ready_s in self._ready_s.items() if ready_s <= now_s]

    @property
    def load_s(self) -> float:
        """Return for how long models were loaded and unloaded until now, s."""
        return self._booked_s - max(self._free_s - self._now(), 0.0)

    @property
    def waiting_for_model(self) -> int:
        """Return how many jobs wait for a model that is not resident."""
        ready = self.resident
        return sum(len(o.engine.waiting) for o in self._hosted.values() if o.name not in ready)

    def holds(self, job: Job) -> bool:
        """Return whether the model of a job is resident, or is being loaded."""
        return self._model_of(job) in self._ready_s

    def room(self, job: Job) -> int:
        """Return how many jobs of this model a free replica takes at once."""
        return self.places if self._model_of(job) in self.resident else 0

    @property
    def wake_s(self) -> float:
        """Return when a free engine wants to be asked again, s: when a load ends."""
        return self._free_s if self._free_s > self._now() else math.inf

    @property
    def running(self) -> Iterable[Job]:
        """Return the running jobs of all models."""
        return chain.from_iterable(engine.running for engine in self._engines)

    @property
    def in_step(self) -> Iterable[Job]:
        """Return the running jobs of the model whose step it is."""
        return () if self._stepping is None else self._stepping.engine.running

    @property
    def kv_usage_fraction(self) -> float:
        """Return the share of the resident models' KV memory in use; NaN if none is resident."""
        held = [self._hosted[name] for name in self._ready_s]
        whole = sum(one.kv_fraction for one in held)
        used = sum(one.kv_fraction * one.engine.kv_usage_fraction for one in held)
        return used / whole if held else math.nan

    def limit(self, limits: Limits) -> None:
        """Hold the batches of every model from the next step on within limits."""
        for engine in self._engines:
            engine.limit(limits)
        self.places = self._engines[0].places

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        return self._engine_of(job).refusal(job)

    def begin(self, now_s: float) -> float | None:
        """Load what fits, form the next step; return its length, None if there is none."""
        self._load(now_s)
        for name in self.resident:
            one = self._hosted[name]
            one.engine.steps = self.steps
            seconds = one.engine.begin(now_s)
            if seconds is not None:
                self.steps = one.engine.steps
                self._ready_s[name] = self._ready_s.pop(name)
                self._stepping = one
                return seconds
        return None

    def end(self, now_s: float) -> list[Job]:
        """End the step; return the jobs that leave."""
        stepped, self._stepping = self._stepping, None
        return [] if stepped is None else stepped.engine.end(now_s)

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves at the end of the step."""
        engine = self._engine_of(job)
        if engine.abort(job):
            return True
        if self._stepping is not None and self._stepping.engine is engine:
            return False
        engine.let_go()
        return True

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""
        return self._engine_of(job).made(job)

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were here."""
        jobs = [job for engine in self._engines for job in engine.clear()]
        self._booked_s = self.load_s
        self._start()
        return jobs

    def _engine_of(self, job: Job) -> ContinuousEngine:
        return self._hosted[self._model_of(job)].engine

    def _turn(self, job: Job) -> Turn:
        return (self._rank(job, job.scheduler_queue_in_s), job.scheduler_queue_in_s)

    def _admits(self, job: Job) -> bool:
        return self._turn(job) <= self._last

    def _load(self, now_s: float) -> None:
        """Load the models of waiting jobs, in the order of the jobs, as long as they fit."""
        self._last = (math.inf, math.inf)
        while self._free_s <= now_s and (asked := self._asked()):
            one, turn = asked
            idle = self._idle_enough(one, turn)
            if idle is None:
                self._last = turn
                return
            for name in idle:
                del self._ready_s[name]
                self._hosted[name].engine.kv.clear()
            seconds = sum(self._hosted[name].unload_s for name in idle) + one.load_s
            self._free_s = self._ready_s[one.name] = now_s + seconds
            self._booked_s += self._free_s - now_s
            self.loads += 1
            self.evictions += len(idle)

    def _asked(self) -> tuple[Hosted, Turn] | None:
        """Return the model that the first job without a resident model needs, and its turn."""
        needed = [
            (one, self._turn(job))
            for name, one in self._hosted.items()
            if name not in self._ready_s and (job := one.engine.waiting.first())
        ]
        return min(needed, key=lambda entry: entry[1], default=None)

    def _idle_enough(self, one: Hosted, turn: Turn) -> list[str] | None:
        """Return the models to unload to make room for one more; None if too few are idle."""
        held, idle = self.held_fraction + one.footprint_fraction, []
        for name in self._ready_s:
            if held <= FULL:
                break
            engine = self._hosted[name].engine
            first = engine.waiting.first()
            if not engine.running and (first is None or self._turn(first) > turn):
                idle.append(name)
                held -= self._hosted[name].footprint_fraction
        return idle if held <= FULL else None


def pool_of_model(pool: Pool, entry: ResidentModel) -> Pool:
    """Return the pool with this model alone, and its part of each replica.

    Raises :class:`DataError` if its KV share holds no block, or if it does not fit alone.
    """
    batching = pool.continuous
    law = entry.step_time or batching.step_time
    own = pool.model_copy(
        update={
            "model": entry.model or entry.name,
            "models": (),
            "weight_dtype": entry.weight_dtype or pool.weight_dtype,
            "kv_dtype": entry.kv_dtype or pool.kv_dtype,
            "batching": batching.model_copy(update={"step_time": law}),
        }
    )
    blocks = _kv_blocks(own, entry)
    if blocks < batching.beam_width:
        raise DataError(
            f"a share of the KV memory that holds {batching.beam_width} blocks "
            f"({batching.beam_width - blocks} short)",
            where=_where(pool, entry),
            field="kv_fraction",
            value=entry.kv_fraction,
        )
    kept = batching.model_copy(update={"step_time": law, "kv_blocks": blocks})
    return own.model_copy(update={"batching": kept})


def footprint_fraction(pool: Pool, entry: ResidentModel) -> float:
    """Return the share of a replica's usable memory that a resident model takes.

    With stated ``kv_blocks`` its share of them. Each model is served by a process of its own, so
    each takes the runtime's memory too.
    Raises :class:`DataError` for a model that does not fit alone, with what is missing.
    """
    batching = pool.continuous
    if batching.kv_blocks is not None:
        return entry.kv_fraction
    use = memory_use(_named(pool, entry))
    kv_bytes = entry.kv_fraction * use.usable_bytes
    if (over := kv_bytes - use.kv_bytes) > 0:
        raise DataError(
            f"a model that fits, with its KV share, into {use.usable_bytes / GIB:.1f} GiB per "
            f"accelerator ({over / GIB:.1f} GiB too much: weights {use.weight_bytes / GIB:.1f}, "
            f"activations {use.activation_bytes / GIB:.1f}, KV {kv_bytes / GIB:.1f} GiB)",
            where=_where(pool, entry),
            field="kv_fraction",
            value=entry.kv_fraction,
        )
    return 1.0 + over / use.usable_bytes


def load_seconds(pool: Pool, entry: ResidentModel) -> float:
    """Return how long a model takes to load, s: as stated, else bytes ÷ bandwidth."""
    if entry.load_s is not None:
        return entry.load_s
    if pool.load_bandwidth_bytes_per_s is None:
        rule = "load_s, or the pool's load_bandwidth_bytes_per_s to derive it"
        raise DataError(rule, where=_where(pool, entry), field="load_s")
    weights = weight_bytes(
        model(entry.model or entry.name),
        dtype=entry.weight_dtype or pool.weight_dtype,
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
    )
    return weights / pool.load_bandwidth_bytes_per_s


def _kv_blocks(own: Pool, entry: ResidentModel) -> int:
    batching = own.continuous
    if batching.kv_blocks is not None:
        return int(entry.kv_fraction * batching.kv_blocks + FULL - 1.0)
    usable = entry.kv_fraction * memory_use(own).usable_bytes
    whole = batching.model_copy(update={"disable_hybrid_kv_cache_manager": True})
    each = pool_kv_bytes_per_token(own.model_copy(update={"batching": whole}))
    return int(usable // (each * batching.block_size))


def _named(pool: Pool, entry: ResidentModel) -> Pool:
    dtype = entry.weight_dtype or pool.weight_dtype
    return pool.model_copy(update={"model": entry.model or entry.name, "weight_dtype": dtype})


def _where(pool: Pool, entry: ResidentModel) -> str:
    return f"pool {pool.name}, model {entry.name}"
