"""Faults: when each of a scenario strikes, and for how long; see :mod:`capplan.scenario.faults`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from capplan.scenario.faults import ReplicaFault
from capplan.scenario.pools import Pool
from capplan.simulation.clock import Clock, Events, Rank
from capplan.simulation.fault_effects import EFFECTS, FaultEffect, Site
from capplan.simulation.shared_host import Outages, loader_of

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
    outages = {
        pool.name: Outages(
            pools[pool.name],
            loader=loader_of(pool, scenario, machines=machines, clock=clock),
            clock=clock,
        )
        for pool in scenario.pools
    }
    site = Site(scenario=scenario, pools=pools, outages=outages, callers=callers, clock=clock)
    rngs = draws().spawn(len(scenario.faults))
    for fault, rng in zip(scenario.faults, rngs, strict=True):
        effect = EFFECTS[type(fault)](fault, site)
        if fault.at_s is not None:
            clock.at(fault.at_s, effect.rank, _strike_once, effect)
        else:
            _start_renewals(effect, rng)


def _strike_once(effect: FaultEffect[Any]) -> None:
    lasts_s = effect.fault.lasts_s
    effect.strike(effect.chosen(), math.inf if lasts_s is None else lasts_s, lambda: None)


def _start_renewals(effect: FaultEffect[Any], rng: np.random.Generator) -> None:
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
