"""What is known of a measured server and of the client that measured it: ``server.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from capplan.catalog.accelerators import accelerator
from capplan.catalog.engines import vllm_batch_defaults, vllm_version
from capplan.catalog.lookup import model
from capplan.catalog.models import Dtype, Model
from capplan.scenario import Scenario
from capplan.scenario.batching import ContinuousBatching
from capplan.schema import DataError

Origin = Literal["intended_start_s", "sent_s", "scheduler_queue_in_s"]
"""The moment that measured latencies count from."""

ORIGINS: tuple[Origin, ...] = ("scheduler_queue_in_s", "sent_s", "intended_start_s")

FILES = (".json", ".yaml", ".yml")
SHORT: Mapping[str, str] = {
    "num_layers": "num_hidden_layers",
    "hidden_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "intermediate_dim": "intermediate_size",
}
"""Short names of numbers of a ``config.json``, as published runs write them."""

ASYNC_SINCE = (0, 14)

Positive = Annotated[int, Field(ge=1)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Server(BaseModel):
    """The settings of a measured server; ``None`` is "not stated".

    Fields are those of a measured folder's ``server.json``; a key that is none of them is kept in
    ``unused``, apart from those that count.
    """

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    engine: str = ""
    model: str | None = None
    """In the catalogue, or a file; a relative path counts from the folder of ``server.json``, as
    that of ``accelerator`` does."""
    shape: dict[str, JsonValue] | None = Field(default=None, alias="model_config")
    """The model's ``config.json``, which counts before the catalogue; or its numbers by the short
    names of :data:`SHORT`, which are used if the catalogue lacks the model."""
    accelerator: str | None = None
    tensor_parallel: Positive = 1
    data_parallel: Positive = 1
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    max_model_len: Positive | None = None
    chunked_prefill: bool | None = None
    kv_blocks: Positive | None = None
    block_size: Positive | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    dtype: str | None = None
    kv_dtype: Dtype | None = None
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    clock: str = ""
    """Says what the latencies count from: names one of ``ORIGINS``."""
    client_timeout_s: PositiveSeconds | None = None
    client_max_in_flight: Positive | None = None
    note: str = ""

    @property
    def unused(self) -> list[str]:
        """Return the keys of the file that nothing is made of."""
        return sorted(self.model_extra or {})

    @property
    def origin(self) -> Origin | None:
        """Return the moment that latencies count from, None where the file does not say.

        >>> Server(clock="client: ttft_s and e2e_s from sent_s").origin
        'sent_s'
        """
        after = self.clock.rpartition(" from ")[2] if " from " in self.clock else self.clock
        return next((name for name in ORIGINS if name in after), None)


def server_text(scenario: Scenario) -> str:
    """Return the text of ``server.json`` for a run measured on the server that a scenario states.

    Its first pool is the server. Latencies count from the intended start.
    """
    pool = scenario.pools[0]
    found: dict[str, Any] = {
        "model": pool.hf_config if isinstance(pool.hf_config, str) else pool.model,
        "accelerator": pool.accelerator,
        "tensor_parallel": pool.tensor_parallel,
        "data_parallel": pool.replicas,
        "dtype": pool.weight_dtype,
        "kv_dtype": pool.kv_dtype,
        "clock": "client: ttft_s and e2e_s from intended_start_s",
    }
    if isinstance(pool.hf_config, dict):
        found["model_config"] = pool.hf_config
    if isinstance(pool.batching, ContinuousBatching):
        found |= {name: getattr(pool.batching, name) for name in OF_BATCHING}
    deadlines = [c.promises.deadline_s or math.inf for c in scenario.classes]
    if math.isfinite(max(deadlines)):
        found["client_timeout_s"] = max(deadlines)
    return json.dumps({name: value for name, value in found.items() if value is not None}, indent=1)


OF_BATCHING = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "chunked_prefill", "kv_blocks"),
    *("block_size", "gpu_memory_utilization", "prefix_caching", "async_scheduling"),
)
"""Settings that ``server.json`` and a pool's batching share."""


def formed_ahead(server: Server) -> bool:
    """Return whether the engine forms a step while the one before it runs.

    As stated; else by the engine's version, the newest if it states none.
    Source: vLLM, release notes of v0.14.0, 2026: asynchronous scheduling is the default.

    >>> formed_ahead(Server(engine="vllm 0.11.2")), formed_ahead(Server(engine="vllm 0.19.0"))
    (False, True)
    """
    if server.async_scheduling is not None:
        return server.async_scheduling
    version = vllm_version(server.engine)
    if version is None:
        return "vllm" in server.engine.lower()
    return version >= ASYNC_SINCE


ENGINE_DEFAULTS: Mapping[str, Any] = {"block_size": 16, "gpu_memory_utilization": 0.9}
"""Settings of a vLLM server that states none, on each device.
Source: vLLM, ``vllm/engine/arg_utils.py``, 2026."""


def server_settings(server: Server) -> dict[str, Any]:
    """Return the batch and memory settings of a server, its engine's defaults for those not stated.

    Raises :class:`DataError` for an unknown accelerator.
    """
    device = None if server.accelerator is None else accelerator(server.accelerator)
    defaults = {
        **vllm_batch_defaults(device, version=vllm_version(server.engine)),
        **ENGINE_DEFAULTS,
    }
    return {n: v if getattr(server, n) is None else getattr(server, n) for n, v in defaults.items()}


def stated_model(server: Server, *, where: object) -> dict[str, Any]:
    """Return the pool's fields that name the model: ``model``, and ``hf_config`` if it counts.

    Raises :class:`DataError` for numbers that contradict the catalogue's.
    """
    named = {"model": server.model}
    if server.shape is None or server.model is None:
        return named
    numbers = {SHORT.get(name, name): value for name, value in server.shape.items()}
    if "model_type" in numbers:
        return {**named, "hf_config": numbers}
    known = _known_model(server.model)
    if known is None:
        experts = numbers.get("num_local_experts") or numbers.get("num_experts")
        return {**named, "hf_config": {"model_type": "mixtral" if experts else "llama", **numbers}}
    for name, value in server.shape.items():
        field = SHORT.get(name, name)
        of_experts = known.num_experts and field == "intermediate_size"  # of the dense MLP or not
        if not of_experts and value != getattr(known, field, value):
            rule = f"{getattr(known, field)}, as the catalogue has it of {known.name}"
            raise DataError(rule, where=where, field=f"model_config.{name}", value=value)
    return named


def _known_model(name: str) -> Model | None:
    try:
        return model(name)
    except DataError:
        if name.endswith(FILES):
            raise
        return None


def assumed_settings(server: Server) -> list[str]:
    """Return sentences that say what the server does not state: model layers, engine's defaults."""
    settings = server_settings(server)
    notes = []
    config = stated_model(server, where="").get("hf_config")
    if config is not None and "model_type" not in (server.shape or {}):
        family = str(config["model_type"]).capitalize()
        notes.append(f"Assumed: {server.model} has the layers of {family} (no model_type stated).")
    assumed = [f"{n} {v:,}" for n, v in settings.items() if getattr(server, n) is None]
    if assumed:
        device = server.accelerator or "an unknown accelerator"
        named = ", ".join(assumed)
        notes.append(f"Not stated by the server, so vLLM's defaults on {device}: {named}.")
    return notes


def read_server(path: Path) -> Server:
    """Return what a ``server.json`` says; :class:`DataError` for a field that breaks a rule."""
    data = _content(path)
    for name in ("model", "accelerator"):
        file = str(data.get(name) or "")
        if file.endswith(FILES) and (beside := path.parent / file).is_file():
            data[name] = str(beside.resolve())
    try:
        return Server.model_validate(data)
    except ValidationError as err:
        first = err.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DataError(first["msg"], where=path, field=field, value=first["input"]) from err


def _content(path: Path) -> dict[str, Any]:
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise DataError("an existing file", where=path) from err
    except (OSError, ValueError) as err:
        raise DataError(f"a readable JSON file ({err})", where=path) from err
    if not isinstance(data, dict):
        raise DataError("a JSON object", where=path, value=type(data).__name__)
    return data
