"""What a pool's batching becomes: the engine of a replica, and what drives its steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from capplan.replica.contiguous import copy_s_per_token
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.dynamic import DynamicEngine
from capplan.replica.footprint import FULL, footprint_fraction, load_seconds, pool_of_model
from capplan.replica.job import Job
from capplan.replica.memory import kv_blocks
from capplan.replica.multi_model import Hosted, ResidentEngine
from capplan.replica.reservations import continuous_engine
from capplan.replica.static import StaticEngine, static_step_time
from capplan.replica.step_time import StepTime, batch_seconds, step_time
from capplan.scenario.batching import (
    ContinuousBatching,
    DynamicBatching,
    ServiceLaw,
    StaticBatching,
)
from capplan.scenario.pools import Pool
from capplan.simulation.attempt import Attempt
from capplan.simulation.clock import Clock
from capplan.simulation.paced import PacedSteps
from capplan.simulation.poison import Poison
from capplan.simulation.steps import StepByStep, Steps

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

EngineKind = Literal["fast", "reference"]
"""``fast``: compiled steps wherever a pool's batching has them; ``reference``: never."""


def engine_factory(
    pool: Pool,
    *,
    service: np.random.Generator,
    clock: Clock,
    engine: EngineKind,
    models: Mapping[str, str],
    paced: bool = False,
    poison: Poison | None = None,
) -> Callable[[], Steps]:
    """Return what builds the steps of one replica.

    ``models`` are those that classes need; ``paced`` steps can change their speed midway and
    ``poison`` can fail them, which compiled ones cannot.
    """
    if not (paced or poison):
        return _factory(pool, service=service, clock=clock, engine=engine, models=models)
    if engine == "fast":
        what = "may change their speed" if paced else "may fail"
        logger.info("pool %s: steps %s, so they are not compiled", pool.name, what)
    build = _factory(pool, service=service, clock=clock, engine="reference", models=models)

    def own_steps() -> Steps:
        steps = build()
        if not isinstance(steps, StepByStep):
            msg = f"steps one at a time, got {type(steps).__name__}"
            raise TypeError(msg)
        if paced:
            steps = PacedSteps(steps.engine, clock=clock, rank=steps.rank)
        steps.poison = poison
        return steps

    return own_steps


def _factory(
    pool: Pool,
    *,
    service: np.random.Generator,
    clock: Clock,
    engine: EngineKind,
    models: Mapping[str, str],
) -> Callable[[], Steps]:
    if pool.models:
        return _resident_factory(pool, clock=clock, models=models)
    return _steps_factory(pool, service=service, clock=clock, engine=engine)


def _steps_factory(
    pool: Pool, *, service: np.random.Generator, clock: Clock, engine: EngineKind
) -> Callable[[], Steps]:
    """Return the one place where a pool's ``batching.kind`` becomes an engine."""
    batching = pool.batching
    if isinstance(batching, DynamicBatching):
        seconds = _service_seconds(batching.service, service)
        return lambda: StepByStep(DynamicEngine(batching, batch_seconds=seconds), clock=clock)
    if isinstance(batching, StaticBatching):
        law = static_step_time(pool)
        return lambda: StepByStep(StaticEngine(batching, step_time=law), clock=clock)
    return _continuous_factory(pool, batching, clock=clock, engine=engine)


def _continuous_factory(
    pool: Pool, batching: ContinuousBatching, *, clock: Clock, engine: EngineKind
) -> Callable[[], Steps]:
    law, blocks = step_time(pool), kv_blocks(pool)
    if engine == "fast":
        from capplan.replica.fast import FastEngine, unsupported
        from capplan.replica.steplaw import step_law

        missing, numbers = unsupported(batching, law), step_law(law)
        if numbers is not None and not missing:
            return lambda: FastEngine(
                batching, law=numbers, kv_blocks=blocks, clock=clock, rank=clock.step_rank()
            )
        logger.info("pool %s: %s, so its steps are not compiled", pool.name, ", ".join(missing))
    copy_s = copy_s_per_token(pool)
    return lambda: StepByStep(
        continuous_engine(batching, step_time=law, kv_blocks=blocks, copy_s_per_token=copy_s),
        clock=clock,
    )


def _resident_factory(
    pool: Pool, *, clock: Clock, models: Mapping[str, str]
) -> Callable[[], Steps]:
    """Return how a replica of several models is built; ``models`` are those of the classes."""
    logger.info("pool %s: models, so its steps are not compiled", pool.name)
    alone = {entry.name: pool_of_model(pool, entry) for entry in pool.models}
    taken = {entry.name: footprint_fraction(pool, entry) for entry in pool.models}
    swap = sum(taken.values()) > FULL
    loads = {entry.name: load_seconds(pool, entry) if swap else 0.0 for entry in pool.models}
    laws = {name: step_time(own) for name, own in alone.items()}

    def engine(own: Pool, law: StepTime) -> ContinuousEngine:
        if not isinstance(own.batching, ContinuousBatching):
            msg = f"models are of continuous batching, got {own.batching.kind}"
            raise TypeError(msg)
        return continuous_engine(
            own.batching,
            step_time=law,
            kv_blocks=kv_blocks(own),
            copy_s_per_token=copy_s_per_token(own),
        )

    def model_of(job: Job) -> str:
        return models[job.request.request_class] if isinstance(job, Attempt) else ""

    def build() -> Steps:
        hosted = [
            Hosted(
                name=entry.name,
                engine=engine(alone[entry.name], laws[entry.name]),
                footprint_fraction=taken[entry.name],
                kv_fraction=entry.kv_fraction,
                load_s=loads[entry.name],
                unload_s=entry.unload_s,
            )
            for entry in pool.models
        ]
        scheduler, now = pool.batching.scheduler, lambda: clock.now
        resident = ResidentEngine(hosted, model_of=model_of, scheduler=scheduler, now=now)
        return StepByStep(resident, clock=clock)

    return build


def _service_seconds(law: ServiceLaw, rng: np.random.Generator) -> Callable[[int, float], float]:
    """Return the time of a batch by its items and size: the law's mean, or exponential with it."""
    if law.exponential:
        return lambda items, size: float(rng.exponential(batch_seconds(law, items, size)))
    return lambda items, size: batch_seconds(law, items, size)
