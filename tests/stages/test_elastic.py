"""An acceptance of a pool that scales: what its recovery rests on."""

from types import SimpleNamespace

import pytest

from capplan.scenario.files import with_values
from capplan.stages import run_stages
from capplan.stages.crossed_limit import crossed_limit
from capplan.stages.degradation import blame
from capplan.stages.next_change import run_next
from capplan.stages.run_load import run_load
from capplan.stages.scaling import added, release_s
from capplan.stages.stage import stage_of

FALL = {"run": ["baseline", "fall_back"], "peak_rps": 7.0, "fall_back_s": 60.0}


def scaling(*, window_s=60.0, queue=None, **rules):
    """Return a pool that adds replicas when more than one request is held by each."""
    scaler = {
        "max_replicas": 4,
        "metrics": [{"metric": "in_flight", "target": 1.0}],
        "behavior": {"scale_down": {"stabilization_window_s": window_s}},
    }
    return {
        "name": "server",
        "cold_start_s": 20.0,
        "queue": {"owner": "platform"} | (queue or {}),
        "router": {"max_in_flight": 4},
        "autoscaler": scaler | rules,
        "batching": {
            "kind": "dynamic",
            "max_batch_size": 1,
            "scheduler": {"owner": "platform"},
            "service": {"base_s": 0.1, "exponential": True},
        },
    }


@pytest.fixture(name="fallen", scope="module")
def _fallen(single_server):
    return run_stages(single_server(pool=scaling(), plan=FALL), seed=1)


def test_a_recovery_that_rests_on_new_replicas_alone_is_no_protection(fallen):
    rules = {r.rule: r for r in fallen.verdict.reasons}
    assert added(fallen.stage("fall_back").run) >= 1
    assert fallen.recovery.converged
    assert rules["recovery_by_scale_out"].outcome == "retest"
    assert rules["protective_action"].outcome == "fail"
    assert rules["replicas_as_before"].outcome == "pass"


def test_the_fall_back_is_held_until_replicas_can_be_released(fallen, single_server):
    [pool] = fallen.scenario.pools
    assert release_s(pool) == 60.0 + 4 * 30.0
    stage = fallen.stage("fall_back")
    assert stage.end_s - stage.start_s == 60.0 + release_s(pool)
    assert release_s(single_server().pools[0]) == 0.0


def test_a_queue_that_refuses_acts_beside_the_scale_out(single_server):
    pool = scaling(queue={"length": 5, "wait_limit_s": 2.0})
    found = run_stages(single_server(pool=pool, plan=FALL), seed=1)
    rules = {r.rule: r for r in found.verdict.reasons}
    assert rules["protective_action"].outcome == "pass"
    assert "pools.server.queue" in rules["protective_action"].evidence


def test_a_target_that_no_replica_can_exceed_is_a_finding_of_the_acceptance(single_server):
    pool = scaling(metrics=[{"metric": "in_flight", "target": 9.0}])
    found = run_stages(single_server(pool=pool, plan=FALL), seed=1)
    [reason] = [r for r in found.verdict.reasons if r.rule == "target_out_of_reach"]
    assert reason.outcome == "fail"
    assert reason.next_action.startswith("pools.server.autoscaler.metrics.0.target")


OWNED = [{"name": "rack", "accelerators": 9, "owner": "platform"}]
SHORT = {"queue": {"length": 0}, "resource_pool": "rack"}


@pytest.mark.parametrize(
    ("most", "field"),
    [(2, "pools.server.autoscaler.max_replicas"), (9, "pools.server.autoscaler.metrics.0.target")],
)
def test_planned_capacity_is_the_most_replicas_or_when_they_are_wanted(single_server, most, field):
    """Above 10/s one replica is too few; two serve 14/s, but five are not there in time for 40."""
    load = 22.0 if most == 2 else 40.0
    scenario = single_server(pool=scaling(max_replicas=most) | SHORT, resource_pools=OWNED)
    limit = crossed_limit(*overloaded(scenario, load))
    assert limit.field == field
    changed = with_values(scenario, {limit.field: limit.candidate})
    assert changed.pools[0].autoscaler != scenario.pools[0].autoscaler


@pytest.mark.parametrize(
    ("queue", "resource_pools", "field"),
    [
        ({}, OWNED, "pools.server.queue.wait_limit_s"),
        ({"length": 0}, OWNED, "pools.server.autoscaler.max_replicas"),
        ({"length": 50}, [OWNED[0] | {"owner": ""}], "pools.server.queue.wait_limit_s"),
        ({"length": 50}, [OWNED[0] | {"accelerators": 2}], "pools.server.queue.wait_limit_s"),
    ],
)
def test_requests_are_refused_before_replicas_are_added(
    single_server, queue, resource_pools, field
):
    """New replicas are named only if an owned resource pool holds them."""
    pool = scaling(max_replicas=2, queue=queue) | {"resource_pool": "rack"}
    scenario = single_server(pool=pool, resource_pools=resource_pools)
    limit = crossed_limit(*overloaded(scenario, 22.0))
    assert limit.field == field
    if field.endswith("wait_limit_s"):  # who waits so long still keeps the promise of a second
        assert 0 < limit.candidate < 1.0


def overloaded(scenario, load):
    """Return a stage at a load, the class that breaks, and what is to blame."""
    shape = {"kind": "steady", "rate_rps": load}
    run = run_load(scenario, shape, duration_s=60.0, seed=1)
    stage = stage_of("x", "ramp", load, run, start_s=20.0, end_s=60.0)
    return stage, "chat", blame(stage, stage.breaks[0], None)


@pytest.mark.parametrize(("owner", "outcome"), [("platform", "pass"), ("", "fail")])
def test_a_recovery_by_planned_replicas_is_retested_and_by_others_fails(
    single_server, owner, outcome
):
    rack = {"name": "rack", "accelerators": 4, "owner": owner}
    pool = scaling() | {"resource_pool": "rack"}
    found = run_stages(single_server(pool=pool, plan=FALL, resource_pools=[rack]), seed=1)
    rules = {r.rule: r.outcome for r in found.verdict.reasons}
    assert rules["recovery_by_scale_out"] == "retest"
    assert rules["protective_action"] == outcome


@pytest.mark.parametrize(("owner", "outcome"), [("platform", "retest"), ("", "unknown")])
def test_replicas_are_tried_only_where_they_are_planned(single_server, owner, outcome):
    rack = [OWNED[0] | {"owner": owner}]
    pool = scaling(max_replicas=2) | SHORT
    scenario = single_server(pool=pool, resource_pools=rack)
    stage, name, cause = overloaded(scenario, 22.0)
    limit = crossed_limit(stage, name, cause)
    assert limit.field == "pools.server.autoscaler.max_replicas"
    point = SimpleNamespace(
        limit=limit, stage=stage, request_class=name, promise="e2e_s", found=stage.breaks[0]
    )
    assert run_next(scenario, point, seed=1).outcome == outcome
