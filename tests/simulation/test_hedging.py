"""A second attempt while the first is under way: which wins, and what it costs."""

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.results import headline, per_request
from capplan.scenario.callers import Hedge
from capplan.scenario.classes import RequestClass
from capplan.simulation.retries import Latencies


def hedging(after_s=0.5, *, retry=None, **hedge):
    return [{"name": "chat", "retry": retry or {}, "hedge": {"after_s": after_s} | hedge}]


@pytest.fixture(name="slow_first")
def _slow_first(build):
    """Return a pool of two replicas of which one is busy for long."""

    def slow_first(classes, **fields):
        batching = {
            "kind": "dynamic",
            "max_batch_size": 1,
            "service": {"base_s": 0.1, "per_size_s": 0.01},
        }
        pool = {"router": {"policy": "round_robin"}}
        return build(classes=classes, batching=batching, replicas=2, pool=pool, **fields)

    return slow_first


def by_number(log, request="r1"):
    return log[log["request_id"] == request].set_index("attempt")


def test_the_hedge_wins_and_the_first_is_cancelled(slow_first, trace_of, play):
    """r0 holds replica 0 for 10 s; r2 comes behind it, its hedge goes to replica 1."""
    scenario = slow_first([*hedging(), {"name": "other"}])
    names = ["other", "other", "chat"]
    trace = trace_of([0.0, 0.1, 0.2], prompt_tokens=[990, 1, 1], request_class=names)
    result = play(scenario, trace)
    check_conservation(result)
    rows = by_number(result.requests, "r2")
    assert rows["outcome"].tolist() == ["cancelled", "succeeded"]
    assert (rows["outcome_layer"][1], rows["reason"][1]) == ("caller", "hedge_lost")
    assert rows["sent_s"][2] == pytest.approx(0.7)
    assert rows["finish_s"][2] == rows["finish_s"][1] == pytest.approx(0.81)
    own = per_request(result).set_index("request_id").loc["r2"]
    assert own["outcome"] == "succeeded"
    assert own["e2e_s"] == pytest.approx(0.61)
    assert own["attempts"] == 2


def test_a_quick_answer_needs_no_hedge(slow_first, trace_of, play):
    result = play(slow_first(hedging()), trace_of([0.0, 1.0], prompt_tokens=1))
    assert result.requests["attempt"].max() == 1
    timeline = result.timeline
    assert timeline[timeline["metric"] == "hedges_rps"]["value"].sum() == 0


def test_hedges_count_as_amplification_and_requests_count_once(slow_first, trace_of, play):
    scenario = slow_first(hedging())
    result = play(scenario, trace_of([0.0, 0.1, 0.2], prompt_tokens=[990, 1, 1]))
    figures = headline(result)
    sent = len(result.requests)
    assert sent > 3
    assert figures["offered"] == 3
    assert figures["outcomes"]["succeeded"] == 3
    assert figures["outcomes"]["cancelled"] == 0
    assert figures["retry_amplification"] == pytest.approx(sent / 3)
    timeline = result.timeline
    hedges = timeline[timeline["metric"] == "hedges_rps"]
    steps = np.diff([*hedges["time_s"], result.duration_s])
    assert hedges["value"].to_numpy() @ steps == pytest.approx(sent - 3)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_at_most_so_many_hedges_for_one_request(build, trace_of, play, most):
    scenario = build(
        classes=hedging(0.1, most=most),
        batching={"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 5.0}},
        replicas=5,
    )
    log = play(scenario, trace_of([0.0])).requests
    assert log["attempt"].tolist() == list(range(1, most + 2))
    assert log["sent_s"].tolist() == pytest.approx([0.1 * n for n in range(most + 1)])
    assert log["outcome"].tolist() == ["succeeded"] + ["cancelled"] * most


def test_the_network_lets_the_loser_go_on_until_the_news_comes(build, trace_of, play):
    scenario = build(
        classes=hedging(0.5),
        batching={"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 1.0}},
        replicas=2,
        network={"one_way_s": 0.2},
    )
    result = play(scenario, trace_of([0.0]))
    check_conservation(result)
    first, hedge = result.requests.to_dict("records")
    assert first["outcome"] == "succeeded"
    assert first["finish_s"] == pytest.approx(1.4)
    assert (hedge["outcome"], hedge["finish_s"]) == ("cancelled", pytest.approx(1.4))
    assert hedge["batch_in_s"] == pytest.approx(0.7)


def test_both_answers_at_once_are_one_success(build, trace_of, play):
    """The hedge, 0.5 s later on a replica twice as fast, ends in the same instant."""
    batching = {
        "kind": "dynamic",
        "max_batch_size": 2,
        "max_queue_delay_s": 0.5,
        "service": {"base_s": 1.0},
    }
    result = play(build(classes=hedging(0.25), batching=batching), trace_of([0.0]))
    check_conservation(result)
    assert sorted(result.requests["outcome"]) == ["cancelled", "succeeded"]


def test_one_that_fails_while_another_goes_on_is_not_tried_again(build, trace_of, play):
    """Each replica holds one: the hedge is refused, the first is answered."""
    pool = {"queue": {"length": 0}, "router": {"max_in_flight": 1}}
    scenario = build(
        classes=hedging(0.5, retry={"max_attempts": 5}),
        batching={"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 2.0}},
        pool=pool,
    )
    log = play(scenario, trace_of([0.0])).requests
    assert log["outcome"].tolist() == ["succeeded", "rejected"]


def test_when_all_have_failed_the_request_is_tried_again(build, trace_of, play):
    """Each try and its hedge end at the attempt timeout; the hedge goes on for longer."""
    scenario = build(
        classes=hedging(0.5, retry={
            "max_attempts": 2, "attempt_timeout_s": 1.0, "backoff_s": 0.25,
            "retry_on": ["timed_out"],
        }),
        batching={"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 9.0}},
        replicas=5,
    )  # fmt: skip
    result = play(scenario, trace_of([0.0]))
    check_conservation(result)
    log = result.requests
    assert (log["outcome"] == "timed_out").all()
    assert log["sent_s"].tolist() == pytest.approx([0.0, 0.5, 1.75])
    assert per_request(result)["attempts"].tolist() == [3]


def test_a_deadline_ends_all_attempts_of_a_request(build, trace_of, play):
    scenario = build(
        classes=hedging(0.5, retry={"max_attempts": 3, "retry_on": ["timed_out"]}),
        batching={"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 9.0}},
        replicas=3,
    )
    log = play(scenario, trace_of([0.0], deadline_s=2.0)).requests
    assert log["outcome"].tolist() == ["timed_out", "timed_out"]
    assert log["finish_s"].tolist() == [2.0, 2.0]


def test_a_request_without_an_answer_ended_as_its_last_attempt_to_end(build, trace_of, play):
    """The hedge is refused at once; the first times out."""
    pool = {"queue": {"length": 0}, "router": {"max_in_flight": 1}}
    batching = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 9.0}}
    scenario = build(classes=hedging(0.5), batching=batching, pool=pool)
    result = play(scenario, trace_of([0.0], deadline_s=2.0))
    assert result.requests["outcome"].tolist() == ["timed_out", "rejected"]
    assert per_request(result)["outcome"].tolist() == ["timed_out"]


def test_hedges_are_within_the_retry_budget(build, trace_of, play):
    budget = {"fraction": 0.1, "min_per_s": 0.0, "window_s": 60.0}
    scenario = build(
        classes=hedging(0.01, retry={"budget": budget}),
        batching={"kind": "dynamic", "max_batch_size": 64, "service": {"base_s": 0.5}},
    )
    log = play(scenario, trace_of(np.arange(50) / 10)).requests
    assert (log["attempt"] > 1).sum() == 5


def test_attempts_that_a_load_generator_holds_back_are_hedged_and_cancelled_too(
    build, trace_of, play
):
    """One connection: the hedge waits in the generator, and is never sent."""
    scenario = build(
        classes=hedging(0.1),
        batching={"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 1.0}},
        faults=[{"kind": "generator_limit", "at_s": 0.0, "connections": 1}],
    )
    result = play(scenario, trace_of([0.0, 5.0]))
    check_conservation(result)
    log = result.requests
    assert log["outcome"].tolist() == ["succeeded", "cancelled"] * 2
    assert log["reason"].tolist()[1::2] == ["hedge_lost"] * 2


def test_a_quantile_waits_until_enough_is_known():
    known = Latencies(0.9)
    for n in range(99):
        known.add(float(n))
    assert known.delay_s == np.inf
    known.add(99.0)
    assert known.delay_s == 89.0
    for _ in range(1000):
        known.add(7.0)
    assert known.delay_s == 7.0


def test_hedging_after_a_high_quantile_costs_little_and_shortens_the_tail(build, trace_of, play):
    """Exponential answers of mean 1/10 s, enough replicas: one in ten is hedged, at 0.23 s."""
    figures = {}
    for hedge in (None, {"after_quantile": 0.9}):
        scenario = build(
            classes=[{"name": "chat", "hedge": hedge}],
            batching={
                "kind": "dynamic",
                "max_batch_size": 1,
                "service": {"base_s": 0.1, "exponential": True},
            },
            replicas=40,
        )
        result = play(scenario, trace_of(np.arange(6000) / 20))
        check_conservation(result)
        figures[hedge is None] = headline(result)
    assert figures[True]["retry_amplification"] == 1.0
    assert figures[False]["retry_amplification"] == pytest.approx(1.1, abs=0.015)
    law = {q: -0.1 * np.log(1 - q) for q in (0.9, 0.99)}
    assert figures[True]["e2e_s"]["p99"] == pytest.approx(law[0.99], rel=0.15)
    hedged_s = law[0.9] + 0.05 * np.log(10)  # the rest is the least of two exponentials
    assert figures[False]["e2e_s"]["p99"] == pytest.approx(hedged_s, rel=0.1)


def test_an_attempt_given_up_counts_as_a_long_latency_and_is_not_hedged(build, trace_of, play):
    """Half of the answers would take 9 s: at the median, a caller gives up as it would hedge."""
    scenario = build(
        classes=[
            {"name": "chat", "hedge": {"after_quantile": 0.5}, "retry": {"attempt_timeout_s": 1.0}}
        ],
        batching={
            "kind": "dynamic",
            "max_batch_size": 1,
            "service": {"base_s": 1e-9, "per_size_s": 1.0},
        },
        replicas=60,
    )
    sizes = np.tile([9.0, 9.0, 0.25], 20)
    log = play(scenario, trace_of(np.arange(60) * 0.375, size=sizes.tolist())).requests
    assert log["attempt"].max() == 1
    assert (log["reason"] == "attempt_timeout").sum() == 40


@pytest.mark.parametrize("after_s", [0.5, 0.75])
def test_a_hedge_after_the_attempt_is_over_is_an_error(after_s):
    fields = {"name": "chat", "hedge": {"after_s": after_s}, "retry": {"attempt_timeout_s": 0.5}}
    with pytest.raises(ValueError, match=r"hedge.after_s: below retry.attempt_timeout_s 0.5"):
        RequestClass(**fields)


@pytest.mark.parametrize("hedge", [{}, {"after_s": 1.0, "after_quantile": 0.9}])
def test_a_hedge_has_exactly_one_delay(hedge):
    with pytest.raises(ValueError, match="exactly one of after_s and after_quantile"):
        Hedge(**hedge)


@pytest.mark.parametrize(
    ("hedge", "told"),
    [({"after_s": 0.0}, "after_s"), ({"after_quantile": 1.0}, "after_quantile"),
     ({"after_s": 1.0, "most": 0}, "most")],
)  # fmt: skip
def test_errors_name_the_wrong_field(hedge, told):
    with pytest.raises(ValueError, match=told):
        Hedge(**hedge)
