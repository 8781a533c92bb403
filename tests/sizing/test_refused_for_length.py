"""Requests beyond ``max_model_len``: a broken promise that no number of replicas mends."""

import pytest

import capplan as cp
from capplan.scenario.files import validate


@pytest.fixture(scope="module")
def sized():
    """Return the sizing of a small load of which 4 % are too long, with one replica lost."""
    scenario = validate(
        {
            "name": "long",
            "classes": [
                {
                    "name": "chat",
                    "promises": {"ttft_s": 2.0, "quantile": 0.9, "availability_fraction": 0.99},
                    "prompt_tokens": {"kind": "lognormal", "p50_tokens": 500, "p95_tokens": 2000},
                }
            ],
            "traffic": {"shape": {"kind": "steady", "rate_rps": 1.0}, "duration_s": 900.0},
            "pools": [
                {
                    "name": "llm",
                    "replicas": 2,
                    "model": "meta-llama/Llama-3.1-8B",
                    "accelerator": "H100-SXM-80GB",
                    "batching": {"kind": "continuous", "max_model_len": 2500},
                }
            ],
        },
        where="test",
    )
    return cp.size(scenario)


def test_the_number_is_that_of_the_load(sized):
    assert sized.failure_margin["replicas"].tolist() == [1, 2]


def test_the_promise_is_broken_and_the_limit_named(sized):
    broken = {r.rule: r for r in sized.verdict.reasons if r.outcome == "fail"}
    assert broken["availability_fraction"].field == "pools.llm.batching.max_model_len"
    assert "own_replicas" not in broken
    assert sized.verdict.outcome == "fail"
