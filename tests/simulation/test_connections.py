"""How a gateway accepts connections: so many a second, so many open, so many waiting."""

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.results.segments import segments

FRESH = {"one_way_s": 0.01, "handshake_s": 0.04, "connections": "fresh"}


def behind(log):
    return (log["gateway_in_s"] - log["sent_s"]).tolist()


def test_connections_beyond_the_rate_wait_evenly_which_is_time_on_the_network(
    build, trace_of, play
):
    scenario = build(network=FRESH, gateway={"accept": {"rate_per_s": 10.0}})
    result = play(scenario, trace_of([0.0] * 4 + [2.0]))
    log = result.requests
    check_conservation(result)
    assert behind(log) == pytest.approx([0.05, 0.15, 0.25, 0.35, 0.05])
    parts = segments(log)
    assert parts["network_s"].tolist() == pytest.approx([0.06, 0.16, 0.26, 0.36, 0.06])
    total = log["finish_s"] - log["intended_start_s"]
    np.testing.assert_allclose(parts.sum(axis=1), total, rtol=0, atol=1e-9)


def test_beyond_the_backlog_a_connection_is_refused_before_the_gateway(build, trace_of, play):
    scenario = build(network=FRESH, gateway={"accept": {"rate_per_s": 10.0, "backlog": 2}})
    result = play(scenario, trace_of([0.0] * 5))
    log = result.requests
    check_conservation(result)
    assert log["reason"].fillna("").tolist() == ["", "", "", *["connection_refused"] * 2]
    assert log["outcome_layer"].tolist()[3:] == ["network"] * 2
    assert log["gateway_in_s"].isna().tolist() == [False] * 3 + [True] * 2
    assert log["finish_s"].tolist()[3:] == pytest.approx([0.06] * 2)
    rows = result.timeline[result.timeline["metric"] == "connections_waiting"]
    assert rows["value"].max() == 2


def test_a_long_lived_connection_is_accepted_once_for_its_session(build, trace_of, play):
    scenario = build(
        network=FRESH | {"connections": "long_lived"}, gateway={"accept": {"rate_per_s": 1.0}}
    )
    trace = trace_of([0.0, 0.0, 0.1, 3.0, 3.0, 3.0], session=["a", "b", "b", "a", "b", ""])
    log = play(scenario, trace).requests
    # The second request of b waits with the first; later ones find theirs open.
    arrivals = log["gateway_in_s"].tolist()
    assert arrivals == pytest.approx([0.05, 1.05, 1.05, 3.01, 3.01, 3.01])


def test_at_most_so_many_are_open_and_the_next_waits_until_one_closes(single_queue, trace_of, play):
    scenario = single_queue(
        5, exponential=False, network=FRESH, gateway={"accept": {"max_open": 2}}
    )
    result = play(scenario, trace_of([0.0, 0.5, 0.6]))
    log = result.requests
    assert log["gateway_in_s"].tolist() == pytest.approx([0.05, 0.55, 1.05])
    rows = result.timeline[result.timeline["metric"] == "connections_open"]
    assert rows["value"].max() == 2
    assert rows["value"].iloc[-1] == 0


def test_one_caller_holds_at_most_so_many_connections(single_queue, trace_of, play):
    scenario = single_queue(
        9, exponential=False, network=FRESH, gateway={"accept": {"max_per_caller": 2}}
    )
    trace = trace_of([0.0] * 5 + [2.0], tenant=["x", "x", "x", "y", "x", "x"])
    log = play(scenario, trace).requests
    refused = "connections_per_caller"
    assert log["reason"].fillna("").tolist() == ["", "", refused, "", refused, ""]


def test_who_leaves_keeps_its_place_in_the_backlog_and_counts_its_wait(build, trace_of, play):
    scenario = build(
        classes=[{"name": "chat", "retry": {"attempt_timeout_s": 1.5}}],
        network=FRESH,
        gateway={"accept": {"rate_per_s": 1.0}},
    )
    result = play(scenario, trace_of([0.0, 0.0, 0.0, 1.9]))
    log = result.requests
    check_conservation(result)
    assert log["outcome"].tolist() == ["succeeded", "succeeded", "timed_out", "succeeded"]
    assert log["network_s"].iloc[2] == pytest.approx(1.5)
    # the third was accepted at 2.05, after its caller had left
    assert log["gateway_in_s"].tolist() == pytest.approx([0.05, 1.05, np.nan, 3.05], nan_ok=True)


def test_many_who_have_left_are_accepted_in_one_instant(single_queue, trace_of, play):
    """No recursion: 3,000 connections whose callers left make room for each other."""
    scenario = single_queue(
        1,
        exponential=False,
        classes=[{"name": "chat"}, {"name": "hasty", "retry": {"attempt_timeout_s": 0.5}}],
        network=FRESH,
        gateway={"accept": {"max_open": 1}},
    )
    names = ["chat", *["hasty"] * 3000, "chat"]
    log = play(scenario, trace_of([0.0] * 3001 + [0.5], request_class=names)).requests
    assert log["outcome"].value_counts().to_dict() == {"timed_out": 3000, "succeeded": 2}
    assert log["gateway_in_s"].dropna().tolist() == pytest.approx([0.05, 1.05])
