"""How replicas start and stop: life cycle, standby, autoscaler, shared accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from capplan.scenario.ending import Ending
from capplan.scenario.metric_names import LATENCIES, MetricName, check_samples
from capplan.scenario.part import (
    Count,
    CountOrZero,
    Fraction,
    Name,
    NonNegative,
    Owner,
    Part,
    Positive,
    PositiveSeconds,
    Quantile,
    Seconds,
    together,
)
from capplan.scenario.times import Duration, FixedTime

PodMetricName = Literal[
    "queue_length",
    "in_flight",
    "running",
    "kv_usage_fraction",
    "busy_fraction",
    "output_tokens_per_s",
    "prefill_tokens_per_s",
    "preemptions_per_s",
]
"""Metrics of a single replica."""
POD_METRICS: tuple[str, ...] = get_args(PodMetricName)
MOST_STABILISED_S = 3600.0
LONGEST_PERIOD_S = 1800.0


NOTHING = FixedTime(seconds=0.0)


class Lifecycle(Part):
    """How a replica starts, one part after the other, and stops.

    An accelerator is paid from ``provisioning`` on. A replica that is stopped takes no more
    requests, finishes those it runs, and ends after ``grace_period_s`` at the latest (Kubernetes:
    ``terminationGracePeriodSeconds``, 30 s by default).
    """

    provisioning: Duration = NOTHING
    """From the order to a machine with an accelerator."""
    image_pull: Duration = NOTHING
    """From the machine to the start of the container."""
    model_load: Duration | None = None
    """From that start to the first request; None = by the pool's ``model_load``, else no time."""
    grace_period_s: Seconds = 30.0


class Standby(Part):
    """Warm replicas: started and loaded, but not in service.

    Scaling up takes them first; scaling down refills them.
    """

    replicas: Count
    ready: Duration
    """From the order to service."""
    price_fraction: Fraction = 1.0
    """Price of one, as a share of that of a replica in service."""


class ResourcePool(Part):
    """Accelerators that several pools share; an order waits until enough are free."""

    name: Name
    owner: Owner = ""
    """Keeps them ready: new replicas from an owned pool are planned, from elsewhere a hope."""
    accelerators: CountOrZero


class ScalingMetric(Part):
    """One metric of the autoscaler and its target.

    ``pods`` is the mean over the replicas (target type ``AverageValue``); ``resource`` the same of
    a share in use (``Utilization``, in percent, or ``AverageValue``); ``external`` one number of
    the pool, compared with the target as it is (``Value``) or divided by the number of replicas
    (``AverageValue``, the default of KEDA's triggers).
    Source: Kubernetes, API reference "HorizontalPodAutoscaler v2", MetricSpec and MetricTarget.
    """

    metric: MetricName
    source: Literal["pods", "resource", "external"] = "pods"
    target_type: Literal["AverageValue", "Value", "Utilization"] = "AverageValue"
    target: Positive
    activation: NonNegative = 0.0
    """The trigger of ``event_driven`` scaling is active above it."""
    quantile: Quantile = 0.95
    """Quantile of a latency."""
    window_s: PositiveSeconds = 60.0
    """Window of that quantile, s."""

    def _broken(self) -> Iterator[str]:
        allowed = {
            "pods": ("AverageValue",),
            "resource": ("AverageValue", "Utilization"),
            "external": ("AverageValue", "Value"),
        }[self.source]
        yield from together(self._clashes(allowed))
        if self.metric in LATENCIES:
            check_samples(self.quantile)

    def _clashes(self, allowed: tuple[str, ...]) -> Iterator[str]:
        if self.source != "external" and self.metric not in POD_METRICS:
            known = ", ".join(POD_METRICS)
            yield f"metric: for source {self.source} one of {known}, got {self.metric}"
        if self.target_type not in allowed:
            known = " or ".join(allowed)
            yield f"target_type: for source {self.source} {known}, got {self.target_type}"
        if self.source == "resource" and not self.metric.endswith("_fraction"):
            yield f"metric: a …_fraction for source resource, got {self.metric}"
        for name in ("quantile", "window_s"):
            if name in self.model_fields_set and self.metric not in LATENCIES:
                yield f"{name}: allowed for {', '.join(LATENCIES)}, got metric {self.metric}"


class ScalingPolicy(Part):
    """At most ``value`` replicas, or percent of them, added or removed within ``period_s``."""

    type: Literal["Pods", "Percent"]
    value: Count
    period_s: Annotated[float, Field(gt=0, le=LONGEST_PERIOD_S)]


class ScaleUpRules(Part):
    """Limits of scaling up; the defaults are those of Kubernetes.

    Source: Kubernetes, "Horizontal Pod Autoscaling", section "Default behavior".
    """

    stabilization_window_s: Annotated[float, Field(ge=0, le=MOST_STABILISED_S)] = 0.0
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    policies: Annotated[tuple[ScalingPolicy, ...], Field(min_length=1)] = (
        ScalingPolicy(type="Percent", value=100, period_s=15.0),
        ScalingPolicy(type="Pods", value=4, period_s=15.0),
    )


class ScaleDownRules(Part):
    """Limits of scaling down; the defaults are those of Kubernetes, as for scaling up."""

    stabilization_window_s: Annotated[float, Field(ge=0, le=MOST_STABILISED_S)] = 300.0
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    policies: Annotated[tuple[ScalingPolicy, ...], Field(min_length=1)] = (
        ScalingPolicy(type="Percent", value=100, period_s=15.0),
    )


class ScalingBehavior(Part):
    """Limits of scaling in each direction."""

    scale_up: ScaleUpRules = ScaleUpRules()
    scale_down: ScaleDownRules = ScaleDownRules()


class EventDriven(Part):
    """Scaling from and to zero as KEDA does it; above zero the autoscaler scales.

    Triggers are read every ``polling_interval_s``. While one is active there are at least
    ``min_replicas``, and at least one; ``cooldown_s`` after the last activity there are none, if
    ``min_replicas`` or ``idle_replicas`` is 0. The start of a run counts as activity.
    Source: KEDA, "ScaledObject specification" (``pollingInterval`` 30, ``cooldownPeriod`` 300,
    ``idleReplicaCount``) and "Scaling Deployments", "Activating and Scaling thresholds".
    """

    polling_interval_s: PositiveSeconds = 30.0
    cooldown_s: Seconds = 300.0
    idle_replicas: Literal[0] | None = None
    """0 is the only number below ``min_replicas`` that the autoscaler does not raise."""


class Autoscaler(Part):
    """A HorizontalPodAutoscaler (``autoscaling/v2``) with the delays of its metrics.

    Every ``sync_period_s`` each metric asks for ceil(current × metric / target) replicas; the
    largest wins, within ``behavior``. Metrics are read every ``scrape_interval_s`` and known
    ``metric_lag_s`` later. Source: Kubernetes, "Horizontal Pod Autoscaling", sections
    "Algorithm details" and "Configurable scaling behavior".
    """

    scaled_down: ClassVar = Ending("scaled_down", 502)

    min_replicas: CountOrZero = 1
    max_replicas: Count
    metrics: Annotated[tuple[ScalingMetric, ...], Field(min_length=1)]
    sync_period_s: PositiveSeconds = 15.0
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.1
    behavior: ScalingBehavior = ScalingBehavior()
    scrape_interval_s: PositiveSeconds = 15.0
    metric_lag_s: Seconds = 0.0
    event_driven: EventDriven | None = None

    def _broken(self) -> Iterator[str]:
        if self.min_replicas > self.max_replicas:
            yield f"min_replicas: at most max_replicas {self.max_replicas}, got {self.min_replicas}"
        if self.min_replicas == 0 and self.event_driven is None:
            yield "min_replicas: at least 1 without event_driven, got 0"
        if self.event_driven is None and any(m.activation for m in self.metrics):
            yield "metrics.activation: needs event_driven"
        if self.event_driven is not None and all(m.source != "external" for m in self.metrics):
            yield "event_driven: needs a metric of source external, known at zero replicas"
        idle = None if self.event_driven is None else self.event_driven.idle_replicas
        if idle is not None and idle >= self.min_replicas:
            yield f"event_driven.idle_replicas: below min_replicas, got {idle}"
