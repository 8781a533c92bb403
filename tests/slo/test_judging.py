import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.scenario.files import with_values
from capplan.slo import judge
from capplan.verdict import PRECEDENCE, worst


def outcome_of(verdict, rule):
    found = {r.outcome for r in verdict.reasons if r.rule == rule}
    assert len(found) <= 1
    return next(iter(found), None)


@given(st.lists(st.sampled_from(PRECEDENCE), min_size=1))
def test_the_overall_outcome_is_the_worst_and_pass_needs_every_rule(outcomes):
    found = worst(outcomes)
    assert found in outcomes
    assert all(PRECEDENCE.index(found) <= PRECEDENCE.index(one) for one in outcomes)
    assert (found == "pass") == (set(outcomes) == {"pass"})


def test_nothing_judged_is_unknown_never_pass():
    assert worst([]) == "unknown"
    with pytest.raises(ValueError, match="at least one run"):
        judge([])


def test_a_client_that_is_late_proves_nothing_of_the_service(run):
    start = np.arange(2000) * 0.1
    late = judge(run(sent_s=start + 0.3))  # of TTFT within 2 s, 5 % are 0.1 s
    [reason] = [r for r in late.reasons if r.rule == "client_limited"]
    assert (late.outcome, reason.outcome) == ("blocked", "blocked")
    unsent = judge(run(sent_s=np.where(np.arange(2000) % 10, start, np.nan)))
    [reason] = [r for r in unsent.reasons if r.rule == "client_limited"]
    assert reason.value == pytest.approx(0.9)
    assert outcome_of(judge(run(sent_s=start + 0.05)), "client_limited") is None
    assert outcome_of(judge(run()), "client_limited") is None


def test_equal_lengths_are_unknown_for_any_other(run):
    verdict = judge(run(prompt_tokens=512, output_tokens=128))
    assert outcome_of(verdict, "equal_lengths") == "unknown"
    assert verdict.outcome == "unknown"
    assert outcome_of(judge(run(prompt_tokens=512)), "equal_lengths") is None
    sized = run(prompt_tokens=0, output_tokens=0, size=np.arange(2000.0))
    assert outcome_of(judge(sized), "equal_lengths") is None


def test_a_broken_promise_outranks_equal_lengths(run):
    assert judge(run(ttft=3.0, prompt_tokens=512, output_tokens=128)).outcome == "fail"


def test_a_growing_backlog_fails_whatever_the_latency(run):
    n = 5000
    finish = np.arange(n) * 0.1 * 1.3 + 1.5  # a server that works off 1 / 1.3 of what comes
    verdict = judge(run(n, finish_s=finish))
    assert outcome_of(verdict, "stability") == "fail"
    assert verdict.outcome == "fail"


def test_busy_accelerators_with_late_answers_are_a_failed_design(run):
    assert outcome_of(judge(run(ttft=3.0, busy=0.95)), "busy_but_late") == "fail"
    assert outcome_of(judge(run(ttft=3.0, busy=0.5)), "busy_but_late") is None
    assert outcome_of(judge(run(ttft=0.5, busy=0.95)), "busy_but_late") is None


def test_retries_that_multiply_the_load_fail(run):
    one = run(2000)
    log = one.requests
    again = log.iloc[:400].assign(attempt=2)
    first = log.iloc[:400].assign(outcome="failed", outcome_layer="decode")
    log = type(log)(np.concatenate([first, again, log.iloc[400:]]), columns=log.columns)
    log = log.astype(one.requests.dtypes)
    object.__setattr__(one, "requests", log)
    verdict = judge(one)
    assert outcome_of(verdict, "retry_amplification") == "fail"
    assert "retry_amplification" in {r.rule for r in verdict.defaults}


def waits_twice(run, scenario):
    start = np.arange(2000) * 0.1
    return run(asked=scenario, scheduler_queue_in_s=start + 0.1, batch_in_s=start + 0.2)


def test_waiting_twice_is_blocked_until_both_queues_are_owned_and_limited(run, scenario):
    loose = judge(waits_twice(run, scenario()))
    assert loose.outcome == "blocked"
    assert [r.rule for r in loose.decisive] == ["double_queue"]
    limited = scenario(
        **{"pools.llm.queue.wait_limit_s": 1.0, "pools.llm.batching.scheduler.wait_limit_s": 1.0}
    )
    assert outcome_of(judge(waits_twice(run, limited)), "double_queue") == "pass"
    ownerless = with_values(limited, {"pools.llm.owner": "", "pools.llm.queue.owner": ""})
    assert judge(waits_twice(run, ownerless)).outcome == "blocked"


def test_another_service_or_load_than_ran_is_unknown(run, scenario):
    verdict = judge(run(), scenario(**{"pools.llm.replicas": 4}))
    assert verdict.outcome == "unknown"
    assert [r.rule for r in verdict.reasons] == ["scope"]
    assert verdict.reasons[0].value == "pools"
    faster = scenario(**{"traffic.shape.rate_rps": 500.0})
    assert judge(run(), faster).reasons[0].value == "traffic"


def test_other_promises_for_the_same_service_are_judged(run, scenario):
    assert judge(run(), scenario({"ttft_s": 0.1, "quantile": 0.99})).outcome == "fail"


def test_goodput_counts_by_the_promises_that_are_asked_about(run, scenario):
    """Every answer keeps the 2 s of the run's own promise, and none the 0.1 s that is asked."""
    asked = {"ttft_s": 0.1, "goodput_fraction": 0.9, "quantile": 0.99}
    assert outcome_of(judge(run(), scenario(asked)), "goodput_fraction") == "fail"
    assert outcome_of(judge(run(), scenario(asked | {"ttft_s": 1.0})), "goodput_fraction") == "pass"


def test_a_verdict_knows_its_scope(run):
    verdict = judge(run())
    low, high = verdict.scope.load_range_rps
    assert (low, high) == pytest.approx((10.0, 10.0), rel=0.01)
    assert verdict.scope.input_distribution["chat"]["requests"] == 2000
    assert verdict.asked(load_rps=10.0, request_class="chat", prompt_tokens=100) is verdict
    for question in (
        {"load_rps": 50.0},
        {"model": "other"},
        {"accelerator": "other"},
        {"request_class": "other"},
        {"prompt_tokens": 10_000},
    ):
        found = verdict.asked(**question)
        assert found.outcome == "unknown"
        assert [r.value for r in found.reasons] == [next(iter(question))]


def test_a_verdict_is_json_and_one_sentence(run):
    for verdict in (judge(run()), judge(run(ttft=3.0, busy=0.95))):
        data = verdict.to_json()
        json.dumps(data, allow_nan=False)
        assert {"outcome", "reasons", "scope"} <= set(data)
        keys = {"rule", "value", "limit", "evidence", "next_action"}
        assert all(keys <= set(r) for r in data["reasons"])
        assert "\n" not in str(verdict)
        assert str(verdict).startswith(verdict.outcome)


def test_every_reason_that_is_not_a_pass_says_what_to_do_next(run):
    verdict = judge(run(900, ttft=3.0, prompt_tokens=5, output_tokens=5, busy=0.99))
    assert all(r.next_action for r in verdict.reasons if r.outcome != "pass")
