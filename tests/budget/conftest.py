"""A small scenario whose figures can be worked out by hand."""

import pytest

from capplan.scenario import Scenario
from capplan.scenario.files import validate

LLM = {
    "name": "llm",
    "owner": "platform",
    "replicas": 2,
    "queue": {"length": 10, "wait_limit_s": 0.2},
    "router": {"max_in_flight": 20},
    "batching": {
        "kind": "continuous",
        "max_num_seqs": 16,
        "max_num_batched_tokens": 1024,
        "kv_blocks": 10_000,
        "scheduler": {"length": 4, "wait_limit_s": 0.2},
        "step_time": {
            "kind": "linear",
            "base_s": 0.01,
            "per_prefill_token_s": 1e-5,
            "per_sequence_s": 1e-4,
            "per_context_token_s": 0.0,
        },
    },
}
LABELS = {
    "name": "labels",
    "owner": "documents",
    "replicas": 1,
    "queue": {"length": 100, "wait_limit_s": 5.0},
    "router": {"max_in_flight": 16},
    "batching": {
        "kind": "dynamic",
        "max_batch_size": 8,
        "max_queue_delay_s": 0.05,
        "scheduler": {"length": 8, "wait_limit_s": 2.0},
        "service": {"base_s": 0.1, "per_item_s": 0.01},
    },
}


@pytest.fixture(scope="session")
def raw() -> dict:
    """Return the raw data of a scenario with a streaming and a batch class, nothing broken."""
    return {
        "name": "small",
        "classes": [
            {
                "name": "chat",
                "owner": "shop",
                "pool": "llm",
                "share": 3.0,
                "promises": {"deadline_s": 20.0, "ttft_s": 1.0, "tpot_s": 0.05},
                "prompt_tokens": {"kind": "fixed", "tokens": 512},
                "output_tokens": {"kind": "fixed", "tokens": 101},
            },
            {
                "name": "batch",
                "pool": "labels",
                "streaming": False,
                "promises": {"e2e_s": 10.0},
                "prompt_tokens": {"kind": "fixed", "tokens": 100},
                "output_tokens": {"kind": "fixed", "tokens": 1},
            },
        ],
        "traffic": {"shape": {"kind": "steady", "rate_rps": 8.0}},
        "network": {"one_way_s": 0.02},
        "gateway": {
            "owner": "edge",
            "concurrency": 60,
            "queue": {"length": 5, "wait_limit_s": 0.2, "status": 429},
            "overhead_s": 0.02,
            "overhead_fraction": 0.1,
        },
        "pools": [LLM, LABELS],
    }


@pytest.fixture(scope="session")
def small(raw) -> Scenario:
    """Return the scenario of ``raw``."""
    return validate(raw, where="small")
