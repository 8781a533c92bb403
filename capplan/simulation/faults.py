"""Faults: when each of a scenario strikes, and for how long; see :mod:`capplan.scenario.faults`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from capplan.scenario.faults import Fault, ReplicaFault
from capplan.scenario.pools import Pool
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.fault_effects import EFFECTS, Effect, Site

if TYPE_CHECKING:
    import numpy as np

    from capplan.scenario import Scenario
    from capplan.simulation.callers import Callers
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.shared_host import Machine


def changes_pace(scenario: Scenario, pool: Pool) -> bool:
    """Return whether steps of a pool can change their pace: by its factors, or by a fault."""
    return bool(pool.step_factors) or any(
        isinstance(fault, ReplicaFault)
        and fault.changes_pace
        and scenario.pool(fault.pool).name == pool.name
        for fault in scenario.faults
    )


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
    site = Site(scenario, pools=pools, callers=callers, machines=machines, clock=clock)
    rngs = draws().spawn(len(scenario.faults))
    for fault, rng in zip(scenario.faults, rngs, strict=True):
        effect = EFFECTS[type(fault)](fault, site)
        if fault.at_s is not None:
            clock.at(fault.at_s, effect.rank, _strike_once, effect)
        else:
            _Renewals(effect, fault, rng=rng, clock=clock).start()


def _strike_once(effect: Effect[Any]) -> None:
    lasts_s = effect.fault.lasts_s
    effect.strike(effect.chosen(), math.inf if lasts_s is None else lasts_s, lambda: None)


class _Renewals:
    """A fault that strikes its units independently, again and again."""

    def __init__(
        self, effect: Effect[Any], fault: Fault, *, rng: np.random.Generator, clock: Clock
    ) -> None:
        self._effect = effect
        self._fault = fault
        self._rng = rng
        self._clock = clock

    def start(self) -> None:
        """Schedule the first failure of each present unit, and of those that join later."""
        for unit in self._effect.units():
            self._joined(unit)
        self._effect.watch(self._joined)

    def _joined(self, unit: object) -> None:
        """Schedule the failures of another unit, with random numbers of its own."""
        self._schedule((unit, self._rng.spawn(1)[0]))

    def _schedule(self, which: tuple[object, np.random.Generator]) -> None:
        fails_s = self._clock.now + float(which[1].exponential(self._fault.mtbf_s or math.inf))
        self._clock.at(fails_s, Rank.FAULT, self._fail, which)

    def _fail(self, which: tuple[object, np.random.Generator]) -> None:
        unit, rng = which
        works = self._effect.can_fail(unit)
        if works:
            lasts_s = self._fault.lasts_s
            if self._fault.mttr_s is not None:
                lasts_s = float(rng.exponential(self._fault.mttr_s))
            lasts_s = math.inf if lasts_s is None else lasts_s
            self._effect.strike([unit], lasts_s, lambda: self._schedule(which))
        elif works is not None:
            self._schedule(which)
