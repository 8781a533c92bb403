"""Everything that can be asked: classes, traffic, layers, pools, faults, the budget's rule.

A :class:`Scenario` is read from YAML by :func:`capplan.scenario.files.load_scenario`; variation is
:func:`capplan.scenario.files.with_values`.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import Field, model_validator

from capplan.scenario.arrivals import Even, GammaGaps, Modulated, Poisson, WeibullGaps
from capplan.scenario.autoscaling import (
    Autoscaler,
    EventDriven,
    FixedTime,
    Lifecycle,
    LognormalTime,
    ResourcePool,
    ScaleDownRules,
    ScaleUpRules,
    ScalingBehavior,
    ScalingMetric,
    ScalingPolicy,
    Standby,
)
from capplan.scenario.batching import (
    ContiguousKv,
    LevelPolicy,
    QueuePolicy,
    Reservation,
    Speculation,
)
from capplan.scenario.breaker_rules import mistakes
from capplan.scenario.breakers import (
    Breaker,
    Greedy,
    MaxTokens,
    PauseAndCompact,
    Refuse,
    Release,
    Route,
    ShrinkBatch,
    StartStandby,
    Watch,
)
from capplan.scenario.budgeting import BudgetRule, Weights
from capplan.scenario.caching import ResponseCache
from capplan.scenario.callers import Hedge, Retry, RetryBudget
from capplan.scenario.classes import (
    ChoiceSize,
    FixedLength,
    FixedSize,
    Length,
    LognormalLength,
    LognormalSize,
    Promises,
    RequestClass,
    Size,
    Tenant,
)
from capplan.scenario.closed import (
    ClosedLoop,
    ExponentialThink,
    FixedThink,
    LognormalThink,
    Think,
)
from capplan.scenario.continuous import ContinuousBatching
from capplan.scenario.faults import (
    Crash,
    Fault,
    GeneratorLimit,
    Hang,
    ModelReload,
    NodeLoss,
    RouterBlind,
    Slow,
    misplaced,
)
from capplan.scenario.gateway import (
    Accept,
    Allowance,
    Gateway,
    GatewayQueue,
    GatewayRetryBudget,
    RateLimit,
    RequestLimit,
    Reserve,
    TenantQuota,
    TokenLimit,
)
from capplan.scenario.hosts import Demand, Host, overfull
from capplan.scenario.layers import Network, Queue, Router
from capplan.scenario.loading import ModelLoad, without_rate
from capplan.scenario.models import ResidentModel
from capplan.scenario.orders import FairShare, LengthBuckets, Weight
from capplan.scenario.part import Count, Name, Origin, Part, Seconds, origin
from capplan.scenario.pools import (
    DynamicBatching,
    Pool,
    ServiceLaw,
    StaticBatching,
)
from capplan.scenario.references import references
from capplan.scenario.shapes import (
    Calendar,
    PlannedShape,
    Ramp,
    Replay,
    Sequence,
    Shape,
    Spike,
    Steady,
    Step,
    Sum,
    TimedShape,
    Wave,
    occasion,
)
from capplan.scenario.staging import FOUR_STAGES, StageKind, StagePlan
from capplan.scenario.steptimes import (
    CalibratedStep,
    LinearStep,
    RooflineStep,
    SiliconStep,
    TablesStep,
)
from capplan.scenario.traffic import Bursts, ClassRule, LongOutputs, MixChange, Traffic

__all__ = [
    "FOUR_STAGES",
    "Accept",
    "Allowance",
    "Autoscaler",
    "Breaker",
    "BudgetRule",
    "Bursts",
    "Calendar",
    "CalibratedStep",
    "ChoiceSize",
    "ClassRule",
    "ClosedLoop",
    "ContiguousKv",
    "ContinuousBatching",
    "Crash",
    "Demand",
    "DynamicBatching",
    "Even",
    "EventDriven",
    "ExponentialThink",
    "FairShare",
    "Fault",
    "FixedLength",
    "FixedSize",
    "FixedThink",
    "FixedTime",
    "GammaGaps",
    "Gateway",
    "GatewayQueue",
    "GatewayRetryBudget",
    "GeneratorLimit",
    "Greedy",
    "Hang",
    "Hedge",
    "Host",
    "Length",
    "LengthBuckets",
    "LevelPolicy",
    "Lifecycle",
    "LinearStep",
    "LognormalLength",
    "LognormalSize",
    "LognormalThink",
    "LognormalTime",
    "LongOutputs",
    "MaxTokens",
    "MixChange",
    "ModelLoad",
    "ModelReload",
    "Modulated",
    "Network",
    "NodeLoss",
    "Origin",
    "Part",
    "PauseAndCompact",
    "PlannedShape",
    "Poisson",
    "Pool",
    "Promises",
    "Queue",
    "QueuePolicy",
    "Ramp",
    "RateLimit",
    "Refuse",
    "Release",
    "Replay",
    "RequestClass",
    "RequestLimit",
    "Reservation",
    "Reserve",
    "ResidentModel",
    "ResourcePool",
    "ResponseCache",
    "Retry",
    "RetryBudget",
    "RooflineStep",
    "Route",
    "Router",
    "RouterBlind",
    "ScaleDownRules",
    "ScaleUpRules",
    "ScalingBehavior",
    "ScalingMetric",
    "ScalingPolicy",
    "Scenario",
    "Sequence",
    "ServiceLaw",
    "Shape",
    "ShrinkBatch",
    "SiliconStep",
    "Size",
    "Slow",
    "Speculation",
    "Spike",
    "StageKind",
    "StagePlan",
    "Standby",
    "StartStandby",
    "StaticBatching",
    "Steady",
    "Step",
    "Sum",
    "TablesStep",
    "Tenant",
    "TenantQuota",
    "Think",
    "TimedShape",
    "TokenLimit",
    "Traffic",
    "Watch",
    "Wave",
    "WeibullGaps",
    "Weight",
    "Weights",
    "occasion",
    "origin",
]


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
