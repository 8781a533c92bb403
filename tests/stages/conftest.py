"""A queue with a known answer, and a plan of stages that takes a second."""

import pytest

from capplan.scenario.files import validate

MU = 10.0
"""Answers a second of the one server."""
QUICK = {
    "step_s": 400.0,
    "steady_s": 300.0,
    "ramp_s": 20.0,
    "longest_s": 1600.0,
    "every_s": 120.0,
    "fall_back_s": 120.0,
    "down_s": 60.0,
    "start_rps": 4.0,
    "planned_rps": 5.0,
    "peak_rps": 6.0,
}
OWNER = {"owner": "platform"}


def single_server(*, promises=None, gateway=None, pool=None, plan=None, **fields):
    """Return M/M/1 with a caller's promise: Poisson arrivals, exponential service of 0.1 s."""
    law = {"base_s": 1 / MU, "exponential": True}
    data = {
        "name": "single-server",
        "classes": [
            {
                "name": "chat",
                "streaming": False,
                "promises": {"e2e_s": 1.0, "quantile": 0.9} | (promises or {}),
            }
        ],
        "traffic": {"shape": {"kind": "steady", "rate_rps": 5.0}, "duration_s": 300.0},
        "gateway": OWNER | (gateway or {}),
        "pools": [
            {
                "name": "server",
                "queue": OWNER,
                "router": {"max_in_flight": 1},
                "batching": {
                    "kind": "dynamic",
                    "max_batch_size": 1,
                    "scheduler": OWNER,
                    "service": law,
                },
            }
            | (pool or {})
        ],
        "stages": QUICK | (plan or {}),
    }
    return validate(data | fields, where="single-server")


def decoding(*, promises, length=None, batching=None, prompt_tokens=100):
    """Return one replica whose step takes 20 ms, 1 ms a sequence and 0.1 ms a prompt token."""
    owner = {"owner": "platform"}
    law = {
        "kind": "linear", "base_s": 0.02, "per_sequence_s": 0.001, "per_prefill_token_s": 0.0001,
        "per_context_token_s": 0.0,
    }  # fmt: skip
    chat = {
        "name": "chat",
        "promises": {"quantile": 0.9} | promises,
        "prompt_tokens": {"kind": "fixed", "tokens": prompt_tokens},
        "output_tokens": {"kind": "fixed", "tokens": 50},
    }
    engine = {
        "kind": "continuous", "max_num_seqs": 64, "max_num_batched_tokens": 512, "kv_blocks": 5000,
        "scheduler": owner, "step_time": law,
    }  # fmt: skip
    pool = {"name": "llm", "queue": owner, "batching": engine | (batching or {})}
    data = {
        "name": "decoding",
        "classes": [chat],
        "traffic": {"shape": {"kind": "steady", "rate_rps": 5.0}, "duration_s": 120.0},
        "gateway": owner,
        "pools": [pool],
        "stages": {"step_s": 120.0, "steady_s": 80.0, "ramp_s": 10.0, "longest_s": 480.0},
    }
    return validate(data, where="decoding")


@pytest.fixture(name="decoding", scope="session")
def _decoding():
    return decoding


@pytest.fixture(name="single_server", scope="session")
def _single_server():
    return single_server


@pytest.fixture(name="accepted", scope="session")
def _accepted():
    """Return the acceptance of the single server, run once."""
    from capplan.stages import run_stages

    return run_stages(single_server(), seed=3, try_next=True)
