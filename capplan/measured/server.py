"""What is known of a measured server and of the client that measured it: ``server.json``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capplan.catalog.dtypes import Dtype
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
    ``unused``, so that it can be told apart from one that counted.
    """

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    engine: str = ""
    model: str | None = None
    shape: dict[str, int] | None = Field(default=None, alias="model_config")
    """The model's own numbers as told; they are the catalogue's that count."""
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

    As stated; else by the engine's version, the newest where it tells none.
    Source: vLLM, release notes of v0.14.0, 2026: asynchronous scheduling is the default.

    >>> formed_ahead(Server(engine="vllm 0.11.2")), formed_ahead(Server(engine="vllm 0.19.0"))
    (False, True)
    """
    if server.async_scheduling is not None:
        return server.async_scheduling
    told = re.search(r"vllm\D{0,3}(\d+)\.(\d+)", server.engine, re.IGNORECASE)
    if told is None:
        return "vllm" in server.engine.lower()
    return (int(told[1]), int(told[2])) >= ASYNC_SINCE


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
