"""What each kind of :mod:`capplan.scenario.faults` does; :data:`EFFECTS` maps one to the other."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from capplan.scenario import Scenario
from capplan.scenario.faults import (
    Crash,
    GeneratorLimit,
    Hang,
    Leak,
    ModelReload,
    NodeLoss,
    Occurrence,
    ReplicaFault,
    RouterBlind,
    Slow,
)
from capplan.scenario.placement import nodes_of
from capplan.simulation.callers import Callers
from capplan.simulation.clock import Clock, Events, Rank
from capplan.simulation.faults import (
    Ended,
    FaultEffect,
    FaultT,
    Outages,
    Site,
    start_renewals,
    strike_once,
)
from capplan.simulation.pool import ServingPool
from capplan.simulation.replica import Replica
from capplan.simulation.request_source import LoadGenerator
from capplan.simulation.shared_host import SharedHost, loader_of

ReplicaFaultT = TypeVar("ReplicaFaultT", bound=ReplicaFault)


class _PoolEffect(FaultEffect[FaultT]):
    """The effect of a fault of one pool as a whole."""

    def __init__(self, fault: FaultT, site: Site) -> None:
        super().__init__(fault, site)
        name = site.scenario.pool(getattr(fault, "pool", None)).name
        self.pool, self.outages = site.pools[name], site.outages[name]

    def units(self) -> Sequence[Any]:
        return [self.pool]


class _ReplicaEffect(_PoolEffect[ReplicaFaultT]):
    """The effect of a fault of single replicas."""

    def units(self) -> Sequence[Replica]:
        return list(self.pool.replicas)

    def chosen(self) -> Sequence[Replica]:
        return self.pool.in_service[: self.fault.count]

    def watch(self, joined: Callable[[Replica], None]) -> None:
        self.pool.on_join.append(joined)

    def can_fail(self, unit: Replica) -> bool | None:
        return unit.up if unit in self.pool.replicas else None


class _Crashing(_ReplicaEffect[Crash]):
    """Replicas stop."""

    def strike(self, units: Sequence[Replica], lasts_s: float, ended: Ended) -> None:
        self.outages.take_down(units, back_s=self.clock.now + lasts_s, then=ended)


class _Slowing(_ReplicaEffect[Slow]):
    """Steps take longer."""

    def begin(self, unit: Replica) -> None:
        unit.slow_down(self.fault.factor)

    def end(self, unit: Replica) -> None:
        unit.speed_up(self.fault.factor)


LEAK_STEP_S = 0.1
"""How often a leak takes what has gathered, whole blocks, s; a choice of this project."""


class _Leaking(_ReplicaEffect[Leak]):
    """Replicas lose KV blocks, as long as a leak lasts."""

    def __init__(self, fault: Leak, site: Site) -> None:
        super().__init__(fault, site)
        self._lasting: dict[Replica, object] = {}
        batching = site.scenario.pool(fault.pool).batching
        self._block = getattr(batching, "block_size", 1)

    def begin(self, unit: Replica) -> None:
        self._lasting[unit] = this = object()
        self.clock.process(self._lose(unit, this))

    def end(self, unit: Replica) -> None:
        self._lasting.pop(unit, None)

    def _lose(self, unit: Replica, this: object) -> Events:
        gathered = 0.0
        while True:
            yield self.clock.until(self.clock.now + LEAK_STEP_S, Rank.FAULT)
            if self._lasting.get(unit) is not this or unit not in self.pool.replicas:
                return
            if unit.up:
                gathered += self.fault.kv_tokens_per_s * LEAK_STEP_S
                unit.lose_kv(int(gathered // self._block))
                gathered %= self._block


@dataclass(slots=True)
class _HungReplica:
    """One hang of one replica, until it continues, is restarted or crashes."""

    replica: Replica
    number: int
    ended: Ended
    is_reported: bool = False
    """Whether ``ended`` was called, or will be by a restart."""

    @property
    def lasts(self) -> bool:
        """Return whether the hang has not ended; a crash ends it too."""
        return self.number in self.replica.hangs

    def report(self) -> None:
        """Call ``ended``, once."""
        if not self.is_reported:
            self.is_reported = True
            self.ended()


class _Hanging(_ReplicaEffect[Hang]):
    """Replicas hang until they continue or a health check restarts them."""

    def can_fail(self, unit: Replica) -> bool | None:
        """Return whether a replica is up and does not hang; None = it has left."""
        works = super().can_fail(unit)
        return works and not unit.hangs

    def strike(self, units: Sequence[Replica], lasts_s: float, ended: Ended) -> None:
        now_s, detect_s = self.clock.now, self.fault.detect_s
        for replica in units:
            hang = _HungReplica(replica, replica.hang(), ended)
            if lasts_s < math.inf:
                self.clock.at(now_s + lasts_s, Rank.FAULT, self._recover, hang)
            if detect_s is not None and detect_s < lasts_s:
                self.clock.at(now_s + detect_s, Rank.FAULT, self._detect, hang)

    def _recover(self, hang: _HungReplica) -> None:
        if hang.is_reported:
            return
        if hang.lasts:
            hang.replica.recover(hang.number)
            self.pool.trust(hang.replica, self)
        hang.report()

    def _detect(self, hang: _HungReplica) -> None:
        restart_s = self.fault.restart_s
        if not hang.lasts:
            if restart_s is not None:
                hang.report()
            return
        self.pool.avoid(hang.replica, self)
        if restart_s is not None:
            hang.is_reported = True
            self.outages.take_down(
                [hang.replica],
                back_s=self.clock.now + restart_s,
                ending=Hang.ending,
                then=hang.ended,
            )


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: of each pool on it, which replicas, by number."""

    parts: Sequence[tuple[ServingPool, Callable[[int], bool]]]

    def replicas(self) -> Iterable[tuple[ServingPool, list[Replica]]]:
        """Yield each pool and its replicas on this machine, including those that are down."""
        for pool, has in self.parts:
            yield pool, [r for r in pool.replicas if has(pool.number_of(r.name))]


class _LosingNodes(FaultEffect[NodeLoss]):
    """Machines stop, with all replicas on them."""

    def units(self) -> Sequence[Node]:
        fault, scenario, pools = self.fault, self.site.scenario, self.site.pools
        if fault.host is not None:
            there = [p for p in scenario.pools if fault.host in p.hosts]
            return [Node([(pools[p.name], _on_host(p.hosts, fault.host)) for p in there])]
        numbers = range(len(nodes_of(scenario.pool(fault.pool))))
        if fault.at_s is not None or fault.node is not None:
            numbers = numbers[fault.node or 0 :][:1]
        return [self._node(number) for number in numbers]

    def watch(self, joined: Callable[[Node], None]) -> None:
        """Call ``joined`` with each machine that an elastic pool fills later."""
        if self.fault.host is not None or self.fault.node is not None:
            return
        rules = self.site.scenario.pool(self.fault.pool)
        pool = self.site.pools[rules.name]
        known = {number // self._per_node for number in range(rules.replicas)}

        def replica_joined(replica: Replica) -> None:
            number = pool.number_of(replica.name) // self._per_node
            if number not in known:
                known.add(number)
                joined(self._node(number))

        pool.on_join.append(replica_joined)

    def can_fail(self, unit: Node) -> bool:
        """Return whether a replica is up there."""
        return any(replica.up for _, replicas in unit.replicas() for replica in replicas)

    def strike(self, units: Sequence[Node], lasts_s: float, ended: Ended) -> None:
        back_s = self.clock.now + lasts_s
        for node in units:
            for pool, replicas in node.replicas():
                self.site.outages[pool.name].take_down(replicas, back_s=back_s)
            if back_s < math.inf:
                self.clock.at(back_s, Rank.FAULT, lambda _: ended(), None)

    @property
    def _per_node(self) -> int:
        rules = self.site.scenario.pool(self.fault.pool)
        return rules.replicas_per_node or rules.replicas

    def _node(self, number: int) -> Node:
        """Return one machine of a pool: its replicas in the order of their numbers."""
        pool = self.site.pools[self.site.scenario.pool(self.fault.pool).name]
        own = range(number * self._per_node, (number + 1) * self._per_node)
        return Node([(pool, own.__contains__)])


def _on_host(hosts: Sequence[str], host: str) -> Callable[[int], bool]:
    return lambda number: hosts[number % len(hosts)] == host


class _Reloading(_PoolEffect[ModelReload]):
    """Replicas load their model anew, a few at a time."""

    def strike(self, units: Sequence[ServingPool], lasts_s: float, ended: Ended) -> None:
        for pool in units:
            Reload(pool, self.fault, outages=self.outages, clock=self.clock, ended=ended).start()


class Reload:
    """One reload of a pool; ``ended`` is called when the last replica is back."""

    def __init__(
        self, pool: ServingPool, rules: ModelReload, *, outages: Outages, clock: Clock, ended: Ended
    ) -> None:
        self._pool = pool
        self._rules = rules
        self._outages = outages
        self._clock = clock
        self._ended = ended
        self._away = 0
        self._left = deque(pool.replicas[: rules.count])
        self._draining: set[Replica] = set()

    def start(self) -> None:
        """Take the first replicas out of routing."""
        if self._rules.version and self._rules.count is None:
            self._pool.version = self._rules.version
        self._away = min(self._rules.max_unavailable, len(self._left))
        if not self._away:
            self._ended()
        for _ in range(self._away):
            self._next()

    def _next(self) -> None:
        """Drain the next replica; skip those that are down."""
        while self._left:
            replica = self._left.popleft()
            if replica.up and replica in self._pool.replicas:
                self._pool.avoid(replica, self)
                self._drain(replica)
                return
            self._upgrade(replica)
        self._away -= 1
        if not self._away:
            self._ended()

    def _drain(self, replica: Replica) -> None:
        """Reload a replica when it is empty or its grace period ends."""
        self._draining.add(replica)
        if not replica.in_flight:
            self._drained(replica)
            return
        clock = self._clock
        replica.on_empty = lambda: clock.at(clock.now, Rank.FAULT, self._drained, replica)
        clock.at(clock.now + self._rules.drain_s, Rank.FAULT, self._drained, replica)

    def _upgrade(self, replica: Replica) -> None:
        """Note the version that a replica reports when it is back."""
        replica.version = self._rules.version or replica.version

    def _drained(self, replica: Replica) -> None:
        if replica not in self._draining:
            return
        self._draining.remove(replica)
        replica.on_empty = None
        self._upgrade(replica)
        if not replica.up:  # it has crashed meanwhile, and loads when it returns
            self._next()
            return
        load_s = self._rules.load_s
        self._outages.take_down(
            [replica],
            back_s=self._clock.now + (load_s or 0.0),
            ending=ModelReload.ending,
            loads=load_s is None,
            then=self._next,
        )


class _Blinding(_PoolEffect[RouterBlind]):
    """The router of a pool sees nothing new."""

    def begin(self, unit: ServingPool) -> None:
        unit.go_blind()

    def end(self, unit: ServingPool) -> None:
        unit.see()


class _LimitingGenerator(FaultEffect[GeneratorLimit]):
    """The load generator keeps to a limit."""

    rank = Rank.ARRIVE  # before the requests of the same instant

    def __init__(self, fault: GeneratorLimit, site: Site) -> None:
        super().__init__(fault, site)
        self._generator = site.callers.through_generator()

    def units(self) -> Sequence[LoadGenerator]:
        return [self._generator]

    def begin(self, unit: LoadGenerator) -> None:
        unit.limit(self.fault)

    def end(self, unit: LoadGenerator) -> None:
        unit.lift(self.fault)


EFFECTS: Mapping[type[Occurrence], Callable[[Any, Site], FaultEffect[Any]]] = {
    Crash: _Crashing,
    Hang: _Hanging,
    Slow: _Slowing,
    Leak: _Leaking,
    NodeLoss: _LosingNodes,
    ModelReload: _Reloading,
    RouterBlind: _Blinding,
    GeneratorLimit: _LimitingGenerator,
}


def wire(
    scenario: Scenario,
    *,
    pools: Mapping[str, ServingPool],
    callers: Callers,
    shared_hosts: Mapping[str, SharedHost],
    clock: Clock,
    draws: Callable[[], np.random.Generator],
) -> None:
    """Schedule every fault of a scenario; ``draws`` gives the random numbers of all of them."""
    if not scenario.faults:
        return
    outages = {
        pool.name: Outages(
            pools[pool.name],
            loader=loader_of(pool, scenario, shared_hosts=shared_hosts, clock=clock),
            clock=clock,
        )
        for pool in scenario.pools
    }
    site = Site(scenario=scenario, pools=pools, outages=outages, callers=callers, clock=clock)
    rngs = draws().spawn(len(scenario.faults))
    for fault, rng in zip(scenario.faults, rngs, strict=True):
        effect = EFFECTS[type(fault)](fault, site)
        if fault.at_s is not None:
            clock.at(fault.at_s, effect.rank, strike_once, effect)
        else:
            start_renewals(effect, rng)
