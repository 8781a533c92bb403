"""A scenario and the rules between its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Annotated

from pydantic import Field

from capplan.scenario.autoscaling import ResourcePool
from capplan.scenario.breaker_rules import mistakes, placements
from capplan.scenario.breakers import Breaker
from capplan.scenario.classes import RequestClass, Tenant
from capplan.scenario.ending import Limit
from capplan.scenario.faults import Fault, GeneratorLimit
from capplan.scenario.fields import refers_to, walk
from capplan.scenario.gateway import Gateway
from capplan.scenario.hosts import Host
from capplan.scenario.layers import BudgetRule, Network
from capplan.scenario.part import Affects, ClassName, Count, Name, Part, Seconds
from capplan.scenario.placement import misplaced, overfull, without_rate
from capplan.scenario.pools import Pool
from capplan.scenario.shapes import ClosedLoop
from capplan.scenario.stage_plan import StagePlan
from capplan.scenario.traffic import Traffic


class Scenario(Part):
    """One question to the model: traffic, layers, pools, faults, promises.

    ``requests`` caps the number of requests drawn. ``replicas`` is a shorthand for the replicas
    of the primary pool (that of the default class).
    """

    name: Annotated[Name, Affects.DESCRIBING]
    description: Annotated[str, Affects.DESCRIBING] = ""
    requests: Annotated[Count | None, Affects.TRAFFIC] = None
    replicas: Annotated[Count | None, Affects.SERVING] = None
    warmup_s: Annotated[Seconds, Affects.JUDGING] = 0.0
    """Requests that start earlier are not judged, s."""
    drain_s: Annotated[Seconds, Affects.JUDGING] = 600.0
    """Time after the last arrival for requests in flight, s."""
    default_class: Annotated[ClassName | None, Affects.TRAFFIC] = None
    """Class of requests without one; None = the first."""
    classes: Annotated[tuple[RequestClass, ...], Field(min_length=1), Affects.TRAFFIC]
    tenants: Annotated[tuple[Tenant, ...], Affects.TRAFFIC] = (Tenant(name="all"),)
    traffic: Annotated[Traffic, Affects.TRAFFIC]
    network: Annotated[Network, Affects.SERVING] = Network()
    gateway: Annotated[Gateway, Affects.SERVING] = Gateway()
    pools: Annotated[tuple[Pool, ...], Field(min_length=1), Affects.SERVING]
    resource_pools: Annotated[tuple[ResourcePool, ...], Affects.SERVING] = ()
    """Accelerators that pools share (``pools[].resource_pool``)."""
    hosts: Annotated[tuple[Host, ...], Affects.SERVING] = ()
    """Machines that pools share (``pools[].hosts``, ``classes[].demand``)."""
    faults: Annotated[tuple[Fault, ...], Affects.SERVING] = ()
    breakers: Annotated[tuple[Breaker, ...], Affects.SERVING] = ()
    """Protective rules; a file may name bundled ones: ``tiered-default``."""
    derived: Annotated[tuple[str, ...], Affects.DESCRIBING] = ()
    """Fields whose number the wait budget has derived, by dotted path."""
    budget: Annotated[BudgetRule, Affects.JUDGING] = BudgetRule()
    stages: Annotated[StagePlan, Affects.JUDGING] = StagePlan()

    def _broken(self) -> Iterator[str]:
        yield from self._names_exist_once()
        yield from self._hosts_hold_their_replicas()
        yield from self._faults_and_loads_are_placed()
        yield from self._resource_pools_hold_their_start()
        yield from self._breakers_can_act()
        yield from self._users_without_think_time_are_limited()

    def _names_exist_once(self) -> Iterator[str]:
        if self.replicas is not None:
            yield "replicas: a shorthand of files and --set, use pools[].replicas"
        for field in ("classes", "tenants", "pools", "hosts", "breakers", "resource_pools"):
            names = Counter(part.name for part in getattr(self, field))
            if twice := sorted(name for name, n in names.items() if n > 1):
                yield f"{field}: names must differ, got {', '.join(twice)} more than once"
        for path, declared, value in walk(self):
            if value and (entries := refers_to(declared)):
                known = [part.name for part in getattr(self, entries)]
                for name in (value,) if isinstance(value, str) else value:
                    _check_known(path, name, known)
        for c in self.classes:
            if c.model is not None:
                models = [m.name for m in self.pool_of(c.name).models]
                _check_known(f"classes.{c.name}.model", c.model, models)

    def _hosts_hold_their_replicas(self) -> Iterator[str]:
        pairs = [(c, self.pool_of(c.name)) for c in self.classes]
        for host in self.hosts:
            if found := overfull(host, pairs):
                space, demand, capacity = found
                yield (
                    f"hosts.{host.name}.{space}: holds {capacity:.6g}, and the replicas on it "
                    f"need {demand:.6g}: {demand - capacity:.6g} too much"
                )

    def _faults_and_loads_are_placed(self) -> Iterator[str]:
        hosts = {host.name: host for host in self.hosts}
        if name := without_rate(self.pools, hosts):
            yield (
                f"pools.{name}.model_load: needs the pool's load_bandwidth_bytes_per_s, or hosts "
                "that state their rates"
            )
        for index, fault in enumerate(self.faults):
            if not isinstance(fault, GeneratorLimit) and (
                rule := misplaced(fault, self.pool(fault.pool))
            ):
                yield f"faults.{index}: {rule}"

    def _resource_pools_hold_their_start(self) -> Iterator[str]:
        for shared in self.resource_pools:
            own = [p for p in self.pools if p.resource_pool == shared.name]
            need = sum(p.accelerators_at_start for p in own)
            if need > shared.accelerators:
                yield (
                    f"resource_pools.{shared.name}.accelerators: holds {shared.accelerators}, and "
                    f"the replicas at the start need {need}"
                )

    def _breakers_can_act(self) -> Iterator[str]:
        pools = {pool.name: pool for pool in self.pools}
        served_by = {c.name: self.pool_of(c.name).name for c in self.classes}
        yield from mistakes(self.breakers, pools, self.classes, served_by)

    def _users_without_think_time_are_limited(self) -> Iterator[str]:
        shape = self.traffic.shape
        if isinstance(shape, ClosedLoop) and shape.mean_think_s == 0 and self.requests is None:
            yield "requests: needed for users without think time"

    def request_class(self, name: str | None = None) -> RequestClass:
        """Return the class of that name (None = the default); KeyError for an unknown one."""
        wanted = name or self.default_class or self.classes[0].name
        return {c.name: c for c in self.classes}[wanted]

    def pool(self, name: str | None = None) -> Pool:
        """Return the pool of that name (None = the primary); KeyError for an unknown one."""
        wanted = name or self.request_class().pool or self.pools[0].name
        return {p.name: p for p in self.pools}[wanted]

    def pool_of(self, request_class: str) -> Pool:
        """Return the pool that serves a class."""
        return self.pool(self.request_class(request_class).pool or self.pools[0].name)

    def model_of(self, request_class: str) -> str:
        """Return the name of the pool's model that a class needs; "" if the pool lists none."""
        models = self.pool_of(request_class).models
        return self.request_class(request_class).model or (models[0].name if models else "")

    def limits(self) -> Iterator[Limit]:
        """Yield every limit, as the part that sets it declares it, outermost first.

        Deadlines and queues are yielded also if they are not set.
        """
        for c in self.classes:
            for name, part in (("promises", c.promises), ("retry", c.retry)):
                own = (c.name,)
                for limit in part.limits():
                    path = f"classes.{c.name}.{name}"
                    yield limit.within(path, layer="caller", owner=c.owner, classes=own)
        every = tuple(c.name for c in self.classes)
        owner = self.gateway.owner
        for path, gate in (("gateway", self.gateway), ("gateway.queue", self.gateway.queue)):
            for limit in gate.limits():
                yield limit.within(path, layer="gateway", owner=owner, classes=every)
        for pool in self.pools:
            yield from self._limits_of(pool)
        placed = placements(self.breakers, self.pools)
        able = {rule.name for rule, _, wrong in placed if wrong is None}
        for rule in self.breakers:
            yield rule.limit(acts=rule.name in able).within("breakers", classes=every)

    def _limits_of(self, pool: Pool) -> Iterator[Limit]:
        own = tuple(c.name for c in self.classes if self.pool_of(c.name).name == pool.name)
        for name, layer, queue in (
            ("queue", "service_queue", pool.queue),
            ("batching.scheduler", "scheduler_queue", pool.batching.scheduler),
        ):
            for limit in queue.limits():
                path = f"pools.{pool.name}.{name}"
                yield limit.within(path, layer=layer, owner=pool.owner, classes=own)


def _check_known(path: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"{path}: one of {', '.join(sorted(known)) or 'nothing'}, got {name!r}")
