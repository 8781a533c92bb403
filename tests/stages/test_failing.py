"""What the failure stage does for each kind of fault, and whose limit a ramp finds."""

import pytest

from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.sizing.loss import Loss, with_loss
from capplan.stages import run_stages
from capplan.stages.failure_stage import failure_of, replacement_s

POOL = {
    "name": "server",
    "replicas": 2,
    "cold_start_s": 20.0,
    "queue": {"owner": "platform"},
    "router": {"max_in_flight": 1},
    "batching": {
        "kind": "dynamic",
        "max_batch_size": 1,
        "scheduler": {"owner": "platform"},
        "service": {"base_s": 0.1, "exponential": True},
    },
}
PLAN = {"run": ["failure"], "planned_rps": 10.0, "peak_rps": 11.0}


def made(single_server, kind, *, pool=None, plan=None, **fields):
    return single_server(
        pool=POOL | (pool or {}), plan=PLAN | {"failure": kind} | (plan or {}), **fields
    )


@pytest.mark.parametrize(
    ("kind", "note", "broken"),
    [
        ("crash", "one of 2 server replicas away for 60 s", True),
        ("hang", "one of 2 server replicas hanging for 60 s", True),
        ("slow", "one of 2 server replicas 2 times slower for 60 s", False),
        ("node_loss", "a machine of server away for 60 s", True),
        ("model_reload", "server replicas load their model anew, at most 1 at a time", True),
        ("router_blind", "the router of server blind for 60 s", True),
    ],
)
def test_each_kind_of_fault_strikes_and_is_retested(single_server, kind, note, broken):
    """At 10/s two replicas of 10/s each suffice, and one does not."""
    own = {"replicas_per_node": 1} if kind == "node_loss" else {}
    found = run_stages(made(single_server, kind, pool=own), seed=1)
    failure, retest = found.stage("failure"), found.stage("retest")
    assert failure.note == note
    assert bool(failure.breaks) is broken
    assert failure.run.scenario.faults[0].kind == kind
    assert not retest.breaks
    assert failure.end_s <= retest.start_s


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [("v1", "v2", "fail"), ("v1", "v1", "pass"), ("", "v2", "fail"), ("", "", None)],
)
def test_another_version_after_a_reload_is_no_recovery(single_server, before, after, outcome):
    reload = {"kind": "model_reload", "at_s": 0.0, "load_s": 5.0, "version": after}
    plan = {"run": ["baseline", "failure"]}
    scenario = made(
        single_server, "model_reload", pool={"version": before}, plan=plan, faults=[reload]
    )
    found = run_stages(scenario, seed=1)
    rules = [r.outcome for r in found.verdict.reasons if r.rule == "same_version"]
    assert rules == ([] if outcome is None else [outcome])


def test_a_fault_of_another_pool_is_told_with_the_replicas_of_that_pool(single_server):
    crash = {"kind": "crash", "at_s": 3.0, "pool": "other", "count": 9}
    scenario = made(single_server, "crash", plan={"down_s": 60.0})
    pools = [*scenario.model_dump(mode="json", exclude_unset=True)["pools"]]
    pools += [pools[0] | {"name": "other", "replicas": 5}]
    scenario = with_values(scenario, {"pools": pools, "faults": [crash]})
    note = failure_of(scenario, at_s=100.0, down_s=60.0).note
    assert note == "5 of 5 other replicas away for 60 s"


@pytest.mark.parametrize(("for_s", "ends_s"), [(4.0, 104.0), (7.0, 115.0), (99.0, 115.0)])
def test_a_hang_ends_by_itself_before_it_is_noticed_or_with_the_restart(
    single_server, for_s, ends_s
):
    hang = {"kind": "hang", "at_s": 3.0, "for_s": for_s, "detect_s": 5.0, "restart_s": 10.0}
    scenario = made(single_server, "hang", plan={"down_s": None}, faults=[hang])
    assert failure_of(scenario, at_s=100.0, down_s=60.0).ends_s == ends_s


@pytest.mark.parametrize(
    ("pool", "stated", "load_s"),
    [
        ({}, {}, 60.0),
        ({}, {"load_s": 7.0}, 7.0),
        (
            {
                "model_load": {"start_s": 5.0, "bytes": 1e9},
                "load_bandwidth_bytes_per_s": 1e8,
            },
            {},
            15.0,
        ),
    ],
)
def test_a_rolling_reload_ends_when_the_last_of_two_has_drained_and_loaded(
    single_server, pool, stated, load_s
):
    """Two turns of 30 s of grace and a load: as stated, by its bytes, else as long as a loss."""
    faults = [{"kind": "model_reload", "at_s": 3.0, **stated}] if stated else []
    scenario = made(single_server, "model_reload", pool=pool, faults=faults)
    found = failure_of(scenario, at_s=100.0, down_s=60.0)
    assert found.ends_s == 100.0 + 2 * (30.0 + load_s)


def test_a_fault_of_the_scenario_says_how_it_strikes(single_server):
    slow = {"kind": "slow", "at_s": 3.0, "factor": 5.0, "count": 2, "for_s": 7.0}
    scenario = made(single_server, "slow", plan={"down_s": None}, faults=[slow])
    found = failure_of(scenario, at_s=100.0, down_s=60.0)
    assert found.fault == {"kind": "slow", "at_s": 100.0, "factor": 5.0, "count": 2, "for_s": 7.0}
    assert found.ends_s == 107.0
    assert found.note == "2 of 2 server replicas 5 times slower for 7 s"
    longer = made(single_server, "slow", plan={"down_s": 30.0}, faults=[slow])
    assert failure_of(longer, at_s=100.0, down_s=30.0).ends_s == 130.0


def test_a_hang_that_is_noticed_ends_with_the_restart(single_server):
    hang = {"kind": "hang", "at_s": 3.0, "detect_s": 5.0, "restart_s": 10.0}
    scenario = made(single_server, "hang", faults=[hang])
    assert failure_of(scenario, at_s=100.0, down_s=60.0).ends_s == 115.0


def test_a_fault_that_cannot_strike_there_is_named(single_server):
    with pytest.raises(DataError, match="replicas_per_node"):
        run_stages(made(single_server, "node_loss"), seed=1)


@pytest.fixture(name="limited", scope="module")
def _limited(single_server):
    """A load generator that has eight connections: about one in a hundred requests of 5.6/s would
    find all of them taken, while the server answers 10/s.
    """
    limit = {"kind": "generator_limit", "at_s": 0.0, "connections": 8}
    plan = {"run": ["baseline", "ramp"], "most_steps": 6, "peak_rps": 6.5, "step_s": 200.0,
            "steady_s": 150.0, "longest_s": 800.0}  # fmt: skip
    return run_stages(single_server(plan=plan, faults=[limit]), seed=1)


def test_the_clients_own_limit_is_no_knee_of_the_service(limited):
    assert [fault.kind for fault in limited.ramp.steps[0].scenario.faults] == ["generator_limit"]
    client = limited.ramp.client_limit_rps
    assert 5.0 < client < 7.0
    assert limited.first_degradation is None
    over = [s for s in limited.ramp.steps if s.load_rps >= client]
    assert len(over) == 2
    assert all(s.client_limited and not s.counts for s in over)
    assert limited.knee is None or limited.knee.reason


def test_a_load_that_was_never_sent_proves_nothing(limited):
    [planned] = [r for r in limited.verdict.reasons if r.rule == "planned_load"]
    assert planned.outcome == "unknown"
    assert planned.value < planned.limit


@pytest.mark.parametrize("pull_s", [10.0, 400.0])
def test_a_crash_lasts_as_long_as_the_pools_lifecycle_takes_to_replace_it(single_server, pull_s):
    fixed = {name: {"kind": "fixed", "seconds": 90.0} for name in ("provisioning", "model_load")}
    pull = {"image_pull": {"kind": "fixed", "seconds": pull_s}}
    scenario = made(single_server, "crash", pool={"lifecycle": fixed | pull}, plan={"down_s": None})
    failure = run_stages(scenario, seed=1).stage("failure")
    assert failure.end_s - failure.start_s == pytest.approx(180.0 + pull_s)


@pytest.mark.parametrize("down_s", [None, 50.0])
def test_a_replica_is_away_as_long_as_in_a_sizing_its_load_included(single_server, down_s):
    load = {"start_s": 20.0, "bytes": 1e9}
    pool = {"cold_start_s": 45.0, "model_load": load, "load_bandwidth_bytes_per_s": 1e8}
    scenario = made(single_server, "crash", pool=pool, plan={"down_s": down_s})
    own = scenario.pool()
    away_s, _ = replacement_s(scenario, own)
    found = failure_of(scenario, at_s=100.0, down_s=away_s)
    assert found.ends_s == 100.0 + away_s
    lose = Loss(count=1, down_s=away_s)
    [sized] = with_loss(scenario, own, 2, lose, at_s=100.0).faults
    assert found.fault["down_s"] == pytest.approx(sized.down_s)
    assert found.fault["down_s"] == pytest.approx(away_s - 30.0)


def test_a_stated_crash_ends_when_its_model_is_loaded(single_server):
    load = {"start_s": 20.0, "bytes": 1e9}
    pool = {"model_load": load, "load_bandwidth_bytes_per_s": 1e8}
    crash = {"kind": "crash", "at_s": 3.0, "down_s": 40.0}
    scenario = made(single_server, "crash", pool=pool, plan={"down_s": None}, faults=[crash])
    found = failure_of(scenario, at_s=100.0, down_s=60.0)
    assert (found.fault["down_s"], found.ends_s) == (40.0, 170.0)


def test_a_stage_lasts_for_its_samples_but_the_fault_does_not(single_server):
    promises = {"e2e_s": 5.0, "quantile": 0.99}
    plan = {"down_s": None, "planned_rps": 2.0}
    short = {"cold_start_s": 30.0}
    scenario = made(single_server, "crash", pool=short, plan=plan, promises=promises)
    stage = run_stages(scenario, seed=1).stage("failure")
    [crash] = stage.run.scenario.faults
    assert crash.down_s == 30.0
    assert stage.end_s - stage.start_s > 300.0
