"""Pools whose replicas come and go, wired into a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from capplan.simulation.autoscaler import Autoscaler
from capplan.simulation.fleet import Fleet, Supply
from capplan.simulation.loading import Loader
from capplan.simulation.timeline import fleet_probes, scaler_probes

if TYPE_CHECKING:
    import numpy as np

    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.simulation.caller import Callers
    from capplan.simulation.clock import Clock
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.shared_host import Machine
    from capplan.simulation.timeline import Sampler


def wire(
    scenario: Scenario,
    *,
    pools: Mapping[str, ServingPool],
    callers: Callers,
    sampler: Sampler,
    machines: Mapping[str, Machine],
    draws: Callable[[], np.random.Generator],
) -> None:
    """Give every pool with a standby or an autoscaler what lets its replicas come and go.

    ``draws`` gives the random stream of starts, of which each pool has a part of its own.
    """
    elastic = [(i, rules) for i, rules in enumerate(scenario.pools) if rules.is_elastic]
    if not elastic:
        return
    supplies = _supplies(scenario)
    streams = draws().spawn(len(scenario.pools))
    for index, rules in elastic:
        pool = pools[rules.name]
        fleet = Fleet(
            rules,
            pool=pool,
            supply=supplies.get(rules.resource_pool or "", Supply()),
            clock=sampler.clock,
            draws=streams[index],
            note=sampler.changed,
            loader=_loader(scenario, rules, machines=machines, clock=sampler.clock),
        )
        pool.watchers.append(sampler)
        sampler.add(fleet_probes(rules.name, fleet))
        if rules.autoscaler is not None:
            scaler = Autoscaler(
                rules.autoscaler, fleet=fleet, pool=pool, callers=callers, clock=sampler.clock
            )
            sampler.add(scaler_probes(rules.name, scaler, rules.autoscaler))


def _loader(
    scenario: Scenario, rules: Pool, *, machines: Mapping[str, Machine], clock: Clock
) -> Loader | None:
    """Return what loads the model of new replicas over disk and network; None = a stated time."""
    if rules.model_load is None or (rules.lifecycle and rules.lifecycle.model_load is not None):
        return None
    hosts = {host.name: host for host in scenario.hosts}
    return Loader(rules, rules.model_load, hosts=hosts, machines=machines, clock=clock)


def _supplies(scenario: Scenario) -> dict[str, Supply]:
    """Return what is left of each resource pool once those that never change have theirs."""
    return {
        shared.name: Supply(
            shared.accelerators
            - sum(
                pool.accelerators
                for pool in scenario.pools
                if pool.resource_pool == shared.name and not pool.is_elastic
            )
        )
        for shared in scenario.resource_pools
    }
