"""What callers may send beyond first attempts, and what they must not send again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.scenario.callers import Retry
from capplan.scenario.rate_limits import RetryBudget
from capplan.simulation.retries import SLICES, Budget

NOTHING = {"rate_limits": {"rate_rps": 1e-6}}
NAMED = {"rate_limits": [{"name": "all", "rate_rps": 1e-6}]}


def chat(**retry):
    return [{"name": "chat", "retry": {"honour_retry_after": False} | retry}]


def test_retries_are_a_fraction_of_first_attempts_plus_a_floor(build, trace_of, play):
    budget = {"fraction": 0.25, "min_per_s": 2.0, "window_s": 5.0}
    scenario = build(
        classes=chat(max_attempts=9, backoff_s=0.01, budget=budget), gateway=NOTHING, drain_s=1.0
    )
    log = play(scenario, trace_of(np.arange(0, 20, 0.05))).requests  # 20/s for 20 s
    retries = (log["attempt"] > 1).sum()
    assert retries == pytest.approx(20 * (0.25 * 20 + 2), rel=0.1)


def test_a_budget_of_nothing_forbids_every_retry(build, trace_of, play):
    budget = {"fraction": 0.0, "min_per_s": 0.0}
    scenario = build(classes=chat(max_attempts=9, budget=budget), gateway=NOTHING)
    result = play(scenario, trace_of([0.0, 0.5, 0.6]))
    assert result.requests["attempt"].max() == 1
    timeline = result.timeline
    dropped = timeline[timeline["metric"] == "retries_dropped_rps"]["value"].sum()
    assert dropped > 0
    assert timeline[timeline["metric"] == "retries_rps"]["value"].sum() == 0


@settings(max_examples=100)
@given(
    data=st.data(),
    fraction=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    floor=st.sampled_from([0.0, 0.3, 5.0]),
)
def test_over_any_ttl_retries_keep_within_the_budget(data, fraction, floor):
    budget = Budget(RetryBudget(fraction=fraction, min_per_s=floor, window_s=10.0))
    gaps = st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=1, max_size=80)
    now_s, first, again = 0.0, [], []
    for gap_s, is_first in data.draw(gaps):
        now_s += gap_s
        slice_ = int(now_s)
        if is_first:
            budget.deposit(now_s)
            first.append(slice_)
        else:
            spent = sum(s > slice_ - SLICES for s in again)
            right = fraction * sum(s > slice_ - SLICES for s in first) + floor * 10
            allowed = budget.withdraw(now_s)
            assert allowed == (right - spent >= 1 - 1e-9)
            again += [slice_] if allowed else []


def test_rights_to_retries_do_not_pile_up():
    budget = Budget(RetryBudget(fraction=1.0, min_per_s=0.0, window_s=10.0))
    for at_s in range(100):
        budget.deposit(float(at_s))
    assert sum(budget.withdraw(99.5) for _ in range(100)) == 10
    assert not budget.withdraw(150.0)


def test_a_budget_is_of_the_class_or_of_each_tenant(build, trace_of, play):
    counts = {}
    for per_tenant in (False, True):
        budget = {"fraction": 0.0, "min_per_s": 0.2, "window_s": 10.0, "per_tenant": per_tenant}
        scenario = build(
            classes=chat(max_attempts=9, budget=budget),
            tenants=[{"name": "a"}, {"name": "b"}],
            gateway=NOTHING,
        )
        trace = trace_of(np.arange(8) / 100, tenant=list("aaaaaaab"))
        log = play(scenario, trace).requests
        counts[per_tenant] = log[log["attempt"] > 1].groupby("tenant").size().to_dict()
    assert sum(counts[False].values()) == 2
    assert counts[True] == {"a": 2, "b": 2}


def test_one_class_has_a_budget_and_the_other_none(build, trace_of, play):
    own = {"max_attempts": 3, "backoff_s": 0.1, "honour_retry_after": False}
    classes = [
        {"name": "chat", "retry": own | {"budget": {"fraction": 0.0, "min_per_s": 0.0}}},
        {"name": "free", "retry": own},
    ]
    scenario = build(classes=classes, gateway=NOTHING)
    trace = trace_of([0.0, 0.1, 0.2], request_class=["chat", "chat", "free"])
    log = play(scenario, trace).requests
    assert log.groupby("request_class")["attempt"].max().to_dict() == {"chat": 1, "free": 3}


@pytest.mark.parametrize(
    ("rules", "attempts"),
    [
        ({}, 3),
        ({"never_on_status": [429]}, 1),
        ({"never_on_status": [503]}, 3),
        ({"never_on_reason": ["rate_limit"]}, 1),
        ({"never_on_reason": ["queue_full"]}, 3),
    ],
)
@pytest.mark.parametrize("gateway", [NOTHING, NAMED], ids=["plain", "named"])
def test_what_is_final_to_the_caller_is_not_tried_again(
    build, trace_of, play, *, rules, attempts, gateway
):
    scenario = build(classes=chat(max_attempts=3, backoff_s=0.1, **rules), gateway=gateway)
    log = play(scenario, trace_of([0.0, 0.1])).requests
    assert log["attempt"].max() == attempts


def test_the_thousandth_attempt_waits_no_longer_than_the_longest_backoff():
    """2 ** 1998 is no floating-point number."""
    retry = Retry(max_attempts=3000, backoff_s=0.1, multiplier=2.0, max_backoff_s=3.0)
    assert [retry.backoff_before(n) for n in (1, 2, 3, 7, 2000)] == [0.0, 0.1, 0.2, 3.0, 3.0]
    assert Retry(multiplier=1e300).backoff_before(9) == 0.0


def test_a_caller_waits_no_longer_for_retry_after_than_it_wants(build, trace_of, play):
    gateway = {"concurrency": 1, "queue": {"length": 0, "retry_after_s": 0.7}}
    for most_s, pause_s in ((None, 0.7), (0.4, 0.4), (2.0, 0.7), (0.1, 0.2)):
        retry = {"max_attempts": 2, "backoff_s": 0.2, "max_retry_after_s": most_s}
        scenario = build(classes=[{"name": "chat", "retry": retry}], gateway=gateway)
        log = play(scenario, trace_of([0.0, 0.0], output_tokens=1000)).requests
        assert log["intended_start_s"].iloc[2] == pytest.approx(pause_s)


def test_the_second_wave_is_on_the_timeline(build, trace_of, play):
    scenario = build(classes=chat(max_attempts=2, backoff_s=30.0), gateway=NOTHING)
    result = play(scenario, trace_of(np.append(np.linspace(0, 1, 50), [60.0])))
    timeline = result.timeline
    retries = timeline[timeline["metric"] == "retries_rps"].set_index("time_s")["value"]
    assert retries.loc[:29.0].sum() == 0
    assert retries.loc[29.0:32.0].max() > 10
    assert not (timeline["metric"] == "hedges_rps").any()


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        (
            {"never_on_reason": ["rate_limits"]},
            "never_on_reason: one of .*rate_limit, .*rate_limits",
        ),
        ({"budget": {"fraction": -0.1}}, "fraction"),
        ({"budget": {"window_s": 0.0}}, "window_s"),
        ({"budget": {"per_tenant": "user"}}, "per_tenant"),
        ({"never_on_status": [200]}, "never_on_status"),
        ({"max_retry_after_s": 0.0}, "max_retry_after_s"),
    ],
)
def test_an_error_names_the_bad_field(fields, rule):
    with pytest.raises(ValueError, match=rule):
        Retry.model_validate(fields, strict=False)
