"""What must not be retried is marked; retries of it, and beyond the budget, are dropped."""

import numpy as np
import pytest

from capplan.simulation.attempt import Failure


@pytest.mark.parametrize(
    ("reason", "can"),
    [
        ("max_model_len", False),
        ("kv_capacity", False),
        ("prompt_too_long", False),
        ("request_too_large:t", False),
        ("quota_exhausted:month", False),
        ("retry_budget", False),
        ("final_retry", False),
        ("rate_limit", True),
        ("rate_limit:quota_exhausted", True),
        ("queue_full", True),
        ("displaced", True),
        ("reclaimed", True),
    ],
)
def test_what_must_not_be_retried_is_marked(reason, can):
    assert Failure("rejected", "gateway", reason).can_be_retried == can


def test_too_long_a_prompt_gets_413_and_takes_no_token(build, trace_of, play):
    scenario = build(
        classes=[{"name": "chat", "retry": {"max_attempts": 3}}],
        gateway={"max_prompt_tokens": 100, "rate_limits": {"rate_rps": 1.0}},
    )
    result = play(scenario, trace_of([0.0, 0.0, 0.0], prompt_tokens=[101, 100, 500]))
    log = result.requests
    assert log["reason"].fillna("").tolist() == ["prompt_too_long", "", "prompt_too_long"]
    assert log["outcome_layer"].dropna().tolist() == ["gateway", "gateway"]
    assert log["attempt"].tolist() == [1, 1, 1]


def test_prompt_and_answer_over_their_limit_get_422_which_the_timeline_counts(
    build, trace_of, play
):
    scenario = build(gateway={"max_total_tokens": 150})
    trace = trace_of([0.0, 0.1, 0.2], prompt_tokens=[100, 100, 151], output_tokens=[50, 51, 1])
    result = play(scenario, trace)
    assert result.requests["reason"].fillna("").tolist() == ["", *["too_many_tokens"] * 2]
    peak = result.timeline.groupby("metric", observed=True)["value"].max()
    assert peak["status_422_rps"] > 0
    assert peak["refused_too_many_tokens_rps"] > 0
    plain = play(build(), trace).timeline
    assert not set(plain["metric"]) & {"status_422_rps", "refused_too_many_tokens_rps"}


def test_retries_of_what_must_not_be_retried_are_dropped_for_a_naive_caller(build, trace_of, play):
    naive = {"max_attempts": 4, "heeds_final": False}
    gateway = {"max_prompt_tokens": 100, "rate_limits": [{"name": "r", "rate_rps": 1.0}]}
    for drops, reasons in (
        (False, ["prompt_too_long"] * 4),
        (True, ["prompt_too_long", *["final_retry"] * 3]),
    ):
        scenario = build(
            classes=[{"name": "chat", "retry": naive}],
            gateway=gateway | {"drop_final_retries": drops},
        )
        result = play(scenario, trace_of([0.0, 0.1], prompt_tokens=[101, 100]))
        assert result.requests["reason"].fillna("").tolist() == [*reasons, ""]


def test_what_a_model_refused_as_too_long_is_dropped_before_it_comes_to_the_model_again(
    build, trace_of, play
):
    scenario = build(
        classes=[{"name": "chat", "retry": {"max_attempts": 3, "heeds_final": False}}],
        gateway={"drop_final_retries": True},
    )
    log = play(scenario, trace_of([0.0], prompt_tokens=9000)).requests
    assert log["reason"].tolist() == ["max_model_len", "final_retry", "final_retry"]
    assert log["outcome_layer"].tolist() == ["scheduler_queue", "gateway", "gateway"]


def storm(build, trace_of, play, **gateway):
    """Return the log of callers who try again at once what a broken pool cannot serve."""
    scenario = build(
        classes=[{"name": "chat", "retry": {"max_attempts": 6, "honour_retry_after": False}}],
        gateway=gateway,
        faults=[{"at_s": 2.0, "down_s": 3.0}],
        pool={"queue": {"length": 0}, "router": {"max_in_flight": 4}},
    )
    return play(scenario, trace_of(np.arange(500) / 100)).requests


def test_a_retry_budget_bounds_the_amplification_of_a_storm(build, trace_of, play):
    free = storm(build, trace_of, play)
    budget = {"fraction": 0.1, "min_per_s": 0.0, "window_s": 1.0}
    held = storm(build, trace_of, play, retry_budget=budget)
    behind = [(log["service_queue_in_s"].notna()).sum() / 500 for log in (free, held)]
    assert behind[0] > 2
    assert behind[1] < 1.12
    dropped = held[held["reason"] == "retry_budget"]
    assert len(dropped) > 100
    assert (dropped["attempt"] > 1).all()
    assert held.groupby("request_id")["attempt"].max().loc[dropped["request_id"]].eq(
        dropped["attempt"].to_numpy()
    ).all()  # fmt: skip
