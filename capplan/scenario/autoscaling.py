"""How the replicas of a pool come and go: start, standby, autoscaler, and what there is of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from capplan.scenario.ending import Ending
from capplan.scenario.metric_names import LATENCIES, MetricName, check_samples
from capplan.scenario.part import (
    Count,
    CountOrZero,
    Fraction,
    Name,
    NonNegative,
    Part,
    Positive,
    PositiveSeconds,
    Quantile,
    Seconds,
)

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
"""What a single replica can show."""
POD_METRICS: tuple[str, ...] = get_args(PodMetricName)
MOST_STABILISED_S = 3600.0
LONGEST_PERIOD_S = 1800.0


class FixedTime(Part):
    """The same time every time."""

    kind: Literal["fixed"] = "fixed"
    seconds: Seconds


class LognormalTime(Part):
    """Log-normal times by their median and 95th percentile."""

    kind: Literal["lognormal"] = "lognormal"
    p50_s: PositiveSeconds
    p95_s: PositiveSeconds

    @model_validator(mode="after")
    def _ordered(self) -> LognormalTime:
        if self.p50_s > self.p95_s:
            msg = "p50_s <= p95_s must hold"
            raise ValueError(msg)
        return self


Duration = Annotated[FixedTime | LognormalTime, Field(discriminator="kind")]
NOTHING = FixedTime(seconds=0.0)


class Lifecycle(Part):
    """How a replica comes and goes; the parts of its start follow each other.

    An accelerator is paid from ``provisioning`` on. A replica that is to leave takes no more, ends
    what it runs, and is stopped with all that is left after ``grace_period_s`` (Kubernetes:
    ``terminationGracePeriodSeconds``, 30 s by default).
    """

    provisioning: Duration = NOTHING
    """From asking to a machine with an accelerator."""
    image_pull: Duration = NOTHING
    """From the machine to the container's start."""
    model_load: Duration | None = None
    """From the start to the first request taken; None = as the pool's ``model_load`` has it, or
    nothing."""
    grace_period_s: Seconds = 30.0


class Standby(Part):
    """Replicas kept warm: started and loaded, but not in service until somebody asks for them.

    They come first when more replicas are asked for; replicas no longer needed refill them.
    """

    replicas: Count
    ready: Duration
    """From asking to being in service."""
    price_fraction: Fraction = 1.0
    """What one costs, as a share of a replica in service."""


class ResourcePool(Part):
    """Accelerators that several pools share: who asks when none is left gets none, and waits."""

    name: Name
    accelerators: CountOrZero


class ScalingMetric(Part):
    """One metric of the autoscaler, and what it is to be.

    ``pods`` is the mean over the replicas of what each shows (target type ``AverageValue``);
    ``resource`` the same, of a share in use (``Utilization``, in percent, or ``AverageValue``);
    ``external`` one number for the whole pool, compared with the target as it is (``Value``) or
    divided by the number of replicas (``AverageValue``, as KEDA's triggers are by default).
    Source: Kubernetes, API reference "HorizontalPodAutoscaler v2", MetricSpec and MetricTarget.
    """

    metric: MetricName
    source: Literal["pods", "resource", "external"] = "pods"
    target_type: Literal["AverageValue", "Value", "Utilization"] = "AverageValue"
    target: Positive
    activation: NonNegative = 0.0
    """Above it the trigger is active, for ``event_driven`` scaling."""
    quantile: Quantile = 0.95
    """Of a latency."""
    window_s: PositiveSeconds = 60.0
    """Over which the quantile of a latency is taken."""

    @model_validator(mode="after")
    def _is_of_its_source(self) -> ScalingMetric:
        allowed = {
            "pods": ("AverageValue",),
            "resource": ("AverageValue", "Utilization"),
            "external": ("AverageValue", "Value"),
        }[self.source]
        clashes = [
            (
                self.source != "external" and self.metric not in POD_METRICS,
                f"metric: of {self.source} one of {', '.join(POD_METRICS)}, got {self.metric}",
            ),
            (
                self.target_type not in allowed,
                f"target_type: of {self.source} {' or '.join(allowed)}, got {self.target_type}",
            ),
            (
                self.source == "resource" and not self.metric.endswith("_fraction"),
                f"metric: of resource a share in use (…_fraction), got {self.metric}",
            ),
            *(
                (
                    name in self.model_fields_set and self.metric not in LATENCIES,
                    f"{name}: of {', '.join(LATENCIES)}, got it for {self.metric}",
                )
                for name in ("quantile", "window_s")
            ),
        ]
        if told := "; ".join(text for wrong, text in clashes if wrong):
            raise ValueError(told)
        if self.metric in LATENCIES:
            check_samples(self.quantile)
        return self


class ScalingPolicy(Part):
    """At most ``value`` replicas, or percent of them, more or fewer within ``period_s``."""

    type: Literal["Pods", "Percent"]
    value: Count
    period_s: Annotated[float, Field(gt=0, le=LONGEST_PERIOD_S)]


class ScaleUpRules(Part):
    """How fast replicas may come; the defaults are those of Kubernetes.

    Source: Kubernetes, "Horizontal Pod Autoscaling", section "Default behavior".
    """

    stabilization_window_s: Annotated[float, Field(ge=0, le=MOST_STABILISED_S)] = 0.0
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    policies: Annotated[tuple[ScalingPolicy, ...], Field(min_length=1)] = (
        ScalingPolicy(type="Percent", value=100, period_s=15.0),
        ScalingPolicy(type="Pods", value=4, period_s=15.0),
    )


class ScaleDownRules(Part):
    """How fast replicas may go; the defaults are those of Kubernetes, as for scaling up."""

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
    """Activation from and to zero, or an idle number, as KEDA does it; between, the HPA scales.

    Every ``polling_interval_s`` the triggers are looked at. While one is active there are at least
    ``min_replicas``, and one if that is 0; ``cooldown_s`` after the last was, none are left, if
    ``min_replicas`` or ``idle_replicas`` is 0. The beginning of a run counts as activity.
    Source: KEDA, "ScaledObject specification" (``pollingInterval`` 30, ``cooldownPeriod`` 300,
    ``idleReplicaCount``) and "Scaling Deployments", "Activating and Scaling thresholds".
    """

    polling_interval_s: PositiveSeconds = 30.0
    cooldown_s: Seconds = 300.0
    idle_replicas: Literal[0] | None = None
    """0 is the only number below its own least that the HPA leaves alone."""


class Autoscaler(Part):
    """A HorizontalPodAutoscaler (``autoscaling/v2``), with the delays of what it reads.

    Every ``sync_period_s`` each metric gives ceil(current × metric / target) replicas, the largest
    is taken, and ``behavior`` limits the change. Metrics are read every ``scrape_interval_s`` and
    known ``metric_lag_s`` later. Source: Kubernetes, "Horizontal Pod Autoscaling", sections
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

    @model_validator(mode="after")
    def _numbers_agree(self) -> Autoscaler:
        if self.min_replicas > self.max_replicas:
            msg = f"min_replicas <= max_replicas must hold, got {self.min_replicas} and "
            raise ValueError(msg + str(self.max_replicas))
        if self.min_replicas == 0 and self.event_driven is None:
            msg = "min_replicas: at least 1 without event_driven, which wakes a pool from zero"
            raise ValueError(msg)
        if self.event_driven is None and any(m.activation for m in self.metrics):
            msg = "metrics.activation: is of event_driven scaling, which is not set"
            raise ValueError(msg)
        if self.event_driven is not None and all(m.source != "external" for m in self.metrics):
            msg = "event_driven: needs a metric of source external, which a pool at zero still has"
            raise ValueError(msg)
        idle = None if self.event_driven is None else self.event_driven.idle_replicas
        if idle is not None and idle >= self.min_replicas:
            msg = f"event_driven.idle_replicas: below min_replicas, got {idle}"
            raise ValueError(msg)
        return self
