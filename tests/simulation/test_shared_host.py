"""Pools that share a host: exact processor sharing, by resource, and memory by space."""

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.results.segments import segments
from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.simulation import simulate, simulate_many
from capplan.statistics import replication_mean
from capplan.traffic.streams import stream

BY_SIZE = {"base_s": 1e-9, "per_size_s": 1.0}


def one_at_a_time(name, replicas, *, host="h", **fields):
    """Return a pool whose replicas each serve one request, of its size in seconds at full speed."""
    return {
        "name": name,
        "replicas": replicas,
        "hosts": [] if host is None else [host],
        "router": {"max_in_flight": 1},
        "batching": {"kind": "dynamic", "max_batch_size": 1, "service": BY_SIZE},
    } | fields


def shared(build, classes, pools, *, hosts=({"name": "h"},), **fields):
    return build(
        classes=[{"name": n, "pool": p, "demand": d} for n, p, d in classes],
        pools=list(pools),
        hosts=list(hosts),
        **fields,
    )


def served_s(log):
    return (log["decode_end_s"] - log["batch_in_s"]).tolist()


ALL = {"compute_units": 1.0}


def test_two_requests_that_each_need_the_whole_host_run_at_half_speed(build, trace_of):
    scenario = shared(
        build,
        [("a", "a", ALL), ("b", "b", ALL)],
        [one_at_a_time("a", 2), one_at_a_time("b", 2)],
    )
    # a (3 s of work) has 1 s alone, shares until b's 1 s is done at 3, and has 1 s left.
    trace = trace_of([0.0, 1.0], size=[3.0, 1.0], request_class=["a", "b"])
    run = simulate(scenario, trace=trace)
    assert run.requests["finish_s"].tolist() == pytest.approx([4.0, 3.0], abs=1e-6)
    check_conservation(run)
    alone = simulate(with_values(scenario, {"pools.b.hosts": []}), trace=trace)
    assert alone.requests["finish_s"].tolist() == pytest.approx([3.0, 2.0], abs=1e-6)


def test_three_share_by_their_demands_and_below_capacity_none_is_slowed(build, trace_of):
    classes = [("a", "a", {"compute_units": 2.0}), ("b", "b", {"compute_units": 1.0})]
    pools = [one_at_a_time("a", 2), one_at_a_time("b", 2)]
    for capacity, times in ((3.0, [1.0, 1.0]), (2.0, [1.5, 1.5]), (1.5, [2.0, 2.0])):
        scenario = shared(build, classes, pools, hosts=[{"name": "h", "compute_units": capacity}])
        trace = trace_of([0.0, 0.0], size=1.0, request_class=["a", "b"])
        log = simulate(scenario, trace=trace).requests
        assert served_s(log) == pytest.approx(times, abs=1e-6)


def test_only_requests_that_use_the_scarce_resource_are_slowed(build, trace_of):
    classes = [
        ("io", "io", {"io_bytes_per_s": 100.0}),
        ("cpu", "cpu", {"compute_units": 0.5}),
        ("both", "both", {"io_bytes_per_s": 100.0, "compute_units": 0.1}),
    ]
    pools = [one_at_a_time(name, 2) for name in ("io", "cpu", "both")]
    hosts = [{"name": "h", "io_bytes_per_s": 100.0}]
    scenario = shared(build, classes, pools, hosts=hosts)
    trace = trace_of([0.0] * 3, size=1.0, request_class=["io", "cpu", "both"])
    assert served_s(simulate(scenario, trace=trace).requests) == pytest.approx(
        [2.0, 1.0, 2.0], abs=1e-6
    )
    without_limit = with_values(scenario, {"hosts.h.io_bytes_per_s": None})
    assert served_s(simulate(without_limit, trace=trace).requests) == pytest.approx(
        [1.0, 1.0, 1.0], abs=1e-6
    )


def test_requests_of_a_batch_add_up(build, trace_of):
    pool = one_at_a_time("a", 1)
    pool["router"] = {}
    pool["batching"] = {
        "kind": "dynamic",
        "max_batch_size": 4,
        "service": {"base_s": 1.0},
    }
    scenario = shared(build, [("a", "a", {"compute_units": 0.5})], [pool])
    for n, known in ((1, 1.0), (2, 1.0), (4, 2.0)):
        log = simulate(scenario, trace=trace_of([0.0] * n)).requests
        assert served_s(log) == pytest.approx([known] * n)


def test_replicas_stand_on_the_hosts_in_turn(build, trace_of):
    pool = one_at_a_time("a", 4) | {"hosts": ["h", "g"], "router": {"policy": "round_robin"}}
    hosts = [{"name": "h"}, {"name": "g", "compute_units": 9.0}]
    scenario = shared(build, [("a", "a", ALL)], [pool], hosts=hosts)
    log = simulate(scenario, trace=trace_of([0.0] * 4, size=1.0)).requests
    assert served_s(log) == pytest.approx([2.0, 1.0, 2.0, 1.0], abs=1e-6)


def test_a_host_shared_without_contention_changes_nothing(build, trace_of):
    rng = stream(3, 0, 0)
    trace = trace_of(
        np.cumsum(rng.exponential(0.05, 400)),
        prompt_tokens=rng.integers(10, 400, 400),
        output_tokens=rng.integers(1, 60, 400),
    )
    apart = build()
    on_host = with_values(apart, {"hosts": [{"name": "h"}], "pools.llm.hosts": ["h"]})
    one, two = simulate(apart, trace=trace), simulate(on_host, trace=trace)
    assert one.requests.equals(two.requests)
    beside = two.timeline[two.timeline["layer"] != "host"].reset_index(drop=True)
    assert one.timeline.equals(beside)


def test_steps_of_a_continuous_replica_stretch_and_the_segments_still_add_up(build, trace_of):
    rng = stream(4, 0, 0)
    n = 300
    trace = trace_of(
        np.cumsum(rng.exponential(0.08, n)),
        prompt_tokens=rng.integers(10, 400, n),
        output_tokens=rng.integers(1, 60, n),
        size=np.where(np.arange(n) % 10 == 0, 0.7, np.nan),
        request_class=np.where(np.arange(n) % 10 == 0, "noisy", "chat"),
    )
    llm = build().model_dump(mode="json", exclude_unset=True)["pools"][0] | {"hosts": ["h"]}
    scenario = shared(
        build,
        [("chat", "llm", {"compute_units": 0.05}), ("noisy", "noise", {"compute_units": 1.5})],
        [llm, one_at_a_time("noise", 9)],
    )
    mixed = simulate(scenario, trace=trace)
    apart = simulate(with_values(scenario, {"pools.noise.hosts": []}), trace=trace)
    check_conservation(mixed)
    log = mixed.requests
    np.testing.assert_allclose(
        segments(log).sum(axis=1), log["finish_s"] - log["intended_start_s"], atol=1e-9
    )
    assert (segments(log) > -1e-9).all().all()
    chat = log["request_class"].eq("chat")
    slower = log["finish_s"][chat].mean() - log["intended_start_s"][chat].mean()
    before = apart.requests["finish_s"][chat].mean() - log["intended_start_s"][chat].mean()
    assert slower > 1.2 * before
    busy = mixed.timeline.query("metric == 'busy_fraction'")["value"].dropna()
    assert ((busy > -1e-9) & (busy < 1 + 1e-9)).all()


def test_a_crash_takes_its_work_off_the_host(build, trace_of):
    faults = [{"pool": "b", "at_s": 1.0, "down_s": 9.0}]
    scenario = shared(
        build,
        [("a", "a", ALL), ("b", "b", ALL)],
        [one_at_a_time("a", 1), one_at_a_time("b", 1)],
        faults=faults,
    )
    trace = trace_of([0.0, 0.0], size=[2.0, 5.0], request_class=["a", "b"])
    run = simulate(scenario, trace=trace)
    assert run.requests["outcome"].tolist() == ["succeeded", "failed"]
    assert run.requests["finish_s"].tolist() == pytest.approx([2.5, 1.0], abs=1e-6)
    check_conservation(run)


LAWS = {
    "all equal": (lambda rng, n: np.full(n, 1.0)),
    "exponential": (lambda rng, n: rng.exponential(1.0, n)),
    "few large": (lambda rng, n: np.where(rng.random(n) < 0.1, 5.5, 0.5)),
}


@pytest.mark.parametrize("law", LAWS)
def test_processor_sharing_answers_as_mg1_ps_says_whatever_the_law(build, trace_of, law):
    """Mean response E[S] / (1 - load), the same for every law of the work.

    Source: Kleinrock, "Queueing Systems" II, 1976, section 4.4.
    """
    load, n = 0.6, 4000
    scenario = shared(build, [("a", "a", ALL)], [one_at_a_time("a", 40)])
    traces = []
    for replication in range(8):
        rng = stream(23, replication, 0)
        arrival = np.cumsum(rng.exponential(1 / load, n))
        traces.append(trace_of(arrival, size=LAWS[law](rng, n)))
    runs = simulate_many(scenario, replications=8, traces=traces)
    logs = [run.requests.iloc[500:] for run in runs]
    assert all((log["batch_in_s"] - log["intended_start_s"] < 1e-9).all() for log in logs)
    means = [float((log["finish_s"] - log["intended_start_s"]).mean()) for log in logs]
    estimate = replication_mean(means, confidence=0.99)
    assert estimate.low <= 1 / (1 - load) <= estimate.high
    assert estimate.high - estimate.low < 0.3 / (1 - load)


def test_processor_sharing_is_fair_a_request_takes_in_proportion_to_its_work(build, trace_of):
    """A request of work x takes x / (1 - load) on average. Source: as above."""
    load, n = 0.5, 4000
    scenario = shared(build, [("a", "a", ALL)], [one_at_a_time("a", 40)])
    traces = []
    for replication in range(6):
        rng = stream(29, replication, 0)
        traces.append(
            trace_of(np.cumsum(rng.exponential(1 / load, n)), size=rng.choice([0.5, 1.5], n))
        )
    runs = simulate_many(scenario, replications=6, traces=traces)
    for size in (0.5, 1.5):
        means = []
        for run in runs:
            log = run.requests.iloc[500:]
            log = log[log["size"] == size]
            means.append(float((log["finish_s"] - log["intended_start_s"]).mean()))
        estimate = replication_mean(means, confidence=0.99)
        assert estimate.low <= size / (1 - load) <= estimate.high


# Memory


@pytest.mark.parametrize("space", ["host_memory_bytes", "accelerator_memory_bytes"])
def test_memory_that_does_not_fit_is_one_error_that_says_by_how_much(build, space):
    classes = [("a", "a", {space: 10e9}), ("b", "b", {space: 4e9})]
    pools = [one_at_a_time("a", 2), one_at_a_time("b", 3)]
    fits = [{"name": "h", space: 32e9}]
    shared(build, classes, pools, hosts=fits)
    with pytest.raises(DataError, match=rf"hosts\.h\.{space}: .*need 3.2e\+10: 1e\+09 too much"):
        shared(build, classes, pools, hosts=[{"name": "h", space: 31e9}])


def test_memory_counts_the_replicas_that_stand_on_the_host(build):
    pools = [one_at_a_time("a", 3) | {"hosts": ["h", "g"]}]
    hosts = [{"name": "h", "host_memory_bytes": 20.0}, {"name": "g", "host_memory_bytes": 10.0}]
    shared(build, [("a", "a", {"host_memory_bytes": 10.0})], pools, hosts=hosts)
    with pytest.raises(DataError, match=r"hosts\.g\."):
        shared(
            build,
            [("a", "a", {"host_memory_bytes": 10.0})],
            [one_at_a_time("a", 4) | {"hosts": ["h", "g"]}],
            hosts=hosts,
        )


def test_a_pool_stands_on_a_host_that_exists(build):
    with pytest.raises(DataError, match=r"pools\.a\.hosts: one of h, got 'x'"):
        shared(build, [("a", "a", ALL)], [one_at_a_time("a", 1, host="x")])
