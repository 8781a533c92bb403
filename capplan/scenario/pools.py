"""Pools of replicas: the model and accelerators of a replica, and how it starts and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from capplan.catalog.models import Dtype
from capplan.scenario.autoscaling import Autoscaler, Lifecycle, Standby
from capplan.scenario.batching import Batching, ContinuousBatching
from capplan.scenario.hosts import RATES
from capplan.scenario.layers import Queue, Router
from capplan.scenario.part import (
    Count,
    Fraction,
    HostName,
    Name,
    Owner,
    Part,
    PathOrName,
    Positive,
    Rate,
    Refers,
    Seconds,
)
from capplan.scenario.step_times import StepTime

if TYPE_CHECKING:
    pass


class ResidentModel(Part):
    """One of several models of a pool: what it takes of a replica while it is resident.

    It takes its weights, activations and runtime, and ``kv_fraction`` of the memory that the
    engine may use; where ``kv_blocks`` is stated, ``kv_fraction`` of these blocks and nothing
    else. As many are resident at once as fit.
    """

    name: Name
    model: str | None = None
    """In the catalogue; None = its ``name``."""
    kv_fraction: Annotated[Fraction, Field(gt=0)]
    load_s: Seconds | None = None
    """None = the bytes of its weights ÷ the pool's ``load_bandwidth_bytes_per_s``; not needed
    where all models fit at once."""
    unload_s: Seconds = 0.0
    """Weights are only read, so they can be dropped without being written back."""
    weight_dtype: Dtype | None = None
    """None = the pool's; so with ``kv_dtype`` and ``step_time``."""
    kv_dtype: Dtype | None = None
    step_time: StepTime | None = None


class ModelLoad(Part):
    """What a replica loads when it returns, and over what; its prefix cache is cold in any case.

    ``bytes`` go from disk (``over: io``), from the network, or from the network onto the disk
    (``both``) at the pool's ``load_bandwidth_bytes_per_s`` per accelerator; None = all that its
    host has. On a shared host they take that rate from it: whoever reads there is slowed, and
    slows the load.
    """

    start_s: Seconds = 0.0
    """Before the load: process start, memory profiling, graph capture."""
    bytes: Positive | None = None
    """On all accelerators of a replica; None = the weights of the pool's model."""
    over: Literal["io", "network", "both"] = "io"

    @property
    def rates(self) -> tuple[str, ...]:
        """Return which of a host's rates it takes."""
        return tuple(
            rate
            for rate in RATES
            if rate != "compute_units" and (self.over == "both" or rate.startswith(self.over))
        )


class Pool(Part):
    """Replicas of one model, or of the same few, behind one service queue."""

    name: Name
    owner: Owner = ""
    replicas: Count = 1
    model: PathOrName | None = None
    """In the catalogue, or the path of a ``config.json`` or of a YAML file of the fields of
    ``capplan.catalog.Model``."""
    hf_config: PathOrName | dict[str, JsonValue] | None = None
    """What the Hugging Face ``config.json`` of a model outside the catalogue says, or the path of
    it; ``model`` is then only its name."""
    models: tuple[ResidentModel, ...] = ()
    """Several in place of the one ``model``; classes name theirs."""
    load_bandwidth_bytes_per_s: Rate | None = None
    """At which weights reach each accelerator, for models that state no ``load_s``."""
    accelerator: PathOrName | None = None
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
    hosts: tuple[HostName, ...] = ()
    """The hosts it shares with other pools, replica i on the i-th in turn; empty = its own."""
    price_usd_per_accelerator_hour: Rate | None = None
    """None = the catalogue's price of the accelerator, or unknown without one."""
    replicas_per_node: Count | None = None
    """How many replicas stand on one machine, which they lose together; None = nobody says."""
    step_factors: tuple[Positive, ...] = ()
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
    resource_pool: Annotated[Name, Refers("resource_pools")] | None = None
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
    def places(self) -> int:
        """Return how many requests a replica serves at once."""
        batching = self.batching
        if isinstance(batching, ContinuousBatching):
            return batching.max_num_seqs
        return batching.max_batch_size

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
