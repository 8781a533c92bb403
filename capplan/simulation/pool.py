"""A pool: one service queue, a router, and the replicas behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Protocol

import numpy as np

from capplan.replica.engine import Batch
from capplan.replica.multi_model import ResidentEngine
from capplan.scenario.autoscaling import Autoscaler
from capplan.scenario.ending import Ending
from capplan.scenario.faults import Crash, RouterBlind
from capplan.scenario.pools import Pool
from capplan.simulation.attempt import Attempt, Downstream, Failure, Gauge
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.queue import BoundedQueue
from capplan.simulation.replica import Replica
from capplan.simulation.routing import LastSeen, Target, route_of
from capplan.simulation.shared_host import Rates, Share, SharedHost
from capplan.simulation.steps import EngineKind, Poison, steps_factory

UNREACHABLE = Failure.of(RouterBlind.ending, "service_queue", outcome="failed")
"""What a request gets that a blind router sends to a replica that is down or gone."""


class StandbyFleet(Protocol):
    """A fleet, as its pool calls it."""

    def start_standby(self) -> int:
        """Put the warm replicas into service; return how many."""

    def stop_standby(self) -> int:
        """Undo :meth:`start_standby`; return by how many."""


class ServingPool:
    """The service queue and the replicas of one pool.

    Attributes
    ----------
    replicas
        Its replicas: in service, down, or draining. Names are never reused.
    version
        What its next new replicas report; empty = not known.
    fleet
        The fleet that starts and stops replicas; None = their number is fixed.
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
        shared_hosts: Mapping[str, SharedHost] | None = None,
        demands: Mapping[str, Rates] | None = None,
        models: Mapping[str, str] | None = None,
        changes_pace: bool = False,
        poison: Poison | None = None,
    ) -> None:
        self.name = pool.name
        self.version = pool.version
        self.queue = BoundedQueue(
            pool.queue, layer="service_queue", clock=clock, expired=gateway.failed
        )
        self.arrived = 0
        """Attempts that arrived from the gateway."""
        self.fleet: StandbyFleet | None = None
        self.on_join: list[Callable[[Replica], None]] = []
        """Called with each replica that comes into service."""
        self.on_leave: list[Callable[[Replica], None]] = []
        """Called with each replica that leaves for good."""
        self._pool = pool
        self._clock = clock
        self._gateway = gateway
        self._route = route_of(pool.router, routing)
        self._limit = pool.router.max_in_flight
        self._hosts = [shared_hosts[name] for name in pool.hosts] if shared_hosts else []
        self._demands = demands or {}
        self._build = steps_factory(
            pool,
            service=service,
            clock=clock,
            engine=engine,
            models=models or {},
            changes_pace=changes_pace,
            poison=poison,
        )
        self._numbers = count()
        self._draining: list[Replica] = []
        self._dispatching = False
        self._blind = 0
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

    @property
    def versions(self) -> str:
        """Return the versions that the replicas in service report; empty if none is known."""
        found = sorted({r.version for r in self.in_service})
        return ", ".join(v or "not known" for v in found) if any(found) else ""

    def gauges(self) -> Iterable[Gauge]:
        """Yield the metrics of the timeline: name, reading, and whether it is a total."""
        yield "length", lambda: len(self.queue.line), False
        yield "in_flight", lambda: sum(r.in_flight for r in self.replicas), False
        yield "replicas", lambda: self.up, False
        yield "refused_rps", lambda: self.queue.refused, True

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the gateway: to a free replica, else into the service queue."""
        self.arrived += 1
        attempt.service_queue_in_s = self._clock.now
        attempt.place = "service_queue"
        free = not self.queue.line.jobs and not self._dispatching
        if free and (candidates := self._candidates()):
            self._route(self._seen, candidates, attempt).submit(attempt)
        elif not self.queue.enter(attempt):
            self._gateway.failed(attempt, self.queue.full)

    def serving(self, attempt: Attempt) -> ServingPool:
        """Return itself: the pool that serves its attempts."""
        return self

    def withdraw(self, attempt: Attempt) -> None:
        """Cancel an attempt, in the queue or in its replica."""
        if attempt.place == "service_queue":
            self.queue.line.remove(attempt)
        else:
            self._replica(attempt).withdraw(attempt)

    def answered(self, attempt: Attempt) -> None:
        """Pass on an answer, unless the attempt was cancelled."""
        if attempt.place == "replica":
            self._gateway.answered(attempt)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Pass on a failure, unless the attempt was cancelled."""
        if attempt.place == "replica":
            self._gateway.failed(attempt, failure)

    def freed(self) -> None:
        """Send waiting attempts as long as a replica can take one."""
        if self._draining:
            self._remove_empty()
        if self._dispatching:
            return
        self._dispatching = True
        line = self.queue.line
        while line.jobs and (candidates := self._candidates()):
            attempt = line.pop()
            self._route(self._seen, candidates, attempt).submit(attempt)
        self._dispatching = False

    def restored(self) -> None:
        """Route to a replica again: it is back in service."""
        self._update_view()
        self.freed()

    @property
    def has_waiting(self) -> bool:
        """Return whether a request waits in the service queue or at the gateway."""
        return bool(self.queue.line.jobs) or self._gateway.has_waiting

    def write(self) -> None:
        """Write the current state of the attempts in replicas on them."""
        for replica in self.replicas:
            replica.write()

    def stop(self, replicas: Sequence[Replica], ending: Ending = Crash.ending) -> None:
        """Stop replicas: what they hold fails. A draining one leaves the pool."""
        for replica in replicas:
            replica.up = False
        self._update_view()
        for replica in replicas:
            if replica.draining:
                replica.draining = False
                self.remove(replica, ending)
            else:
                replica.crash(ending)

    def avoid(self, replica: Replica, why: object) -> None:
        """Send a replica nothing more, until :meth:`trust` or its return from an outage."""
        replica.avoided.add(why)
        self._update_view()

    def trust(self, replica: Replica, why: object) -> None:
        """Remove a reason of :meth:`avoid`; without any, the replica gets requests again."""
        replica.avoided.discard(why)
        self.restored()

    def go_blind(self) -> None:
        """Freeze the router's view, until :meth:`see` was called as often."""
        self._blind += 1
        if self._blind == 1:
            seen = [LastSeen(one, partial(self._send_blindly, one)) for one in self.replicas]
            self._seen = seen
            self._serving = [seen[self.replicas.index(replica)] for replica in self.in_service]

    def see(self) -> None:
        """Undo one :meth:`go_blind`."""
        self._blind -= 1
        if not self._blind:
            self._seen = self.replicas
            self.restored()

    def number_of(self, name: str) -> int:
        """Return the number in a replica's name."""
        return int(name.removeprefix(f"{self.name}-"))

    def next_name(self) -> str:
        """Return a new name for a replica."""
        return f"{self.name}-{next(self._numbers)}"

    def join(self, name: str) -> Replica:
        """Put a new replica into service, under a name of :meth:`next_name`."""
        replica = self._new(name)
        self.replicas.append(replica)
        for call in self.on_join:
            call(replica)
        self.restored()
        return replica

    def drain(self, replica: Replica) -> None:
        """Send a replica nothing more; it leaves when it is empty, or by :meth:`remove`."""
        replica.draining = True
        self._draining.append(replica)
        self._update_view()
        self._remove_empty()

    def remove(self, replica: Replica, ending: Ending = Autoscaler.scaled_down) -> None:
        """Remove a replica at once; what it still runs fails. Do nothing if it has left."""
        if replica not in self.replicas:
            return
        self.replicas.remove(replica)
        if replica in self._draining:
            self._draining.remove(replica)
        self._update_view()
        replica.crash(ending)
        for call in self.on_leave:
            call(replica)

    def _new(self, name: str) -> Replica:
        steps, hosts = self._build(), self._hosts
        number = self.number_of(name)
        host = hosts[number % len(hosts)] if hosts else None
        factors = self._pool.step_factors or (1.0,)
        return Replica(
            name,
            steps=steps,
            scheduler=self._pool.batching.scheduler,
            clock=self._clock,
            pool=self,
            share=None if host is None else _share(steps.engine, host, self._demands),
            cancels=self._pool.batching.cancel_frees,
            step_factor=factors[number % len(factors)],
            version=self.version,
        )

    def _send_blindly(self, replica: Replica, attempt: Attempt) -> None:
        """Send an attempt to a replica that may be down or gone; then the attempt fails."""
        if replica.up and replica in self.replicas:
            replica.submit(attempt)
        else:
            self._gateway.failed(attempt, UNREACHABLE)

    def _update_view(self) -> None:
        """Update which replicas are in service, unless the router is blind."""
        if self._seen is self.replicas:
            self._serving = self.in_service

    def _remove_empty(self) -> None:
        """Remove draining replicas that are empty, at the end of the instant."""
        for replica in [one for one in self._draining if not one.in_flight]:
            self._draining.remove(replica)
            self._clock.at(self._clock.now, Rank.FAULT, self.remove, replica)

    def _candidates(self) -> Sequence[Target]:
        if self._limit is None:
            return self._serving
        return [replica for replica in self._serving if replica.in_flight < self._limit]

    def _replica(self, attempt: Attempt) -> Replica:
        return next(replica for replica in self.replicas if replica.name == attempt.replica)


def _share(engine: Batch, host: SharedHost, demands: Mapping[str, Rates]) -> Share:
    if isinstance(engine, ResidentEngine):
        return Share(host, demands=demands, running=lambda: engine.in_step)
    return Share(host, demands=demands, running=lambda: engine.running)
