"""Pools of replicas: model, accelerators, batching, start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from capplan.catalog.accelerators import accelerator
from capplan.catalog.engines import vllm_batch_defaults
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
    Version,
    together,
)
from capplan.scenario.step_times import StepTime
from capplan.schema import DataError

BATCH_LIMITS = {"max_num_seqs", "max_num_batched_tokens"}
"""Settings of an engine whose defaults depend on the device."""


class ResidentModel(Part):
    """One of several models of a pool; as many are resident at once as fit.

    A resident model takes its weights, activations and runtime, and ``kv_fraction`` of the memory
    of the engine; if ``kv_blocks`` is stated, only ``kv_fraction`` of these.
    """

    name: Name
    model: str | None = None
    """In the catalogue; None = its ``name``."""
    kv_fraction: Annotated[Fraction, Field(gt=0)]
    load_s: Seconds | None = None
    """None = weights ÷ the pool's ``load_bandwidth_bytes_per_s``; not used if all models fit."""
    unload_s: Seconds = 0.0
    """Weights are dropped, not written back."""
    weight_dtype: Dtype | None = None
    """None = the pool's, as for ``kv_dtype`` and ``step_time``."""
    kv_dtype: Dtype | None = None
    step_time: StepTime | None = None


class ModelLoad(Part):
    """What a returning replica loads before it serves; its prefix cache is empty.

    ``bytes`` come from disk (``over: io``), from the network, or over the network onto the disk
    (``both``), at the pool's ``load_bandwidth_bytes_per_s`` per accelerator; None = at the rate of
    its host, which it shares with other users.
    """

    start_s: Seconds = 0.0
    """Time before the load: process start, memory profiling, graph capture."""
    bytes: Positive | None = None
    """For all accelerators of a replica; None = the weights of the model."""
    over: Literal["io", "network", "both"] = "io"

    @property
    def rates(self) -> tuple[str, ...]:
        """Return the rates of the host that it uses."""
        return tuple(
            rate
            for rate in RATES
            if rate != "compute_units" and (self.over == "both" or rate.startswith(self.over))
        )


class Pool(Part):
    """Replicas of the same model or models, behind one service queue."""

    name: Name
    owner: Owner = ""
    replicas: Count = 1
    model: PathOrName | None = None
    """Name in the catalogue, or path of a ``config.json`` or of a YAML file with the fields of
    ``capplan.catalog.Model``."""
    hf_config: PathOrName | dict[str, JsonValue] | None = None
    """Hugging Face ``config.json`` of a model outside the catalogue, or its path; ``model`` is its
    name then."""
    models: tuple[ResidentModel, ...] = ()
    """Several models in place of ``model``; classes name theirs."""
    version: Version = ""
    """What its replicas report from the start; empty = not known."""
    load_bandwidth_bytes_per_s: Rate | None = None
    """Rate at which each accelerator loads weights."""
    accelerator: PathOrName | None = None
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    """Stages of layers, each on ``tensor_parallel`` accelerators."""
    weight_dtype: Dtype | None = None
    """None = the type in the model's config."""
    kv_dtype: Dtype | None = None
    """None = the type of the weights, at least 16 bits."""
    queue: Queue = Queue()
    router: Router = Router()
    batching: Batching
    hosts: tuple[HostName, ...] = ()
    """Hosts shared with other pools, replica i on the i-th in turn; empty = its own."""
    price_usd_per_accelerator_hour: Rate | None = None
    """None = the catalogue's price of the accelerator, else unknown."""
    replicas_per_node: Count | None = None
    """Replicas per machine, which fail together; None = unknown."""
    step_factors: tuple[Positive, ...] = ()
    """Mixed accelerators: factors of the step times of replica i, in turn; empty = all 1. The
    budget and the closed forms take 1."""
    model_load: ModelLoad | None = None
    """What a returning replica loads; None = nothing."""
    cold_start_s: Seconds | None = None
    """From the order of a replica to its first answer, s; None = unknown."""
    lifecycle: Lifecycle | None = None
    """How replicas start and stop; None = a start takes ``cold_start_s``."""
    standby: Standby | None = None
    """Warm replicas beside those in service."""
    autoscaler: Autoscaler | None = None
    """What changes the number of replicas in a run; None = it is constant."""
    resource_pool: Annotated[Name, Refers("resource_pools")] | None = None
    """Accelerators shared with other pools; None = no limit."""

    @model_validator(mode="after")
    def _take_device_defaults(self) -> Self:
        """Give the batching :attr:`assumed_settings`, without counting them as stated."""
        if assumed := self.assumed_settings:
            batching = self.batching.model_copy()
            batching.__dict__.update(assumed)
            self.__dict__["batching"] = batching
        return self

    @property
    def assumed_settings(self) -> dict[str, int]:
        """Return the batch limits that an engine takes on the pool's accelerator, if not stated.

        They are those of a vLLM server; ``max_num_seqs`` is at most ``max_num_batched_tokens``.
        Empty for other batching and without an accelerator of the catalogue.
        """
        batching = self.batching
        if not isinstance(batching, ContinuousBatching) or self.accelerator is None:
            return {}
        missing = BATCH_LIMITS - batching.model_fields_set
        try:
            device = accelerator(self.accelerator) if missing else None
        except DataError:  # what needs the accelerator refuses the name
            return {}
        found = vllm_batch_defaults(device) | batching.model_dump(include=BATCH_LIMITS - missing)
        if "max_num_seqs" in missing:
            found["max_num_seqs"] = min(found.values())
        return {name: found[name] for name in sorted(missing)}

    def _broken(self) -> Iterator[str]:
        yield from together(self._model_clashes())
        yield from self._start_is_known()
        yield from self._prefix_router_has_prefixes()

    def _model_clashes(self) -> Iterator[str]:
        if not self.models:
            if self.hf_config is not None and self.model is None:
                yield "hf_config needs model, its name"
            return
        names = [entry.name for entry in self.models]
        if self.model is not None:
            yield "model and models exclude each other"
        if self.hf_config is not None:
            yield "hf_config and models exclude each other"
        if len(set(names)) < len(names):
            yield f"models: names must differ, got {', '.join(names)}"
        if self.batching.kind != "continuous":
            yield f"models need batching kind continuous, got {self.batching.kind}"

    def _start_is_known(self) -> Iterator[str]:
        known = (self.lifecycle, self.cold_start_s, self.model_load)
        if self.autoscaler is not None and all(one is None for one in known):
            yield "autoscaler: needs lifecycle, cold_start_s or model_load: the time of a start"

    def _prefix_router_has_prefixes(self) -> Iterator[str]:
        caches = isinstance(self.batching, ContinuousBatching) and self.batching.prefix_caching
        if self.router.policy == "prefix_aware" and (not caches or self.models):
            yield "router.policy prefix_aware needs batching.prefix_caching, and one model"

    @property
    def continuous(self) -> ContinuousBatching:
        """Return its batching; ValueError unless it is continuous."""
        if not isinstance(self.batching, ContinuousBatching):
            kind = self.batching.kind
            raise ValueError(f"pool {self.name}: not a pool of continuous batching, got {kind}")
        return self.batching

    @property
    def accelerators(self) -> int:
        """Return the accelerators of the pool."""
        return self.replicas * self.accelerators_per_replica

    @property
    def accelerators_per_replica(self) -> int:
        """Return the accelerators of a replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def accelerators_at_start(self) -> int:
        """Return the accelerators at the start of a run, standby included."""
        warm = 0 if self.standby is None else self.standby.replicas
        return (self.replicas + warm) * self.accelerators_per_replica

    @property
    def most_replicas(self) -> int:
        """Return the most replicas at once, standby included."""
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
        """Return whether the number of replicas can change."""
        return self.autoscaler is not None or self.standby is not None

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of its models; ``unnamed`` for none."""
        if self.models:
            return tuple(entry.model or entry.name for entry in self.models)
        return (self.model or "unnamed",)
