"""Scenarios and traces of a few lines."""

import copy

import pandas as pd
import pytest

from capplan.scenario.files import validate
from capplan.simulation import simulate
from capplan.traffic.trace import from_frame

LINEAR = {
    "kind": "linear",
    "base_s": 4e-3,
    "per_prefill_token_s": 1.2e-5,
    "per_sequence_s": 1.3e-5,
    "per_context_token_s": 3.9e-8,
}
CONTINUOUS = {"kind": "continuous", "kv_blocks": 25000, "step_time": LINEAR}


def dynamic(base_s=1.0, *, exponential=False, **fields):
    service = {"base_s": base_s, "exponential": exponential}
    return {"kind": "dynamic", "max_batch_size": 1, "service": service} | fields


def build(*, batching=CONTINUOUS, replicas=1, pool=None, classes=None, **fields):
    data = {
        "name": "test",
        "classes": [{"name": "chat"}] if classes is None else classes,
        "traffic": {"shape": {"kind": "steady", "rate_rps": 1.0}},
        "pools": [{"name": "llm", "replicas": replicas, "batching": batching} | (pool or {})],
    }
    return validate(copy.deepcopy(data | fields), where="test")


def trace_of(arrival_s, *, prompt_tokens=100, output_tokens=10, **columns):
    frame = pd.DataFrame({"arrival_s": list(arrival_s)})
    frame["prompt_tokens"] = prompt_tokens
    frame["output_tokens"] = output_tokens
    frame["request_id"] = [f"r{i}" for i in range(len(frame))]
    return from_frame(frame.assign(**columns))


def single_queue(servers, *, exponential=True, **fields):
    """Return a queue with that many servers: one service queue, one request per replica."""
    pool = {"router": {"max_in_flight": 1}} | fields.pop("pool", {})
    return build(
        batching=dynamic(1.0, exponential=exponential, **fields.pop("batching", {})),
        replicas=servers,
        pool=pool,
        **fields,
    )


@pytest.fixture(name="build")
def _build():
    return build


@pytest.fixture(name="dynamic")
def _dynamic():
    return dynamic


@pytest.fixture(name="trace_of")
def _trace_of():
    return trace_of


@pytest.fixture(name="single_queue")
def _single_queue():
    return single_queue


@pytest.fixture(name="play")
def _play():
    def play(scenario, trace, **seeds):
        return simulate(scenario, trace=trace, **seeds)

    return play
