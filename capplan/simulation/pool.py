"""A pool: one service queue, a router, and the replicas behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from capplan.replica.contiguous import copy_s_per_token
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.dynamic import DynamicEngine
from capplan.replica.engine import Batch
from capplan.replica.footprint import FULL, footprint_fraction, load_seconds, pool_of_model
from capplan.replica.job import Job
from capplan.replica.latency import StepTime, batch_seconds, step_time
from capplan.replica.memory import kv_blocks
from capplan.replica.resident import Hosted, ResidentEngine
from capplan.replica.static import StaticEngine, static_step_time
from capplan.scenario import (
    ContinuousBatching,
    DynamicBatching,
    Pool,
    ServiceLaw,
    StaticBatching,
)
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Clock
from capplan.simulation.machine import Machine, Rates, Share
from capplan.simulation.queue import BoundedQueue
from capplan.simulation.replica import Replica
from capplan.simulation.routing import ROUTES
from capplan.simulation.steps import StepByStep, Steps

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

EngineKind = Literal["fast", "reference"]
"""``fast``: compiled steps wherever a pool's batching has them; ``reference``: never."""


class Downstream(Protocol):
    """What a pool tells the gateway."""

    def answered(self, attempt: Attempt) -> None:
        """Take an attempt whose last token is made."""

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Take an attempt that ended behind the gateway without an answer."""

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits at the gateway."""


class ServingPool:
    """The service queue and the replicas of one pool."""

    def __init__(
        self,
        pool: Pool,
        *,
        clock: Clock,
        gateway: Downstream,
        routing: np.random.Generator,
        service: np.random.Generator,
        engine: EngineKind = "fast",
        machines: Mapping[str, Machine] | None = None,
        demands: Mapping[str, Rates] | None = None,
        models: Mapping[str, str] | None = None,
    ) -> None:
        self.name = pool.name
        self.queue = BoundedQueue(
            pool.queue, layer="service_queue", clock=clock, expired=gateway.failed
        )
        on = [machines[name] for name in pool.hosts] if machines else []
        kind: EngineKind = "reference" if on else engine
        if pool.models:
            build = _resident_factory(pool, clock=clock, models=models or {})
        else:
            build = _steps_factory(pool, service=service, clock=clock, engine=kind)
        drivers = [build() for _ in range(pool.replicas)]
        self.replicas = tuple(
            Replica(
                f"{pool.name}-{index}",
                steps=steps,
                scheduler=pool.batching.scheduler,
                clock=clock,
                pool=self,
                share=_share(steps.engine, on[index % len(on)], demands or {}) if on else None,
                cancels=pool.batching.cancel_frees,
            )
            for index, steps in enumerate(drivers)
        )
        self._clock = clock
        self._gateway = gateway
        self._route = ROUTES[pool.router.policy](routing)
        self._limit = pool.router.max_in_flight
        self._serving = list(self.replicas)
        self._dispatching = False
        self.arrived = 0
        """Attempts that came from the gateway."""

    @property
    def idle(self) -> bool:
        """Return whether no replica computes or holds anything."""
        return all(replica.idle for replica in self.replicas)

    @property
    def up(self) -> int:
        """Return how many replicas are in service."""
        return sum(replica.up for replica in self.replicas)

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the gateway: into the service queue, and on if a replica is free."""
        self.arrived += 1
        attempt.service_queue_in_s = self._clock.now
        attempt.place = "service_queue"
        if not self.queue.line and not self._dispatching and (candidates := self._candidates()):
            self._route(self.replicas, candidates, attempt).submit(attempt)
        elif not self.queue.enter(attempt):
            self._gateway.failed(attempt, self.queue.full)

    def withdraw(self, attempt: Attempt) -> None:
        """Give an attempt up, wherever behind the gateway it is."""
        if attempt.place == "service_queue":
            self.queue.line.remove(attempt)
        else:
            self._replica(attempt).withdraw(attempt)

    def answered(self, attempt: Attempt) -> None:
        """Pass on an answer, unless the attempt was given up meanwhile."""
        if attempt.place == "replica":
            self._gateway.answered(attempt)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Pass on a failure, unless the attempt was given up meanwhile."""
        if attempt.place == "replica":
            self._gateway.failed(attempt, failure)

    def freed(self) -> None:
        """Send waiting attempts on, as long as a replica may take one."""
        if self._dispatching:
            return
        self._dispatching = True
        line = self.queue.line
        while line and (candidates := self._candidates()):
            attempt = line.pop()
            self._route(self.replicas, candidates, attempt).submit(attempt)
        self._dispatching = False

    def restored(self) -> None:
        """Know that a replica is back in service."""
        self._serving = [replica for replica in self.replicas if replica.up]
        self.freed()

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits in the service queue or at the gateway."""
        return bool(self.queue.line) or self._gateway.has_waiting

    def write(self) -> None:
        """Write on all attempts that are still in a replica what has happened to them."""
        for replica in self.replicas:
            replica.write()

    def crash(self, count: int) -> list[Replica]:
        """Stop the first ``count`` replicas in service; return them."""
        hit = [replica for replica in self.replicas if replica.up][:count]
        for replica in hit:
            replica.up = False
        self._serving = [replica for replica in self.replicas if replica.up]
        for replica in hit:
            replica.crash()
        return hit

    def _candidates(self) -> list[Replica]:
        limit = self._limit
        if limit is None:
            return self._serving
        return [replica for replica in self._serving if replica.in_flight < limit]

    def _replica(self, attempt: Attempt) -> Replica:
        return next(replica for replica in self.replicas if replica.name == attempt.replica)


def _share(engine: Batch, machine: Machine, demands: Mapping[str, Rates]) -> Share:
    if isinstance(engine, ResidentEngine):
        return Share(machine, demands=demands, running=lambda: engine.in_step)
    return Share(machine, demands=demands, running=lambda: engine.running)


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

        missing = unsupported(batching, law)
        if not missing:
            return lambda: FastEngine(
                batching, step_time=law, kv_blocks=blocks, clock=clock, rank=clock.step_rank()
            )
        logger.info("pool %s: %s, so its steps are not compiled", pool.name, ", ".join(missing))
    copy_s = copy_s_per_token(pool)
    return lambda: StepByStep(
        ContinuousEngine(batching, step_time=law, kv_blocks=blocks, copy_s_per_token=copy_s),
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
        return ContinuousEngine(
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
        order = pool.batching.scheduler.order
        resident = ResidentEngine(hosted, model_of=model_of, order=order, now=lambda: clock.now)
        return StepByStep(resident, clock=clock)

    return build


def _service_seconds(law: ServiceLaw, rng: np.random.Generator) -> Callable[[int, float], float]:
    """Return the time of a batch by its items and size: the law's mean, or exponential with it."""
    if law.exponential:
        return lambda items, size: float(rng.exponential(batch_seconds(law, items, size)))
    return lambda items, size: batch_seconds(law, items, size)
