"""Figures of simulated runs: what must hold whatever the scenario."""

import json

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.encoding import plain
from capplan.results import (
    QUEUES,
    conservation_table,
    grouped,
    headline,
    per_request,
    queue_waits,
    segments,
)
from capplan.scenario.files import load_scenario
from capplan.simulation import simulate
from capplan.slo import judge

STORM = {
    "classes.chat.retry": {
        "max_attempts": 3,
        "attempt_timeout_s": 1.0,
        "backoff_s": 0.1,
        "retry_on": ["rejected", "timed_out", "failed"],
    },
    "pools.llm.replicas": 1,
    "traffic.shape": {"kind": "replay", "rate_scale": 4.0},
    "faults": [{"kind": "crash", "pool": "llm", "at_s": 20.0, "down_s": 10.0}],
}
CASES = {
    "equal lengths": ("benchmark", {}),
    "three classes": ("chat-service", {}),
    "a storm of retries through a crash": ("chat-service", STORM),
    "batches by size": ("embedding-batch", {}),
}


@pytest.fixture(scope="module", params=CASES, ids=[*CASES])
def result(request):
    name, values = CASES[request.param]
    common = {"requests": 800, "warmup_s": 0.0}
    return simulate(load_scenario(name, values=common | values), seed=3)


def test_the_books_balance(result):
    check_conservation(result)
    table = conservation_table(result)
    ends = ["rejected", "timed_out", "cancelled", "failed", "in_flight"]
    assert (table["entered"] == table["left"] + table[ends].sum(axis=1)).all()
    caller = table[table["layer"] == "caller"]
    assert caller["entered"].sum() == len(result.requests)


def test_segments_of_every_success_sum_to_its_latencies(result):
    log = result.requests[result.requests["outcome"] == "succeeded"]
    whole, first = segments(log), segments(log, until="first_token")
    assert not whole.isna().any().any()
    assert (whole >= -1e-9).all().all()
    start = log["intended_start_s"]
    np.testing.assert_allclose(whole.sum(axis=1), log["finish_s"] - start, atol=1e-9)
    np.testing.assert_allclose(first.sum(axis=1), log["first_token_s"] - start, atol=1e-9)


def test_waits_are_never_negative_nor_longer_than_the_attempt(result):
    waits = queue_waits(result.requests, end_s=result.duration_s)
    stay = result.requests["finish_s"].fillna(result.duration_s)
    stay = stay - result.requests["intended_start_s"]
    assert list(waits.columns) == list(QUEUES)
    for layer in QUEUES:
        known = waits[layer].notna()
        assert (waits[layer][known] >= -1e-9).all()
        assert (waits[layer][known] <= stay[known] + 1e-9).all()


def test_classes_and_groups_add_up_to_the_whole(result):
    found = headline(result)
    json.dumps(plain(found), allow_nan=False)
    assert found["offered"] == len(result.trace.frame)
    assert sum(found["outcomes"].values()) == found["offered"]
    for outcome, count in found["outcomes"].items():
        assert sum(c["outcomes"][outcome] for c in found["by_class"].values()) == count
    assert grouped(result)["requests"].sum() == found["offered"]
    tokens = per_request(result).query("outcome == 'succeeded'")["output_tokens"].sum()
    assert found["output_tokens_per_s"] * result.duration_s == pytest.approx(tokens)


def test_figures_stay_in_their_bounds(result):
    found = headline(result)
    assert found["goodput_rps"] <= found["throughput_rps"] + 1e-12
    assert found["retry_amplification"] >= 1.0
    for name in ("accelerator_busy_fraction", "wasted_token_fraction", "error_rate_fraction",
                 "timeout_fraction", "double_queued_fraction", "goodput_fraction"):  # fmt: skip
        assert 0.0 <= found[name] <= 1.0 + 1e-9, name
    for latency, censored in (("ttft_s", "ttft_censored_s"), ("e2e_s", "e2e_censored_s")):
        for quantile in ("p50", "p90", "p95", "p99"):
            assert not found[latency][quantile] > found[censored][quantile]  # NaN: none streams


def test_a_verdict_is_reached_and_never_a_pass_from_thin_evidence(result):
    verdict = judge(result)
    json.dumps(verdict.to_json(), allow_nan=False)
    assert verdict.outcome != "pass"


def test_the_storm_amplifies_and_is_not_called_a_success():
    name, values = CASES["a storm of retries through a crash"]
    run = simulate(load_scenario(name, values={"requests": 800, "warmup_s": 0.0} | values), seed=3)
    assert headline(run)["retry_amplification"] > 1.1
    assert "retry_amplification" in {r.rule for r in judge(run).reasons if r.outcome == "fail"}
