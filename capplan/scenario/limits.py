"""The limits of a scenario, each as the part that sets it declares it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capplan.scenario.breaker_rules import placements

if TYPE_CHECKING:
    from capplan.scenario.ending import Limit
    from capplan.scenario.scenario import Scenario


def limits(scenario: Scenario) -> Iterator[Limit]:
    """Yield the limits of a scenario, outermost first, with deadlines and queues not set."""
    for c in scenario.classes:
        for name, part in (("promises", c.promises), ("retry", c.retry)):
            for limit in part.limits():
                path = f"classes.{c.name}.{name}"
                yield limit.within(path, layer="caller", owner=c.owner, classes=(c.name,))
    every = tuple(c.name for c in scenario.classes)
    gateway = scenario.gateway
    for limit in gateway.limits():
        yield limit.within("gateway", layer="gateway", owner=gateway.owner, classes=every)
    for limit in gateway.queue.limits():
        yield limit.within("gateway.queue", layer="gateway", owner=gateway.owner, classes=every)
    for pool in scenario.pools:
        own = tuple(name for name in every if scenario.pool_of(name).name == pool.name)
        for name, layer, queue in (
            ("queue", "service_queue", pool.queue),
            ("batching.scheduler", "scheduler_queue", pool.batching.scheduler),
        ):
            for limit in queue.limits():
                path = f"pools.{pool.name}.{name}"
                yield limit.within(path, layer=layer, owner=pool.owner, classes=own)
    placed = placements(scenario.breakers, scenario.pools)
    able = {rule.name for rule, _, wrong in placed if wrong is None}
    for rule in scenario.breakers:
        yield rule.limit(acts=rule.name in able).within("breakers", classes=every)
