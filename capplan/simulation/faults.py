"""Faults: what strikes a run, when, and for how long; see :mod:`capplan.scenario.faults`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from capplan.scenario.faults import (
    Crash,
    Fault,
    GeneratorLimit,
    Hang,
    ModelReload,
    NodeLoss,
    RouterBlind,
    Slow,
)
from capplan.scenario.placement import nodes_of
from capplan.scenario.pools import Pool
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.fault_effects import (
    Blinding,
    Kind,
    Limited,
    Lost,
    Node,
    NodePart,
    Reloading,
    of_replicas,
    on_host,
)
from capplan.simulation.loading import Loader
from capplan.simulation.outages import Outages

if TYPE_CHECKING:
    import numpy as np

    from capplan.scenario import Scenario
    from capplan.simulation.caller import Callers
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.replica import Replica
    from capplan.simulation.shared_host import Machine


def targets(scenario: Scenario, pool: Pool) -> list[Fault]:
    """Return the faults that strike the replicas or the router of a pool."""
    return [
        fault
        for fault in scenario.faults
        if not isinstance(fault, GeneratorLimit)
        and not (isinstance(fault, NodeLoss) and fault.host is not None)
        and scenario.pool(fault.pool).name == pool.name
    ]


def wire(
    scenario: Scenario,
    *,
    pools: Mapping[str, ServingPool],
    callers: Callers,
    machines: Mapping[str, Machine],
    clock: Clock,
    draws: Callable[[], np.random.Generator],
) -> None:
    """Schedule every fault of a scenario; ``draws`` gives the random numbers of all of them."""
    if not scenario.faults:
        return
    wiring = _Wiring(scenario, pools=pools, callers=callers, machines=machines, clock=clock)
    rngs = draws().spawn(len(scenario.faults))
    for fault, rng in zip(scenario.faults, rngs, strict=True):
        kind = wiring.kind(fault)
        if fault.at_s is not None:
            before = isinstance(fault, GeneratorLimit)  # whoever is to be sent in this instant
            clock.at(fault.at_s, Rank.ARRIVE if before else Rank.FAULT, _Once(kind, fault), None)
        else:
            renewals = _Renewals(kind, fault, rng=rng, clock=clock)
            renewals.start(wiring.pool_of(fault))
            wiring.watch_machines(fault, renewals)


class _Wiring:
    """The places of a run where faults strike."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        pools: Mapping[str, ServingPool],
        callers: Callers,
        machines: Mapping[str, Machine],
        clock: Clock,
    ) -> None:
        self._scenario = scenario
        self._pools = pools
        self._callers = callers
        self._clock = clock
        self._blind: Counter[str] = Counter()
        hosts = {host.name: host for host in scenario.hosts}
        self._outages = {
            pool.name: Outages(
                pools[pool.name],
                loader=None
                if pool.model_load is None
                else Loader(pool, pool.model_load, hosts=hosts, machines=machines, clock=clock),
                clock=clock,
            )
            for pool in scenario.pools
        }

    def pool_of(self, fault: Fault) -> ServingPool | None:
        """Return the pool whose replicas fail one by one; None = no replicas do."""
        if isinstance(fault, Crash | Hang | Slow):
            return self._pools[self._scenario.pool(fault.pool).name]
        return None

    def watch_machines(self, fault: Fault, renewals: _Renewals) -> None:
        """Let the machines that an elastic pool fills later fail as its first ones do."""
        if isinstance(fault, NodeLoss) and fault.host is None and fault.node is None:
            rules = self._scenario.pool(fault.pool)
            pool = self._pools[rules.name]
            pool.watchers.append(_Machines(pool, _per_node(rules), rules.replicas, renewals))

    def kind(self, fault: Fault) -> Kind:
        """Return what a fault does: the one place where the kinds of a scenario become code."""
        if isinstance(fault, GeneratorLimit):
            return Limited(self._callers.through_generator(), fault, self._clock)
        if isinstance(fault, NodeLoss):
            return Lost(self._nodes(fault), self._outages, self._clock)
        name = self._scenario.pool(fault.pool).name
        pool, outages = self._pools[name], self._outages[name]
        if isinstance(fault, RouterBlind):
            return Blinding(pool, self._blind, self._clock)
        if isinstance(fault, ModelReload):
            return Reloading(pool, fault, outages, self._clock)
        return of_replicas(pool, fault, outages, self._clock)

    def _nodes(self, fault: NodeLoss) -> list[Node]:
        """Return the machines that a node loss can strike, by the pools and replicas on each."""
        if fault.host is not None:
            pools = [p for p in self._scenario.pools if fault.host in p.hosts]
            return [Node([NodePart(self._pools[p.name], on_host(p, fault.host)) for p in pools])]
        rules = self._scenario.pool(fault.pool)
        numbers = range(len(nodes_of(rules)))
        if fault.at_s is not None or fault.node is not None:
            numbers = numbers[fault.node or 0 :][:1]
        pool = self._pools[rules.name]
        return [_machine(pool, number, _per_node(rules)) for number in numbers]


def _per_node(rules: Pool) -> int:
    return rules.replicas_per_node or rules.replicas


def _machine(pool: ServingPool, number: int, per_node: int) -> Node:
    """Return one machine of a pool: so many of its replicas, in the order of their numbers."""
    own = range(number * per_node, (number + 1) * per_node)
    return Node([NodePart(pool, own.__contains__)])


class _Machines:
    """Watches a pool for replicas on machines that were not there before."""

    def __init__(
        self, pool: ServingPool, per_node: int, replicas: int, renewals: _Renewals
    ) -> None:
        self._pool = pool
        self._per_node = per_node
        self._known = {number // per_node for number in range(replicas)}
        self._renewals = renewals

    def joined(self, replica: Replica) -> None:
        """Let the machine of a new replica fail in time, if it is a new one."""
        number = self._pool.number_of(replica.name) // self._per_node
        if number not in self._known:
            self._known.add(number)
            self._renewals.joined(_machine(self._pool, number, self._per_node))

    def left(self, replica: Replica) -> None:
        """Do nothing: a machine without replicas loses none."""


class _Once:
    """A fault that waits for its moment."""

    def __init__(self, kind: Kind, fault: Fault) -> None:
        self._kind = kind
        self._fault = fault

    def __call__(self, _: None) -> None:
        lasts_s = self._fault.lasts_s
        self._kind.strike(
            self._kind.chosen(), math.inf if lasts_s is None else lasts_s, _nobody_waits
        )


class _Renewals:
    """A fault that strikes units one by one, again and again."""

    def __init__(self, kind: Kind, fault: Fault, *, rng: np.random.Generator, clock: Clock) -> None:
        self._kind = kind
        self._fault = fault
        self._rng = rng
        self._clock = clock

    def start(self, pool: ServingPool | None) -> None:
        """Let every unit that is there fail in time, and those of the pool that come later."""
        for unit in self._kind.units():
            self.joined(unit)
        if pool is not None:
            pool.watchers.append(self)

    def joined(self, unit: object) -> None:
        """Let another unit fail in time, with random numbers of its own."""
        self._wait((unit, self._rng.spawn(1)[0]))

    def left(self, unit: object) -> None:
        """Do nothing: its next failure will find it gone."""

    def _wait(self, which: tuple[object, np.random.Generator]) -> None:
        fails_s = self._clock.now + float(which[1].exponential(self._fault.mtbf_s or math.inf))
        self._clock.at(fails_s, Rank.FAULT, self._fail, which)

    def _fail(self, which: tuple[object, np.random.Generator]) -> None:
        unit, rng = which
        works = self._kind.can_fail(unit)
        if works:
            lasts_s = self._fault.lasts_s
            if self._fault.mttr_s is not None:
                lasts_s = float(rng.exponential(self._fault.mttr_s))
            self._kind.strike(
                [unit], math.inf if lasts_s is None else lasts_s, lambda: self._wait(which)
            )
        elif works is not None:
            self._wait(which)


def _nobody_waits() -> None:
    """Do nothing at the end of a fault."""
