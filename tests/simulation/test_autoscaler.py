"""Pools whose replicas come and go while a run goes on."""

import copy

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.results.cost import accelerator_hours
from capplan.results.headline import headline
from capplan.results.replica_lifecycle import lead_times, lifecycle_table
from capplan.results.scaling import (
    FINDING_KEYS,
    out_of_reach,
    scaling_findings,
    scaling_summary,
)
from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.simulation.clock import Rank
from capplan.simulation.run import _Run
from capplan.slo import judge

METRIC = "pools.llm.autoscaler.metrics.0"
SLOW = {
    "kind": "linear",
    "base_s": 8e-3,
    "per_prefill_token_s": 1e-5,
    "per_sequence_s": 1e-5,
    "per_context_token_s": 1e-9,
}
START_S = 37.0
"""Provisioning, image pull and model load together."""


def fixed(seconds):
    return {"kind": "fixed", "seconds": seconds}


LIFE = {
    "provisioning": fixed(20.0),
    "image_pull": fixed(5.0),
    "model_load": fixed(12.0),
    "grace_period_s": 60.0,
}


def scaler(metric="in_flight", target=4.0, *, least=1, most=8, down_s=60.0, **fields):
    """Return an autoscaler on one metric."""
    what = {"metric": metric, "target": target} | fields.pop("of", {})
    rules = {"scale_down": {"stabilization_window_s": down_s}} | fields.pop("behavior", {})
    return {
        "min_replicas": least,
        "max_replicas": most,
        "metrics": [what],
        "behavior": rules,
    } | fields


@pytest.fixture(name="elastic")
def _elastic(build):
    """Return a pool whose replicas serve one request at a time, for half a second."""

    def elastic(rules=None, *, replicas=1, pool=None, **fields):
        own = {"lifecycle": LIFE} | ({} if rules is None else {"autoscaler": rules})
        batching = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 0.5}}
        merged = copy.deepcopy(own | (pool or {}))
        return build(batching=batching, replicas=replicas, pool=merged, **fields)

    return elastic


@pytest.fixture(name="step")
def _step(trace_of):
    """Return 1 request a second, 6 of them from 120 s to 420 s, and 1 again until 700 s."""
    parts = [np.arange(0, 120, 1.0), np.arange(120, 420, 1 / 6), np.arange(420, 700, 1.0)]
    return trace_of(np.concatenate(parts))


def series(result, metric, replica="llm"):
    rows = result.timeline
    own = rows[(rows["metric"] == metric) & (rows["replica"] == replica)]
    return own.set_index("time_s")["value"]


def test_a_step_of_load_brings_replicas_after_lag_and_cold_start_and_takes_them_back(elastic, step):
    result = simulate(elastic(scaler()), trace=step)
    told = lifecycle_table(result)
    came = told.dropna(subset=["asked_s"])
    assert came["asked_s"].min() == 135.0  # the first look after the step, 15 s apart
    assert (came["ready_s"] - came["asked_s"]).dropna().tolist() == pytest.approx(
        [START_S] * came["ready_s"].notna().sum()
    )
    assert series(result, "replicas").max() == 8
    assert series(result, "replicas").iloc[-1] == 1
    served = result.requests["replica"].value_counts()
    assert len(served) > 4
    assert (result.requests["outcome"] == "succeeded").all()
    check_conservation(result)


def test_scaling_back_waits_for_the_stabilisation_window(elastic, step):
    result = simulate(elastic(scaler(down_s=100.0)), trace=step)
    desired = series(result, "replicas_desired")
    quiet = desired[desired.index > 430.0]
    falls = quiet[quiet.diff() < 0].index[0]
    low = series(result, "scaling_in_flight")
    asks_less_from = low[(low.index > 300.0) & (low < 3.6)].index[0]
    assert falls - asks_less_from >= 100.0 - 5.0


def test_the_same_seed_gives_the_same_replicas(elastic, step):
    law = {"kind": "lognormal", "p50_s": 12.0, "p95_s": 40.0}
    scenario = elastic(scaler(), pool={"lifecycle": LIFE | {"model_load": law}})
    one, two = (simulate(scenario, trace=step, seed=4) for _ in range(2))
    other = simulate(scenario, trace=step, seed=5)
    assert one.timeline.equals(two.timeline)
    assert one.requests.equals(two.requests)
    assert lead_times(one)["ready_s"].nunique() > 3
    assert not lead_times(one)["ready_s"].equals(lead_times(other)["ready_s"])


def test_names_are_never_used_again(elastic, step):
    result = simulate(elastic(scaler(down_s=0.0)), trace=step)
    told = lifecycle_table(result)
    assert told["replica"].is_unique
    assert told["replica"].tolist() == [f"llm-{i}" for i in range(len(told))]
    assert len(told) > 8
    gone = told.set_index("replica")["gone_s"]
    log = result.requests
    assert not (log["finish_s"] > log["replica"].map(gone) + 1e-9).any()
    ready = told.set_index("replica")["ready_s"]
    assert not (log["scheduler_queue_in_s"] < log["replica"].map(ready)).any()


def test_a_replica_that_drains_ends_what_it_runs_and_takes_no_more(elastic, trace_of):
    run = _Run(elastic(replicas=2), trace_of([0.0, 0.1, 0.2, 0.3, 1.2]), seed=0, replication=0)
    pool = run.pools["llm"]
    run.clock.at(0.25, Rank.FAULT, lambda _: pool.drain(pool.replicas[1]), None)
    run.play()
    log, _ = run.tables()
    assert log["replica"].tolist() == ["llm-0", "llm-1", "llm-0", "llm-0", "llm-0"]
    assert (log["outcome"] == "succeeded").all()
    assert [replica.name for replica in pool.replicas] == ["llm-0"]


def test_what_still_runs_when_the_grace_is_over_fails_and_can_be_tried_again(elastic, trace_of):
    life = LIFE | {"grace_period_s": 2.0}
    slow = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 10.0}}
    pool = {
        "lifecycle": life,
        "batching": slow,
        "standby": {"replicas": 1, "ready": fixed(1.0)},
        "router": {"max_in_flight": 1},
    }
    classes = [{"name": "chat", "retry": {"max_attempts": 2, "backoff_s": 0.0}}]
    scenario = elastic(pool=pool, classes=classes)
    run = _Run(scenario, trace_of([0.0, 1.5]), seed=0, replication=0)
    fleet = run.pools["llm"].fleet
    run.clock.at(0.5, Rank.CHECK, lambda _: fleet.start_standby(), None)
    run.clock.at(3.0, Rank.CHECK, lambda _: fleet.stop_standby(), None)
    run.play()
    log, _ = run.tables()
    lost = log[log["outcome"] == "failed"]
    assert lost["reason"].tolist() == ["scaled_down"]
    assert lost["finish_s"].tolist() == [5.0]
    assert log[log["request_id"] == "r1"]["outcome"].tolist() == ["failed", "succeeded"]


@pytest.mark.parametrize(("most", "lent"), [(2, 0), (3, 1), (8, 2)])
def test_a_standby_comes_into_service_up_to_the_autoscalers_most(elastic, trace_of, most, lent):
    pool = {"standby": {"replicas": 2, "ready": fixed(1.0)}}
    scenario = elastic(scaler(most=most, least=2), replicas=2, pool=pool)
    fleet = _Run(scenario, trace_of([0.0]), seed=0, replication=0).pools["llm"].fleet
    assert fleet.start_standby() == lent
    assert fleet.target == 2 + lent


@pytest.fixture(name="warm")
def _warm(elastic):
    """Return a pool with one warm replica beside those in service."""

    def warm(replicas, *, base_s=10.0, **fields):
        slow = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": base_s}}
        pool = {"batching": slow, "standby": {"replicas": 1, "ready": fixed(1.0)}}
        return elastic(pool=pool, replicas=replicas, **fields)

    return warm


def test_a_replica_that_crashes_while_it_drains_is_no_warm_one(warm, trace_of):
    run = _Run(warm(1), trace_of([2.0, 2.5]), seed=0, replication=0)
    pool = run.pools["llm"]
    run.clock.at(0.5, Rank.CHECK, lambda _: pool.fleet.scale_to(2), None)
    run.clock.at(3.0, Rank.CHECK, lambda _: pool.fleet.scale_to(1), None)
    run.clock.at(4.0, Rank.FAULT, lambda _: pool.stop([pool.replicas[1]]), None)
    run.play()
    log, _ = run.tables()
    assert log["reason"].dropna().tolist() == ["crash"]
    assert log["finish_s"].tolist() == [12.0, 4.0]
    assert [(one.name, one.phase) for one in pool.fleet.members] == [("llm-0", "up")]


def test_a_reload_goes_on_when_a_replica_is_taken_away_while_it_loads(warm, trace_of):
    """The first of three loads from 0 s on, and is the one that goes when two are wanted at 5 s."""
    reload = {"kind": "model_reload", "at_s": 0.0, "load_s": 10.0}
    run = _Run(warm(3, faults=[reload]), trace_of([39.0]), seed=0, replication=0)
    pool = run.pools["llm"]
    down = []
    run.clock.at(5.0, Rank.CHECK, lambda _: pool.fleet.scale_to(2), None)
    for time_s in (4.0, 6.0, 16.0, 26.0):
        run.clock.at(
            time_s,
            Rank.CHECK,
            lambda _: down.append([one.name for one in pool.replicas if not one.up]),
            None,
        )
    run.play()
    assert down == [["llm-0"], ["llm-1"], ["llm-2"], []]


@pytest.mark.parametrize(("count", "versions"), [(None, "v2"), (1, "v1, v2")])
def test_a_replica_that_joins_after_a_reload_of_all_has_its_version(
    warm, trace_of, count, versions
):
    reload = {"kind": "model_reload", "at_s": 0.0, "load_s": 1.0, "version": "v2", "count": count}
    scenario = with_values(warm(1, faults=[reload]), {"pools.llm.version": "v1"})
    run = _Run(scenario, trace_of([2.0, 39.0]), seed=0, replication=0)
    pool = run.pools["llm"]
    run.clock.at(5.0, Rank.CHECK, lambda _: pool.fleet.scale_to(2), None)
    run.play()
    assert len(pool.in_service) == 2
    assert pool.versions == versions


def test_standby_is_ready_sooner_and_is_paid_all_the_time(elastic, step):
    warm = {"standby": {"replicas": 2, "ready": fixed(3.0)}}
    cold, stood = (simulate(elastic(scaler(), pool=p), trace=step) for p in ({}, warm))
    leads = lead_times(stood)
    assert leads.loc[leads["warm"], "ready_s"].tolist()[:2] == pytest.approx([3.0, 3.0])
    assert series(cold, "replicas_paid").iloc[0] == pytest.approx(1.0)
    assert series(stood, "replicas_paid").iloc[0] == pytest.approx(3.0)
    assert series(stood, "replicas_standby").iloc[-1] == 2
    half = {"standby": warm["standby"] | {"price_fraction": 0.5}}
    paid = simulate(elastic(scaler(), pool=half), trace=step)
    assert series(paid, "replicas_paid").iloc[0] == pytest.approx(2.0)


def test_accelerators_are_paid_from_their_provisioning_until_they_are_gone(elastic, step):
    scenario = elastic(scaler(), pool={"price_usd_per_accelerator_hour": 3.6, "tensor_parallel": 2})
    result = simulate(scenario, trace=step)
    told = lifecycle_table(result)
    begun = told["provisioning_s"].fillna(0.0)
    seconds = (told["gone_s"].fillna(result.duration_s) - begun).sum()
    assert accelerator_hours(result, scenario.pools[0]) * 3600 == pytest.approx(2 * seconds)
    figures = headline(result)
    dollars = 3.6 * 2 * seconds / 3600
    assert figures["cost_usd_per_success"] == pytest.approx(dollars / len(result.requests))


def test_the_busy_fraction_is_that_of_the_time_replicas_were_there(elastic, step):
    result = simulate(elastic(scaler()), trace=step)
    told = lifecycle_table(result)
    there = (told["gone_s"].fillna(result.duration_s) - told["ready_s"]).sum()
    busy = 0.5 * len(result.requests)
    assert headline(result)["accelerator_busy_fraction"] == pytest.approx(busy / there, rel=0.02)
    rows = result.timeline[result.timeline["metric"] == "busy_fraction"]
    known = rows["value"].dropna()
    assert known.between(0.0, 1.0 + 1e-9).all()
    for name, ready, gone in told[["replica", "ready_s", "gone_s"]].itertuples(index=False):
        own = rows[rows["replica"] == name]["value"]
        assert own.empty == np.isnan(ready)
        assert np.isnan(own.iloc[-1]) == (not np.isnan(gone))


def test_an_empty_resource_pool_gives_none_and_says_so(elastic, step):
    share = {"name": "rack", "accelerators": 3}
    scenario = elastic(scaler(), pool={"resource_pool": "rack"}, resource_pools=[share])
    result = simulate(scenario, trace=step)
    paid = series(result, "replicas_paid")
    assert paid.max() <= 3 + 1e-9
    assert series(result, "replicas_asked").max() > 0
    summary = scaling_summary(result)["llm"]
    assert summary["asked"] - summary["refused"] == 2
    found = [f for f in scaling_findings(result) if f.rule == "resource_pool_empty"]
    assert found[0].evidence.startswith(f"asked {summary['asked']}, got 2 at once")
    assert found[0].field == "resource_pools.rack.accelerators"
    (row,) = headline(result)["scaling"]
    assert row["refused"] == summary["refused"]
    assert found[0].to_json(FINDING_KEYS) in row["findings"]


def test_pools_share_accelerators_in_the_order_of_asking(build, trace_of):
    """The second pool's replica starts when the first gives its own back."""
    service = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 0.5}}
    own = {"batching": service, "lifecycle": LIFE, "resource_pool": "rack"}
    scenario = build(
        classes=[{"name": "chat", "pool": "a"}, {"name": "embed", "pool": "b"}],
        pools=[
            own | {"name": "a", "autoscaler": scaler(most=2, down_s=0.0)},
            own | {"name": "b", "autoscaler": scaler(most=2, down_s=0.0)},
        ],
        resource_pools=[{"name": "rack", "accelerators": 3}],
    )
    early, late = np.arange(0, 100, 0.3), np.arange(60, 300, 0.4)
    arrivals = np.concatenate([early, late])
    names = np.repeat(["chat", "embed"], [len(early), len(late)])
    order = np.argsort(arrivals, kind="stable")
    trace = trace_of(arrivals[order], request_class=names[order])
    told = lifecycle_table(simulate(scenario, trace=trace)).dropna(subset=["asked_s"])
    first = told[told["pool"] == "a"].iloc[0]
    waits = told[(told["pool"] == "b") & told["refused"]].iloc[0]
    assert waits["asked_s"] < first["gone_s"]
    assert waits["provisioning_s"] == first["gone_s"]


def test_a_pool_goes_to_zero_and_wakes_up(elastic, trace_of):
    """KEDA: to zero after the cooldown, from zero at the first look at which something waits."""
    queue = {"source": "external"}
    keda = {"polling_interval_s": 10.0, "cooldown_s": 50.0}
    rules = scaler("queue_length", 5.0, least=0, of=queue, event_driven=keda, scrape_interval_s=5.0)
    busy = np.arange(0, 40, 0.4)
    result = simulate(elastic(rules), trace=trace_of(np.append(busy, 203.0)))
    up = series(result, "replicas")
    assert set(up[(up.index > 120) & (up.index < 200)]) == {0}
    last = result.requests.iloc[-1]
    assert last["outcome"] == "succeeded"
    assert last["finish_s"] == pytest.approx(210.0 + START_S + 0.5)
    assert lifecycle_table(result)["gone_s"].min() <= 100.0


def test_a_pool_may_idle_at_zero_below_its_least(elastic, trace_of):
    keda = {"polling_interval_s": 10.0, "cooldown_s": 20.0, "idle_replicas": 0}
    rules = scaler(
        "arrivals_rps", 10.0, least=3, of={"source": "external"}, event_driven=keda, down_s=0.0
    )
    times = np.concatenate([np.arange(0, 30, 0.5), np.arange(150, 180, 0.5)])
    result = simulate(elastic(rules, replicas=3), trace=trace_of(times))
    desired = series(result, "replicas_desired")
    assert desired[desired.index < 30].unique().tolist() == [3]
    assert desired[(desired.index > 80) & (desired.index < 145)].unique().tolist() == [0]
    assert desired[desired.index > 170].iloc[0] == 3


@pytest.mark.parametrize(
    ("metric", "target", "of"),
    [
        ("in_flight", 2.0, {}),
        ("queue_length", 2.0, {}),
        ("queue_length", 2.0, {"source": "external"}),
        ("queue_length", 4.0, {"source": "external", "target_type": "Value"}),
        ("busy_fraction", 60.0, {"source": "resource", "target_type": "Utilization"}),
        ("busy_fraction", 0.6, {}),
        ("arrivals_rps", 1.0, {"source": "external"}),
        (
            "e2e_s",
            2.0,
            {"source": "external", "target_type": "Value", "quantile": 0.9, "window_s": 30.0},
        ),
    ],
)
def test_every_kind_of_metric_scales_out(elastic, step, metric, target, of):
    result = simulate(elastic(scaler(metric, target, of=of)), trace=step)
    assert series(result, "replicas").max() > 2
    assert series(result, f"scaling_{metric}").notna().any()
    check_conservation(result)


@pytest.mark.parametrize(
    ("rate_rps", "target", "replicas"), [(6, 2.0, 3), (5, 2.0, 3), (1, 2.0, 1)]
)
def test_at_an_even_load_there_are_as_many_as_load_over_target(
    elastic, trace_of, rate_rps, target, replicas
):
    """The fixed point of the algorithm: ceil(load / target), whatever it starts from."""
    trace = trace_of(np.arange(0, 200, 1 / rate_rps))
    for begin in (1, 4):
        rules = scaler("arrivals_rps", target, of={"source": "external"}, down_s=30.0)
        result = simulate(elastic(rules, replicas=begin), trace=trace)
        desired = series(result, "replicas_desired")
        assert set(desired[desired.index.to_series().between(100, 195)]) == {replicas}


def test_a_lag_delays_what_is_done(elastic, step):
    at = [
        lifecycle_table(simulate(elastic(scaler(metric_lag_s=lag)), trace=step))["asked_s"].min()
        for lag in (0.0, 30.0)
    ]
    assert at == [135.0, 165.0]


def test_flapping_is_found(elastic, step):
    """A start takes longer than the window, so each replica that comes is one too late."""
    shaky = scaler("queue_length", 1.0, of={"source": "external"}, down_s=0.0)
    steady = scaler(down_s=600.0)
    found = {
        name: [f.rule for f in scaling_findings(simulate(elastic(rules), trace=step))]
        for name, rules in (("shaky", shaky), ("steady", steady))
    }
    assert "flapping" in found["shaky"]
    assert found["steady"] == []


@pytest.mark.parametrize(("start_s", "flaps"), [(30.0, True), (1.0, False)])
def test_a_pool_that_flaps_to_zero_gets_advice_on_its_cool_down(elastic, trace_of, start_s, flaps):
    """It is wanted again about 20 s after it went: sooner than a start of 30 s, not of 1 s."""
    keda = {"polling_interval_s": 2.0, "cooldown_s": 3.0}
    rules = scaler("queue_length", 2.0, least=0, of={"source": "external"}, event_driven=keda)
    pool = {"lifecycle": {"provisioning": fixed(start_s)}}
    times = (np.arange(10)[:, None] * 60 + [0.0, 20.0]).ravel()
    result = simulate(elastic(rules | {"scrape_interval_s": 1.0}, pool=pool), trace=trace_of(times))
    found = [f for f in scaling_findings(result) if f.rule == "flapping"]
    assert [f.field for f in found] == ["pools.llm.autoscaler.event_driven.cooldown_s"] * flaps


@pytest.mark.parametrize(
    ("rules", "pool", "limit"),
    [
        (scaler("busy_fraction", 95.0, of={"source": "resource", "target_type": "Utilization"}),
         {}, 100 / 1.1),
        (scaler("busy_fraction", 0.95), {}, 1 / 1.1),
        (scaler("in_flight", 4.0), {"router": {"max_in_flight": 4}}, 4 / 1.1),
        (scaler("running", 1.0), {}, 1 / 1.1),
        (scaler("queue_length", 3.0), {"router": {"max_in_flight": 3}}, 2 / 1.1),
    ],
)  # fmt: skip
def test_a_target_that_a_full_replica_cannot_exceed_is_found_and_never_scales(
    elastic, step, rules, pool, limit
):
    scenario = elastic(rules, pool=pool)
    (found,) = out_of_reach(scenario)
    assert (found.rule, found.limit) == ("target_out_of_reach", pytest.approx(limit))
    assert set(series(simulate(scenario, trace=step), "replicas")) == {1}
    lower = with_values(scenario, {"pools.llm.autoscaler.metrics.0.target": limit * 0.95})
    assert out_of_reach(lower) == []
    assert series(simulate(lower, trace=step), "replicas").max() > 1


def test_scaling_on_output_while_saturated_is_pointed_out(build, trace_of):
    """What comes out of a full replica does not grow with what waits."""
    rules = scaler("output_tokens_per_s", 2500.0, most=4)
    batching = {
        "kind": "continuous",
        "kv_blocks": 500,
        "max_num_seqs": 8,
        "step_time": {
            "kind": "linear",
            "base_s": 4e-3,
            "per_prefill_token_s": 1e-5,
            "per_sequence_s": 1e-5,
            "per_context_token_s": 1e-9,
        },
    }
    pool = {"autoscaler": rules, "cold_start_s": 10.0, "router": {"max_in_flight": 16}}
    trace = trace_of(np.arange(0, 120, 0.02), output_tokens=40)
    result = simulate(build(batching=batching, pool=pool), trace=trace)
    assert series(result, "replicas").max() == 1
    found = {f.rule: f for f in scaling_findings(result)}
    assert found["rate_flat_at_saturation"].value > 60.0
    better = scaler("queue_length", 5.0, most=4, of={"source": "external"})
    scenario = with_values(result.scenario, {"pools.llm.autoscaler": better})
    other = simulate(scenario, trace=trace)
    assert series(other, "replicas").max() == 4
    assert "rate_flat_at_saturation" not in {f.rule for f in scaling_findings(other)}


@pytest.mark.parametrize(
    ("metric", "target", "places", "blocks", "most", "text"),
    [
        ("kv_usage_fraction", 0.8, 8, 400, 8 * 9 / 400, "a full batch of 8"),
        ("running", 20.0, 64, 80, 80 / 7, "full KV memory"),
    ],
)
def test_a_target_that_another_limit_keeps_out_of_reach_is_found(
    build, trace_of, *, metric, target, places, blocks, most, text
):
    """A request holds 7 to 9 blocks of 16 tokens, so 8 places fill 400 blocks to less than a fifth,
    and 80 blocks hold 11 requests at most."""
    batching = {
        "kind": "continuous",
        "kv_blocks": blocks,
        "max_num_seqs": places,
        "step_time": SLOW,
    }
    pool = {"autoscaler": scaler(metric, target, most=4), "cold_start_s": 10.0}
    classes = [{"name": "chat", "promises": {"e2e_s": 10.0, "quantile": 0.9}}]
    trace = trace_of(np.arange(0, 240, 0.02), output_tokens=40)
    result = simulate(build(batching=batching, pool=pool, classes=classes), trace=trace)
    assert series(result, "replicas").max() == 1
    assert out_of_reach(result.scenario) == []
    [found] = scaling_findings(result)
    assert (found.rule, found.value) == ("target_out_of_reach", target)
    assert text in found.evidence
    assert found.limit <= most / 1.1 < target
    [late] = [r for r in judge(result).reasons if r.rule == "e2e_s"]
    assert late.next_action == f"let it scale: {found.field}: {found.next_action}"

    reached = with_values(result.scenario, {f"{METRIC}.target": found.limit * 0.9})
    scaled = simulate(reached, trace=trace)
    assert series(scaled, "replicas").max() > 1
    assert scaling_findings(scaled) == []
    late = [r for r in judge(scaled).reasons if r.rule == "e2e_s" and r.outcome == "fail"]
    assert not any("let it scale" in r.next_action for r in late)


def test_a_crash_leaves_the_number_wanted_and_the_survivors_scale(elastic, step):
    scenario = elastic(scaler(), replicas=2, faults=[{"at_s": 200.0, "count": 1, "down_s": 60.0}])
    result = simulate(scenario, trace=step)
    check_conservation(result)
    assert (result.requests["reason"] == "crash").any()
    assert series(result, "replicas").max() == 8


EXTERNAL = {"source": "external"}


def test_new_replicas_load_over_the_disk_that_others_read(elastic, step):
    """A load alone takes 100 B / 10 B/s; two at once on one host share its disk."""
    load = {"start_s": 2.0, "bytes": 100.0}
    pool = {"lifecycle": None, "model_load": load, "hosts": ["h"]}
    host = {"name": "h", "io_bytes_per_s": 10.0}
    rules = scaler(most=2, down_s=600.0)
    alone = lead_times(simulate(elastic(rules, pool=pool, hosts=[host]), trace=step))
    assert alone["ready_s"].tolist() == pytest.approx([12.0])
    rules = scaler(most=3, down_s=600.0)
    both = lead_times(simulate(elastic(rules, pool=pool, hosts=[host]), trace=step))
    assert both["ready_s"].tolist() == pytest.approx([22.0, 22.0])


def test_a_host_holds_as_many_replicas_as_there_can_be(elastic):
    classes = [{"name": "chat", "demand": {"host_memory_bytes": 10.0}}]
    host = {"name": "h", "host_memory_bytes": 40.0}
    elastic(scaler(most=4), pool={"hosts": ["h"]}, hosts=[host], classes=classes)
    with pytest.raises(DataError, match="need 50: 10 too much"):
        elastic(scaler(most=5), pool={"hosts": ["h"]}, hosts=[host], classes=classes)


BAD = [
    ({"autoscaler": scaler(least=3, most=2)}, "min_replicas: at most max_replicas 2, got 3"),
    ({"autoscaler": scaler(least=0)}, "min_replicas: at least 1 without event_driven"),
    ({"autoscaler": scaler("ttft_s")}, "metric: for source pods one of"),
    ({"autoscaler": scaler(of={"target_type": "Value"})}, "for source pods AverageValue"),
    ({"autoscaler": scaler(of={"source": "resource"})}, "_fraction for source resource"),
    ({"autoscaler": scaler(target=0.0)}, "greater than 0"),
    ({"autoscaler": scaler(event_driven={})}, "needs a metric of source external"),
    (
        {"autoscaler": scaler(least=0, of=EXTERNAL, event_driven={"idle_replicas": 0})},
        "event_driven.idle_replicas: below min_replicas, got 0",
    ),
    ({"autoscaler": scaler(least=2, of=EXTERNAL, event_driven={"idle_replicas": 1})}, "be 0"),
    ({"autoscaler": scaler(), "lifecycle": None}, "needs lifecycle, cold_start_s or model_load"),
    ({"resource_pool": "rack"}, "one of nothing, got 'rack'"),
    ({"standby": {"replicas": 1, "ready": {"kind": "lognormal", "p50_s": 3.0, "p95_s": 2.0}}},
     "p50_s <= p95_s must hold"),
]  # fmt: skip


@pytest.mark.parametrize(("pool", "message"), BAD)
def test_what_makes_no_sense_is_refused_with_its_rule(elastic, pool, message):
    with pytest.raises(DataError, match=message):
        elastic(pool=pool)


def test_a_resource_pool_holds_the_replicas_that_begin_there(elastic):
    share = [{"name": "rack", "accelerators": 2}]
    pool = {"resource_pool": "rack", "standby": {"replicas": 1, "ready": fixed(1.0)}}
    elastic(replicas=1, pool=pool, resource_pools=share)
    with pytest.raises(DataError, match=r"holds 2, and the replicas at the start need 3"):
        elastic(replicas=2, pool=pool, resource_pools=share)
