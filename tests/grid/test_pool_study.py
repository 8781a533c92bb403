"""A pool studied alone, its grid of batch windows, and what is chosen from it."""

from dataclasses import replace

import numpy as np
import pytest

import capplan as cp
from capplan.budget import resolved
from capplan.grid.buckets import APART_GAP_S, far_apart
from capplan.grid.only_pool import only_pool
from capplan.results import by_bucket, per_request
from capplan.scenario.files import with_values
from capplan.schema import POINT_STATES

SEQS = "pools.llm.batching.max_num_seqs"


def studied(name, requests, seed=1, **values):
    scenario = cp.load_scenario(name, values=values)
    return cp.pool_studies(scenario, cp.draw(scenario, seed=seed), requests=requests, seed=seed)


@pytest.fixture(scope="module")
def scenario():
    return resolved(cp.load_scenario("chat-service"))


@pytest.fixture(scope="module")
def studies():
    return studied("chat-service", 1500)


@pytest.fixture(scope="module")
def study(studies):
    return studies[0]


@pytest.fixture(scope="module")
def swept(study):
    return cp.sweep(study.scenario, {SEQS: [1, 64]}, trace=study.trace, seed=1, by_bucket=True)


def test_a_pool_alone_has_its_own_classes_requests_and_the_same_gateway(scenario, study):
    served = {c.name for c in study.scenario.classes}
    assert served == {"chat", "assistant"}
    assert set(study.trace.frame["request_class"]) == served
    assert study.scenario.gateway == scenario.gateway
    assert [pool.name for pool in study.scenario.pools] == [study.pool.name]
    assert study.point == (64, 2048)


def test_every_pool_with_requests_is_studied(studies):
    assert [one.pool.name for one in studies] == ["llm", "labelling"]


@pytest.mark.parametrize(
    ("pool", "tenants"),
    [
        ("labelling", {"engineering", "back-office"}),
        ("llm", {"web-shop", "mobile-app", "engineering", "back-office"}),
    ],
)
def test_a_protected_pool_alone_keeps_the_limits_of_its_callers_only(pool, tenants):
    [alone] = [one for one in studied("protected-chat", 50) if one.pool.name == pool]
    assert {quota.tenant for quota in alone.scenario.gateway.quotas} == tenants
    assert not alone.pool.is_elastic
    assert alone.pool.replicas == (6 if pool == "llm" else 1)  # what the autoscaler brings
    assert alone.scenario.breakers == ()
    acting = "(all the replicas it may bring are there) and the standby."
    assert alone.summary().endswith(acting) == (pool == "llm")


def test_a_pool_alone_loses_the_weights_faults_and_places_of_others():
    changes = {
        "gateway.token_limits": [],
        "pools.labelling.queue": {
            "order": "weighted_fair",
            "fair": {"tenants": {"web-shop": 2.0, "engineering": 3.0}},
        },
        "pools.labelling.standby": {"replicas": 1, "ready": {"kind": "fixed", "seconds": 1.0}},
        "faults": [{"at_s": 1.0}, {"kind": "generator_limit", "at_s": 1.0, "rate_rps": 9.0}],
        "stages.failed_pool": "llm",
    }
    alone = only_pool(with_values(cp.load_scenario("protected-chat"), changes), "labelling")
    assert alone.pools[0].queue.fair.tenants == {"engineering": 3.0}
    assert [fault.kind for fault in alone.faults] == ["generator_limit"]
    assert alone.pools[0].standby is None


def test_the_window_holds_the_scenarios_own_point(study):
    across, down = study.window.values()
    assert study.point[0] in across
    assert study.point[1] in down
    assert study.at(*study.point) == study.scenario


def test_a_batch_of_one_fails_and_the_chosen_point_does_not(swept):
    points = swept.points.set_index(SEQS)
    assert points.loc[1, "state"] == "failed"
    assert points.loc[1, "why"] != ""
    assert swept.chosen[SEQS] == 64
    assert swept.chosen["outcome"] in ("pass", "retest")
    assert swept.choice()["fields"] == swept.choice()["now"] == {"max_num_seqs": 64}
    assert swept.table()["max_num_seqs"].tolist() == [1, 64]


def test_more_throughput_with_a_promise_broken_is_named_a_failure(swept):
    frame = swept.frame.assign(
        throughput_rps=[9.0, 5.0], outcome=["fail", "pass"], timeout_fraction=[0.1, 0.0]
    )
    changed = replace(swept, frame=frame)
    assert changed.points["why"].tolist() == ["throughput up, timeouts", ""]
    assert changed.failures().startswith("1 of 2 points")


def test_a_point_that_cannot_be_built_says_why(study):
    part = "pools.llm.batching"
    vary = {f"{part}.chunked_prefill": [True, False], f"{part}.max_num_batched_tokens": [512]}
    swept = cp.sweep(study.scenario, vary, trace=study.trace)
    assert swept.frame["feasible"].tolist() == [True, False]
    assert swept.points["why"].iloc[1] == swept.frame["reason"].iloc[1]
    assert swept.points["state"].iloc[1] == POINT_STATES["fail"]


def test_a_grid_of_one_or_two_fields_is_drawn_and_of_three_is_not(study, swept):
    assert swept.chart(reference=(1, 64)).to_dict()
    assert swept.tradeoff().to_dict()
    three = {SEQS: [64], study.fields[1]: [2048], "gateway.overhead_s": [0.0]}
    with pytest.raises(ValueError, match="one or two varied fields"):
        cp.sweep(study.scenario, three, trace=study.trace).chart()


def test_equal_lengths_choose_nothing_and_say_unknown():
    [study] = studied("benchmark", 300)
    swept = cp.sweep(study.scenario, {study.fields[0]: [16, 64]}, trace=study.trace)
    assert swept.chosen is None
    assert swept.choice()["outcome"] == "unknown"
    assert "unknown" in swept.summary()


def test_buckets_count_every_request_once(study, swept):
    result = cp.simulate(study.scenario, trace=study.trace)
    table = by_bucket(result)
    assert table["requests"].sum() == len(per_request(result))
    assert (table["goodput_rps"] <= table["throughput_rps"] + 1e-9).all()
    assert (table["held_tokens"] > 0).all()
    assert swept.buckets.table()["requests"].sum() == len(study.trace)
    assert swept.buckets.chart().to_dict()


def test_short_requests_alone_are_faster_than_with_the_long_ones(studies):
    found = studies[1].slowdown([16])
    by_mix = found.frame.set_index("mix")["slowdown"]
    assert by_mix["with the long"] > by_mix["short alone"]
    assert by_mix["short alone"] > 0.9
    assert found.short + found.long == len(studies[1].trace)


def test_requests_far_apart_are_not_slowed_down(study):
    gaps = np.diff(far_apart(study.trace).frame["arrival_s"])
    assert (gaps >= APART_GAP_S).all()
