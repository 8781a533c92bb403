"""What a scenario refers to by name: each field, the name, and those that there are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from capplan.scenario.continuous import ContinuousBatching
from capplan.scenario.faults import NodeLoss
from capplan.scenario.layers import Queue
from capplan.scenario.pools import Pool
from capplan.scenario.traffic import LongOutputs

if TYPE_CHECKING:
    from capplan.scenario import Scenario

Reference = tuple[str, str | None, Collection[str]]
"""A field, the name that stands there (None = none does), and the names it may be."""


def references(scenario: Scenario) -> Iterator[Reference]:
    """Yield everything that a scenario refers to by name, existing or not."""
    yield from _of_classes(scenario)
    yield from _of_pools(scenario)
    yield from _of_troubles(scenario)
    yield from _of_traffic(scenario)
    yield from _of_gateway(scenario)
    yield from _of_queues(scenario)


def _of_classes(scenario: Scenario) -> Iterator[Reference]:
    pools = {p.name for p in scenario.pools}
    yield "default_class", scenario.default_class, _classes(scenario)
    for c in scenario.classes:
        yield f"classes.{c.name}.pool", c.pool, pools
        if c.pool is None or c.pool in pools:
            models = {m.name for m in scenario.pool_of(c.name).models}
            yield f"classes.{c.name}.model", c.model, models


def _of_pools(scenario: Scenario) -> Iterator[Reference]:
    hosts = {h.name for h in scenario.hosts}
    shared = {r.name for r in scenario.resource_pools}
    for pool in scenario.pools:
        for host in pool.hosts:
            yield f"pools.{pool.name}.hosts", host, hosts
        yield f"pools.{pool.name}.resource_pool", pool.resource_pool, shared
        if isinstance(pool.batching, ContinuousBatching):
            for name in (name for r in pool.batching.reserved for name in r.classes):
                yield f"pools.{pool.name}.batching.reserved", name, _classes(scenario)


def _of_troubles(scenario: Scenario) -> Iterator[Reference]:
    pools = {p.name for p in scenario.pools}
    hosts = {h.name for h in scenario.hosts}
    for fault in scenario.faults:
        yield "faults.pool", getattr(fault, "pool", None), pools
        if isinstance(fault, NodeLoss):
            yield "faults.host", fault.host, hosts
    yield "stages.failed_pool", scenario.stages.failed_pool, pools


def _of_traffic(scenario: Scenario) -> Iterator[Reference]:
    classes, traffic = _classes(scenario), scenario.traffic
    for rule in traffic.rules:
        yield "traffic.rules", rule.request_class, classes
    for change in traffic.mix:
        yield "traffic.mix", change.request_class, classes
    for one in traffic.perturbations:
        if isinstance(one, LongOutputs):
            yield "traffic.perturbations", one.request_class, classes
    for tenant in scenario.tenants:
        for name in tenant.classes:
            yield f"tenants.{tenant.name}.classes", name, classes


def _of_gateway(scenario: Scenario) -> Iterator[Reference]:
    classes, tenants = _classes(scenario), _tenants(scenario)
    gateway = scenario.gateway
    for field in ("allowances", "rate_limits", "token_limits"):
        for meter in getattr(gateway, field):
            path = f"gateway.{field}.{meter.name}"
            yield f"{path}.request_class", meter.request_class, classes
            yield f"{path}.tenant", meter.tenant, tenants
    for quota in gateway.quotas:
        yield "gateway.quotas", quota.tenant, tenants


def _of_queues(scenario: Scenario) -> Iterator[Reference]:
    for path, queue in (("gateway.queue", scenario.gateway.queue), *_queues(scenario.pools)):
        for weight in queue.fair.tenants:
            yield f"{path}.fair", weight.name, _tenants(scenario)
        for weight in queue.fair.classes:
            yield f"{path}.fair", weight.name, _classes(scenario)


def _queues(pools: Iterable[Pool]) -> Iterator[tuple[str, Queue]]:
    for pool in pools:
        yield f"pools.{pool.name}.queue", pool.queue
        yield f"pools.{pool.name}.batching.scheduler", pool.batching.scheduler


def _classes(scenario: Scenario) -> set[str]:
    return {c.name for c in scenario.classes}


def _tenants(scenario: Scenario) -> set[str]:
    return {t.name for t in scenario.tenants}
