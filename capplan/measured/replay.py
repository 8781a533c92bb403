"""The question that a measured run put to its server, as a scenario and a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.catalog.models import BYTES
from capplan.measured.run import Measured
from capplan.measured.server import formed_ahead, server_settings, stated_model
from capplan.scenario import Scenario
from capplan.scenario.files import validate
from capplan.schema import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capplan.traffic.trace import Trace

NAME = "measured"

REQUEST_OVERHEAD_S = 0.007
"""What HTTP, tokenizer and queues between processes take of a request before the engine, s, where
nothing is known of the server. Source: the α coefficients that BLIS publishes for vLLM 0.8.4 on
H100 (inference-sim/inference-sim, ``defaults.yaml`` at 1a6eb35, 2026), at prompts of 600 tokens:
16 fits of dense 16-bit models give 1 to 34 ms, half of them 4 to 13, the median 7."""

EVERY_ANSWER_S = 1e9
"""Time after the last arrival, s: endless, so that the replay of an overload keeps each answer. A
run ends when no request is left, so it takes no longer than the requests do."""

PREFIX_BLOCK_TOKENS = 16
"""Tokens to which the replay of prompts that were sent again names their beginnings."""

DTYPES = {"float16": "float16", "half": "float16", "auto": None}


def replay_scenario(
    measured: Measured,
    *,
    step_time: Mapping[str, Any] | None = None,
    request_overhead_s: float = 0.0,
    overhead_per_in_flight_s: float = 0.0,
) -> Scenario:
    """Return the scenario of a measured run.

    One class, one pool with the server's settings, and the client's circumstances: its timeout is
    the deadline, its cap on requests in flight a limit in front of the server with an endless
    queue.

    Parameters
    ----------
    measured
        The run.
    step_time
        Fields of a pool's ``step_time``; None = the roofline.
    request_overhead_s, overhead_per_in_flight_s
        What HTTP, tokenizer and detokenizer take of every request, and for each in flight, s.

    Raises
    ------
    DataError
        Where the server's settings do not name what a pool needs.
    """
    server = measured.server
    if server.model is None or server.accelerator is None:
        field = "model" if server.model is None else "accelerator"
        raise DataError(
            "model and accelerator (in server.json), or a scenario",
            where=measured.name,
            field=field,
        )
    gateway: dict[str, Any] = {"concurrency": server.client_max_in_flight}
    if measured.origin != "scheduler_queue_in_s":
        gateway["overhead_s"] = request_overhead_s
        gateway["overhead_per_in_flight_s"] = overhead_per_in_flight_s
    data: dict[str, Any] = {
        "name": NAME,
        "description": f"Replay of the measured run {measured.name}.",
        "classes": [{"name": NAME, "promises": _promises(measured)}],
        "traffic": _traffic(measured),
        "drain_s": EVERY_ANSWER_S,
        "gateway": gateway,
        "pools": [_pool(measured, step_time or {"kind": "roofline"})],
    }
    return validate(data, where=measured.name)


def _traffic(measured: Measured) -> dict[str, Any]:
    """Return the run's mean rate; the replay itself takes the measured moments."""
    span_s = max(float(measured.requests["start_s"].iloc[-1]), 1.0)
    rate_rps = len(measured.requests) / span_s
    return {"shape": {"kind": "steady", "rate_rps": rate_rps}, "duration_s": span_s}


def _promises(measured: Measured) -> dict[str, Any]:
    limit_s = measured.server.client_timeout_s
    return {} if limit_s is None else {"deadline_s": limit_s}


def _pool(measured: Measured, step_time: Mapping[str, Any]) -> dict[str, Any]:
    server, rows = measured.server, measured.requests
    longest = int((rows["prompt_tokens"] + rows["output_tokens"]).max())
    batching: dict[str, Any] = {"kind": "continuous", **server_settings(server)}
    for name in ("kv_blocks", "chunked_prefill"):
        if (value := getattr(server, name)) is not None:
            batching[name] = value
    batching["max_model_len"] = max(server.max_model_len or longest, longest)
    batching["prefix_caching"] = server.prefix_caching is not False
    batching["async_scheduling"] = formed_ahead(server)
    batching["step_time"] = dict(step_time)
    return {
        "name": NAME,
        "replicas": server.data_parallel,
        **stated_model(server, where=measured.name),
        "accelerator": server.accelerator,
        "tensor_parallel": server.tensor_parallel,
        "weight_dtype": _dtype(server.dtype, measured.name),
        "kv_dtype": server.kv_dtype,
        "batching": batching,
    }


def _dtype(name: str | None, where: str) -> str | None:
    found = DTYPES.get(name or "auto", name)
    if found is not None and found not in BYTES:
        rule = f"one of {', '.join(BYTES)}"
        raise DataError(rule, where=where, field="dtype", value=name)
    return found


def replay_trace(measured: Measured, scenario: Scenario) -> Trace:
    """Return the requests of a measured run as a drawn trace of the scenario."""
    from capplan.traffic.trace import from_frame

    rows = measured.requests
    frame = rows[["prompt_tokens", "output_tokens"]].assign(
        arrival_s=rows["start_s"], request_id=[str(i) for i in range(len(rows))]
    )
    again = measured.repetition
    if again is not None:
        frame["prefix_blocks"] = _prefixes(rows["prompt"], rows["prompt_tokens"])
    deadline_s = scenario.request_class().promises.deadline_s
    if deadline_s is not None:
        frame["deadline_s"] = deadline_s
    return from_frame(
        frame,
        source=measured.name,
        notes=measured.notes,
        prefix_block_tokens=None if again is None else PREFIX_BLOCK_TOKENS,
    )


def _prefixes(prompt: pd.Series[int], tokens: pd.Series[int]) -> pd.Series[Any]:
    """Return the ids of a prompt's complete blocks: the same for a prompt sent again."""
    counts = (tokens // PREFIX_BLOCK_TOKENS).to_numpy()
    most = int(counts.max()) + 1
    ids = [
        np.arange(number * most, number * most + count) if number >= 0 else np.empty(0, np.int64)
        for number, count in zip(prompt.tolist(), counts.tolist(), strict=True)
    ]
    return pd.Series(ids, index=prompt.index, dtype=object)
