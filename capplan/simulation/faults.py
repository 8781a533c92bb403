"""Faults during a run: when one strikes, for how long, and which replicas are down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from capplan.scenario import Scenario
from capplan.scenario.ending import Ending
from capplan.scenario.faults import Crash, Occurrence, ReplicaFault
from capplan.scenario.pools import Pool
from capplan.simulation.callers import Callers
from capplan.simulation.clock import Clock, Events, Rank
from capplan.simulation.pool import ServingPool
from capplan.simulation.replica import Replica
from capplan.simulation.shared_host import Load, Loader

Ended = Callable[[], object]
FaultT = TypeVar("FaultT", bound=Occurrence)


def changes_pace(scenario: Scenario, pool: Pool) -> bool:
    """Return whether steps of a pool can change their pace: by its factors, or by a fault."""
    return bool(pool.step_factors) or any(
        isinstance(fault, ReplicaFault)
        and fault.changes_pace
        and scenario.pool(fault.pool).name == pool.name
        for fault in scenario.faults
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The places of a run where faults strike."""

    scenario: Scenario
    pools: Mapping[str, ServingPool]
    outages: Mapping[str, Outages]
    callers: Callers
    clock: Clock


class FaultEffect(Generic[FaultT]):
    """What one fault of a scenario does to the units that it can strike.

    A kind defines ``units`` and either ``begin`` and ``end`` or ``strike``.
    """

    rank = Rank.FAULT

    def __init__(self, fault: FaultT, site: Site) -> None:
        self.fault = fault
        self.site = site
        self.clock = site.clock

    def units(self) -> Sequence[Any]:
        """Return the present units that fail independently."""
        raise NotImplementedError

    def chosen(self) -> Sequence[Any]:
        """Return the units that a fault at a stated time strikes."""
        return self.units()

    def watch(self, joined: Callable[[Any], None]) -> None:
        """Call ``joined`` with each unit that appears later."""

    def can_fail(self, unit: Any) -> bool | None:
        """Return whether a unit works now; None = it has left for good."""
        return True

    def strike(self, units: Sequence[Any], lasts_s: float, ended: Ended) -> None:
        """Begin for a time (inf = for good); ``ended`` is called for each unit at its end."""
        for unit in units:
            self.begin(unit)
            if lasts_s < math.inf:
                ends_s = self.clock.now + lasts_s
                self.clock.at(ends_s, Rank.FAULT, self._end, (unit, ended))

    def begin(self, unit: Any) -> None:
        """Begin at a unit."""

    def end(self, unit: Any) -> None:
        """Undo :meth:`begin`."""

    def _end(self, which: tuple[Any, Ended]) -> None:
        unit, ended = which
        self.end(unit)
        ended()


def strike_once(effect: FaultEffect[Any]) -> None:
    """Let a fault strike the units that it chooses, for its fixed time."""
    lasts_s = effect.fault.lasts_s
    effect.strike(effect.chosen(), math.inf if lasts_s is None else lasts_s, lambda: None)


def start_renewals(effect: FaultEffect[Any], rng: np.random.Generator) -> None:
    """Let the present units fail again and again, and those that join later."""

    def joined(unit: object) -> None:
        effect.clock.process(_renewals(effect, unit, rng.spawn(1)[0]))

    for unit in effect.units():
        joined(unit)
    effect.watch(joined)


def _renewals(effect: FaultEffect[Any], unit: object, rng: np.random.Generator) -> Events:
    """Let one unit work and fail in turn, with random numbers of its own."""
    fault, clock = effect.fault, effect.clock
    while True:
        works_s = float(rng.exponential(fault.mtbf_s))
        yield clock.until(clock.now + works_s, Rank.FAULT)
        works = effect.can_fail(unit)
        if works is None:
            return
        if works:
            lasts_s = fault.lasts_s if fault.mttr_s is None else rng.exponential(fault.mttr_s)
            ended = clock.event()
            effect.strike([unit], math.inf if lasts_s is None else float(lasts_s), ended.succeed)
            yield ended


@dataclass(slots=True)
class _Outage:
    """One replica that is down."""

    token: int = 0
    back_s: float = -math.inf
    load: Load | None = None
    loads: bool = True
    then: list[Ended] = field(default_factory=list)


class Outages:
    """The replicas of a pool that are down, until they have returned and loaded their model.

    A replica struck again while down returns at the later of the two times, and its load restarts.
    """

    def __init__(self, pool: ServingPool, *, loader: Loader | None, clock: Clock) -> None:
        self._pool = pool
        self._loader = loader
        self._clock = clock
        self._down: dict[Replica, _Outage] = {}
        pool.on_leave.append(self._forget)

    def take_down(
        self,
        replicas: Iterable[Replica],
        *,
        back_s: float,
        ending: Ending = Crash.ending,
        loads: bool = True,
        then: Ended | None = None,
    ) -> None:
        """Stop replicas until ``back_s`` (inf = for good), and then for as long as a load takes.

        Without a loader, or without ``loads``, they serve from ``back_s`` on. ``then`` is called
        for each when it serves again or leaves for good.
        """
        struck = list(replicas)
        for replica in struck:
            outage = self._down.setdefault(replica, _Outage())
            outage.token += 1
            outage.loads = loads
            outage.back_s = max(outage.back_s, back_s)
            if then is not None:
                outage.then.append(then)
            if outage.load is not None:
                outage.load.cancel()
                outage.load = None
            if outage.back_s < math.inf:
                call = (replica, outage.token)
                self._clock.at(outage.back_s, Rank.FAULT, self._back, call)
        self._pool.stop([replica for replica in struck if replica.up], ending)

    def _forget(self, replica: Replica) -> None:
        """Cancel the load of a replica that leaves the pool while it is down."""
        outage = self._down.pop(replica, None)
        if outage is None:
            return
        if outage.load is not None:
            outage.load.cancel()
        for then in outage.then:
            self._clock.at(self._clock.now, Rank.FAULT, lambda then: then(), then)

    def _back(self, which: tuple[Replica, int]) -> None:
        replica, token = which
        outage = self._down.get(replica)
        if outage is None or outage.token != token:
            return
        if self._loader is None or not outage.loads:
            self._restore(replica)
            return
        number = self._pool.number_of(replica.name)
        outage.load = self._loader.load(number, lambda: self._restore(replica))

    def _restore(self, replica: Replica) -> None:
        outage = self._down.pop(replica)
        replica.avoided.clear()
        replica.restore()
        for then in outage.then:
            then()
