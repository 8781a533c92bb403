"""The steps of a replica: what its batching becomes, what drives it, and what fails a step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.engine import Engine
from capplan.replica.job import Job
from capplan.replica.kv_capacity import kv_blocks, sequence_room
from capplan.replica.kv_layouts import copy_s_per_token
from capplan.replica.multi_model import (
    FULL,
    Hosted,
    ResidentEngine,
    footprint_fraction,
    load_seconds,
    pool_of_model,
)
from capplan.replica.step_time import batch_seconds, step_time
from capplan.replica.whole_batch import DynamicEngine, StaticEngine, static_step_time
from capplan.scenario import Scenario
from capplan.scenario.batching import (
    ContinuousBatching,
    DynamicBatching,
    ServiceLaw,
    StaticBatching,
)
from capplan.scenario.classes import RequestClass
from capplan.scenario.pools import Pool
from capplan.simulation.attempt import Attempt
from capplan.simulation.clock import Clock

if TYPE_CHECKING:
    from capplan.replica.compiled.engine import CompiledEngine

logger = logging.getLogger(__name__)

EngineKind = Literal["fast", "reference"]
"""``fast``: compiled steps wherever a pool's batching has them; ``reference``: never."""


class StepByStep:
    """An engine that knows one step at a time; it specifies what compiled steps do.

    Attributes
    ----------
    rank
        Rank of the ends of its steps.
    end_s
        When :meth:`finish` is due; inf while the replica is free. Of compiled steps, which know
        several ahead, jobs that come or go can change it.
    begun_s
        The length of all steps begun, s.
    factor
        How many times as long as the engine says the steps take that begin from now on; for the
        running one see :meth:`halt` and :meth:`resume`.
    """

    def __init__(self, engine: Engine, *, clock: Clock, poison: Poison | None = None) -> None:
        self.engine = engine
        self.rank = clock.step_rank()
        self.end_s = math.inf
        self.begun_s = 0.0
        self.factor = 1.0
        self._poison = poison
        self._clock = clock

    @property
    def step_end_s(self) -> float:
        """Return when the running step ends, s; inf while the replica is free."""
        return self.end_s

    def start(self, now_s: float) -> None:
        """Form the next step."""
        seconds = self.engine.begin(now_s)
        if seconds is not None:
            seconds *= self.factor
            self.begun_s += seconds
            self.end_s = now_s + seconds

    def finish(self, *, stops: bool) -> list[Job]:
        """End what ends at ``end_s``; return the jobs that leave.

        Compiled steps may begin the next one. They must not if jobs leave and ``stops`` is True:
        these make room for waiting requests, which join that step.
        """
        now_s, self.end_s = self.end_s, math.inf
        if self._poison is not None:
            return self._poison.end(self.engine, now_s)
        return self.engine.end(now_s)

    def abort(self, job: Job) -> bool:
        """Cancel a job: True if it left at once, False if it leaves when the step ends."""
        return self.engine.abort(job)

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""
        return self.engine.made(job)

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were here."""
        if self.end_s < math.inf:
            self.halt()
        return self.engine.clear()

    def move_end(self, end_s: float) -> None:
        """Set another end of the running step."""
        self.begun_s += end_s - self.end_s
        self.end_s = end_s

    def halt(self) -> None:
        """Suspend the running step: it has no end."""
        self.begun_s -= self.end_s - self._clock.now
        self.end_s = math.inf

    def resume(self, end_s: float) -> None:
        """Continue the suspended step, with another end."""
        self.begun_s += end_s - self._clock.now
        self.end_s = end_s

    def write(self) -> None:
        """Write the current state of the jobs here on them: done, as every step has ended."""


Steps: TypeAlias = "StepByStep | CompiledEngine"
"""The steps of one replica, seen from the replica."""


def steps_factory(
    pool: Pool,
    *,
    service: np.random.Generator,
    clock: Clock,
    engine: EngineKind,
    models: Mapping[str, str],
    changes_pace: bool = False,
    poison: Poison | None = None,
) -> Callable[[], Steps]:
    """Return the function that builds the steps of one replica.

    ``models`` are those that the classes need. Compiled steps cannot share a host, hold several
    models, change their pace midway or be failed by ``poison``.
    """
    if engine == "fast":
        present = {
            "hosts": pool.hosts,
            "models": pool.models,
            "a changing pace": changes_pace,
            "poisoned requests": poison,
        }
        reasons = [name for name, value in present.items() if value]
        if not reasons and isinstance(pool.batching, ContinuousBatching):
            from capplan.replica.compiled.engine import CompiledEngine, not_compiled

            batching, law, blocks = pool.batching, step_time(pool), kv_blocks(pool)
            reasons, room = not_compiled(batching, law), sequence_room(pool)
            if not reasons:
                return lambda: CompiledEngine(
                    batching,
                    step_time=law,
                    kv_blocks=blocks,
                    clock=clock,
                    rank=clock.step_rank(),
                    room=room,
                )
        if reasons:
            logger.info("pool %s: %s, so its steps are not compiled", pool.name, ", ".join(reasons))
    build = _engine_factory(pool, service=service, clock=clock, models=models)
    return lambda: StepByStep(build(), clock=clock, poison=poison)


def _engine_factory(
    pool: Pool, *, service: np.random.Generator, clock: Clock, models: Mapping[str, str]
) -> Callable[[], Engine]:
    """Return the one place where a pool's ``batching.kind`` becomes an engine."""
    batching = pool.batching
    if pool.models:
        return _resident_factory(pool, clock=clock, models=models)
    if isinstance(batching, DynamicBatching):
        seconds = _service_seconds(batching.service, service)
        return lambda: DynamicEngine(batching, batch_seconds=seconds)
    if isinstance(batching, StaticBatching):
        law = static_step_time(pool)
        return lambda: StaticEngine(batching, step_time=law)
    return _continuous_factory(pool)


def _continuous_factory(pool: Pool) -> Callable[[], ContinuousEngine]:
    batching = pool.continuous
    law, blocks, copy_s = step_time(pool), kv_blocks(pool), copy_s_per_token(pool)
    room = sequence_room(pool)
    return lambda: ContinuousEngine(
        batching, step_time=law, kv_blocks=blocks, copy_s_per_token=copy_s, room=room
    )


def _resident_factory(
    pool: Pool, *, clock: Clock, models: Mapping[str, str]
) -> Callable[[], Engine]:
    """Return what builds a replica of several models; ``models`` are those of the classes."""
    builders = {e.name: _continuous_factory(pool_of_model(pool, e)) for e in pool.models}
    taken = {entry.name: footprint_fraction(pool, entry) for entry in pool.models}
    swap = sum(taken.values()) > FULL
    loads = {entry.name: load_seconds(pool, entry) if swap else 0.0 for entry in pool.models}

    def model_of(job: Job) -> str:
        return models[job.request.request_class] if isinstance(job, Attempt) else ""

    def build() -> Engine:
        hosted = [
            Hosted(
                name=entry.name,
                engine=builders[entry.name](),
                footprint_fraction=taken[entry.name],
                kv_fraction=entry.kv_fraction,
                load_s=loads[entry.name],
                unload_s=entry.unload_s,
            )
            for entry in pool.models
        ]
        return ResidentEngine(
            hosted, model_of=model_of, scheduler=pool.batching.scheduler, now=lambda: clock.now
        )

    return build


def _service_seconds(law: ServiceLaw, rng: np.random.Generator) -> Callable[[int, float], float]:
    """Return the time of a batch by its items and size: the law's mean, or exponential with it."""
    if law.exponential:
        return lambda items, size: float(rng.exponential(batch_seconds(law, items, size)))
    return lambda items, size: batch_seconds(law, items, size)


def poisoned_rows(
    scenario: Scenario, frame: pd.DataFrame, rng: np.random.Generator
) -> frozenset[int]:
    """Return the rows of a trace that are poisoned: of each class its ``poisoned_fraction``."""
    shares = {c.name: c.poisoned_fraction for c in scenario.classes}
    if not any(shares.values()):
        return frozenset()
    default = scenario.request_class().name
    names = frame["request_class"].tolist() if "request_class" in frame else [default] * len(frame)
    drawn = rng.random(len(frame)).tolist()
    own = (shares.get(name, shares[default]) for name in names)  # a missing name is the default's
    return frozenset(row for row, share in enumerate(own) if drawn[row] < share)


def poison_of(pool: Pool, scenario: Scenario, rows: frozenset[int]) -> Poison | None:
    """Return what fails the steps of a pool; None if no poisoned request can reach it."""
    own = {c.name for c in scenario.classes if scenario.pool_of(c.name).name == pool.name}
    comes = [c for c in scenario.classes if c.name in own or scenario.breakers]
    if not any(c.poisoned_fraction for c in comes):
        return None
    return Poison(rows, together=pool.batching.poison == "batch")


class Poison:
    """Fails the step (or batch) in which a poisoned request is computed first.

    The tokens that the step made for failed requests count as wasted. With ``together``, all
    running requests fail with it, and the replica continues with the waiting ones.
    """

    def __init__(self, rows: frozenset[int], *, together: bool) -> None:
        self._rows = rows
        self._together = together

    def end(self, engine: Engine, now_s: float) -> list[Job]:
        """End the step of an engine; return the jobs that leave, including the failed ones.

        A failed one has a ``reason`` and no ``decode_end_s``.
        """
        held = engine.in_step if isinstance(engine, ResidentEngine) else engine.running
        running = [job for job in held if isinstance(job, Attempt)]
        left = engine.end(now_s)
        struck = [a for a in running if a.request.row in self._rows]
        if not struck:
            return left
        gone = set(map(id, left))
        for attempt in running if self._together else struck:
            self._fail(attempt, now_s)
            if id(attempt) not in gone:
                left.append(attempt)
                engine.abort(attempt)
        if isinstance(engine, ContinuousEngine):
            engine.let_go()
        return left

    def _fail(self, attempt: Attempt, now_s: float) -> None:
        if attempt.outcome == "in_flight":
            is_poisoned = attempt.request.row in self._rows
            ending = RequestClass.poisoned if is_poisoned else RequestClass.beside_poisoned
            attempt.reason = ending.reason
        attempt.decode_end_s = math.nan
        if attempt.prefill_end_s >= now_s:
            attempt.prefill_end_s = math.nan
