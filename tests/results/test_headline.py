import json
import math
import time

import numpy as np
import pandas as pd
import pytest

import capplan as cp
from capplan.encoding import plain
from capplan.results import (
    grouped,
    headline,
    per_request,
    phase,
    pool_cost_usd_per_hour,
)
from capplan.results.headline import wasted_token_fraction

KEYS = {
    "offered", "outcomes", "duration_s", "goodput_rps", "throughput_rps", "output_tokens_per_s",
    "retry_amplification", "ttft_s", "tpot_s", "e2e_s", "ttft_censored_s", "e2e_censored_s",
    "queue_wait_s", "stable", "error_rate_fraction", "timeout_fraction", "wasted_token_fraction",
    "accelerator_busy_fraction", "kv_usage", "cache_hit_fraction", "double_queued_fraction",
    "cost_usd_per_success", "samples", "by_class", "wall_s", "simulated_requests_per_wall_s",
}  # fmt: skip


@pytest.fixture
def four(make_run, served, ended):
    """Two successes (one late on TTFT), one rejected, one timed out in the scheduler's queue."""
    rows = [
        served("a", 0.0, cached_tokens=50),
        served("b", 1.0, waits=(0.5, 2.0, 0.0)),
        ended("c", 2.0, at="gateway_in_s", outcome="rejected", layer="gateway", finish=2.2),
        ended(
            "d", 3.0, at="scheduler_queue_in_s", outcome="timed_out", layer="scheduler_queue",
            finish=9.2,
        ),
    ]  # fmt: skip
    timeline = [
        {"time_s": t, "layer": "decode", "replica": "r0", "metric": "busy_fraction", "value": v}
        for t, v in ((0.0, 1.0), (25.0, 0.0))
    ]
    return make_run(rows, timeline=timeline, wall_s=2.0)


def test_headline_has_the_keys_of_the_contract_and_is_json(four):
    found = headline(four)
    assert set(found) >= KEYS
    json.dumps(plain(found), allow_nan=False)
    assert set(found["by_class"]) == {"chat", "jobs"}
    assert set(found["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99"}


def test_headline_of_four_requests_by_hand(four):
    found = headline(four)
    assert found["offered"] == 4
    assert found["outcomes"] == {
        "succeeded": 2, "rejected": 1, "timed_out": 1, "cancelled": 0, "failed": 0, "in_flight": 0
    }  # fmt: skip
    assert found["goodput_rps"] == pytest.approx(1 / 100)
    assert found["throughput_rps"] == pytest.approx(2 / 100)
    assert found["output_tokens_per_s"] == pytest.approx(42 / 100)
    assert found["error_rate_fraction"] == 0.25
    assert found["timeout_fraction"] == 0.25
    assert found["retry_amplification"] == 1.0
    assert found["accelerator_busy_fraction"] == pytest.approx(0.25)
    assert found["ttft_s"]["mean"] == pytest.approx((1.3 + 3.8) / 2)
    assert found["ttft_censored_s"]["p50"] == math.inf
    assert plain(found["ttft_censored_s"])["p99"] == "inf"
    assert found["double_queued_fraction"] == pytest.approx(1 / 3)
    assert found["queue_wait_s"]["scheduler_queue"]["mean"] == pytest.approx((0 + 0 + 6.0) / 3)
    assert found["cost_usd_per_success"] == pytest.approx(3.6 / 36 / 2)
    assert found["simulated_requests_per_wall_s"] == 2.0
    assert found["stable"] is None


def test_a_class_without_requests_has_nothing_measured_not_zero(four):
    jobs = headline(four)["by_class"]["jobs"]
    assert jobs["offered"] == 0
    assert all(math.isnan(v) for v in jobs["e2e_s"].values())
    assert math.isnan(jobs["error_rate_fraction"])
    assert plain(jobs["e2e_s"])["p99"] is None


def test_cost_without_a_price_is_unknown_and_without_a_success_infinite(
    make_run, ended, two_classes
):
    rows = [ended("c", 2.0, at="gateway_in_s", outcome="rejected", layer="gateway", finish=2.2)]
    assert headline(make_run(rows))["cost_usd_per_success"] == math.inf
    pool = two_classes.pools[0].model_copy(update={"price_usd_per_accelerator_hour": None})
    scenario = two_classes.model_copy(update={"pools": (pool,)})
    assert math.isnan(headline(make_run(rows, scenario=scenario))["cost_usd_per_success"])


def test_a_price_is_the_scenarios_else_the_catalogues(two_classes):
    from capplan.catalog import price

    pool = two_classes.pools[0].model_copy(update={"accelerator": "H100-SXM-80GB"})
    assert pool_cost_usd_per_hour(pool) == 3.6
    pool = pool.model_copy(update={"price_usd_per_accelerator_hour": None, "replicas": 3})
    assert pool_cost_usd_per_hour(pool) == pytest.approx(3 * price("H100-SXM-80GB"))


def test_the_class_costs_of_a_pool_add_up_to_the_pool(make_run, served):
    rows = [served("a", 0.0), served("b", 1.0, request_class="jobs", prompt_tokens=500)]
    found = headline(make_run(rows))["by_class"]
    parts = [found[c]["cost_usd_per_success"] for c in ("chat", "jobs")]
    assert sum(parts) == pytest.approx(0.1)
    assert parts[1] / parts[0] == pytest.approx(521 / 121)


def test_waste_is_a_share_of_all_computed_tokens(make_run, served):
    rows = [
        served("a", 0.0, cached_tokens=40),  # 60 + 21 computed
        served("b", 1.0, outcome="failed", outcome_layer="decode", wasted_tokens=119),
    ]
    assert wasted_token_fraction(make_run(rows).requests) == pytest.approx(119 / 200)


def test_goodput_is_unknown_where_a_promise_cannot_be_checked(make_run, served):
    run = make_run([served("a", 0.0, first_token_s=None), served("b", 1.0, request_class="jobs")])
    classes = headline(run)["by_class"]
    found = {name: own["goodput_rps"] for name, own in classes.items()}
    assert math.isnan(found["chat"])
    assert found["jobs"] == pytest.approx(1 / 100)


def test_goodput_never_exceeds_throughput_nor_successes_the_offered(make_run, served):
    generator = np.random.default_rng(7)
    rows = [served(str(i), float(i), waits=tuple(generator.exponential(1, 3))) for i in range(50)]
    found = headline(make_run(rows))
    assert found["goodput_rps"] <= found["throughput_rps"]
    for column in ("ttft_s", "e2e_s"):
        values = list(found[column].values())[1:]
        assert values == sorted(values)


def test_groups_cover_every_request_once(make_run, served):
    rows = [served(str(i), float(i), prompt_tokens=100 * (i + 1)) for i in range(12)]
    rows += [served("j", 3.0, request_class="jobs", priority=5)]
    found = grouped(make_run(rows))
    assert found["requests"].sum() == 13
    assert found["succeeded"].sum() == 13
    chat = found[found["request_class"] == "chat"]
    assert chat["length_bucket"].tolist() == ["≤ 256", "≤ 1024", "≤ 4096"]
    assert chat["requests"].tolist() == [2, 8, 2]


def test_the_group_that_keeps_its_promises_least_is_named(make_run, served):
    """Of tenant b the long prompts come late: TTFT 4.3 s of 2 s promised."""
    rows = [served(f"a{i}", float(i), tenant="a") for i in range(40)]
    rows += [served(f"b{i}", float(i), tenant="b") for i in range(40)]
    late = {"tenant": "b", "prompt_tokens": 2000, "waits": (3.0, 0.0, 0.0)}
    rows += [served(f"c{i}", float(i), **late) for i in range(40)]
    rows += [served("few", 1.0, **late | {"tenant": "c"})]
    run = make_run(rows)
    groups = run.groups()
    assert groups["requests"].tolist() == [40, 40, 40, 1]
    assert groups["good_fraction"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert groups["TTFT p99_s"].tolist() == pytest.approx([1.3, 1.3, 4.3, 4.3])
    assert "b with prompts of ≤ 4096 tokens" in run.group_summary()
    kept = make_run(rows[:80])
    assert "tokens" not in kept.group_summary()


def test_many_tenants_have_their_smaller_ones_together(make_run, served):
    rows = [served(f"{t}-{i}", float(i), tenant=f"t{t}") for t in range(25) for i in range(t + 1)]
    found = grouped(make_run(rows), by=["tenant"])
    assert len(found) == 21
    assert found.set_index("tenant")["requests"]["5 others"] == 1 + 2 + 3 + 4 + 5


def test_phases_follow_the_shape_and_the_faults(two_classes):
    from capplan.scenario.files import with_values

    spike = {"kind": "spike", "base_rps": 1.0, "peak_rps": 5.0, "first_s": 10.0, "burst_s": 5.0,
             "every_s": 50.0}  # fmt: skip
    scenario = with_values(two_classes, {"traffic.shape": spike})
    times = pd.Series([0.0, 10.0, 15.0, 61.0])
    assert phase(scenario, times).tolist() == ["base", "burst", "base", "burst"]
    crashed = with_values(two_classes, {"faults": [{"kind": "crash", "at_s": 5.0, "down_s": 5.0}]})
    assert phase(crashed, times)[:2].tolist() == ["steady, before fault", "steady, after fault"]
    steps = with_values(
        two_classes,
        {"traffic.shape": {"kind": "step", "start_rps": 1.0, "steps": 2, "hold_s": 10.0,
                           "ramp_s": 2.0}},
    )  # fmt: skip
    assert phase(steps, times).tolist() == ["level 1", "ramp", "level 2", "level 2"]


def test_twenty_thousand_rows_take_a_fraction_of_a_second(make_run, served):
    rows = [served(f"r{i}", i * 0.01) for i in range(100)]
    log = pd.concat([make_run(rows).requests] * 200, ignore_index=True)
    log["request_id"] = [f"r{i}" for i in range(len(log))]
    log["intended_start_s"] = np.arange(len(log)) * 0.01
    run = make_run(rows[:1])
    object.__setattr__(run, "requests", log)
    per_request(run)
    best = min(_seconds(lambda: headline(run)) for _ in range(3))
    assert best < 0.3  # 0.1 s on an idle machine


def _seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def test_a_window_without_requests_has_no_figures():
    study = cp.load_scenario("benchmark", values={"requests": 300, "warmup_s": 1e4})
    figures = headline(cp.simulate(study, seed=1))
    assert figures["offered"] == 0
    for name in ("goodput_rps", "cost_usd_per_success", "wasted_tokens", "wasted_accelerator_s",
                 "wasted_accelerator_fraction", "wasted_token_fraction"):  # fmt: skip
        assert math.isnan(figures[name]), name
