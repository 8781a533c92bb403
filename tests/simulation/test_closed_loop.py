"""Users that wait for the answer: known laws, and users without an answer."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conservation_checks import check_conservation

from capplan.results import headline
from capplan.results.segments import segments
from capplan.scenario.files import with_values
from capplan.simulation import simulate, simulate_many
from capplan.statistics import replication_mean
from capplan.traffic.draw import draw

END_S = 2000.0
WARMUP_S = 200.0


def interactive(users, think_s, *, law="exponential", **fields):
    think = {"kind": "fixed", "seconds": think_s}
    if law == "exponential":
        think = {"kind": "exponential", "mean_s": think_s}
    shape = {"kind": "closed", "users": users, "think": think}
    return {"traffic": {"shape": shape, "duration_s": END_S}} | fields


def known_users(trace_of, users, *, think_s=1.0, duration_s=None, **columns):
    """Return users that each send as often as stated: at once, then after a think time."""
    rows = [(turn, user) for turn in range(max(users)) for user, n in enumerate(users) if turn < n]
    trace = trace_of(
        [turn * think_s for turn, _ in rows],
        user=[f"u{user}" for _, user in rows],
        think_s=[math.nan if turn == 0 else think_s for turn, _ in rows],
        **columns,
    )
    return replace(trace, duration_s=duration_s)


def machine_repair(users, servers, think_s, service_s):
    """Return (throughput, mean response) of N users and c exponential servers, M/M/c//N.

    Source: Kleinrock, "Queueing Systems" I, 1975, section 3.8 (M/M/c//M), with Little's law.
    """
    weights = [1.0]
    for n in range(1, users + 1):
        rate_up = (users - n + 1) / think_s
        weights.append(weights[-1] * rate_up * service_s / min(n, servers))
    p = np.array(weights) / sum(weights)
    n = np.arange(users + 1)
    throughput = float((p * np.minimum(n, servers)).sum() / service_s)
    return throughput, float((p * n).sum()) / throughput


def in_steady_state(run):
    log = run.requests
    return log[log["intended_start_s"].between(WARMUP_S, END_S - 20.0)]


def throughput_rps(run):
    done = run.requests["finish_s"]
    return float(done.between(WARMUP_S, END_S - 20.0).sum()) / (END_S - 20.0 - WARMUP_S)


def response_s(run):
    log = in_steady_state(run)
    return float((log["finish_s"] - log["intended_start_s"]).mean())


@pytest.mark.parametrize(
    ("users", "servers", "think_s"), [(4, 1, 2.0), (10, 1, 9.0), (9, 3, 2.0), (1, 1, 1.0)]
)
def test_users_and_servers_do_as_the_machine_repair_model_says(
    single_queue, users, servers, think_s
):
    scenario = single_queue(servers, **interactive(users, think_s))
    throughput, response = machine_repair(users, servers, think_s, 1.0)
    runs = simulate_many(scenario, replications=8, seed=7)
    for figure, known in ((throughput_rps, throughput), (response_s, response)):
        estimate = replication_mean([figure(run) for run in runs], confidence=0.99)
        assert estimate.low <= known <= estimate.high
        assert estimate.high - estimate.low < 0.25 * known


@pytest.mark.parametrize("users", [1, 3, 8, 20])
def test_the_interactive_response_time_law_and_its_bounds_hold(single_queue, users):
    """X = N / (R + Z), whatever the laws; X <= min(N / (S + Z), 1 / S).

    Source: Denning and Buzen, "The operational analysis of queueing network models", ACM Computing
    Surveys 10(3), 1978 (interactive response time formula, bottleneck analysis).
    """
    scenario = single_queue(1, exponential=False, **interactive(users, 5.0, law="fixed"))
    run = simulate(scenario, seed=1)
    throughput, response = throughput_rps(run), response_s(run)
    assert throughput == pytest.approx(users / (response + 5.0), rel=0.01)
    assert throughput <= min(users / (1.0 + 5.0), 1.0) * 1.001
    assert response >= max(1.0, users * 1.0 - 5.0) * 0.999
    # Fixed times leave nothing to chance: the bounds are reached.
    assert throughput == pytest.approx(min(users / 6.0, 1.0), rel=0.01)


def test_the_law_holds_on_a_replica_that_batches_tokens(build):
    scenario = build(
        **interactive(60, 4.0),
        classes=[{"name": "chat", "output_tokens": {"kind": "lognormal", "p50_tokens": 100,
                                                    "p95_tokens": 300, "max_tokens": 1000}}],
    )  # fmt: skip
    run = simulate(with_values(scenario, {"traffic.duration_s": 800.0}), seed=3)
    log = run.requests[run.requests["intended_start_s"].between(100.0, 780.0)]
    response = float((log["finish_s"] - log["intended_start_s"]).mean())
    assert len(log) / 680.0 == pytest.approx(60 / (response + 4.0), rel=0.05)


def test_each_request_starts_a_think_time_after_the_answer(single_queue, trace_of):
    scenario = single_queue(1, exponential=False, network={"one_way_s": 0.25})
    log = simulate(scenario, trace=known_users(trace_of, [3])).requests
    assert log["intended_start_s"].tolist() == pytest.approx([0.0, 2.5, 5.0])
    assert (log["sent_s"] == log["intended_start_s"]).all()


def test_a_user_goes_on_after_a_refusal_and_after_a_timeout(single_queue, trace_of):
    scenario = single_queue(1, exponential=False, pool={"queue": {"length": 0}})
    patience_s = [0.4, *[math.nan] * 5]
    trace = known_users(trace_of, [3, 3], think_s=0.7, deadline_s=patience_s)
    log = simulate(scenario, trace=trace).requests
    by_user = {user: log[trace.frame["user"].eq(user).to_numpy()] for user in ("u0", "u1")}
    # u0 leaves at 0.4 and thinks until 1.1; u1 finds the server busy each time.
    assert by_user["u0"]["outcome"].tolist() == ["timed_out", "succeeded", "succeeded"]
    assert by_user["u0"]["intended_start_s"].tolist() == pytest.approx([0.0, 1.1, 2.8])
    assert by_user["u1"]["outcome"].tolist() == ["rejected"] * 3
    assert by_user["u1"]["intended_start_s"].tolist() == pytest.approx([0.0, 0.7, 1.4])


def test_all_attempts_come_before_the_think_time(single_queue, trace_of):
    retry = {"max_attempts": 3, "backoff_s": 0.5, "honour_retry_after": False}
    scenario = single_queue(
        1,
        exponential=False,
        classes=[{"name": "chat", "retry": retry}],
        gateway={"rate_limits": {"rate_rps": 1e-6}},
    )
    log = simulate(scenario, trace=known_users(trace_of, [2, 1])).requests
    tries = log[log["request_id"] == "r2"]
    assert log["outcome"].tolist() == ["succeeded", *["rejected"] * 6]
    assert tries["intended_start_s"].tolist() == pytest.approx([2.0, 2.5, 3.0])


def test_a_crash_ends_the_wait_of_every_user(single_queue, trace_of):
    faults = [{"at_s": 0.5, "down_s": 0.1}]
    scenario = single_queue(1, exponential=False, faults=faults)
    run = simulate(scenario, trace=known_users(trace_of, [2, 2]))
    check_conservation(run)
    assert len(run.requests) == 4
    assert (run.requests["outcome"] == "failed").sum() == 1


def test_no_request_begins_after_the_window(single_queue, trace_of):
    trace = known_users(trace_of, [9, 9], duration_s=5.0)
    run = simulate(single_queue(1, exponential=False), trace=trace)
    check_conservation(run)
    assert run.requests["intended_start_s"].max() < 5.0
    assert len(run.requests) < len(trace)
    assert run.duration_s < 10.0
    without_end = simulate(single_queue(1, exponential=False), trace=known_users(trace_of, [9, 9]))
    assert len(without_end.requests) == 18


def test_conservation_detects_a_user_that_skips_a_request(single_queue, trace_of):
    run = simulate(single_queue(1), trace=known_users(trace_of, [3]))
    log = run.requests
    check_conservation(replace(run, requests=log.iloc[:2]))
    with pytest.raises(ValueError, match="the same 3 requests"):
        check_conservation(replace(run, requests=log.iloc[[0, 2]]))


def test_a_slow_service_is_asked_less_and_the_same_by_the_same_users(single_queue):
    scenario = single_queue(2, **interactive(10, 3.0))
    trace = draw(scenario, seed=4)
    fast = simulate(scenario, trace=trace)
    slow = simulate(with_values(scenario, {"pools.llm.batching.service.base_s": 4.0}), trace=trace)
    assert len(slow.requests) < len(fast.requests) / 2
    assert set(slow.requests["request_id"]) < set(fast.requests["request_id"])


def test_the_same_seed_gives_the_same_run(single_queue):
    scenario = with_values(single_queue(1, **interactive(5, 2.0)), {"traffic.duration_s": 300.0})
    one, two = simulate(scenario, seed=9), simulate(scenario, seed=9)
    pd.testing.assert_frame_equal(one.requests, two.requests)
    pd.testing.assert_frame_equal(one.timeline, two.timeline)
    other = simulate(scenario, seed=9, replication=1)
    assert not one.requests["finish_s"].equals(other.requests["finish_s"])


# Connections


def test_fresh_connections_pay_a_handshake_each_and_long_lived_ones_once(build, trace_of):
    for kind, paid in (("fresh", [1, 1, 1, 1]), ("long_lived", [1, 1, 0, 0])):
        network = {"one_way_s": 0.05, "handshake_s": 0.2, "connections": kind}
        scenario = build(network=network)
        run = simulate(scenario, trace=known_users(trace_of, [2, 2]))
        log = run.requests
        assert (log["gateway_in_s"] - log["sent_s"]).tolist() == pytest.approx(
            [0.05 + 0.2 * n for n in paid]
        )
        assert log["network_s"].tolist() == pytest.approx([0.1 + 0.2 * n for n in paid])
        parts = segments(log, until="first_token").sum(axis=1)
        np.testing.assert_allclose(parts, log["first_token_s"] - log["intended_start_s"])
        check_conservation(run)


def test_a_handshake_is_part_of_ttft(build, trace_of):
    trace = trace_of([0.0, 5.0])
    none = headline(simulate(build(), trace=trace))
    network = {"handshake_s": 0.3, "connections": "fresh"}
    paid = headline(simulate(build(network=network), trace=trace))
    assert paid["ttft_s"]["mean"] - none["ttft_s"]["mean"] == pytest.approx(0.3)


def test_the_first_request_of_a_session_opens_its_connection(build, trace_of):
    network = {"handshake_s": 0.3}
    trace = trace_of([0.0, 5.0, 6.0, 7.0], session=["a", "a", "b", None])
    log = simulate(build(network=network), trace=trace).requests
    assert log["network_s"].tolist() == pytest.approx([0.3, 0.0, 0.3, 0.0])


def test_a_retry_opens_a_fresh_connection_too(build, trace_of):
    scenario = build(
        network={"handshake_s": 0.1, "connections": "fresh"},
        classes=[{"name": "chat", "retry": {"max_attempts": 2, "honour_retry_after": False}}],
        gateway={"rate_limits": {"rate_rps": 1e-6}},
    )
    log = simulate(scenario, trace=trace_of([0.0, 1.0])).requests
    assert log["network_s"].tolist() == pytest.approx([0.1, 0.1, 0.1])
    assert log["intended_start_s"].tolist() == pytest.approx([0.0, 1.0, 1.1])


def test_an_attempt_cancelled_during_the_handshake_never_arrives(build, trace_of):
    scenario = build(network={"one_way_s": 0.1, "handshake_s": 1.0, "connections": "fresh"})
    run = simulate(scenario, trace=trace_of([0.0], deadline_s=0.5))
    row = run.requests.iloc[0]
    assert row["outcome"] == "timed_out"
    assert math.isnan(row["gateway_in_s"])
    assert row["network_s"] == pytest.approx(0.5)
    check_conservation(run)
