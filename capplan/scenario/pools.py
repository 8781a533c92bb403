"""Pools of replicas: how a replica batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from capplan.catalog.dtypes import Dtype
from capplan.scenario.autoscaling import Autoscaler, Lifecycle, Standby
from capplan.scenario.batching import (
    LevelPolicy,
    QueuePolicy,
)
from capplan.scenario.continuous import ContinuousBatching
from capplan.scenario.faults import Factor
from capplan.scenario.layers import Queue, Router
from capplan.scenario.loading import ModelLoad
from capplan.scenario.models import ResidentModel
from capplan.scenario.part import Count, Fraction, Name, Part, PositiveSeconds, Rate, Seconds
from capplan.scenario.steptimes import NonNegative, RooflineStep, StepTime


class ServiceLaw(Part):
    """Service time of one batch: base_s + per_item_s · items + per_size_s · sum of sizes, s."""

    base_s: PositiveSeconds
    per_item_s: NonNegative = 0.0
    per_size_s: NonNegative = 0.0
    exponential: bool = False
    """Draw each batch's time from an exponential law with this mean (for queueing checks)."""


class DynamicBatching(Part):
    """Server-side batching by size and window, as in Triton.

    A batch starts as soon as the replica is free and either ``max_batch_size`` requests wait or
    the oldest has waited ``max_queue_delay_s``. The size of a request is its ``size``, else its
    prompt tokens. Source: NVIDIA, "Triton Inference Server User Guide", section "Dynamic Batcher".
    """

    kind: Literal["dynamic"] = "dynamic"
    max_batch_size: Count = 8
    preferred_batch_sizes: tuple[Count, ...] = ()
    """Sizes that are served at once, the largest that can be filled first; empty = only
    ``max_batch_size``."""
    max_queue_delay_s: Seconds = 0.0
    priority_levels: Annotated[int, Field(ge=0)] = 0
    """Levels of priority, 1 first; 0 = one line, in the scheduler's order."""
    default_priority_level: Count = 1
    """Level of requests whose priority is none of 1 … ``priority_levels``."""
    queue_policy: QueuePolicy = QueuePolicy()
    """Limits of each level; the ``scheduler`` queue's hold over all levels."""
    level_policies: tuple[LevelPolicy, ...] = ()
    """Levels with a policy of their own."""
    cancel_frees: bool = True
    """A waiting request whose caller has left is taken out; False = it is served all the same. A
    batch that runs goes on with it in either case."""
    poison: Literal["alone", "batch"] = "alone"
    """Who fails when a batch meets a poisoned request: it alone, or the whole batch."""
    scheduler: Queue = Queue()
    service: ServiceLaw

    @model_validator(mode="after")
    def _sizes_and_levels_exist(self) -> DynamicBatching:
        most, levels = self.max_batch_size, max(self.priority_levels, 1)
        stated = [policy.level for policy in self.level_policies]
        clashes = [
            (size > most, f"preferred_batch_sizes: at most max_batch_size {most}, got {size}")
            for size in self.preferred_batch_sizes
        ]
        clashes += [
            (level > levels, f"level_policies: at most priority_levels {levels}, got {level}")
            for level in stated
        ]
        clashes += [
            (
                self.default_priority_level > levels,
                f"default_priority_level: at most priority_levels {levels}, got "
                f"{self.default_priority_level}",
            ),
            (len(set(stated)) < len(stated), "level_policies: one per level"),
        ]
        if told := "; ".join(text for wrong, text in clashes if wrong):
            raise ValueError(told)
        return self

    @property
    def has_levels(self) -> bool:
        """Return whether requests wait in levels, or with a policy of their own."""
        policies = self.queue_policy != QueuePolicy() or self.level_policies
        return bool(self.priority_levels or policies)


class StaticBatching(Part):
    """Batches of whole requests, padded to the longest, for comparison with continuous batching.

    A batch starts as dynamic batches do; it ends when its longest answer does, and all its answers
    go back then, in one piece. Source: Yu et al., "Orca", OSDI 2022, section 3.1.
    """

    kind: Literal["static"] = "static"
    max_batch_size: Count = 8
    max_queue_delay_s: Seconds = 0.0
    max_model_len: Count = 8192
    """Longest prompt and answer; where the memory is known, it must hold ``max_batch_size``."""
    gpu_memory_utilization: Annotated[Fraction, Field(gt=0)] = 0.9
    cancel_frees: bool = True
    """As in dynamic batching."""
    poison: Literal["alone", "batch"] = "alone"
    """As in dynamic batching."""
    scheduler: Queue = Queue()
    step_time: StepTime = RooflineStep()

    @property
    def as_dynamic(self) -> DynamicBatching:
        """Return how its batches are formed."""
        return DynamicBatching(
            max_batch_size=self.max_batch_size,
            max_queue_delay_s=self.max_queue_delay_s,
            scheduler=self.scheduler,
            service=ServiceLaw(base_s=1.0),
        )

    @property
    def as_continuous(self) -> ContinuousBatching:
        """Return the batching that takes the same memory and steps of the same time."""
        return ContinuousBatching(
            max_num_seqs=self.max_batch_size,
            max_num_batched_tokens=self.max_model_len,
            max_model_len=self.max_model_len,
            gpu_memory_utilization=self.gpu_memory_utilization,
            step_time=self.step_time,
        )


Batching = Annotated[
    ContinuousBatching | DynamicBatching | StaticBatching, Field(discriminator="kind")
]


class Pool(Part):
    """Replicas of one model, or of the same few, behind one service queue."""

    name: Name
    owner: str = ""
    replicas: Count = 1
    model: str | None = None
    """In the catalogue, or the path of a ``config.json`` or of a YAML file of the fields of
    ``capplan.catalog.Model``."""
    hf_config: str | dict[str, JsonValue] | None = None
    """What the Hugging Face ``config.json`` of a model outside the catalogue says, or the path of
    it; ``model`` is then only its name."""
    models: tuple[ResidentModel, ...] = ()
    """Several in place of the one ``model``; classes name theirs."""
    load_bandwidth_bytes_per_s: Rate | None = None
    """At which weights reach each accelerator, for models that state no ``load_s``."""
    accelerator: str | None = None
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    """Stages that the layers are divided into, each on ``tensor_parallel`` accelerators."""
    weight_dtype: Dtype | None = None
    """Type of the weights; None = that of the model's config."""
    kv_dtype: Dtype | None = None
    """Type of the KV cache; None = that of the weights, at least 16 bits."""
    queue: Queue = Queue()
    router: Router = Router()
    batching: Batching
    hosts: tuple[Name, ...] = ()
    """The hosts it shares with other pools, replica i on the i-th in turn; empty = its own."""
    price_usd_per_accelerator_hour: Rate | None = None
    """None = the catalogue's price of the accelerator, or unknown without one."""
    replicas_per_node: Count | None = None
    """How many replicas stand on one machine, which they lose together; None = nobody says."""
    step_factors: tuple[Factor, ...] = ()
    """Mixed accelerators: steps and batches of replica i take the i-th of these times as long, in
    turn; empty = all the same. The budget and the closed forms know only factor 1."""
    model_load: ModelLoad | None = None
    """What a replica loads that returns; None = it serves as soon as it is back."""
    cold_start_s: Seconds | None = None
    """From asking for a replica to its first answer, s; None = unknown."""
    lifecycle: Lifecycle | None = None
    """How new replicas start and old ones leave; None = all of the start takes ``cold_start_s``."""
    standby: Standby | None = None
    """Replicas kept warm beside those in service."""
    autoscaler: Autoscaler | None = None
    """What changes the number of replicas while a run goes on; None = it stays."""
    resource_pool: Name | None = None
    """The accelerators that it shares with others; None = as many as it asks for."""

    @model_validator(mode="after")
    def _models_agree(self) -> Pool:
        if not self.models:
            if self.hf_config is not None and self.model is None:
                msg = "hf_config needs model, the name it goes by"
                raise ValueError(msg)
            return self
        names = [entry.name for entry in self.models]
        clashes = [
            (self.model is not None, "model and models exclude each other"),
            (self.hf_config is not None, "hf_config and models exclude each other"),
            (len(set(names)) < len(names), f"models: names must differ, got {', '.join(names)}"),
            (
                self.batching.kind != "continuous",
                f"models are of batching kind continuous, got {self.batching.kind}",
            ),
        ]
        if told := "; ".join(text for wrong, text in clashes if wrong):
            raise ValueError(told)
        return self

    @model_validator(mode="after")
    def _start_is_known(self) -> Pool:
        known = (self.lifecycle, self.cold_start_s, self.model_load)
        if self.autoscaler is not None and all(one is None for one in known):
            msg = (
                "autoscaler: needs lifecycle, cold_start_s or model_load, to know how long a start "
                "takes"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _a_router_by_prefixes_finds_some(self) -> Pool:
        caches = isinstance(self.batching, ContinuousBatching) and self.batching.prefix_caching
        if self.router.policy == "prefix_aware" and (not caches or self.models):
            msg = "router.policy prefix_aware needs batching.prefix_caching, and one model"
            raise ValueError(msg)
        return self

    @property
    def accelerators(self) -> int:
        """Return how many accelerators the pool holds."""
        return self.replicas * self.accelerators_per_replica

    @property
    def accelerators_per_replica(self) -> int:
        """Return over how many accelerators a replica is spread."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def accelerators_at_start(self) -> int:
        """Return how many accelerators it holds when a run begins, those of standby included."""
        warm = 0 if self.standby is None else self.standby.replicas
        return (self.replicas + warm) * self.accelerators_per_replica

    @property
    def most_replicas(self) -> int:
        """Return how many replicas there can be at once, those of standby included."""
        warm = 0 if self.standby is None else self.standby.replicas
        most = 0 if self.autoscaler is None else self.autoscaler.max_replicas
        return max(self.replicas, most) + warm

    @property
    def is_elastic(self) -> bool:
        """Return whether the number of its replicas can change."""
        return self.autoscaler is not None or self.standby is not None

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the models it serves, as they were named; ``unnamed`` where none was."""
        if self.models:
            return tuple(entry.model or entry.name for entry in self.models)
        return (self.model or "unnamed",)
