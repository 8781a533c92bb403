import math

import numpy as np
import pytest


def chat(**retry):
    return [{"name": "chat", "retry": retry}]


def test_a_caller_leaves_at_its_deadline_and_frees_the_sequence(build, trace_of, play):
    scenario = build(network={"one_way_s": 0.25})
    log = play(scenario, trace_of([1.0], output_tokens=4000, deadline_s=2.0)).requests.iloc[0]
    assert (log["outcome"], log["outcome_layer"], log["reason"]) == (
        "timed_out",
        "caller",
        "deadline",
    )
    assert log["finish_s"] == 3.0
    assert math.isnan(log["decode_end_s"])
    steps = (3.25 - 1.25) / 4.02e-3
    assert log["wasted_tokens"] == pytest.approx(100 + steps, rel=0.02)
    assert 0 < log["output_tokens"] < log["wasted_tokens"] - 100 + 1


def test_an_answer_exactly_at_the_deadline_is_in_time(single_queue, trace_of, play):
    scenario = single_queue(1, exponential=False)
    log = play(scenario, trace_of([0.0, 0.0], deadline_s=[1.0, 1.5])).requests
    assert log["outcome"].tolist() == ["succeeded", "timed_out"]


def test_backoff_grows_up_to_its_limit(build, trace_of, play):
    scenario = build(
        classes=chat(
            max_attempts=6,
            backoff_s=1.0,
            multiplier=2.0,
            max_backoff_s=3.0,
            honour_retry_after=False,
        ),
        gateway={"rate_limits": {"rate_rps": 1e-6}},
    )
    log = play(scenario, trace_of([0.0, 1.0])).requests
    tries = log[log["request_id"] == "r1"]
    assert tries["attempt"].tolist() == [1, 2, 3, 4, 5, 6]
    assert np.diff(tries["intended_start_s"]).tolist() == pytest.approx([1, 2, 3, 3, 3])
    assert (tries["outcome"] == "rejected").all()


def test_full_jitter_is_uniform_up_to_the_backoff(build, trace_of, play):
    scenario = build(
        classes=chat(max_attempts=2, backoff_s=10.0, jitter=True, honour_retry_after=False),
        gateway={"rate_limits": {"rate_rps": 1e-6}},
    )
    log = play(scenario, trace_of(np.zeros(2000))).requests
    pauses = log[log["attempt"] == 2]["intended_start_s"]
    assert 0 <= pauses.min() < 0.1
    assert 9.9 < pauses.max() <= 10
    assert pauses.mean() == pytest.approx(5, abs=4 * 10 / math.sqrt(12 * 2000))


def test_retry_after_is_a_floor_under_the_backoff(build, trace_of, play):
    gateway = {"concurrency": 1, "queue": {"length": 0, "retry_after_s": 0.7}}
    for honour, pause_s in ((True, 0.7), (False, 0.2)):
        retry = {"max_attempts": 2, "backoff_s": 0.2, "honour_retry_after": honour}
        scenario = build(classes=chat(**retry), gateway=gateway)
        log = play(scenario, trace_of([0.0, 0.0], output_tokens=1000)).requests
        assert log["intended_start_s"].iloc[2] == pytest.approx(pause_s)


def test_no_retry_past_the_deadline_or_of_what_cannot_succeed(build, trace_of, play):
    retry = chat(max_attempts=5, backoff_s=1.0)
    scenario = build(classes=retry, gateway={"rate_limits": {"rate_rps": 1e-6}})
    log = play(scenario, trace_of([0.0, 0.0], deadline_s=2.5)).requests
    assert log["attempt"].max() == 1  # the next token, and so Retry-After, is beyond the deadline
    log = play(build(classes=retry), trace_of([0.0], prompt_tokens=9000)).requests
    assert log["reason"].tolist() == ["max_model_len"]


def test_an_attempt_timeout_ends_one_attempt_only(single_queue, trace_of, play):
    scenario = single_queue(
        2,
        exponential=False,
        classes=chat(max_attempts=3, attempt_timeout_s=0.4, backoff_s=0.1, retry_on=["timed_out"]),
    )
    log = play(scenario, trace_of([0.0])).requests
    assert log["outcome"].tolist() == ["timed_out"] * 3
    assert log["reason"].tolist() == ["attempt_timeout"] * 3
    assert log["finish_s"].tolist() == pytest.approx([0.4, 0.9, 1.4])
    assert log["batch_in_s"].tolist()[:2] == pytest.approx([0.0, 0.5])
    assert log["wasted_tokens"].tolist() == [110, 110, 110]


def test_only_the_named_outcomes_are_tried_again(build, trace_of, play):
    for retry_on, attempts in (([], 1), (["failed"], 1), (["rejected"], 2)):
        scenario = build(
            classes=chat(max_attempts=2, retry_on=retry_on, honour_retry_after=False),
            gateway={"rate_limits": {"rate_rps": 1e-6}},
        )
        log = play(scenario, trace_of([0.0, 0.1])).requests
        assert log["attempt"].max() == attempts


def test_without_streaming_the_first_token_comes_with_the_last(build, trace_of, play):
    log = play(build(), trace_of([0.0, 0.0], streaming=[True, False])).requests
    assert log["first_token_s"].iloc[0] < log["finish_s"].iloc[0]
    assert log["first_token_s"].iloc[1] == log["finish_s"].iloc[1]
