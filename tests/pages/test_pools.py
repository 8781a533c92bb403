"""A pool studied alone, its grid of batch windows, and what is chosen from it."""

import numpy as np
import pytest

from capplan import pages
from capplan.pages import batching, buckets
from capplan.results import per_request
from capplan.scenario.files import with_values
from capplan.simulation import simulate


@pytest.fixture(scope="module")
def page():
    return pages.open_page("chat-service", seed=1)


@pytest.fixture(scope="module")
def study(page):
    return pages.pools.study_pool(page, "continuous", requests=1500, load=1.0)


@pytest.fixture(scope="module")
def grid(study):
    return batching.sweep_window(study, across=[1, 64], down=[2048], reference=(1, 2048))


def test_a_pool_alone_has_its_own_classes_requests_and_the_same_gateway(page, study):
    served = {c.name for c in study.scenario.classes}
    assert served == {"chat", "assistant"}
    assert set(study.trace.frame["request_class"]) == served
    assert study.scenario.gateway == page.scenario.gateway
    assert [pool.name for pool in study.scenario.pools] == [study.pool.name]
    assert study.point == (64.0, 2048.0)


@pytest.mark.parametrize(
    ("kind", "tenants"),
    [
        ("dynamic", {"engineering", "back-office"}),
        ("continuous", {"web-shop", "mobile-app", "engineering", "back-office"}),
    ],
)
def test_a_protected_pool_alone_keeps_the_limits_of_its_callers_only(kind, tenants):
    page = pages.open_page("protected-chat", seed=1)
    alone = pages.pools.study_pool(page, kind, requests=50, load=1.0)
    assert {quota.tenant for quota in alone.scenario.gateway.quotas} == tenants
    assert not alone.pool.is_elastic
    assert alone.pool.replicas == (6 if kind == "continuous" else 1)  # what the autoscaler brings
    assert alone.scenario.breakers == ()
    told = pages.pools.study_parts(alone)[-1]
    acting = "(all the replicas it may bring are there) and the standby."
    assert told.endswith(acting) == (kind == "continuous")


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
    page = pages.open_page("protected-chat", seed=1)
    scenario = with_values(page.scenario, changes)
    alone = pages.pools.scenario_of_pool(scenario, "labelling", trace=page.draw(), warmup_s=0.0)
    assert alone.pools[0].queue.fair.tenants == {"engineering": 3.0}
    assert [fault.kind for fault in alone.faults] == ["generator_limit"]
    assert alone.pools[0].standby is None


def test_a_scenario_without_such_a_pool_has_nothing_to_study():
    page = pages.open_page("benchmark", requests=50)
    assert pages.pools.study_pool(page, "dynamic", requests=50, load=1.0) is None
    assert batching.sweep_window(None, across=[1], down=[1]) is None
    assert batching.grid_parts(None) == [pages.pools.NO_POOL]
    assert buckets.slowdown_parts(None, [1]) == [pages.pools.NO_POOL]


def test_a_batch_of_one_fails_and_the_chosen_point_does_not(grid):
    state = grid.points.set_index("across")["state"]
    assert state[1.0] == "failed"
    assert grid.points.set_index("across")["why"][1.0] != ""
    assert grid.chosen == (64.0, 2048.0)
    assert grid.outcome in ("pass", "retest")


def test_more_throughput_with_a_promise_broken_is_named_a_failure(grid):
    points = grid.points.assign(
        throughput_rps=[9.0, 5.0], state=["failed", "inside the budget"], timeout_fraction=[0.1, 0]
    )
    assert batching._why(points, grid.study).tolist() == ["throughput up, timeouts", ""]


def test_the_scenarios_own_point_is_always_part_of_the_grid(study):
    found = batching.sweep_window(study, across=[32], down=[512])
    assert study.point in set(zip(found.points["across"], found.points["down"], strict=True))


def test_equal_lengths_choose_nothing_and_say_unknown():
    page = pages.open_page("benchmark", requests=300)
    study = pages.pools.study_pool(page, "continuous", requests=300, load=1.0)
    assert study.equal_lengths
    found = batching.sweep_window(study, across=[16, 64], down=[2048])
    assert found.chosen is None
    assert found.outcome == "unknown"
    assert "unknown" in found.said()


def test_a_bucket_table_counts_every_request_once(study):
    result = simulate(study.scenario, trace=study.trace)
    table = buckets.bucket_table(result)
    assert table["requests"].sum() == len(per_request(result))
    assert (table["goodput_rps"] <= table["throughput_rps"] + 1e-9).all()
    assert (table["held_tokens"] > 0).all()


def test_short_requests_alone_are_faster_than_with_the_long_ones():
    page = pages.open_page("chat-service", seed=1)
    study = pages.pools.study_pool(page, "dynamic", requests=1500, load=1.0)
    found = buckets.slowdown(study, [16])
    by_mix = found.frame.set_index("mix")["slowdown"]
    assert by_mix["with the long"] > by_mix["short alone"]
    assert by_mix["short alone"] > 0.9
    assert found.short + found.long == len(study.trace)


def test_requests_far_apart_are_not_slowed_down(study):
    apart = buckets._far_apart(study.trace)
    gaps = np.diff(apart.frame["arrival_s"])
    assert (gaps >= buckets.ALONE_GAP_S).all()
