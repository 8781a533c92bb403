"""What each kind of fault does, with times known by hand."""

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.results import headline
from capplan.results.segments import segments
from capplan.scenario.faults import ModelReload
from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.simulation.clock import Rank
from capplan.simulation.fault_effects import Reload
from capplan.simulation.faults import Outages
from capplan.simulation.run import _Run
from capplan.statistics import replication_mean
from capplan.traffic.trace import from_frame

ONE_AT_A_TIME = {"router": {"max_in_flight": 1}}
BY_SIZE = {
    "kind": "dynamic",
    "max_batch_size": 1,
    "service": {"base_s": 1e-9, "per_size_s": 1.0},
}
ONE_STEP = {
    "kind": "continuous",
    "kv_blocks": 1000,
    "prefix_caching": True,
    "step_time": {
        "kind": "linear",
        "base_s": 0.1,
        "per_prefill_token_s": 0.0,
        "per_sequence_s": 0.0,
        "per_context_token_s": 0.0,
    },
}


def run(scenario, trace, **options):
    result = simulate(scenario, trace=trace, **options)
    check_conservation(result)
    return result


def metric(result, name, replica):
    rows = result.timeline.query("metric == @name and replica == @replica")
    return rows.set_index("time_s")["value"]


def busy_s(result, replica="llm-0"):
    share = metric(result, "busy_fraction", replica)
    return float((share * np.diff([*share.index, result.duration_s])).sum())


def test_a_hung_replica_goes_on_where_it_stopped(single_queue, trace_of):
    scenario = single_queue(
        1, exponential=False, faults=[{"kind": "hang", "at_s": 0.4, "for_s": 2.0}]
    )
    result = run(scenario, trace_of([0.0, 0.5]))
    assert result.requests["finish_s"].tolist() == pytest.approx([3.0, 4.0])
    assert busy_s(result) == pytest.approx(2.0)  # standing still is not work


@pytest.mark.parametrize("spans", [[(0.5, 2.0), (1.0, 0.5)], [(0.5, 0.7), (1.0, 1.5)]])
def test_hangs_that_overlap_last_until_the_last_of_them_is_over(single_queue, trace_of, spans):
    faults = [{"kind": "hang", "at_s": at_s, "for_s": for_s} for at_s, for_s in spans]
    result = run(single_queue(1, exponential=False, faults=faults), trace_of([0.0]))
    assert result.requests["finish_s"][0] == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize(
    ("hang", "crash"),
    [
        ({"mtbf_s": 2.0, "mttr_s": 1.0}, {"at_s": 3.0, "down_s": 1.0}),
        ({"mtbf_s": 2.0, "detect_s": 0.5, "restart_s": 0.5}, {"at_s": 3.0, "down_s": 0.1}),
        ({"mtbf_s": 2.0, "for_s": 1.0}, {"at_s": 3.0, "down_s": 0.1}),
        ({"mtbf_s": 2.0, "for_s": 1.0}, {"kind": "hang", "at_s": 3.0, "for_s": 9.0}),
    ],
)
def test_hangs_by_law_continue_whatever_else_strikes_the_replica(
    single_queue, trace_of, hang, crash
):
    """The other fault strikes every 3 s, in and out of hangs; over 300 s no replica is spared."""
    others = [crash | {"at_s": at_s} for at_s in np.arange(1.0, 300.0, 3.0).tolist()]
    scenario = single_queue(1, faults=[{"kind": "hang", **hang}, *others[:20]], drain_s=0.0)
    result = run(scenario, trace_of(np.arange(0.0, 300.0, 0.5)))
    idle = metric(result, "busy_fraction", "llm-0")[lambda share: share.index > 150.0]
    assert idle.mean() < 0.9


def test_a_request_in_a_hung_replica_times_out_and_is_retried_elsewhere(single_queue, trace_of):
    retry = {"max_attempts": 2, "attempt_timeout_s": 1.5, "backoff_s": 0.0}
    retry["retry_on"] = ["timed_out"]
    scenario = single_queue(
        2,
        exponential=False,
        classes=[{"name": "chat", "retry": retry}],
        faults=[{"kind": "hang", "at_s": 0.5}],
        drain_s=20.0,
    )
    result = run(scenario, trace_of([0.0]))
    log = result.requests
    assert log["outcome"].tolist() == ["timed_out", "succeeded"]
    assert log["replica"].tolist() == ["llm-0", "llm-1"]
    assert log["finish_s"].tolist() == pytest.approx([1.5, 2.5])
    assert result.duration_s == pytest.approx(2.5)  # no caller waits for what hangs for good


def test_a_health_check_takes_a_hung_replica_out_of_routing(build, trace_of, dynamic):
    hang = {"kind": "hang", "at_s": 0.5, "for_s": 9.5}
    routed = {"router": {"policy": "round_robin"}}
    plain = build(batching=dynamic(1.0), replicas=2, pool=routed, faults=[hang])
    times = [0.0, 1.0, 2.0, 3.0]
    log = run(plain, trace_of(times)).requests
    assert log["replica"].tolist() == ["llm-0", "llm-1"] * 2
    assert log["finish_s"].tolist() == pytest.approx([10.5, 2.0, 11.5, 4.0])
    noticed = with_values(plain, {"faults": [hang | {"detect_s": 1.0}]})
    result = run(noticed, trace_of(times))
    assert result.requests["replica"].tolist() == ["llm-0", "llm-1", "llm-1", "llm-1"]
    assert result.requests["finish_s"].tolist() == pytest.approx([10.5, 2.0, 3.0, 4.0])
    replicas = metric(result, "replicas", "llm")
    assert set(replicas[(replicas.index >= 1.5) & (replicas.index < 10.0)]) == {1}


def test_a_restart_ends_a_hang_and_loses_what_was_held(single_queue, trace_of):
    hang = {"kind": "hang", "at_s": 0.4, "for_s": 50.0, "detect_s": 0.5, "restart_s": 1.0}
    scenario = single_queue(
        1,
        exponential=False,
        classes=[{"name": "chat", "retry": {"max_attempts": 2, "backoff_s": 0.1}}],
        faults=[hang],
    )
    log = run(scenario, trace_of([0.0])).requests
    assert log["outcome"].tolist() == ["failed", "succeeded"]
    assert log["reason"].iloc[0] == "restart"
    assert log["finish_s"].tolist() == pytest.approx([0.9, 2.9])


@pytest.mark.parametrize(
    ("fault", "ends"),
    [({"factor": 3.0}, [2.0, 5.0]), ({"factor": 3.0, "for_s": 0.6}, [1.4, 2.4])],
)
def test_a_slow_replica_slows_its_running_batch_midway(single_queue, trace_of, fault, ends):
    slow = {"kind": "slow", "at_s": 0.5} | fault
    scenario = single_queue(1, exponential=False, faults=[slow])
    result = run(scenario, trace_of([0.0, 0.1]))
    assert result.requests["finish_s"].tolist() == pytest.approx(ends)
    assert busy_s(result) == pytest.approx(ends[-1])  # slow work is work


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_the_prompts_of_a_static_batch_take_their_part_of_its_time_at_any_speed(
    build, trace_of, factor
):
    static = {"kind": "static", "max_batch_size": 2, "step_time": ONE_STEP["step_time"]}
    trace = trace_of([0.0, 0.0], prompt_tokens=1000, output_tokens=3)
    plain = simulate(build(batching=static), trace=trace).requests
    changed = simulate(build(batching=static, pool={"step_factors": [factor]}), trace=trace)
    check_conservation(changed)
    for moment in ("prefill_end_s", "decode_end_s"):
        np.testing.assert_allclose(changed.requests[moment], factor * plain[moment])


def test_a_slow_replica_slows_its_steps_and_the_window_of_requests_that_join(build, trace_of):
    batching = ONE_STEP | {"prefix_caching": False}
    scenario = build(
        batching=batching, faults=[{"kind": "slow", "at_s": 0.25, "factor": 2.0, "for_s": 0.3}]
    )
    result = run(scenario, trace_of([0.0, 0.22], output_tokens=[6, 1]), engine="fast")
    log = result.requests
    # Steps end at .1, .2; the third has .05 to go at .25: at .35; then .55, and .65, .75 as before.
    assert log["finish_s"].tolist() == pytest.approx([0.75, 0.55])
    assert log["batch_window_s"].iloc[1] == pytest.approx(0.13)
    parts = segments(log).sum(axis=1)
    assert parts.tolist() == pytest.approx((log["finish_s"] - log["intended_start_s"]).tolist())


def test_no_mean_of_steps_is_below_zero_when_a_slow_one_is_sped_up_on_the_way(build, trace_of):
    fault = {"kind": "slow", "at_s": 0.45, "factor": 100.0, "for_s": 1.6}
    scenario = build(batching=ONE_STEP, faults=[fault])
    result = run(scenario, trace_of([0.0, 60.0], output_tokens=40))
    means = metric(result, "step_time_s", "llm-0")
    assert means.min() == pytest.approx(0.1)
    assert np.isnan(means[means.index <= 2.05].iloc[-1])  # it takes back what was booked at 0.45


def test_two_that_are_slow_at_once_multiply_and_leave_no_trace(single_queue, trace_of):
    faults = [
        {"kind": "slow", "at_s": 0.0, "factor": 2.0, "for_s": 1.0},
        {"kind": "slow", "at_s": 0.5, "factor": 3.0, "for_s": 1.0},
    ]
    log = run(single_queue(1, exponential=False, faults=faults), trace_of([0.0])).requests
    # Done: 1/4 by .5, + 1/12 by 1, + 1/6 by 1.5; the other half at full speed.
    assert log["finish_s"].tolist() == pytest.approx([2.0])


def test_a_hang_on_a_slow_replica_keeps_its_pace(single_queue, trace_of):
    faults = [
        {"kind": "slow", "at_s": 0.5, "factor": 4.0},
        {"kind": "hang", "at_s": 1.0, "for_s": 1.0},
    ]
    log = run(single_queue(1, exponential=False, faults=faults), trace_of([0.0])).requests
    assert log["finish_s"].tolist() == pytest.approx([3.5])  # 1 + 1 + 4 · (0.5 - 0.125)


def test_of_mixed_accelerators_the_slowest_sets_the_tail(build, dynamic, trace_of, caplog):
    mixed = ONE_AT_A_TIME | {"step_factors": [1.0, 4.0]}
    scenario = build(batching=dynamic(1.0), replicas=3, pool=mixed)
    log = run(scenario, trace_of([0.0, 0.0, 0.0])).requests
    assert log["finish_s"].tolist() == pytest.approx([1.0, 4.0, 1.0])
    steps = build(batching=ONE_STEP | {"prefix_caching": False}, pool=mixed)
    with caplog.at_level("INFO", logger="capplan.simulation.steps"):
        run(steps, trace_of([0.0]), engine="fast")
    assert "pool llm: a changing pace, so its steps" in caplog.text


def test_a_lost_node_takes_all_its_replicas(single_queue, trace_of):
    lost = {"kind": "node_loss", "node": 1, "at_s": 0.5, "down_s": 2.0}
    scenario = single_queue(5, exponential=False, pool={"replicas_per_node": 2}, faults=[lost])
    result = run(scenario, trace_of([0.0] * 5))
    log = result.requests
    assert log["outcome"].tolist() == ["succeeded"] * 2 + ["failed"] * 2 + ["succeeded"]
    assert set(metric(result, "replicas", "llm")) == {5, 3}


def test_a_lost_host_takes_the_replicas_of_all_pools_on_it(build, trace_of):
    pool = {"router": {"max_in_flight": 1}, "batching": BY_SIZE}
    scenario = build(
        classes=[{"name": "a", "pool": "a"}, {"name": "b", "pool": "b"}],
        pools=[
            {"name": "a", "replicas": 2, "hosts": ["x", "y"]} | pool,
            {"name": "b", "replicas": 1, "hosts": ["y"]} | pool,
        ],
        hosts=[{"name": "x"}, {"name": "y"}],
        faults=[{"kind": "node_loss", "host": "y", "at_s": 0.5, "down_s": 1.0}],
    )
    classes = ["a", "a", "b", "b"]
    log = run(scenario, trace_of([0.0, 0.0, 0.0, 0.6], size=1.0, request_class=classes)).requests
    assert log["outcome"].tolist() == ["succeeded", "failed", "failed", "succeeded"]
    assert log["finish_s"].tolist() == pytest.approx([1.0, 0.5, 0.5, 2.5])


def test_a_replica_struck_again_while_down_returns_at_the_later_time(single_queue, trace_of):
    faults = [
        {"at_s": 1.0, "down_s": 5.0},
        {"kind": "node_loss", "at_s": 2.0, "down_s": 1.0},
    ]
    scenario = single_queue(1, exponential=False, pool={"replicas_per_node": 1}, faults=faults)
    assert run(scenario, trace_of([2.5])).requests["finish_s"].tolist() == pytest.approx([7.0])
    faults[1]["down_s"] = 9.0
    later = with_values(scenario, {"faults": faults})
    assert run(later, trace_of([2.5])).requests["finish_s"].tolist() == pytest.approx([12.0])


def test_a_rolling_reload_takes_replicas_one_after_the_other(single_queue, trace_of):
    reload = {"kind": "model_reload", "at_s": 1.0, "load_s": 2.0}
    scenario = single_queue(3, exponential=False, faults=[reload])
    result = run(scenario, trace_of([0.0, 20.0]))
    replicas = metric(result, "replicas", "llm")
    inside = (replicas.index >= 1.0) & (replicas.index < 7.0)
    assert set(replicas[inside]) == {2}
    assert set(replicas[~inside]) == {3}
    at_once = with_values(scenario, {"faults": [reload | {"max_unavailable": 2, "count": 2}]})
    replicas = metric(run(at_once, trace_of([0.0, 20.0])), "replicas", "llm")
    assert set(replicas[(replicas.index >= 1.0) & (replicas.index < 3.0)]) == {1}
    assert set(replicas[replicas.index >= 3.0]) == {3}


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_leak_takes_its_tokens_a_second_until_a_crash_gives_them_back(
    build, trace_of, prefix_caching
):
    """160 tokens/s are 10 of 1,000 blocks: 1 % a second from 10 to 30 s, and again from 41 s on."""
    leak = {"kind": "leak", "at_s": 10.0, "for_s": 40.0, "kv_tokens_per_s": 160.0}
    crash = {"kind": "crash", "at_s": 30.5, "down_s": 10.0}
    batching = ONE_STEP | {"prefix_caching": prefix_caching, "block_size": 16}
    scenario = build(batching=batching, faults=[leak, crash])
    usage = metric(run(scenario, trace_of([0.0, 99.0])), "kv_usage_fraction", "llm-0")
    at = [usage[usage.index <= t].iloc[-1] for t in (9.5, 20.5, 30.2, 40.0, 50.8, 98.0)]
    assert at == pytest.approx([0.0, 0.1, 0.2, 0.0, 0.1, 0.1], abs=0.011)


def test_a_request_that_finds_no_kv_left_waits_until_a_restart(build, trace_of):
    """Of 1,000 blocks a request needs 7, or 1; from 19.9 s on a leak has taken all."""
    leak = {"kind": "leak", "at_s": 0.0, "kv_tokens_per_s": 800.0}
    crash = {"kind": "crash", "at_s": 30.5, "down_s": 1.0}
    scenario = build(batching=ONE_STEP, faults=[leak, crash], drain_s=60.0)
    log = run(scenario, trace_of([1.0, 25.0, 40.0])).requests
    assert log["outcome"].tolist() == ["succeeded", "failed", "succeeded"]
    assert log["reason"].iloc[1] == "crash"
    alone = run(with_values(scenario, {"faults": [leak]}), trace_of([25.0])).requests
    assert alone["outcome"].tolist() == ["in_flight"]


@pytest.mark.parametrize(
    "batching", [BY_SIZE, ONE_STEP | {"kv_layout": "contiguous", "prefix_caching": False}]
)
def test_a_leak_needs_paged_kv(build, batching):
    with pytest.raises(DataError, match="paged KV"):
        build(batching=batching, faults=[{"kind": "leak", "at_s": 0.0}])


@pytest.mark.parametrize(
    ("stated", "reload", "reported"),
    [
        ("", {}, {}),
        ("v1", {}, {"llm": "v1"}),
        ("v1", {"version": "v2"}, {"llm": "v2"}),
        ("v1", {"version": "v2", "count": 1}, {"llm": "v1, v2"}),
        ("", {"version": "v2", "count": 1}, {"llm": "not known, v2"}),
    ],
)
def test_replicas_report_the_version_that_they_reloaded(
    single_queue, trace_of, stated, reload, reported
):
    fault = {"kind": "model_reload", "at_s": 1.0, "load_s": 2.0} | reload
    crash = {"kind": "crash", "at_s": 2.0, "down_s": 1.0}
    scenario = single_queue(3, pool={"version": stated}, faults=[fault, crash])
    assert run(scenario, trace_of([0.0, 20.0])).versions == reported


@pytest.mark.parametrize("replicas", [0, 3])
def test_a_reload_without_a_replica_to_load_ends_once(single_queue, trace_of, replicas):
    """All three are down, or none is there: by law it would multiply, or never return."""
    reload = {"kind": "model_reload", "at_s": 0.0, "load_s": 1.0}
    scenario = single_queue(3, faults=[reload])
    played = _Run(scenario, trace_of([0.0]), seed=0, replication=0)
    pool = played.pools["llm"]
    for replica in list(pool.replicas[replicas:]):
        pool.remove(replica)
    pool.stop(pool.replicas)
    over = []
    rules = ModelReload(at_s=0.0, load_s=1.0, max_unavailable=2)
    outages = Outages(pool, loader=None, clock=played.clock)
    Reload(
        pool, rules, outages=outages, clock=played.clock, ended=lambda: over.append(True)
    ).start()
    assert over == [True]


@pytest.mark.parametrize(
    ("grace", "outcome", "gone"), [(5.0, "succeeded", 1.5), (0.25, "failed", 1.25)]
)
def test_a_reload_lets_what_runs_finish_as_long_as_its_grace_lasts(
    single_queue, trace_of, grace, outcome, gone
):
    reload = {"kind": "model_reload", "at_s": 1.0, "load_s": 2.0, "drain_s": grace}
    scenario = single_queue(1, exponential=False, faults=[reload])
    log = run(scenario, trace_of([0.5, 1.2])).requests
    assert log["outcome"].tolist() == [outcome, "succeeded"]
    assert log["reason"].fillna("").iloc[0] == ("reload" if outcome == "failed" else "")
    assert log["finish_s"].tolist() == pytest.approx([gone, gone + 2.0 + 1.0])


LOAD = {"load_bandwidth_bytes_per_s": 1e9, "model_load": {"bytes": 3e9, "start_s": 0.5}}


def test_a_returning_replica_loads_its_model_before_it_serves(single_queue, trace_of):
    scenario = single_queue(1, exponential=False, pool=LOAD, faults=[{"at_s": 0.5, "down_s": 1.0}])
    log = run(scenario, trace_of([1.0])).requests
    assert log["finish_s"].tolist() == pytest.approx([0.5 + 1.0 + 0.5 + 3.0 + 1.0])


def test_weights_of_the_model_are_what_is_loaded_where_no_bytes_are_stated(build, trace_of):
    pool = {
        "model": "Llama-3.1-8B",
        "accelerator": "H100-SXM",
        "tensor_parallel": 2,
        "load_bandwidth_bytes_per_s": 1e10,
        "model_load": {},
    }
    scenario = build(pool=pool, faults=[{"at_s": 0.0, "down_s": 1.0}])
    log = run(scenario, trace_of([0.5], output_tokens=1)).requests
    # 16.06 GB over two accelerators, 10 GB/s each (embeddings and heads divided as well).
    assert log["batch_in_s"].iloc[0] - 1.0 == pytest.approx(8.03e9 / 1e10, rel=0.01)


def test_a_replica_struck_while_it_loads_begins_again(single_queue, trace_of):
    scenario = single_queue(
        1,
        exponential=False,
        pool=LOAD | {"replicas_per_node": 1},
        faults=[{"at_s": 0.5, "down_s": 1.0}, {"kind": "node_loss", "at_s": 4.0, "down_s": 1.0}],
    )
    log = run(scenario, trace_of([1.0])).requests
    assert log["finish_s"].tolist() == pytest.approx([5.0 + 3.5 + 1.0])


def on_one_host(build, pool=None, **fields):
    return build(
        classes=[{"name": "chat", "demand": {"io_bytes_per_s": 100.0}}],
        pools=[
            {
                "name": "llm",
                "replicas": 2,
                "hosts": ["h"],
                "router": {"max_in_flight": 1},
                "batching": BY_SIZE,
                "model_load": {"bytes": 200.0},
            }
            | (pool or {})
        ],
        hosts=[{"name": "h", "io_bytes_per_s": 100.0}],
        faults=[{"at_s": 1.0, "down_s": 1.0}],
        **fields,
    )


def test_a_load_on_the_same_host_slows_the_survivor_by_its_share(build, trace_of):
    scenario = on_one_host(build)
    log = run(scenario, trace_of([1.5], size=4.0)).requests
    # Half a second alone; from 2 s on request and load (2 s of work) share: the load ends at 6 s,
    # and the request has 1.5 s to go.
    assert log["finish_s"].tolist() == pytest.approx([7.5])
    apart = with_values(
        scenario,
        {"pools.llm.hosts": [], "pools.llm.load_bandwidth_bytes_per_s": 100.0},
    )
    assert run(apart, trace_of([1.5], size=4.0)).requests["finish_s"].tolist() == pytest.approx(
        [5.5]
    )


def test_a_replica_removed_while_it_loads_uses_nothing_of_the_host(build, trace_of):
    """As above, but from 3 s on the request has the host for itself: 3 s are left."""
    warm = {"replicas": 1, "ready": {"kind": "fixed", "seconds": 1.0}}
    scenario = on_one_host(build, pool={"standby": warm})
    played = _Run(scenario, trace_of([1.5], size=4.0), seed=0, replication=0)
    fleet = played.pools["llm"].fleet
    played.clock.at(3.0, Rank.CHECK, lambda _: fleet.scale_to(1), None)
    played.play()
    assert played.tables()[0]["finish_s"].tolist() == pytest.approx([6.0])


def test_requests_slow_the_load_in_turn(build, trace_of):
    log = run(on_one_host(build), trace_of([1.5, 1.6], size=[4.0, 1.0])).requests
    # The second waits for the return at 6 s, and then shares with the first.
    assert log["scheduler_queue_in_s"].tolist() == pytest.approx([1.5, 6.0])
    assert log["finish_s"].tolist() == pytest.approx([8.5, 8.0])


def test_what_moves_no_bytes_does_not_feel_a_load(build, trace_of):
    quiet = with_values(on_one_host(build), {"classes.chat.demand": {"compute_units": 0.1}})
    assert run(quiet, trace_of([1.5], size=4.0)).requests["finish_s"].tolist() == pytest.approx(
        [5.5]
    )


def test_a_returning_replica_has_a_cold_prefix_cache(build, trace_of):
    scenario = build(batching=ONE_STEP, faults=[{"at_s": 5.0, "down_s": 1.0}])
    frame = trace_of([0.0, 3.0, 7.0, 9.0], prompt_tokens=64, output_tokens=1).frame
    frame["prefix_blocks"] = [[1, 2, 3, 4]] * 4
    trace = from_frame(frame, prefix_block_tokens=16)
    assert run(scenario, trace).requests["cached_tokens"].tolist() == [0, 48, 0, 48]


def test_a_blind_router_herds_and_sends_to_the_dead(single_queue, trace_of):
    blind = {"kind": "router_blind", "at_s": 0.5, "for_s": 9.5}
    scenario = single_queue(2, exponential=False, pool={"router": {}}, faults=[blind])
    log = run(scenario, trace_of([1.0, 2.5, 2.6, 2.7])).requests
    assert set(log["replica"]) == {"llm-0"}  # the least loaded, as seen at half a second
    dead = with_values(scenario, {"faults": [blind, {"at_s": 2.0, "down_s": 30.0}]})
    log = run(dead, trace_of([3.0, 11.0])).requests
    assert log["outcome"].tolist() == ["failed", "succeeded"]
    assert (log["reason"].iloc[0], log["outcome_layer"].iloc[0]) == ("unreachable", "service_queue")
    assert log["replica"].iloc[1] == "llm-1"


def test_a_blind_router_keeps_to_the_limits_it_last_saw(single_queue, trace_of):
    blind = {"kind": "router_blind", "at_s": 0.5, "for_s": 4.5}
    scenario = single_queue(2, exponential=False, faults=[blind])
    log = run(scenario, trace_of([0.0, 1.0, 1.1, 1.2])).requests
    # Seen at half a second: the first is busy, the second free, and so it stays.
    assert log["replica"].tolist() == ["llm-0", "llm-1", "llm-1", "llm-1"]
    assert log["finish_s"].tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_a_generator_at_its_rate_lags_and_latencies_count_from_the_intended_start(
    build, dynamic, trace_of
):
    limit = {"kind": "generator_limit", "at_s": 0.0, "rate_rps": 5.0}
    scenario = build(batching=dynamic(0.1), replicas=9, faults=[limit])
    times = np.arange(20) / 10
    result = run(scenario, trace_of(times))
    log = result.requests
    assert log["intended_start_s"].tolist() == pytest.approx(times.tolist())
    assert log["sent_s"].tolist() == pytest.approx((np.arange(20) / 5).tolist())
    parts = segments(log)
    assert parts["send_lag_s"].tolist() == pytest.approx(times.tolist())
    assert parts.sum(axis=1).tolist() == pytest.approx((times + 0.1).tolist())
    assert headline(result)["send_lag_s"]["mean"] == pytest.approx(times.mean())
    assert metric(result, "generator_waiting", "").max() == 10  # of 20, half could be sent


def test_a_limit_that_is_lifted_lets_everybody_go(build, dynamic, trace_of):
    limit = {"kind": "generator_limit", "at_s": 0.0, "rate_rps": 1.0, "for_s": 1.5}
    scenario = build(batching=dynamic(0.1), replicas=9, faults=[limit])
    log = run(scenario, trace_of([0.0, 0.1, 0.2, 0.3, 2.0])).requests
    assert log["sent_s"].tolist() == pytest.approx([0.0, 1.0, 1.5, 1.5, 2.0])


def test_of_two_limits_the_one_that_stays_holds_when_the_other_is_lifted(build, dynamic, trace_of):
    limits = [
        {"kind": "generator_limit", "at_s": 0.0, "rate_rps": 0.1, "for_s": 0.5},
        {"kind": "generator_limit", "at_s": 0.0, "rate_rps": 1.0},
    ]
    log = run(build(batching=dynamic(0.1), faults=limits), trace_of([0.0, 0.1, 0.2])).requests
    np.testing.assert_allclose(log["sent_s"], [0.0, 1.0, 2.0])


def test_a_generator_out_of_connections_waits_for_an_answer(build, dynamic, trace_of):
    limit = {"kind": "generator_limit", "at_s": 0.0, "connections": 2}
    scenario = build(batching=dynamic(1.0), replicas=9, faults=[limit])
    log = run(scenario, trace_of([0.0, 0.1, 0.2, 0.3])).requests
    assert log["sent_s"].tolist() == pytest.approx([0.0, 0.1, 1.0, 1.1])


def test_an_attempt_that_never_left_the_generator_timed_out_at_the_caller(build, dynamic, trace_of):
    limit = {"kind": "generator_limit", "at_s": 0.0, "connections": 1}
    scenario = build(batching=dynamic(5.0), replicas=9, faults=[limit])
    log = run(scenario, trace_of([0.0, 0.1], deadline_s=[9.0, 0.5])).requests
    assert log["outcome"].tolist() == ["succeeded", "timed_out"]
    assert np.isnan(log["sent_s"].iloc[1])
    assert log["network_s"].iloc[1] == 0
    assert log["finish_s"].iloc[1] == pytest.approx(0.6)


BY_LAW = {"mtbf_s": 12.0, "mttr_s": 3.0}
RESTARTED = {"kind": "hang", "mtbf_s": 12.0, "detect_s": 1.0, "restart_s": 2.0}


@pytest.mark.parametrize(
    ("fault", "share"),
    [
        ({"kind": "crash"} | BY_LAW, 12 / 15),
        ({"kind": "crash", "mtbf_s": 12.0, "down_s": 3.0}, 12 / 15),
        ({"kind": "hang", "detect_s": 0.0} | BY_LAW, 12 / 15),
        ({"kind": "node_loss"} | BY_LAW, 12 / 15),
        (RESTARTED, 13 / 15),  # sent to until it is noticed
    ],
    ids=["crash", "crash of fixed length", "hang", "node_loss", "restart"],
)
def test_by_mean_times_a_replica_is_there_for_its_share_of_the_time(
    single_queue, trace_of, fault, share
):
    """Source: the limiting availability of an alternating renewal process, whatever the laws."""
    scenario = single_queue(20, pool={"replicas_per_node": 2}, faults=[fault])
    trace = trace_of([0.0, 3000.0])
    shares = []
    for replication in range(6):
        result = simulate(scenario, trace=trace, seed=5, replication=replication)
        shares.append(metric(result, "replicas", "llm").mean() / 20)
    estimate = replication_mean(np.array(shares), confidence=0.99)
    assert estimate.low <= share <= estimate.high
    assert estimate.high - estimate.low < 0.02


def test_random_faults_are_those_of_the_seed_and_leave_other_draws_alone(single_queue, trace_of):
    trace = trace_of(np.arange(200) * 0.7)
    plain = single_queue(3)
    faulty = with_values(plain, {"faults": [{"mtbf_s": 30.0, "mttr_s": 5.0}]})
    one, two, other = (simulate(faulty, trace=trace, seed=seed).requests for seed in (1, 1, 2))
    assert one.equals(two)
    assert not one["outcome"].equals(other["outcome"])
    rare = with_values(plain, {"faults": [{"mtbf_s": 1e9, "mttr_s": 5.0}]})
    assert simulate(rare, trace=trace).requests.equals(simulate(plain, trace=trace).requests)


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ([{"kind": "slow"}], "at_s .once. or mtbf_s"),
        ([{"at_s": 1.0, "mtbf_s": 2.0}], "at_s .once. or mtbf_s"),
        ([{"at_s": 1.0, "mttr_s": 2.0}], "mttr_s needs mtbf_s"),
        ([{"mtbf_s": 1.0}], "mtbf_s needs mttr_s or down_s"),
        ([{"mtbf_s": 1e-9, "mttr_s": 1.0}], r"mtbf_s: .*greater than or equal to 0\.001"),
        ([{"mtbf_s": 1.0, "mttr_s": 1.0, "down_s": 1.0}], "mttr_s and down_s exclude"),
        ([{"mtbf_s": 1.0, "mttr_s": 1.0, "count": 2}], "count: 1 with mtbf_s"),
        ([{"kind": "hang", "at_s": 1.0, "restart_s": 1.0}], "restart_s needs detect_s"),
        ([{"kind": "slow", "at_s": 1.0, "factor": 0}], r"faults\.0\.factor: .*greater than 0"),
        ([{"kind": "node_loss", "at_s": 1.0}], "needs host, or replicas_per_node of pool llm"),
        (
            [{"kind": "node_loss", "at_s": 1.0, "host": "h"}],
            "faults.0.host: one of nothing, got 'h'",
        ),
        ([{"kind": "node_loss", "at_s": 1.0, "host": "h", "node": 1}], "host excludes pool"),
        ([{"kind": "model_reload", "at_s": 1.0}], "needs load_s, or model_load of pool llm"),
        ([{"kind": "generator_limit", "at_s": 1.0}], "rate_rps or connections"),
        ([{"kind": "flood", "at_s": 1.0}], "a kind of crash, hang, slow"),
        (
            [{"kind": "router_blind", "at_s": 1.0, "pool": "x"}],
            "faults.0.pool: one of llm, got 'x'",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_one_clear_error(build, faults, told):
    with pytest.raises(DataError, match=told):
        build(faults=faults)


def test_a_load_without_a_bandwidth_and_a_node_that_is_not_there_are_errors(build):
    with pytest.raises(DataError, match=r"pools\.llm\.model_load: needs the pool's load_bandw"):
        build(pool={"model_load": {"bytes": 1e9}})
    lost = {"kind": "node_loss", "at_s": 1.0, "node": 2}
    with pytest.raises(DataError, match=r"node: pool llm has 2 \(from 0\), got 2"):
        build(replicas=3, pool={"replicas_per_node": 2}, faults=[lost])
    load = {"model_load": {}, "load_bandwidth_bytes_per_s": 1e9}
    scenario = build(pool=load, faults=[{"at_s": 1.0}])
    with pytest.raises(DataError, match=r"bytes, or a model of the catalogue"):
        simulate(scenario)


def test_replicas_that_join_a_machine_are_lost_with_it(single_queue, trace_of):
    """One replica and its successor stand on the first machine, the third on the second."""
    scaler = {"min_replicas": 3, "max_replicas": 3}
    scaler["metrics"] = [{"metric": "in_flight", "target": 1.0}]
    scenario = single_queue(
        1,
        pool={"cold_start_s": 1.0, "replicas_per_node": 2, "autoscaler": scaler},
        faults=[{"kind": "node_loss", "at_s": 40.0, "down_s": 99.0}],
    )
    result = simulate(scenario, trace=trace_of([0.0, 60.0]))
    up = result.timeline.query("metric == 'up' and time_s > 45")
    assert up.groupby("replica")["value"].max().to_dict() == {"llm-0": 0, "llm-1": 0, "llm-2": 1}


def test_a_hang_that_ends_while_a_reload_drains_brings_no_requests_back(single_queue, trace_of):
    faults = [
        {"kind": "hang", "at_s": 0.5, "for_s": 1.0, "detect_s": 0.1},
        {"kind": "model_reload", "at_s": 1.0, "load_s": 2.0, "drain_s": 5.0},
    ]
    scenario = single_queue(1, exponential=False, faults=faults)
    log = run(scenario, trace_of([0.0, 1.6])).requests
    # Hangs from 0.5 to 1.5, is served until 2.0, then loads until 4.0.
    assert log["finish_s"].tolist() == pytest.approx([2.0, 5.0])


def test_a_rolling_reload_goes_on_when_a_replica_crashes_on_the_way(single_queue, trace_of):
    faults = [
        {"kind": "model_reload", "at_s": 1.0, "load_s": 2.0, "drain_s": 50.0},
        {"at_s": 1.5, "down_s": 1.0},
    ]
    hang = {"kind": "hang", "at_s": 0.5, "for_s": 99.0}
    scenario = single_queue(2, exponential=False, faults=[hang, *faults])
    result = run(scenario, trace_of([0.0, 0.0, 20.0]))
    # The first hangs and would drain for 50 s; the crash strikes the second, which is down already
    # when its turn comes.
    replicas = metric(result, "replicas", "llm")
    assert set(replicas[(replicas.index >= 1.0) & (replicas.index < 1.5)]) == {1}
    assert set(replicas[(replicas.index >= 1.5) & (replicas.index < 2.5)]) == {0}
    assert result.requests["outcome"].iloc[2] == "succeeded"


@pytest.mark.parametrize("fault", [{}, {"kind": "node_loss"}])
def test_a_replica_that_joins_later_fails_by_the_same_law(single_queue, trace_of, fault):
    scenario = single_queue(
        1,
        pool={
            "cold_start_s": 1.0,
            "replicas_per_node": 1,
            "autoscaler": {
                "min_replicas": 3,
                "max_replicas": 3,
                "metrics": [{"metric": "in_flight", "target": 1.0}],
            },
        },
        faults=[fault | {"mtbf_s": 5.0, "mttr_s": 5.0}],
    )
    result = simulate(scenario, trace=trace_of([0.0, 2000.0]))
    up = result.timeline.query("metric == 'up' and time_s > 500")
    shares = up.groupby("replica")["value"].mean()
    assert len(shares) == 3
    assert shares.to_numpy() == pytest.approx(0.5, abs=0.15)
