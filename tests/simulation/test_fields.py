"""Every field of a scenario that the simulation is meant to heed changes something."""

import numpy as np
import pytest

from capplan.scenario import (
    ContinuousBatching,
    Crash,
    Demand,
    DynamicBatching,
    Gateway,
    Host,
    LinearStep,
    Network,
    Pool,
    Promises,
    Queue,
    RateLimit,
    RequestClass,
    Retry,
    Router,
    Scenario,
    ServiceLaw,
)
from capplan.scenario.files import with_values
from capplan.simulation import simulate

STEP = "pools.llm.batching.step_time"
LLM = "pools.llm.batching"
VECTOR = "pools.vector.batching"

CHANGES = {
    Scenario: {"drain_s": ("drain_s", 0.01), "default_class": ("default_class", "embed")},
    Network: {
        "one_way_s": ("network.one_way_s", 0.05),
        "handshake_s": ("network.handshake_s", 0.03),
        "connections": ("network.connections", "long_lived"),
    },
    Gateway: {
        "rate_limit": ("gateway.rate_limit", None),
        "concurrency": ("gateway.concurrency", None),
        "overhead_s": ("gateway.overhead_s", 0.1),
        "overhead_fraction": ("gateway.overhead_fraction", 0.3),
    },
    RateLimit: {
        "rate_rps": ("gateway.rate_limit.rate_rps", 20.0),
        "burst": ("gateway.rate_limit.burst", 9),
    },
    Router: {
        "policy": ("pools.llm.router.policy", "random"),
        "max_in_flight": ("pools.llm.router.max_in_flight", None),
    },
    Pool: {"replicas": ("pools.llm.replicas", 3), "hosts": ("pools.vector.hosts", [])},
    ContinuousBatching: {
        "max_num_seqs": (f"{LLM}.max_num_seqs", 2),
        "max_num_batched_tokens": (f"{LLM}.max_num_batched_tokens", 500),
        "chunked_prefill": (f"{LLM}.chunked_prefill", False),
        "block_size": (f"{LLM}.block_size", 64),
        "kv_blocks": (f"{LLM}.kv_blocks", 26),
        "max_model_len": (f"{LLM}.max_model_len", 250),
        "async_scheduling": (f"{LLM}.async_scheduling", True),
    },
    LinearStep: {
        name: (f"{STEP}.{name}", 2e-3)
        for name in ("base_s", "per_prefill_token_s", "per_sequence_s", "per_context_token_s")
    },
    DynamicBatching: {
        "max_batch_size": (f"{VECTOR}.max_batch_size", 2),
        "max_queue_delay_s": (f"{VECTOR}.max_queue_delay_s", 0.5),
    },
    ServiceLaw: {
        "base_s": (f"{VECTOR}.service.base_s", 0.5),
        "per_item_s": (f"{VECTOR}.service.per_item_s", 0.1),
        "per_size_s": (f"{VECTOR}.service.per_size_s", 0.1),
        "exponential": (f"{VECTOR}.service.exponential", True),
    },
    RequestClass: {
        "pool": ("classes.chat.pool", "vector"),
        "priority": ("classes.chat.priority", -1),
        "streaming": ("classes.chat.streaming", False),
    },
    Promises: {"deadline_s": ("classes.chat.promises.deadline_s", 0.5)},
    Retry: {
        "max_attempts": ("classes.chat.retry.max_attempts", 1),
        "attempt_timeout_s": ("classes.chat.retry.attempt_timeout_s", 0.3),
        "backoff_s": ("classes.chat.retry.backoff_s", 2.0),
        "multiplier": ("classes.chat.retry.multiplier", 3.0),
        "max_backoff_s": ("classes.chat.retry.max_backoff_s", 0.02),
        "jitter": ("classes.chat.retry.jitter", True),
        "retry_on": ("classes.chat.retry.retry_on", ["failed"]),
        "honour_retry_after": ("classes.chat.retry.honour_retry_after", False),
    },
    Host: {
        "compute_units": ("hosts.h.compute_units", 9.0),
        "io_bytes_per_s": ("hosts.h.io_bytes_per_s", 5.0),
        "network_bytes_per_s": ("hosts.h.network_bytes_per_s", 5.0),
    },
    Demand: {
        "compute_units": ("classes.embed.demand.compute_units", 9.0),
        "io_bytes_per_s": ("classes.embed.demand.io_bytes_per_s", 90.0),
        "network_bytes_per_s": ("classes.embed.demand.network_bytes_per_s", 90.0),
    },
    Crash: {
        "pool": ("faults.0.pool", "vector"),
        "at_s": ("faults.0.at_s", 1.5),
        "count": ("faults.0.count", 2),
        "down_s": ("faults.0.down_s", 0.9),
    },
}

QUEUE_CHANGES = {
    "length": 1,
    "wait_limit_s": 0.05,
    "order": "priority",
    "status": {429: 503, 503: 429},
    "retry_after_s": 2.5,
}
QUEUES = ("gateway.queue", "pools.llm.queue", "pools.llm.batching.scheduler")

ELSEWHERE = {
    Scenario: {
        "name", "description", "requests", "replicas", "warmup_s", "classes", "tenants", "traffic",
        "network", "gateway", "pools", "hosts", "faults", "budget", "stages",
    },
    Network: {"owner"},
    Gateway: {"owner", "queue"},
    Pool: {
        "name", "owner", "model", "accelerator", "tensor_parallel", "queue", "router", "batching",
        "price_usd_per_accelerator_hour", "cold_start_s", "weight_dtype", "kv_dtype",
    },
    ContinuousBatching: {"kind", "gpu_memory_utilization", "scheduler", "step_time"},
    LinearStep: {"kind"},
    DynamicBatching: {"kind", "scheduler", "service"},
    RequestClass: {
        "name", "owner", "sheddable", "promises", "retry", "share", "prompt_tokens",
        "output_tokens", "length_correlation", "prefix_tokens", "demand", "size",
    },
    Promises: {
        "e2e_s", "ttft_s", "tpot_s", "quantile", "availability_fraction", "error_rate_fraction",
        "timeout_rate_fraction", "goodput_fraction", "cost_usd_per_success", "min_samples",
        "origins",
    },
    Crash: {"kind"},
    Host: {"name", "owner", "accelerator_memory_bytes", "host_memory_bytes"},
    Demand: {"accelerator_memory_bytes", "host_memory_bytes"},
    Queue: {"owner"},
}  # fmt: skip
"""Names, parts with their own entry above, and what traffic, memory, budget or results read."""


@pytest.fixture(name="base")
def _base(build):
    """Return a scenario in which every limit is felt."""
    return build(
        classes=[
            {
                "name": "chat",
                "pool": "llm",
                "priority": 1,
                "retry": {"max_attempts": 4, "backoff_s": 0.05, "multiplier": 2.0},
                "promises": {"deadline_s": 30.0},
            },
            {
                "name": "embed",
                "pool": "vector",
                "priority": 0,
                "streaming": False,
                "demand": {"compute_units": 1.0, "io_bytes_per_s": 6.0, "network_bytes_per_s": 6.0},
            },
            {"name": "urgent", "pool": "llm", "priority": 0},
        ],
        network={"one_way_s": 0.01, "handshake_s": 0.02, "connections": "fresh"},
        gateway={
            "rate_limit": {"rate_rps": 40.0, "burst": 20},
            "concurrency": 12,
            "overhead_s": 0.01,
            "overhead_fraction": 0.1,
            "queue": {"length": 8, "wait_limit_s": 0.6, "status": 429, "retry_after_s": 0.3},
        },
        pools=[
            {
                "name": "llm",
                "replicas": 2,
                "queue": {"length": 5, "wait_limit_s": 0.5, "retry_after_s": 0.3},
                "router": {"max_in_flight": 5},
                "batching": {
                    "kind": "continuous",
                    "max_num_seqs": 3,
                    "max_num_batched_tokens": 300,
                    "max_model_len": 300,
                    "kv_blocks": 40,
                    "scheduler": {"length": 2, "wait_limit_s": 0.4, "retry_after_s": 0.3},
                    "step_time": {
                        "kind": "linear",
                        "base_s": 5e-3,
                        "per_prefill_token_s": 1e-4,
                        "per_sequence_s": 1e-3,
                        "per_context_token_s": 1e-6,
                    },
                },
            },
            {
                "name": "vector",
                "replicas": 1,
                "hosts": ["h"],
                "batching": {
                    "kind": "dynamic",
                    "max_batch_size": 4,
                    "max_queue_delay_s": 0.05,
                    "service": {"base_s": 0.1, "per_item_s": 0.01, "per_size_s": 1e-5},
                },
            },
        ],
        hosts=[{"name": "h", "io_bytes_per_s": 60.0, "network_bytes_per_s": 60.0}],
        faults=[{"at_s": 1.0, "down_s": 0.5}],
    )


@pytest.fixture(name="trace")
def _trace(trace_of):
    rng = np.random.default_rng(3)
    names = rng.choice(["chat", "embed", "urgent", None], 240, p=[0.5, 0.15, 0.3, 0.05])
    return trace_of(
        np.cumsum(rng.exponential(1 / 60, 240)),
        prompt_tokens=rng.integers(10, 230, 240),
        output_tokens=rng.integers(1, 60, 240),
        request_class=names,
    )


def tables(scenario, trace):
    result = simulate(scenario, trace=trace)
    return result.requests, result.timeline


def differ(one, two):
    return any(not a.equals(b) for a, b in zip(one, two, strict=True))


def changes():
    for part, fields in CHANGES.items():
        for name, (path, value) in fields.items():
            yield pytest.param(path, value, id=f"{part.__name__}.{name}")
    for queue in QUEUES:
        for name, value in QUEUE_CHANGES.items():
            yield pytest.param(f"{queue}.{name}", value, id=f"{queue}.{name}")


@pytest.mark.parametrize(("path", "value"), list(changes()))
def test_a_field_changes_the_run(base, trace, path, value):
    if isinstance(value, dict):
        value = value[429 if path.startswith("gateway") else 503]
    assert differ(tables(base, trace), tables(with_values(base, {path: value}), trace))


def test_every_field_is_either_heeded_or_named_as_read_elsewhere():
    for part, fields in [*CHANGES.items(), (Queue, QUEUE_CHANGES)]:
        known = set(fields) | ELSEWHERE.get(part, set())
        assert set(part.model_fields) == known, part.__name__


def test_what_changes_nothing_is_seen_to_change_nothing(base, trace):
    same = with_values(base, {"gateway.owner": "somebody"})
    assert not differ(tables(base, trace), tables(same, trace))
