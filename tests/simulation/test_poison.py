"""Requests on which an engine fails: alone, or with all that run beside them."""

import numpy as np
import pandas as pd
import pytest
from conservation_checks import check_conservation

from capplan.scenario.files import with_values
from capplan.simulation import simulate

STEP = {"kind": "linear"} | dict.fromkeys(
    ("per_prefill_token_s", "per_sequence_s", "per_context_token_s"), 0.0
)
CLASSES = [{"name": "chat"}, {"name": "bad", "poisoned_fraction": 1.0}]


def continuous(**fields):
    return {
        "kind": "continuous", "kv_blocks": 1000, "step_time": STEP | {"base_s": 1.0},
    } | fields  # fmt: skip


@pytest.fixture(name="log_of")
def _log_of(build, trace_of):
    def log_of(times, names, *, classes=CLASSES, engine="fast", **batching):
        scenario = build(classes=classes, batching=continuous(**batching))
        trace = trace_of(times, prompt_tokens=10, output_tokens=5, request_class=names)
        result = simulate(scenario, trace=trace, engine=engine)
        check_conservation(result)
        return result.requests

    return log_of


def test_a_poisoned_request_fails_in_its_first_step(log_of):
    log = log_of([0.0, 2.5], ["chat", "bad"])
    assert log["outcome"].tolist() == ["succeeded", "failed"]
    bad = log.iloc[1]
    assert (bad["reason"], bad["outcome_layer"]) == ("poisoned", "prefill")
    assert (bad["batch_in_s"], bad["finish_s"]) == (3.0, 4.0)
    assert bad["output_tokens"] == 0
    assert bad["wasted_tokens"] == 10 + 1
    assert np.isnan(bad["prefill_end_s"])


def test_alone_it_harms_no_other_request(log_of):
    log = log_of([0.0, 2.5, 2.6], ["chat", "bad", "chat"], poison="alone")
    assert log["outcome"].tolist() == ["succeeded", "failed", "succeeded"]
    assert log["finish_s"].tolist() == [5.0, 4.0, 8.0]


def test_with_its_batch_all_that_run_fail_and_those_that_wait_do_not(log_of):
    log = log_of([0.0, 2.5, 3.5], ["chat", "bad", "chat"], poison="batch")
    assert log["outcome"].tolist() == ["failed", "failed", "succeeded"]
    assert log["reason"].tolist()[:2] == ["poisoned_batch", "poisoned"]
    assert log["finish_s"].tolist() == [4.0, 4.0, 9.0]
    assert log["wasted_tokens"].tolist()[:2] == [10 + 4, 10 + 1]


def test_every_retry_of_a_poisoned_request_fails_again(log_of):
    retry = {"retry": {"max_attempts": 3, "backoff_s": 1.0}}
    classes = [CLASSES[0], CLASSES[1] | retry]
    log = log_of([0.0], ["bad"], classes=classes)
    assert log["outcome"].tolist() == ["failed"] * 3
    final = [CLASSES[0], CLASSES[1] | {"retry": retry["retry"] | {"never_on_status": [500]}}]
    assert len(log_of([0.0], ["bad"], classes=final)) == 1


@pytest.mark.parametrize("together", [False, True])
def test_a_dynamic_batch_fails_alone_or_as_a_whole(build, trace_of, play, together):
    batching = {
        "kind": "dynamic", "max_batch_size": 3, "max_queue_delay_s": 0.5,
        "service": {"base_s": 1.0}, "poison": "batch" if together else "alone",
    }  # fmt: skip
    scenario = build(classes=CLASSES, batching=batching)
    result = play(scenario, trace_of([0.0, 0.0, 0.1], request_class=["chat", "bad", "chat"]))
    check_conservation(result)
    failed = result.requests["outcome"] == "failed"
    assert failed.tolist() == [together, True, together]
    assert len(set(result.requests["finish_s"])) == 1


def test_the_share_of_poisoned_requests_is_that_of_the_class(build, trace_of, play):
    classes = [{"name": "chat", "poisoned_fraction": 0.2}, {"name": "clean"}]
    names = np.where(np.arange(4000) % 2 == 0, "chat", "clean")
    trace = trace_of(np.arange(4000) / 100, request_class=names, output_tokens=2)
    log = play(build(classes=classes), trace).requests
    failed = log.groupby("request_class")["outcome"].apply(lambda o: (o == "failed").sum())
    assert failed["clean"] == 0
    assert failed["chat"] == pytest.approx(400, abs=4 * np.sqrt(2000 * 0.2 * 0.8))


def test_poison_moves_no_other_draw(build, trace_of):
    scenario = build(
        classes=[{"name": "chat", "retry": {"max_attempts": 3, "backoff_s": 1.0, "jitter": True}}],
        gateway={"rate_limits": {"rate_rps": 5.0}},
    )
    trace = trace_of(np.arange(100) / 10)
    plain = simulate(scenario, trace=trace)
    other = simulate(with_values(scenario, {"classes.chat.poisoned_fraction": 1e-9}), trace=trace)
    pd.testing.assert_frame_equal(plain.requests, other.requests)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_between_none_and_all(build, share):
    with pytest.raises(ValueError, match="poisoned_fraction"):
        build(classes=[{"name": "chat", "poisoned_fraction": share}])


@pytest.mark.parametrize(("poison", "failed"), [("alone", 1), ("batch", 2)])
def test_of_several_models_only_the_one_whose_step_fails_is_struck(build, trace_of, poison, failed):
    models = [{"name": name, "kv_fraction": 0.5, "load_s": 1.0} for name in "xy"]
    classes = [{"name": "chat", "model": "x"}, {"name": "other", "model": "y"}]
    classes.append({"name": "bad", "model": "x", "poisoned_fraction": 1.0})
    batching = continuous(poison=poison, step_time=STEP | {"base_s": 1.0})
    scenario = build(classes=classes, batching=batching, pool={"models": models})
    trace = trace_of(
        [0.0, 0.0, 0.5], prompt_tokens=10, output_tokens=5, request_class=["chat", "other", "bad"]
    )
    result = simulate(scenario, trace=trace)
    check_conservation(result)
    log = result.requests.set_index("request_class")
    assert (log["outcome"] == "failed").sum() == failed
    assert log["outcome"]["bad"] == "failed"
    assert log["outcome"]["other"] == "succeeded"


def test_poison_strikes_a_crowd_under_load_and_the_books_balance(build, trace_of, play):
    classes = [
        {
            "name": "chat", "poisoned_fraction": 0.05,
            "retry": {"max_attempts": 3, "backoff_s": 0.1, "attempt_timeout_s": 3.0},
            "hedge": {"after_s": 0.5},
        }
    ]  # fmt: skip
    batching = continuous(poison="batch", max_num_seqs=8, step_time=STEP | {"base_s": 0.02})
    trace = trace_of(np.arange(600) / 40, prompt_tokens=10, output_tokens=20)
    result = play(build(classes=classes, batching=batching, replicas=2), trace)
    check_conservation(result)
    reasons = set(result.requests["reason"].dropna())
    assert {"poisoned", "poisoned_batch"} <= reasons
    struck = result.requests[result.requests["reason"] == "poisoned"]
    assert struck["request_id"].nunique() < len(struck)
