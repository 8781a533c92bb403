"""What is known of a measured server and of the client that measured it: ``server.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capplan.catalog.accelerators import accelerator
from capplan.catalog.engines import vllm_batch_defaults, vllm_version
from capplan.catalog.models import Dtype
from capplan.schema import DataError

Origin = Literal["intended_start_s", "sent_s", "scheduler_queue_in_s"]
"""The moment that measured latencies count from."""

ORIGINS: tuple[Origin, ...] = ("scheduler_queue_in_s", "sent_s", "intended_start_s")

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
    shape: dict[str, int] | None = Field(default=None, alias="model_config")
    """The model's own numbers as stated; those of the catalogue count."""
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


def assumed_settings(server: Server) -> list[str]:
    """Return a sentence that names the settings taken from the engine's defaults; empty if none."""
    settings = server_settings(server)
    assumed = [f"{n} {v:,}" for n, v in settings.items() if getattr(server, n) is None]
    if not assumed:
        return []
    device = server.accelerator or "an unknown accelerator"
    return [f"Not stated by the server, so vLLM's defaults on {device}: {', '.join(assumed)}."]


def read_server(path: Path) -> Server:
    """Return what a ``server.json`` says; :class:`DataError` for a field that breaks a rule."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise DataError("an existing file", where=path) from err
    except (OSError, ValueError) as err:
        raise DataError(f"a readable JSON file ({err})", where=path) from err
    if not isinstance(data, dict):
        raise DataError("a JSON object", where=path, value=type(data).__name__)
    try:
        return Server.model_validate(data)
    except ValidationError as err:
        first = err.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DataError(first["msg"], where=path, field=field, value=first["input"]) from err
