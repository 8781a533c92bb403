"""What the users of a closed loop may come to send, drawn once."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from capplan.scenario.files import load_scenario, with_values
from capplan.schema import TRACE, DataError, names
from capplan.simulation import simulate
from capplan.traffic.closed import closed_loop, is_closed, without_users
from capplan.traffic.draw import draw
from capplan.traffic.sample import read_base
from capplan.traffic.trace import from_frame

EXPONENTIAL = {"kind": "exponential", "mean_s": 20.0}
USERS = {"kind": "closed", "users": 40, "think": EXPONENTIAL, "ramp_s": 60.0}


@pytest.fixture(scope="module")
def chat(chat):
    return with_values(chat, {"traffic.shape": USERS})


@pytest.fixture(scope="module")
def mixed():
    shape = {"traffic.shape": USERS, "traffic.duration_s": 3600.0, "traffic.mix": []}
    return load_scenario("mixed-modality", values=shape)


@pytest.fixture(params=["from a trace", "from laws"])
def trace(request, chat, mixed):
    return draw(chat if request.param == "from a trace" else mixed, seed=2)


def test_a_closed_loop_fills_every_column_and_is_noted(trace):
    assert list(trace.frame.columns) == names(TRACE)
    assert trace.frame["request_id"].is_unique
    assert trace.frame["arrival_s"].is_monotonic_increasing
    assert trace.frame["user"].nunique() == 40
    assert trace.duration_s == 3600.0
    assert is_closed(trace)
    assert any("closed loop" in note for note in trace.notes)


def test_users_begin_evenly_over_the_ramp_and_start_at_the_earliest_when_thought(trace):
    frame = trace.frame
    first = frame.drop_duplicates("user")
    assert first["arrival_s"].tolist() == pytest.approx(np.arange(40) * 1.5)
    assert first["think_s"].isna().all()
    gaps = frame.groupby("user")["arrival_s"].diff()
    later = gaps.notna()
    np.testing.assert_allclose(gaps[later], frame["think_s"][later], atol=1e-9)


def test_a_user_is_of_one_class_and_one_tenant(trace):
    kinds = trace.frame.groupby("user")[["request_class", "tenant"]].nunique()
    assert (kinds == 1).all().all()
    assert len(set(trace.frame["request_class"])) > 1


def test_think_times_follow_their_law(trace):
    think = trace.frame["think_s"].dropna()
    assert stats.kstest(think, stats.expon(scale=20.0).cdf).pvalue > 0.01


def test_lognormal_and_fixed_think_times_have_their_quantiles(chat):
    law = {"kind": "lognormal", "p50_s": 5.0, "p95_s": 20.0}
    scenario = with_values(chat, {"traffic.shape.think": law})
    think = draw(scenario, seed=1).frame["think_s"].dropna()
    for quantile, known in ((0.5, 5.0), (0.95, 20.0)):
        hits = int((think <= known).sum())
        assert stats.binomtest(hits, len(think), quantile).pvalue > 1e-3
    mean = scenario.traffic.shape.think.mean_s
    assert abs(think.mean() - mean) < 4 * think.std() / len(think) ** 0.5
    fixed = with_values(chat, {"traffic.shape.think": {"kind": "fixed", "seconds": 600.0}})
    assert set(draw(fixed).frame["think_s"].dropna()) == {600.0}


def test_sessions_have_their_mean_length_and_pauses_between_them(chat):
    shape = USERS | {
        "session_requests": 4.0,
        "between_sessions": {"kind": "fixed", "seconds": 90.0},
    }
    frame = draw(with_values(chat, {"traffic.shape": shape}), seed=3).frame
    turns = frame.groupby("session").size()
    assert turns.mean() == pytest.approx(4.0, rel=0.12)  # the last of each user is cut
    starts = ~frame["session"].duplicated() & frame["user"].duplicated()
    assert (frame["think_s"][starts] == 90.0).all()
    assert (frame["think_s"][~starts].dropna() != 90.0).all()
    assert len(frame[["session", "user"]].drop_duplicates()) == len(turns)


@pytest.mark.parametrize("name", ["chat", "mixed"])
def test_more_time_adds_requests_and_moves_none(name, request):
    scenario = request.getfixturevalue(name)
    columns = ["arrival_s", "think_s", "session"]
    short = draw(with_values(scenario, {"traffic.duration_s": 900.0}), seed=5).frame
    long = draw(scenario, seed=5).frame
    for user, rows in short.groupby("user"):
        same = long[long["user"] == user].iloc[: len(rows)]
        pd.testing.assert_frame_equal(
            same[columns].reset_index(drop=True), rows[columns].reset_index(drop=True)
        )


def test_what_serves_the_users_changes_nothing_of_what_they_send(chat):
    other = with_values(chat, {"replicas": 9, "gateway.concurrency": 5, "network.one_way_s": 0.2})
    pd.testing.assert_frame_equal(draw(chat, seed=1).frame, draw(other, seed=1).frame)
    assert not draw(chat, seed=1).frame.equals(draw(chat, seed=2).frame)


def test_a_number_of_requests_is_dealt_out_in_turn(chat):
    eager = {"traffic.shape.think": {"kind": "fixed", "seconds": 0.0}, "requests": 100}
    trace = draw(with_values(chat, eager))
    sizes = trace.frame.groupby("user").size()
    assert len(trace) == 100
    assert set(sizes) == {2, 3}
    assert trace.duration_s == 3600.0


def test_lengths_are_those_of_the_users_class_in_the_trace(chat):
    base = read_base("sample").frame
    frame = draw(chat, seed=6).frame
    kinds = ["request_class", "tenant", "prompt_tokens", "output_tokens"]
    known = set(base[kinds].itertuples(index=False, name=None))
    assert set(frame[kinds].itertuples(index=False, name=None)) <= known


def test_a_tenant_that_the_trace_does_not_name_is_drawn_once_a_user(chat):
    base = read_base("sample")
    bare = from_frame(base.frame.drop(columns="tenant"), source="bare")
    frame, _, _ = closed_loop(chat, chat.traffic.shape, bare, key=(1, 0))
    assert len(frame[["user", "tenant"]].drop_duplicates()) == 40
    assert len(set(frame["tenant"])) > 1


def test_the_users_of_a_base_trace_are_gone_in_an_open_draw(chat):
    users = draw(chat, seed=1)
    steady = with_values(chat, {"traffic.shape": {"kind": "steady", "rate_rps": 5.0}})
    assert draw(steady, base=users).frame["user"].isna().all()
    assert "user" not in without_users(users).frame
    assert not is_closed(draw(steady))


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"traffic.shape.think": {"kind": "fixed", "seconds": 0.0}}, "requests: needed"),
        ({"traffic.shape.think": {"kind": "lognormal", "p50_s": 2.0, "p95_s": 1.0}}, "p50_s <="),
        ({"traffic.shape.between_sessions": EXPONENTIAL}, "session_requests"),
        (
            {"traffic.mix": [{"request_class": "chat", "at_s": 5.0, "share": 1.0}]},
            "mix: not with shape closed",
        ),
        ({"traffic.perturbations": [{"kind": "bursts"}]}, "bursts: not with shape closed"),
        ({"traffic.shape.users": 0}, "greater than or equal to 1"),
    ],
)
def test_inconsistent_closed_loops_are_refused(chat, values, rule):
    with pytest.raises(DataError, match=rule):
        with_values(chat, values)


def test_think_times_too_short_for_the_duration_are_an_error_before_memory_is_full(chat):
    values = {"traffic.shape.think": {"kind": "fixed", "seconds": 1e-6}}
    with pytest.raises(DataError, match="longer think times"):
        draw(with_values(chat, values))


def test_a_users_request_without_think_time_is_an_error(chat):
    trace = draw(chat, seed=1)
    broken = from_frame(trace.frame.assign(think_s=np.nan))
    with pytest.raises(DataError, match="think time for each request"):
        is_closed(broken)


def test_users_follow_a_wave_and_wait_for_their_return_with_the_next_request(mixed):
    """In the crest of a wave of full amplitude twice the users are there, in the trough none."""
    wave = {"amplitude_fraction": 1.0, "period_s": 1200.0}
    scenario = with_values(mixed, {"traffic.shape": USERS | {"ramp_s": 0.0, "wave": wave}})
    drawn = draw(scenario, seed=2)
    assert drawn.frame["user"].nunique() == 80
    assert drawn.frame["arrival_s"].is_monotonic_increasing
    run = simulate(scenario, trace=drawn, seed=2)
    start = run.requests["intended_start_s"].to_numpy() % 1200.0
    crest = np.count_nonzero((start > 200.0) & (start < 400.0))
    trough = np.count_nonzero((start > 800.0) & (start < 1000.0))
    assert crest > 10 * trough
    steady = simulate(with_values(mixed, {"traffic.shape": USERS | {"ramp_s": 0.0}}), seed=2)
    inside = np.count_nonzero((steady.requests["intended_start_s"] % 1200.0 - 300.0).abs() < 100.0)
    assert 1.6 < crest / inside < 2.1
