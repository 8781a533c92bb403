"""What each kind of fault does to whom it strikes; see :mod:`capplan.scenario.faults`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from capplan.scenario.faults import Crash, GeneratorLimit, Hang, ModelReload, Slow
from capplan.scenario.pools import Pool
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.frail import FrailReplica
from capplan.simulation.generator import Generator
from capplan.simulation.outages import Outages
from capplan.simulation.reloads import Reload

if TYPE_CHECKING:
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.replica import Replica

RESTART = "restart"
"""Why what a hung replica held failed when it was restarted."""
Over = Callable[[], None]


class Kind(Protocol):
    """One fault of a scenario: whom it can strike, and what happens then."""

    def units(self) -> Sequence[Any]:
        """Return all that can fail by themselves."""

    def chosen(self) -> Sequence[Any]:
        """Return whom a fault at a time strikes."""

    def can_fail(self, unit: Any) -> bool | None:
        """Return whether a unit is in order now; None = it is gone for good."""

    def strike(self, units: Sequence[Any], lasts_s: float, over: Over) -> None:
        """Let it happen for a time (inf = for good); ``over`` is called for each at its end."""


def on_host(pool: Pool, host: str) -> Callable[[int], bool]:
    """Return which replicas of a pool stand on a host, by number."""
    hosts = pool.hosts
    return lambda number: hosts[number % len(hosts)] == host


@dataclass(frozen=True, slots=True)
class NodePart:
    """A pool's part of a machine: which of its replicas, by number."""

    pool: ServingPool
    has: Callable[[int], bool]


class Node:
    """One machine, and the pools on it."""

    def __init__(self, parts: Sequence[NodePart]) -> None:
        self._parts = parts

    def replicas(self) -> Iterable[tuple[ServingPool, list[Replica]]]:
        """Yield each pool and its replicas here, also those that are down."""
        for part in self._parts:
            yield (
                part.pool,
                [r for r in part.pool.replicas if part.has(part.pool.number_of(r.name))],
            )


class _OfReplicas:
    """What faults of single replicas have in common."""

    def __init__(self, pool: ServingPool, fault: Crash | Hang | Slow, clock: Clock) -> None:
        self._pool = pool
        self._count = fault.count
        self._clock = clock

    def units(self) -> Sequence[Replica]:
        """Return the replicas that are there."""
        return list(self._pool.replicas)

    def chosen(self) -> Sequence[Replica]:
        """Return the first in service."""
        return self._pool.in_service[: self._count]

    def can_fail(self, unit: Replica) -> bool | None:
        """Return whether a replica is in service; None = it is gone."""
        return unit.up if unit in self._pool.replicas else None


class _Crashing(_OfReplicas):
    def __init__(self, pool: ServingPool, fault: Crash, outages: Outages, clock: Clock) -> None:
        super().__init__(pool, fault, clock)
        self._outages = outages

    def strike(self, units: Sequence[Replica], lasts_s: float, over: Over) -> None:
        """Stop replicas."""
        self._outages.take_down(units, back_s=self._clock.now + lasts_s, then=over)


class _Hanging(_OfReplicas):
    def __init__(self, pool: ServingPool, fault: Hang, outages: Outages, clock: Clock) -> None:
        super().__init__(pool, fault, clock)
        self._outages = outages
        self._detect_s = fault.detect_s
        self._restart_s = fault.restart_s

    def can_fail(self, unit: Replica) -> bool | None:
        """Return whether a replica is in service and moves; None = it is gone."""
        works = super().can_fail(unit)
        return works and not _frail(unit).is_hung

    def strike(self, units: Sequence[Replica], lasts_s: float, over: Over) -> None:
        """Let replicas stand still, until they go on or are restarted."""
        now_s = self._clock.now
        for replica in map(_frail, units):
            hang = _Hung(replica, replica.hang(), over)
            if lasts_s < math.inf:
                self._clock.at(now_s + lasts_s, Rank.FAULT, self._go_on, hang)
            if self._detect_s is not None and self._detect_s < lasts_s:
                self._clock.at(now_s + self._detect_s, Rank.FAULT, self._notice, hang)

    def _go_on(self, hang: _Hung) -> None:
        if hang.is_known:
            return
        if hang.goes_on:
            hang.replica.recover(hang.number)
            self._pool.trust(hang.replica, self)
        hang.end()

    def _notice(self, hang: _Hung) -> None:
        if not hang.goes_on:
            if self._restart_s is not None:
                hang.end()
            return
        self._pool.avoid(hang.replica, self)
        if self._restart_s is not None:
            back_s = self._clock.now + self._restart_s
            hang.is_known = True
            self._outages.take_down([hang.replica], back_s=back_s, reason=RESTART, then=hang.over)


@dataclass(slots=True)
class _Hung:
    """One hang of one replica: until it goes on by itself, is restarted, or crashes on the way."""

    replica: FrailReplica
    number: int
    over: Over
    is_known: bool = False
    """Somebody has told, or will, that it is over."""

    @property
    def goes_on(self) -> bool:
        """Return whether it has not ended yet, as it does when the replica stops."""
        return self.number in self.replica.hangs

    def end(self) -> None:
        """Tell that it is over, once."""
        if not self.is_known:
            self.is_known = True
            self.over()


class _Slowing(_OfReplicas):
    def __init__(self, pool: ServingPool, fault: Slow, clock: Clock) -> None:
        super().__init__(pool, fault, clock)
        self._factor = fault.factor

    def strike(self, units: Sequence[Replica], lasts_s: float, over: Over) -> None:
        """Let the steps of replicas take longer."""
        for replica in map(_frail, units):
            replica.slow(self._factor)
            if lasts_s < math.inf:
                ends_s = self._clock.now + lasts_s
                self._clock.at(ends_s, Rank.FAULT, self._end, (replica, over))

    def _end(self, which: tuple[FrailReplica, Over]) -> None:
        replica, over = which
        replica.speed_up(self._factor)
        over()


class Lost:
    """Machines that stop."""

    def __init__(self, nodes: Sequence[Node], outages: Mapping[str, Outages], clock: Clock) -> None:
        self._nodes = nodes
        self._outages = outages
        self._clock = clock

    def units(self) -> Sequence[Node]:
        """Return the machines."""
        return self._nodes

    def chosen(self) -> Sequence[Node]:
        """Return the one that is lost at a time."""
        return self._nodes

    def can_fail(self, unit: Node) -> bool:
        """Return whether anything runs there."""
        return any(replica.up for _, replicas in unit.replicas() for replica in replicas)

    def strike(self, units: Sequence[Node], lasts_s: float, over: Over) -> None:
        """Stop all replicas of each machine at once."""
        back_s = self._clock.now + lasts_s
        for node in units:
            for pool, replicas in node.replicas():
                self._outages[pool.name].take_down(replicas, back_s=back_s)
            if back_s < math.inf:
                self._clock.at(back_s, Rank.FAULT, lambda _: over(), None)


class _OfPool:
    """What faults of a pool as a whole have in common."""

    def __init__(self, pool: ServingPool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    def units(self) -> Sequence[ServingPool]:
        """Return the pool."""
        return [self._pool]

    def chosen(self) -> Sequence[ServingPool]:
        """Return the pool."""
        return [self._pool]

    def can_fail(self, unit: ServingPool) -> bool:
        """Return True: it always can."""
        return True


class Reloading(_OfPool):
    """A reload of a pool's replicas."""

    def __init__(
        self, pool: ServingPool, fault: ModelReload, outages: Outages, clock: Clock
    ) -> None:
        super().__init__(pool, clock)
        self._fault = fault
        self._outages = outages

    def strike(self, units: Sequence[ServingPool], lasts_s: float, over: Over) -> None:
        """Start to reload; it lasts as long as it takes."""
        for pool in units:
            Reload(pool, self._fault, outages=self._outages, clock=self._clock, over=over).start()


class Blinding(_OfPool):
    """A router that sees nothing new."""

    def __init__(self, pool: ServingPool, blind: Counter[str], clock: Clock) -> None:
        super().__init__(pool, clock)
        self._blind = blind

    def strike(self, units: Sequence[ServingPool], lasts_s: float, over: Over) -> None:
        """Let the router go on by what it sees now."""
        for pool in units:
            self._blind[pool.name] += 1
            if self._blind[pool.name] == 1:
                pool.go_blind()
            if lasts_s < math.inf:
                self._clock.at(self._clock.now + lasts_s, Rank.FAULT, self._end, (pool, over))

    def _end(self, which: tuple[ServingPool, Over]) -> None:
        pool, over = which
        self._blind[pool.name] -= 1
        if not self._blind[pool.name]:
            pool.see()
        over()


class Limited:
    """A load generator at its limit."""

    def __init__(self, generator: Generator, fault: GeneratorLimit, clock: Clock) -> None:
        self._generator = generator
        self._fault = fault
        self._clock = clock

    def units(self) -> Sequence[Generator]:
        """Return the generator."""
        return [self._generator]

    def chosen(self) -> Sequence[Generator]:
        """Return the generator."""
        return [self._generator]

    def can_fail(self, unit: Generator) -> bool:
        """Return True: it always can."""
        return True

    def strike(self, units: Sequence[Generator], lasts_s: float, over: Over) -> None:
        """Let the generator keep to its limit."""
        for generator in units:
            generator.limit(self._fault)
            if lasts_s < math.inf:
                self._clock.at(self._clock.now + lasts_s, Rank.FAULT, self._end, over)

    def _end(self, over: Over) -> None:
        self._generator.lift(self._fault)
        over()


def of_replicas(
    pool: ServingPool, fault: Crash | Hang | Slow, outages: Outages, clock: Clock
) -> Kind:
    """Return what a fault of single replicas does."""
    if isinstance(fault, Crash):
        return _Crashing(pool, fault, outages, clock)
    if isinstance(fault, Hang):
        return _Hanging(pool, fault, outages, clock)
    return _Slowing(pool, fault, clock)


def _frail(replica: Replica) -> FrailReplica:
    if not isinstance(replica, FrailReplica):
        msg = f"replicas that can hang, got {replica.name}"
        raise TypeError(msg)
    return replica
