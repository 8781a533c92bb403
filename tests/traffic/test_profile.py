from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

import capplan as cp
from capplan.traffic.profile import TokenTime, profile
from capplan.traffic.profile.periods import Periods
from capplan.traffic.trace import from_frame

AZURE = "traces/azure-llm-2023/AzureLLMInferenceTrace_{}.csv"
SERVED_S = 0.5


def poisson(rate: float, seconds: float, seed: int = 1, **columns: object):
    rng = np.random.default_rng(seed)
    n = rng.poisson(rate * seconds)
    rows = {
        "arrival_s": np.sort(rng.uniform(0, seconds, n)),
        "prompt_tokens": rng.lognormal(6, 1, n).astype(int) + 1,
        "output_tokens": rng.geometric(0.01, n),
    }
    frame = pd.DataFrame({**rows, **{k: v(rng, n) for k, v in columns.items()}})
    return from_frame(frame, duration_s=seconds)


def test_the_azure_conversation_hour_has_its_published_figures(shared_data):
    found = profile(cp.read_trace(shared_data / AZURE.format("conv")))
    assert found.ledger.kept == 19_366
    assert round(found.rate_rps, 2) == 5.53
    assert round(found.gap_cv, 2) == 1.09
    assert [found.prompt_tokens[p] for p in ("p50", "p95", "p99")] == [1020, 4083, 4142]
    assert [found.output_tokens[p] for p in ("p50", "p95", "p99")] == [129, 451, 601]
    assert not found.bursts_distinct


def test_the_azure_code_hour_is_bursty(shared_data):
    found = profile(cp.read_trace(shared_data / AZURE.format("code")))
    assert found.ledger.kept == 8_819
    assert round(found.gap_cv, 1) == 13.2
    assert round(found.overall.arrivals.peak_to_mean_60s, 1) == 4.2
    assert found.overall.arrivals.highest_rps_5s == 54.2
    assert "54.2 requests/s" in found.summary()
    assert found.bursts_distinct
    assert found.periods["burst"].rate_rps > 4 * found.periods["normal"].rate_rps


def test_the_json_document_has_the_contract_and_no_nan():
    document = profile(poisson(2, 900), service_time_s=SERVED_S).to_json()
    json.dumps(document, allow_nan=False)
    assert {"read", "kept", "dropped"} <= set(document["rows"])
    assert {"1", "60"} <= set(document["index_of_dispersion"])
    for name in ("prompt_tokens", "output_tokens"):
        assert {"mean", "p50", "p95", "p99", "p999", "max"} <= set(document[name])
    assert set(document["periods"]) == {"normal", "peak", "burst"}
    for name in ("duration_s", "rate_rps", "gap_cv", "peak_to_mean_60s", "by_class"):
        assert name in document


def test_a_poisson_stream_looks_like_one():
    found = profile(poisson(10, 3600), service_time_s=SERVED_S)
    arrivals = found.overall.arrivals
    assert arrivals.rate_rps == pytest.approx(10, abs=4 * math.sqrt(10 / 3600))
    assert arrivals.gap_cv == pytest.approx(1, abs=0.03)
    for scale, windows in (("1", 3600), ("10", 360), ("60", 60)):
        bound = 4 * math.sqrt(2 / windows)
        assert arrivals.index_of_dispersion[scale] == pytest.approx(1, abs=bound)
    assert not found.bursts_distinct
    assert found.overall.concurrency == pytest.approx(10 * SERVED_S, abs=0.3)


def test_requests_in_flight_of_a_poisson_stream_are_poisson():
    """An infinite server: the number in flight is Poisson with mean rate x service time."""
    found = profile(poisson(20, 20_000), service_time_s=SERVED_S).overall.in_flight
    assert found.mean == pytest.approx(10, abs=0.15)
    assert found.quantile(0.5) == 10
    assert found.share_above(15) == pytest.approx(0.0487, abs=0.006)


def test_rates_of_the_classes_add_up_and_little_law_holds_per_class():
    trace = poisson(6, 600, request_class=lambda rng, n: rng.choice(["a", "b"], n, p=[0.7, 0.3]))
    found = profile(trace, service_time_s={"a": 2.0, "b": 0.5})
    assert set(found.by_class) == {"a", "b"}
    total = sum(d.arrivals.rate_rps for d in found.by_class.values())
    assert total == pytest.approx(found.rate_rps)
    load = sum(d.concurrency for d in found.by_class.values())
    assert load == pytest.approx(found.overall.concurrency)


def test_a_surge_is_found_as_bursts_and_a_busy_quarter_as_peak():
    rng = np.random.default_rng(3)
    base = rng.uniform(0, 3600, 3600)
    busy = rng.uniform(900, 1800, 1800)
    surge = rng.uniform(3000, 3002, 60)
    arrival = np.sort(np.concatenate([base, busy, surge]))
    frame = pd.DataFrame({"arrival_s": arrival, "prompt_tokens": 10, "output_tokens": 10})
    found = profile(from_frame(frame, duration_s=3600.0), service_time_s=1.0)
    bursts = list(found.found.runs(2))
    assert any(start <= 3001 <= end for start, end in bursts)
    peaks = list(found.found.runs(1))
    assert all(start >= 840 and end <= 1800 for start, end in peaks)
    rates = {name: period.rate_rps for name, period in found.periods.items()}
    assert rates["burst"] > rates["peak"] > rates["normal"]
    assert sum(p.requests for p in found.periods.values()) == len(arrival)
    assert sum(p.seconds for p in found.periods.values()) == pytest.approx(3600)


def test_one_request_has_lengths_but_no_rate():
    frame = pd.DataFrame({"arrival_s": [5.0], "prompt_tokens": [10], "output_tokens": [20]})
    document = profile(from_frame(frame)).to_json()
    assert document["rate_rps"] is None
    assert document["gap_cv"] is None
    assert document["prompt_tokens"]["p50"] == 10
    assert document["prompt_tokens"]["intervals"]["p50"] == [None, None]


def test_a_quantile_interval_covers_the_true_one_for_most_samples():
    covered = 0
    for seed in range(100):
        tokens = np.random.default_rng(seed).lognormal(6, 1, 400)
        frame = pd.DataFrame({"arrival_s": range(400), "prompt_tokens": 1, "output_tokens": 1})
        frame["prompt_tokens"] = np.ceil(tokens).astype(int)
        estimate = profile(from_frame(frame)).prompt_tokens.quantiles["p90"]
        covered += estimate.low <= math.exp(6 + 1.2815515655) <= estimate.high
    assert covered >= 90


def test_without_deadlines_the_acceptable_wait_is_unknown():
    assert profile(poisson(1, 100)).overall.acceptable_wait["source"] == "unknown"
    stated = profile(poisson(1, 100, deadline_s=lambda rng, n: np.full(n, 30.0)))
    assert stated.overall.acceptable_wait["p50_s"] == 30
    assert stated.overall.acceptable_wait["source"] == "deadline"


def test_latencies_piled_at_the_longest_are_a_client_timeout():
    def latency(rng, n):
        return np.minimum(rng.exponential(2.0, n), 6.0)

    found = profile(poisson(5, 200, observed_e2e_s=latency))
    assert found.overall.acceptable_wait["source"] == "observed client timeout"
    assert found.overall.acceptable_wait["p50_s"] == 6.0
    assert found.service.origin == "measured"


def test_think_time_starts_when_the_answer_ends():
    frame = pd.DataFrame(
        {
            "arrival_s": [0.0, 1.0, 5.0, 5.5],
            "prompt_tokens": 10,
            "output_tokens": 10,
            "session": ["x", "y", "x", "x"],
        }
    )
    found = profile(from_frame(frame), service_time_s=2.0).sessions
    assert found["count"] == 2
    assert found["think_time_s"]["n"] == 1
    assert found["think_time_s"]["p50"] == pytest.approx(3.0)
    assert found["overlapping_fraction"] == 0.5


def test_only_leading_blocks_seen_before_are_reusable():
    frame = pd.DataFrame(
        {
            "arrival_s": [0.0, 1.0, 2.0],
            "prompt_tokens": [30, 30, 20],
            "output_tokens": 10,
            "prefix_blocks": [np.array([1, 2, 3]), np.array([1, 9, 3]), np.array([8, 1])],
        }
    )
    found = profile(from_frame(frame, prefix_block_tokens=10)).prefix_reuse
    assert found["reusable_block_fraction"] == pytest.approx(1 / 8)
    assert found["reusable_token_fraction"] == pytest.approx(10 / 80)
    assert found["requests_with_reuse_fraction"] == pytest.approx(1 / 3)


def test_a_drift_of_the_lengths_is_seen_and_none_is_not():
    steady = profile(poisson(2, 1000)).drift
    assert steady["lengths_drift"] is False
    trace = poisson(2, 1000)
    late = trace.frame["arrival_s"] > 500
    frame = trace.frame.assign(prompt_tokens=trace.frame["prompt_tokens"] * (1 + late))
    drifted = profile(from_frame(frame, duration_s=1000.0)).drift
    assert drifted["lengths_drift"] is True
    assert drifted["prompt_ratio"] == pytest.approx(2, rel=0.3)


def test_the_hour_of_the_day_is_utc_where_the_start_is_known():
    frame = pd.DataFrame(
        {"arrival_s": [0.0, 1800.0, 3600.0], "prompt_tokens": 1, "output_tokens": 1}
    )
    start = datetime(2024, 5, 10, 23, 30, tzinfo=UTC)
    found = profile(from_frame(frame, start=start, duration_s=3600.0)).time_of_day
    assert found["known"] is True
    assert found["rate_rps"] == {"0": 2 / 1800, "23": 1 / 1800}


def test_wide_lengths_are_flagged_with_advice():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "arrival_s": np.arange(1000.0),
            "prompt_tokens": rng.integers(1, 4000, 1000),
            "output_tokens": np.where(rng.uniform(size=1000) < 0.05, 5000, 100),
        }
    )
    names = {flag["flag"] for flag in profile(from_frame(frame)).overall.flags}
    assert names == {"wide_input", "wide_output"}
    narrow = frame.assign(prompt_tokens=500, output_tokens=100)
    assert profile(from_frame(narrow)).overall.flags == ()


def test_tenants_streaming_and_priorities_are_shares():
    trace = poisson(
        5,
        400,
        tenant=lambda rng, n: rng.choice(list("abcdefgh"), n, p=[0.5, *[0.5 / 7] * 7]),
        streaming=lambda rng, n: rng.uniform(size=n) < 0.25,
        priority=lambda rng, n: rng.integers(0, 2, n),
    )
    found = profile(trace, service_time_s=1.0)
    assert found.tenants["count"] == 8
    assert found.tenants["top1_share"] == pytest.approx(0.5, abs=0.05)
    assert found.tenants["top5_share"] == pytest.approx(0.5 + 4 * 0.5 / 7, abs=0.06)
    assert found.overall.streaming_fraction == pytest.approx(0.25, abs=0.05)
    assert sum(found.priorities.values()) == pytest.approx(1)


def test_a_service_time_that_does_not_fit_is_refused():
    trace = poisson(1, 50)
    with pytest.raises(ValueError, match="classes"):
        profile(trace, service_time_s={"a": 1.0})
    with pytest.raises(ValueError, match="one positive time"):
        profile(trace, service_time_s=-1.0)
    law = TokenTime(base_s=1.0, prompt_s_per_token=0.0, output_s_per_token=0.0)
    assert profile(trace, service_time_s=law).overall.mean_service_s == 1.0


def test_periods_have_their_own_burstiness_by_class_and_overall():
    """Calm at 1/s with a surge of 60/s for 10 s: CV 1 inside each, far more across."""
    rng = np.random.default_rng(4)
    calm, surge = np.cumsum(rng.exponential(1.0, 1200)), 600 + np.sort(rng.uniform(0, 10, 600))
    frame = pd.DataFrame(
        {
            "arrival_s": np.concatenate([calm, surge]),
            "prompt_tokens": 10,
            "output_tokens": 5,
            "request_class": ["calm"] * 1200 + ["surge"] * 600,
        }
    )
    found = profile(from_frame(frame))
    burst = found.periods["burst"]
    assert burst.gap_cv == pytest.approx(1.0, abs=0.15)
    assert found.gap_cv > 1.3
    assert found.by_class["surge"].periods["burst"].requests >= 590
    assert found.by_class["calm"].periods["normal"].index_of_dispersion["1"] == pytest.approx(
        1.0, abs=0.2
    )
    document = found.to_json()
    assert document["by_class"]["calm"]["periods"]["normal"]["gap_cv"] == pytest.approx(1, abs=0.1)
    total = sum(
        p.requests for name in found.by_class for p in found.by_class[name].periods.values()
    )
    assert total == len(frame)


def test_gaps_across_the_end_of_a_period_belong_to_none():
    labels = np.array([0, 0, 1, 1, 0], np.int8)
    arrival = np.array([0.2, 1.7, 2.5, 3.5, 4.5])
    periods = Periods(
        window_s=60.0, bin_s=1.0, of_bin=labels, of_request=labels,
        bin_seconds=np.ones(5), bin_of_request=np.arange(5),
    )  # fmt: skip
    every = np.ones(5, bool)
    assert periods.gaps(0, arrival, every).tolist() == [1.5]
    assert periods.gaps(1, arrival, every).tolist() == [1.0]
    assert periods.counts(0, np.array([1, 1, 1, 1, 0], bool)).tolist() == [1, 1, 0]
