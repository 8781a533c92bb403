"""A scenario: one question to the model, its parts, and what they refer to by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated

from pydantic import Field, model_validator

from capplan.scenario.autoscaling import ResourcePool
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.breaker_rules import mistakes
from capplan.scenario.breakers import Breaker
from capplan.scenario.classes import RequestClass, Tenant
from capplan.scenario.faults import Fault, GeneratorLimit, NodeLoss
from capplan.scenario.gateway import Gateway
from capplan.scenario.hosts import Host
from capplan.scenario.layers import BudgetRule, Network, Queue
from capplan.scenario.part import Count, Name, Part, Seconds
from capplan.scenario.placement import misplaced, overfull, without_rate
from capplan.scenario.pools import Pool
from capplan.scenario.shapes import ClosedLoop
from capplan.scenario.stage_plan import StagePlan
from capplan.scenario.traffic import LongOutputs, Traffic


class Scenario(Part):
    """One question to the model: who asks, through which layers, served by which pools.

    ``requests`` caps the number of requests drawn. ``replicas`` is a shorthand for the replicas
    of the primary pool (that of the default class).
    """

    name: Name
    description: str = ""
    requests: Count | None = None
    replicas: Count | None = None
    warmup_s: Seconds = 0.0
    """Requests that start earlier are simulated but not judged, s."""
    drain_s: Seconds = 600.0
    """How long after the last arrival the run waits for what is in flight, s."""
    default_class: Name | None = None
    """Class of requests whose trace names none; None = the first class."""
    classes: Annotated[tuple[RequestClass, ...], Field(min_length=1)]
    tenants: tuple[Tenant, ...] = (Tenant(name="all"),)
    traffic: Traffic
    network: Network = Network()
    gateway: Gateway = Gateway()
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    resource_pools: tuple[ResourcePool, ...] = ()
    """Accelerators that pools share; see ``pools[].resource_pool``."""
    hosts: tuple[Host, ...] = ()
    """Machines that pools share; see ``pools[].hosts`` and ``classes[].demand``."""
    faults: tuple[Fault, ...] = ()
    breakers: tuple[Breaker, ...] = ()
    """Protective rules. A file may name bundled ones: ``tiered-default``."""
    budget: BudgetRule = BudgetRule()
    stages: StagePlan = StagePlan()

    @model_validator(mode="after")
    def _names_exist_once(self) -> Scenario:
        if self.replicas is not None:
            msg = "replicas is a shorthand of files and --set; set pools[].replicas"
            raise ValueError(msg)
        for field in ("classes", "tenants", "pools", "hosts", "breakers", "resource_pools"):
            names = Counter(part.name for part in getattr(self, field))
            if twice := sorted(name for name, n in names.items() if n > 1):
                msg = f"{field}: names must differ, {', '.join(twice)} stands more than once"
                raise ValueError(msg)
        for field, name, known in references(self):
            if name is not None and name not in known:
                msg = f"{field}: {name!r} is none of {', '.join(sorted(known)) or 'nothing'}"
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _hosts_hold_what_stands_on_them(self) -> Scenario:
        pairs = [(c, self.pool_of(c.name)) for c in self.classes]
        for host in self.hosts:
            if found := overfull(host, pairs):
                space, demand, capacity = found
                msg = (
                    f"hosts.{host.name}.{space}: holds {capacity:.6g}, and the replicas on it "
                    f"need {demand:.6g}: {demand - capacity:.6g} too much"
                )
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _faults_and_loads_know_where_they_are(self) -> Scenario:
        hosts = {host.name: host for host in self.hosts}
        if name := without_rate(self.pools, hosts):
            msg = (
                f"pools.{name}.model_load: needs the pool's load_bandwidth_bytes_per_s, or hosts "
                "that state the rates it is over"
            )
            raise ValueError(msg)
        for index, fault in enumerate(self.faults):
            if not isinstance(fault, GeneratorLimit) and (
                told := misplaced(fault, self.pool(fault.pool))
            ):
                msg = f"faults.{index}: {told}"
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _resource_pools_hold_what_begins_there(self) -> Scenario:
        for shared in self.resource_pools:
            own = [p for p in self.pools if p.resource_pool == shared.name]
            need = sum(p.accelerators_at_start for p in own)
            if need > shared.accelerators:
                msg = (
                    f"resource_pools.{shared.name}.accelerators: holds {shared.accelerators}, and "
                    f"the replicas that begin there need {need}"
                )
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _breakers_act_where_they_can(self) -> Scenario:
        pools = {pool.name: pool for pool in self.pools}
        served_by = {c.name: self.pool_of(c.name).name for c in self.classes}
        told = mistakes(self.breakers, pools, self.classes, served_by)
        if first := next(told, None):
            raise ValueError(first)
        return self

    @model_validator(mode="after")
    def _users_without_pause_come_to_an_end(self) -> Scenario:
        shape = self.traffic.shape
        if isinstance(shape, ClosedLoop) and shape.mean_think_s == 0 and self.requests is None:
            msg = "requests: needed for users without think time, who would send without end"
            raise ValueError(msg)
        return self

    def request_class(self, name: str | None = None) -> RequestClass:
        """Return the class of that name (None = the default class); KeyError if there is none."""
        wanted = name or self.default_class or self.classes[0].name
        return {c.name: c for c in self.classes}[wanted]

    def pool(self, name: str | None = None) -> Pool:
        """Return the pool of that name (None = the primary pool); KeyError if there is none."""
        wanted = name or self.request_class().pool or self.pools[0].name
        return {p.name: p for p in self.pools}[wanted]

    def pool_of(self, request_class: str) -> Pool:
        """Return the pool that serves a class."""
        return self.pool(self.request_class(request_class).pool or self.pools[0].name)

    def model_of(self, request_class: str) -> str:
        """Return which of its pool's models a class needs, by name; "" where the pool has none."""
        models = self.pool_of(request_class).models
        return self.request_class(request_class).model or (models[0].name if models else "")


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
