"""A pool: one service queue, a router, and the replicas behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from capplan.replica.engine import Batch
from capplan.replica.multi_model import ResidentEngine
from capplan.scenario.faults import Fault
from capplan.scenario.pools import Pool
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.engines import EngineKind, engine_factory
from capplan.simulation.frail import FrailReplica, changes_pace, is_frail
from capplan.simulation.poison import Poison
from capplan.simulation.queue import BoundedQueue
from capplan.simulation.replica import CRASH, Replica
from capplan.simulation.routing import Target, route_of
from capplan.simulation.shared_host import Machine, Rates, Share
from capplan.simulation.stale_router import LastSeen

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

SCALED_DOWN = "scaled_down"
"""Why what still ran failed when a replica was to leave and its grace was over."""


class Downstream(Protocol):
    """What a pool tells the gateway."""

    def answered(self, attempt: Attempt) -> None:
        """Take an attempt whose last token is made."""

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Take an attempt that ended behind the gateway without an answer."""

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits at the gateway."""


class Watcher(Protocol):
    """Whoever wants to know which replicas come and go while the run goes on."""

    def joined(self, replica: Replica) -> None:
        """Know that a replica has come into service."""

    def left(self, replica: Replica) -> None:
        """Know that a replica is gone for good."""


class Standby(Protocol):
    """Whoever keeps warm replicas for a pool."""

    def start_standby(self) -> int:
        """Let them come into service; return how many were asked."""

    def stop_standby(self) -> int:
        """Send as many back as came; return how many."""


class ServingPool:
    """The service queue and the replicas of one pool.

    Attributes
    ----------
    replicas
        Those that are there: in service, down, or draining. Names are never used again.
    fleet
        What lets replicas come and go (a ``Fleet``); None = their number is fixed.
    """

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
        faults: Collection[Fault] = (),
        poison: Poison | None = None,
    ) -> None:
        self.name = pool.name
        self.queue = BoundedQueue(
            pool.queue, layer="service_queue", clock=clock, expired=gateway.failed
        )
        self.arrived = 0
        """Attempts that came from the gateway."""
        self.fleet: Standby | None = None
        self.watchers: list[Watcher] = []
        self._pool = pool
        self._clock = clock
        self._gateway = gateway
        self._route = route_of(pool.router, routing)
        self._limit = pool.router.max_in_flight
        self._hosts = [machines[name] for name in pool.hosts] if machines else []
        self._demands = demands or {}
        if self._hosts and engine == "fast":
            logger.info("pool %s: hosts, so its steps are not compiled", pool.name)
        self._build = engine_factory(
            pool,
            service=service,
            clock=clock,
            engine="reference" if self._hosts else engine,
            models=models or {},
            paced=changes_pace(pool, faults),
            poison=poison,
        )
        self._frail = is_frail(pool, faults)
        self._numbers = count()
        self._draining: list[Replica] = []
        self._dispatching = False
        self.replicas = [self._new(self.next_name()) for _ in range(pool.replicas)]
        self._seen: Sequence[Target] = self.replicas
        self._serving: Sequence[Target] = list(self.replicas)

    @property
    def idle(self) -> bool:
        """Return whether no replica computes or holds anything."""
        return all(replica.idle for replica in self.replicas)

    @property
    def in_service(self) -> list[Replica]:
        """Return the replicas that are up and take requests."""
        return [r for r in self.replicas if r.up and not (r.draining or r.avoided)]

    @property
    def up(self) -> int:
        """Return how many replicas are in service."""
        return len(self.in_service)

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the gateway: into the service queue, and on if a replica is free."""
        self.arrived += 1
        attempt.service_queue_in_s = self._clock.now
        attempt.place = "service_queue"
        if not self.queue.line and not self._dispatching and (candidates := self._candidates()):
            self._route(self._seen, candidates, attempt).submit(attempt)
        elif not self.queue.enter(attempt):
            self._gateway.failed(attempt, self.queue.full)

    def serving(self, attempt: Attempt) -> ServingPool:
        """Return itself: the pool that an attempt of it is in."""
        return self

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
        if self._draining:
            self._let_go()
        if self._dispatching:
            return
        self._dispatching = True
        line = self.queue.line
        while line and (candidates := self._candidates()):
            attempt = line.pop()
            self._route(self._seen, candidates, attempt).submit(attempt)
        self._dispatching = False

    def restored(self) -> None:
        """Know that a replica is back in service."""
        self._look()
        self.freed()

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits in the service queue or at the gateway."""
        return bool(self.queue.line) or self._gateway.has_waiting

    def write(self) -> None:
        """Write on all attempts that are still in a replica what has happened to them."""
        for replica in self.replicas:
            replica.write()

    def stop(self, replicas: Sequence[Replica], reason: str = CRASH) -> None:
        """Stop replicas: what they hold fails. Who was about to leave is gone."""
        for replica in replicas:
            replica.up = False
        self._look()
        for replica in replicas:
            if replica.draining:
                replica.draining = False
                self.remove(replica, reason)
            else:
                replica.crash(reason)

    def avoid(self, replica: Replica, why: object) -> None:
        """Send a replica nothing more, whatever it holds, until :meth:`trust` or its return."""
        replica.avoided.add(why)
        self._look()

    def trust(self, replica: Replica, why: object) -> None:
        """Send a replica requests again, if nobody else has a reason not to."""
        replica.avoided.discard(why)
        self.restored()

    def go_blind(self) -> None:
        """Let the router go on by what it sees now."""
        seen = [LastSeen(replica, self) for replica in self.replicas]
        self._seen = seen
        self._serving = [seen[self.replicas.index(replica)] for replica in self.in_service]

    def see(self) -> None:
        """Let the router see again."""
        self._seen = self.replicas
        self.restored()

    def lost(self, attempt: Attempt, failure: Failure) -> None:
        """Pass on the failure of an attempt on its way to a replica."""
        self._gateway.failed(attempt, failure)

    def number_of(self, name: str) -> int:
        """Return the number in a replica's name."""
        return int(name.removeprefix(f"{self.name}-"))

    def next_name(self) -> str:
        """Return the name of the next replica, which no other ever has."""
        return f"{self.name}-{next(self._numbers)}"

    def join(self, name: str) -> Replica:
        """Take a new replica into service, under a name of :meth:`next_name`."""
        replica = self._new(name)
        self.replicas.append(replica)
        for watcher in self.watchers:
            watcher.joined(replica)
        self.restored()
        return replica

    def drain(self, replica: Replica) -> None:
        """Let a replica take no more; it is gone when it is empty, or after :meth:`remove`."""
        replica.draining = True
        self._draining.append(replica)
        self._look()
        self._let_go()

    def remove(self, replica: Replica, reason: str = SCALED_DOWN) -> None:
        """Let a replica go at once; what it still runs fails. Nothing if it is gone already."""
        if replica not in self.replicas:
            return
        self.replicas.remove(replica)
        if replica in self._draining:
            self._draining.remove(replica)
        self._look()
        replica.crash(reason)
        for watcher in self.watchers:
            watcher.left(replica)

    def start_standby(self) -> int:
        """Put the warm standby replicas into service; return how many were asked to come."""
        return 0 if self.fleet is None else self.fleet.start_standby()

    def stop_standby(self) -> int:
        """Send what :meth:`start_standby` brought back to standby; return how many."""
        return 0 if self.fleet is None else self.fleet.stop_standby()

    def _new(self, name: str) -> Replica:
        steps, hosts = self._build(), self._hosts
        number = self.number_of(name)
        host = hosts[number % len(hosts)] if hosts else None
        factors = self._pool.step_factors or (1.0,)
        kind: Callable[..., Replica] = Replica
        if self._frail:
            kind = partial(FrailReplica, base_factor=factors[number % len(factors)])
        return kind(
            name,
            steps=steps,
            scheduler=self._pool.batching.scheduler,
            clock=self._clock,
            pool=self,
            share=None if host is None else _share(steps.engine, host, self._demands),
            cancels=self._pool.batching.cancel_frees,
        )

    def _look(self) -> None:
        """See who is in service, unless the router is blind."""
        if self._seen is self.replicas:
            self._serving = self.in_service

    def _let_go(self) -> None:
        """Let those go, at the end of the instant, that were to leave and are empty."""
        for replica in [one for one in self._draining if not one.in_flight]:
            self._draining.remove(replica)
            self._clock.at(self._clock.now, Rank.FAULT, self.remove, replica)

    def _candidates(self) -> Sequence[Target]:
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
