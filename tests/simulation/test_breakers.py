"""Breakers: what each action does to a run whose truth is known, and when rules open and close."""

import math

import numpy as np
import pandas as pd
import pytest

from capplan.results.breakers import breaker_figures, open_spans, transitions
from capplan.scenario.files import with_values
from capplan.schema import DataError


def steps_of(base_s, **fields):
    terms = {"per_prefill_token_s": 0.0, "per_sequence_s": 0.0, "per_context_token_s": 0.0}
    law = {"kind": "linear", "base_s": base_s} | terms
    return {"kind": "continuous", "kv_blocks": 10_000, "step_time": law} | fields


def rule(*then, name="guard", above=None, metric="queue_length", when=None, **fields):
    watched = {"metric": metric} | ({} if above is None else {"above": above}) | (when or {})
    return {"name": name, "when": watched, "then": list(then)} | fields


REFUSE = {"kind": "refuse", "retry_after_s": 7.0}


@pytest.fixture(name="line")
def _line(build, dynamic, trace_of, play):
    """Return runs of one server of 1 s; ``count`` requests come every ``gap_s``."""

    def line(breakers, *, count=10, gap_s=0.1, arrivals=None, trace=None, **fields):
        scenario = build(
            batching=dynamic(1.0),
            pool={"router": {"max_in_flight": 1}},
            breakers=breakers,
            **fields,
        )
        times = np.arange(count) * gap_s if arrivals is None else arrivals
        return play(scenario, trace_of(times, **(trace or {})))

    return line


def test_a_full_queue_refuses_with_the_time_to_come_back(line):
    """Ten come by 0.9 s; eight wait at 1 s, so the one at 1.05 s is refused."""
    result = line([rule(REFUSE, above=7)], arrivals=[*np.arange(10) * 0.1, 1.05, 9.5])
    log = result.requests
    refused = log[log["outcome"] == "rejected"]
    assert list(refused["request_id"]) == ["r10"]
    assert refused.iloc[0][["outcome_layer", "reason"]].tolist() == [
        "service_queue",
        "breaker:guard",
    ]
    assert refused.iloc[0]["finish_s"] == 1.05
    assert transitions(result)[["time_s", "event", "value"]].to_numpy().tolist() == [
        [1.0, "open", 8.0],
        [2.0, "close", 7.0],
    ]


def test_callers_come_back_after_retry_after(line):
    retry = {"max_attempts": 2, "retry_on": ["rejected"]}
    result = line(
        [rule(REFUSE, above=7)],
        arrivals=[*np.arange(10) * 0.1, 1.05],
        classes=[{"name": "chat", "retry": retry}],
    )
    last = result.requests[result.requests["request_id"] == "r10"]
    assert last["sent_s"].tolist() == pytest.approx([1.05, 8.05])
    assert last["outcome"].tolist() == ["rejected", "succeeded"]


def test_only_those_classes_are_refused_that_may_be(line):
    classes = [{"name": "chat"}, {"name": "bulk", "sheddable": True}]
    names = [*["chat"] * 10, "chat", "bulk"]
    arrivals = [*np.arange(10) * 0.1, 1.05, 1.05]
    for action in (REFUSE | {"only_sheddable": True}, REFUSE | {"classes": ["bulk"]}):
        result = line(
            [rule(action, above=7)],
            arrivals=arrivals,
            classes=classes,
            trace={"request_class": names},
        )
        refused = result.requests[result.requests["outcome"] == "rejected"]
        assert refused["request_class"].tolist() == ["bulk"]


def times(result):
    return [(row.time_s, row.event) for row in transitions(result).itertuples()]


def test_a_rule_opens_after_its_time_and_closes_only_below_its_release(line):
    """Ten come at once and one is served a second, so 10 - k wait at k s."""
    burst = [0.05] * 10
    plain = line([rule(REFUSE, above=5)], arrivals=burst)
    assert times(plain) == [(1.0, "open"), (5.0, "close")]
    late = line([rule(REFUSE, above=5, for_s=2.0)], arrivals=burst)
    assert times(late) == [(3.0, "open"), (5.0, "close")]
    sticky = line([rule(REFUSE, above=5, release={"below": 4})], arrivals=burst)
    assert times(sticky) == [(1.0, "open"), (7.0, "close")]
    same = line([rule(REFUSE, above=5, release={"limit_factor": 0.8})], arrivals=burst)
    assert times(same) == times(sticky)
    slow = line([rule(REFUSE, above=5, release={"for_s": 2.0})], arrivals=burst)
    assert times(slow) == [(1.0, "open"), (7.0, "close")]
    often = line([rule(REFUSE, above=5, check_every_s=0.3)], arrivals=burst)
    assert times(often) == [(pytest.approx(0.3), "open"), (pytest.approx(4.2), "close")]


def test_a_condition_that_pauses_begins_anew(line):
    """Two waves of queue above 2, at 1 and 2 s and from 5 s on; three checks are needed."""
    waves = [*[0.05] * 5, *[4.95] * 8]
    result = line([rule(REFUSE, above=2, for_s=2.0)], arrivals=waves)
    assert times(result)[0] == (7.0, "open")


def test_between_two_changes_the_state_stays(line):
    burst = [0.05] * 10
    classes = [{"name": "chat"}, {"name": "none"}]
    nobody = REFUSE | {"classes": ["none"]}
    held = line([rule(nobody, above=8, cool_down_s=6.0)], arrivals=burst, classes=classes)
    assert times(held) == [(1.0, "open"), (7.0, "close")]
    waves = [*[0.05] * 4, *[5.05] * 6]
    quiet = line([rule(nobody, above=2, cool_down_s=5.0)], arrivals=waves, classes=classes)
    assert times(quiet) == [(1.0, "open"), (9.0, "close")]
    again = line([rule(nobody, above=2, cool_down_s=3.0)], arrivals=waves, classes=classes)
    assert times(again) == [(1.0, "open"), (4.0, "close"), (7.0, "open"), (10.0, "close")]


def test_what_is_below_its_limit_can_be_watched_too(line):
    watched = {"metric": "in_flight", "below": 1}
    result = line([rule(REFUSE, when=watched)], arrivals=[0.0, 4.2])
    assert times(result) == [(1.0, "open")]
    assert result.requests["outcome"].tolist() == ["succeeded", "rejected"]


def test_nothing_measured_opens_and_closes_nothing(line):
    watched = {"metric": "e2e_s", "quantile": 0.5, "min_samples": 3, "window_s": 2.5}
    for limit in ({"above": 0.0}, {"below": 1e9}):
        result = line([rule(REFUSE, when=watched | limit)], arrivals=[0.0, 1.5], drain_s=20)
        assert times(result) == []
        assert result.requests["outcome"].tolist() == ["succeeded", "succeeded"]
    paged = rule(REFUSE, when={"metric": "fragmentation_fraction", "below": 1.0})
    assert times(line([paged], count=30)) == []


def test_a_rule_that_refuses_everybody_opens_half_after_its_time(line):
    """Three answers of 2 s and more; then nothing is measured, so only ``after_s`` closes."""
    watched = {"metric": "e2e_s", "quantile": 0.5, "min_samples": 3, "window_s": 3.5, "above": 1.5}
    arrivals = [0.05, 0.05, 0.05, *np.arange(4.5, 20)]
    stuck = line([rule(REFUSE, when=watched)], arrivals=arrivals)
    assert times(stuck) == [(4.0, "open")]
    half = line([rule(REFUSE, when=watched, release={"after_s": 6.0})], arrivals=arrivals)
    assert times(half) == [(4.0, "open"), (10.0, "close")]
    assert half.requests["outcome"].tolist().count("succeeded") == 3 + 10


def test_a_latency_counts_failures_as_beyond_every_limit(line):
    """Of three answers within 1 s and one that never comes, p99 is infinite."""
    watched = {"metric": "e2e_s", "above": 100.0, "min_samples": 4, "window_s": 60}
    classes = [{"name": "chat", "retry": {"attempt_timeout_s": 1.9}}]
    arrivals = [0.0, 3.0, 6.0, 6.0, 6.0, 9.5]
    result = line([rule(REFUSE, when=watched)], arrivals=arrivals, classes=classes)
    assert result.requests["outcome"].tolist().count("timed_out") == 2
    assert transitions(result)["value"].tolist() == [math.inf]


def test_a_refused_attempt_does_not_count_as_latency(line):
    watched = {"metric": "e2e_s", "above": 0.5, "min_samples": 1, "window_s": 2.0}
    result = line([rule(REFUSE, when=watched)], arrivals=[0.0, 1.5, 2.5, 3.5, 4.5, 5.5])
    assert transitions(result)["value"].tolist() == [1.0]


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_long_answers_are_cut_and_short_ones_left(build, trace_of, play, engine):
    """One step of 0.1 s makes one token: 20 tokens take 2 s, cut to 5 they take 0.5 s."""
    scenario = build(
        batching=steps_of(0.1),
        breakers=[rule({"kind": "max_tokens", "tokens": 5}, above=-1)],
    )
    trace = trace_of([0.5, 2.5, 5.0], output_tokens=[20, 20, 4])
    log = play(scenario, trace, engine=engine).requests
    assert log["output_tokens"].tolist() == [20, 5, 4]
    assert log["degraded"].tolist() == [False, True, False]
    assert (log["finish_s"] - log["sent_s"]).tolist() == pytest.approx([2.0, 0.5, 0.4])


def test_one_rule_may_do_the_same_to_two_classes_in_two_ways(build, trace_of, play):
    cuts = [
        {"kind": "max_tokens", "tokens": n, "classes": [name]}
        for n, name in ((3, "chat"), (7, "code"))
    ]
    scenario = build(
        classes=[{"name": "chat"}, {"name": "code"}],
        batching=steps_of(0.1),
        breakers=[rule(*cuts, above=-1, release={"after_s": 2.0}, cool_down_s=2.0)],
    )
    trace = trace_of([1.5, 1.5, 3.5], request_class=["chat", "code", "code"])
    assert play(scenario, trace).requests["output_tokens"].tolist() == [3, 7, 10]


def test_a_retry_asks_for_the_whole_answer_again(build, trace_of, play):
    cut = rule({"kind": "max_tokens", "tokens": 5}, above=-1, release={"after_s": 1.0})
    scenario = build(
        batching=steps_of(0.1),
        breakers=[cut | {"cool_down_s": 1.0}],
        classes=[
            {
                "name": "chat",
                "retry": {"max_attempts": 2, "attempt_timeout_s": 0.95, "retry_on": ["timed_out"]},
            }
        ],
    )
    log = play(scenario, trace_of([1.05], output_tokens=9)).requests
    assert log["output_tokens"].tolist() == [5]
    slow = with_values(scenario, {"classes.chat.retry.attempt_timeout_s": 0.45})
    log = play(slow, trace_of([1.65], output_tokens=9)).requests
    assert log["degraded"].tolist() == [True, False]


def test_beams_become_greedy_for_later_requests(build, trace_of, play):
    """Four beams of 10 ms each a step, or one."""
    law = {"base_s": 1e-9, "per_prefill_token_s": 0.0, "per_context_token_s": 0.0}
    batching = steps_of(0.0, beam_width=4) | {
        "step_time": {"kind": "linear", "per_sequence_s": 0.01} | law
    }
    scenario = build(batching=batching, breakers=[rule({"kind": "greedy"}, above=-1)])
    log = play(scenario, trace_of([0.5, 2.5], output_tokens=11)).requests
    seconds = (log["finish_s"] - log["sent_s"]).tolist()
    assert seconds == pytest.approx([0.4, 0.1], abs=1e-6)
    assert log["degraded"].tolist() == [False, True]
    assert log["output_tokens"].tolist() == [11, 11]


def test_greedy_decoding_degrades_no_request_without_beams(build, trace_of, play):
    scenario = build(batching=steps_of(0.1), breakers=[rule({"kind": "greedy"}, above=-1)])
    result = play(scenario, trace_of([1.5, 2.5]))
    assert not result.requests["degraded"].any()
    assert times(result) == [(1.0, "open")]


def two_pools(build, breakers, **fields):
    return build(
        classes=[{"name": "chat", "pool": "large"}, {"name": "code", "pool": "large"}],
        pools=[
            {"name": "large", "batching": steps_of(0.1)},
            {"name": "small", "batching": steps_of(0.01)},
        ],
        breakers=breakers,
        **fields,
    )


def test_named_classes_are_passed_on_to_the_smaller_model(build, trace_of, play):
    action = {"kind": "route", "to": "small", "classes": ["chat"]}
    scenario = two_pools(build, [rule(action, pool="large", above=-1)])
    trace = trace_of(
        [0.5, 2.5, 2.5], request_class=["chat", "chat", "code"], output_tokens=[5, 5, 5]
    )
    log = play(scenario, trace).requests
    assert log["replica"].tolist() == ["large-0", "small-0", "large-0"]
    assert log["degraded"].tolist() == [False, True, False]
    assert (log["finish_s"] - log["sent_s"]).tolist() == pytest.approx([0.5, 0.05, 0.5])


def test_a_rerouted_attempt_is_cancelled_in_the_pool_that_serves_it(build, trace_of, play):
    action = {"kind": "route", "to": "small"}
    scenario = two_pools(build, [rule(action, pool="large", above=-1)])
    impatient = with_values(scenario, {"classes.chat.retry.attempt_timeout_s": 0.03})
    result = play(impatient, trace_of([2.5, 2.5], output_tokens=[50, 2]))
    assert result.requests["outcome"].tolist() == ["timed_out", "succeeded"]
    assert result.requests["outcome_layer"].tolist()[0] == "caller"
    last = result.timeline.query("metric == 'in_flight' and replica == 'small'")["value"]
    assert last.iloc[-1] == 0


def test_the_rules_of_the_other_pool_hold_for_rerouted_requests(build, trace_of, play):
    there = [
        rule({"kind": "route", "to": "small"}, name="there", pool="large", above=-1),
        rule({"kind": "route", "to": "large"}, name="back", pool="small", above=-1),
        rule({"kind": "max_tokens", "tokens": 3}, name="cut", pool="small", above=-1),
        rule(REFUSE | {"classes": ["code"]}, name="no", pool="small", above=-1),
    ]
    scenario = two_pools(build, there)
    trace = trace_of([2.5, 2.5], request_class=["chat", "code"], output_tokens=[9, 9])
    log = play(scenario, trace).requests
    assert log["replica"].tolist()[0] == "small-0"
    assert log["output_tokens"].tolist()[0] == 3
    assert log["reason"].tolist()[1] == "breaker:no"


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_shrunk_batch_holds_fewer_from_the_next_step_on(build, trace_of, play, engine):
    """Eight of 40 steps of 0.1 s at once, or two by two while the rule is open."""
    shrink = {"kind": "shrink_batch", "max_num_seqs": 2}
    trace = trace_of([0.0] * 8 + [5.0] * 8, output_tokens=40)
    wide = build(batching=steps_of(0.1))
    assert play(wide, trace, engine=engine).duration_s == pytest.approx(9.0)
    scenario = build(batching=steps_of(0.1), breakers=[rule(shrink, above=-1)])
    result = play(scenario, trace, engine=engine)
    log = result.requests
    assert log["finish_s"].iloc[:8].tolist() == pytest.approx([4.0] * 8)
    last = [9.0, 9.0, 13.0, 13.0, 17.0, 17.0, 21.0, 21.0]
    assert log["finish_s"].iloc[8:].tolist() == pytest.approx(last)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_batch_grows_again_when_the_rule_closes(build, trace_of, play, engine):
    """One by one above six waiting, all at once below four."""
    shrink = {"kind": "shrink_batch", "max_num_seqs": 1}
    scenario = build(
        batching=steps_of(0.125, max_num_seqs=4),
        breakers=[rule(shrink, above=6, release={"below": 4}, check_every_s=0.5)],
    )
    result = play(scenario, trace_of([0.0] * 12, output_tokens=8), engine=engine)
    assert times(result) == [(0.5, "open"), (5.0, "close")]
    ends = sorted(result.requests["finish_s"])
    assert ends == [1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.125, 6.125, 6.125]


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_fewer_tokens_a_step_take_more_steps_for_a_prompt(build, trace_of, play, engine):
    shrink = {"kind": "shrink_batch", "max_num_batched_tokens": 100}
    scenario = build(batching=steps_of(0.1), breakers=[rule(shrink, above=-1)])
    trace = trace_of([0.0, 5.0], prompt_tokens=1000, output_tokens=1)
    log = play(scenario, trace, engine=engine).requests
    assert (log["finish_s"] - log["sent_s"]).tolist() == pytest.approx([0.1, 1.0])


@pytest.mark.parametrize("seed", range(4))
def test_compiled_steps_shrink_and_pause_as_the_reference_does(build, trace_of, play, seed):
    """Rules that open and close all the time, over short memory and callers that leave."""
    rng = np.random.default_rng(seed)
    shrink = {"kind": "shrink_batch"}
    rules = [
        rule(
            action,
            name=name,
            above=-1,
            check_every_s=0.01,
            cool_down_s=pause_s,
            release={"after_s": open_s},
        )
        for name, action, open_s, pause_s in (
            ("a", shrink | {"max_num_seqs": 3}, 0.09, 0.04),
            ("b", shrink | {"max_num_batched_tokens": 40}, 0.06, 0.05),
            ("c", {"kind": "pause_and_compact"}, 0.02, 0.11),
        )
    ]
    scenario = build(
        replicas=2,
        batching=steps_of(0.004, max_num_seqs=12, max_num_batched_tokens=120, max_model_len=120)
        | {"kv_blocks": 24},
        classes=[{"name": "chat", "retry": {"attempt_timeout_s": 0.6}}],
        breakers=rules,
    )
    trace = trace_of(
        np.cumsum(rng.exponential(0.008, 500)),
        prompt_tokens=rng.integers(5, 70, 500),
        output_tokens=rng.integers(1, 50, 500),
    )
    fast, slow = (play(scenario, trace, engine=engine) for engine in ("fast", "reference"))
    assert min(row["opened"] for row in breaker_figures(slow)) > 15
    pd.testing.assert_frame_equal(fast.requests, slow.requests, check_exact=True)
    pd.testing.assert_frame_equal(fast.timeline, slow.timeline, check_exact=True)


def test_dynamic_batches_shrink_in_size_and_window(build, dynamic, trace_of, play):
    batching = dynamic(1.0, max_batch_size=8, max_queue_delay_s=2.0)
    trace = trace_of([10.0] * 4)
    assert play(build(batching=batching), trace).duration_s == pytest.approx(13.0)
    window = rule({"kind": "shrink_batch", "max_queue_delay_s": 0.5}, above=-1)
    sized = rule({"kind": "shrink_batch", "max_batch_size": 2}, above=-1)
    assert play(build(batching=batching, breakers=[window]), trace).duration_s == 11.5
    assert play(build(batching=batching, breakers=[sized]), trace).duration_s == 12.0


def holes(build, breakers, **fields):
    """Return a pool of contiguous KV for 160 tokens."""
    return build(
        batching=steps_of(
            0.1,
            kv_blocks=10,
            kv_layout="contiguous",
            contiguous={"reserve": "oracle", "copy_s_per_token": 0.01} | fields,
            max_model_len=160,
        ),
        breakers=breakers,
    )


def test_fragmented_memory_is_compacted_and_admission_waits(build, trace_of, play):
    """Pieces of 40; the first and third leave at 0.4 s, so the free half lies in two holes."""
    guard = rule(
        {"kind": "pause_and_compact"},
        metric="fragmentation_fraction",
        above=0.4,
        check_every_s=0.5,
    )
    trace = trace_of(
        [0.0, 0.0, 0.0, 0.0, 0.45],
        prompt_tokens=[36, 10, 36, 10, 70],
        output_tokens=[4, 30, 4, 30, 10],
    )
    apart = play(holes(build, []), trace).requests
    together = play(holes(build, [guard]), trace)
    assert apart["batch_in_s"].iloc[4] >= 3.0
    assert times(together) == [(0.5, "open"), (1.0, "close")]
    assert transitions(together)["value"].tolist() == [pytest.approx(0.5), 0.0]
    log = together.requests
    assert 1.0 <= log["batch_in_s"].iloc[4] < 1.5
    moved = 0.01 * (2 * (10 + 5))
    assert log["finish_s"].iloc[1] == pytest.approx(apart["finish_s"].iloc[1] + moved, abs=0.03)


def test_a_paused_pool_admits_no_request_until_the_rule_closes(build, dynamic, trace_of, play):
    pause = rule({"kind": "pause_and_compact"}, above=-1, release={"after_s": 3.0})
    for batching in (steps_of(0.1), dynamic(0.5)):
        scenario = build(batching=batching, breakers=[pause | {"cool_down_s": 3.0}])
        for engine in ("fast", "reference"):
            log = play(scenario, trace_of([0.2, 2.0]), engine=engine).requests
            assert log["batch_in_s"].tolist() == [0.2, 4.0]


def test_the_standby_comes_while_the_rule_is_open_and_goes_back(build, dynamic, trace_of, play):
    scenario = build(
        batching=dynamic(1.0),
        pool={
            "router": {"max_in_flight": 1},
            "standby": {"replicas": 1, "ready": {"kind": "fixed", "seconds": 2.0}},
        },
        breakers=[
            rule({"kind": "start_standby", "ready_at_most_s": 90.0}, above=5, release={"below": 1})
        ],
    )
    result = play(scenario, trace_of([0.0] * 12))
    assert times(result)[0] == (1.0, "open")
    log = result.requests
    assert log["finish_s"].max() == pytest.approx(8.0)
    second = log[log["replica"] != "llm-0"]
    assert second["batch_in_s"].min() == pytest.approx(3.0)
    alone = play(with_values(scenario, {"breakers": []}), trace_of([0.0] * 12))
    assert alone.requests["finish_s"].max() == pytest.approx(12.0)


def test_a_higher_tier_waits_for_the_lower_and_closes_before_it(line):
    first = rule(REFUSE | {"classes": ["none"]}, name="first", above=7, tier=1)
    second = rule(REFUSE | {"classes": ["none"]}, name="second", above=4, tier=2)
    classes = [{"name": "chat"}, {"name": "none"}]
    result = line([first, second], arrivals=[0.05] * 10, classes=classes)
    found = transitions(result)[["time_s", "rule", "event"]].to_numpy().tolist()
    assert found == [
        [1.0, "first", "open"],
        [2.0, "second", "open"],
        [6.0, "second", "close"],
        [6.0, "first", "close"],
    ]
    alone = line(
        [first | {"when": {"metric": "queue_length", "above": 99}}, second],
        arrivals=[0.05] * 10,
        classes=classes,
    )
    assert times(alone) == []


def test_one_rule_without_a_pool_is_one_in_each(build, trace_of, play):
    scenario = two_pools(build, [rule({"kind": "max_tokens", "tokens": 2}, above=-1)])
    result = play(scenario, trace_of([3.0]))
    assert set(open_spans(result)) == {("guard", "large"), ("guard", "small")}
    assert [row["opened"] for row in breaker_figures(result)] == [1, 1]


def test_the_gateways_own_queue_can_be_watched(build, dynamic, trace_of, play):
    watched = {"metric": "queue_length", "of": "gateway", "above": 3}
    scenario = build(
        batching=dynamic(1.0),
        gateway={"concurrency": 2},
        breakers=[rule(REFUSE, when=watched)],
    )
    result = play(scenario, trace_of([0.0] * 8))
    assert transitions(result)["value"].tolist()[0] == 5.0
    assert result.requests["outcome"].tolist().count("rejected") > 0


def test_a_request_refused_at_the_gateway_does_not_wait(build, dynamic, trace_of, play):
    """Two open at the gateway; of six at once four wait there, so the one at 1.5 s is refused."""
    watched = {"metric": "queue_length", "of": "gateway", "above": 2}
    scenario = build(
        classes=[{"name": "x", "pool": "a"}, {"name": "y", "pool": "b"}],
        pools=[{"name": "a", "batching": dynamic(1.0)}, {"name": "b", "batching": dynamic(1.0)}],
        gateway={"concurrency": 2, "rate_limits": {"rate_rps": 1.0, "burst": 6}},
        breakers=[rule(REFUSE | {"at": "gateway"}, pool="a", when=watched)],
    )
    trace = trace_of([0.0] * 6 + [1.5, 1.5, 9.0], request_class=["x"] * 7 + ["y", "x"])
    log = play(scenario, trace).requests
    refused = log[log["outcome"] == "rejected"]
    assert refused["request_id"].tolist() == ["r6"]
    assert refused.iloc[0][["outcome_layer", "reason"]].tolist() == ["gateway", "breaker:guard"]
    assert refused["gateway_admitted_s"].isna().all()
    assert refused.iloc[0]["finish_s"] == 1.5


def test_the_named_rules_load_and_act(build, trace_of, play):
    batching = steps_of(0.1, beam_width=2, max_num_seqs=2)
    scenario = build(
        batching=batching,
        breakers="tiered-default",
        pool={"standby": {"replicas": 2, "ready": {"kind": "fixed", "seconds": 60.0}}},
    )
    result = play(scenario, trace_of(np.arange(900) * 0.05, output_tokens=2))
    opened = {row["rule"]: row["opened"] for row in breaker_figures(result)}
    assert opened["overfull"] >= 1
    assert opened["standby"] == 1
    assert opened["slow"] >= 1
    assert opened["fragmented"] == 0
    assert result.requests["degraded"].any()
    assert (result.requests["reason"] == "breaker:overfull").any()
    slow = with_values(scenario, {"pools.llm.standby.ready.seconds": 91.0})
    assert ("standby", "llm") not in open_spans(play(slow, trace_of([0.0])))


def test_the_same_run_twice_is_the_same(build, trace_of, play):
    scenario = build(batching=steps_of(0.1, max_num_seqs=2), breakers="tiered-default")
    trace = trace_of(np.arange(300) * 0.02)
    one, two = play(scenario, trace), play(scenario, trace)
    assert one.requests.equals(two.requests)
    assert one.timeline.equals(two.timeline)


def test_rules_that_never_open_change_no_request(build, trace_of, play):
    calm = [
        rule(action, name=f"r{i}", above=1e9)
        for i, action in enumerate(
            [
                REFUSE,
                {"kind": "max_tokens", "tokens": 1},
                {"kind": "greedy"},
                {"kind": "shrink_batch", "max_num_seqs": 1},
                {"kind": "pause_and_compact"},
            ]
        )
    ]
    trace = trace_of(np.arange(100) * 0.02)
    for engine in ("fast", "reference"):
        plain = play(build(), trace, engine=engine)
        watched = play(build(breakers=calm), trace, engine=engine)
        assert plain.requests.equals(watched.requests)


WRONG = [
    ({"when": {"metric": "queue_length"}}, "when: one of above and below must be set"),
    ({"when": {"metric": "queue_length", "above": 1, "below": 1}}, "one of above and below"),
    ({"when": {"metric": "queue_depth", "above": 1}}, "when.metric"),
    ({"when": {"metric": "running", "of": "gateway", "above": 1}}, "of the gateway one of"),
    ({"when": {"metric": "up", "above": 1, "request_class": "chat"}}, "request_class is of"),
    ({"release": {"above": 1}}, "is released below one"),
    ({"release": {"below": 9}}, r"release.below: at most when.above 5.0, got 9.0"),
    ({"release": {"limit_factor": 1.2}}, "limit_factor: at most 1 for a rule that opens above"),
    ({"release": {"limit_factor": 0.5, "below": 1}}, "in place of below and above"),
    (
        {"when": {"metric": "up", "below": 2}, "release": {"limit_factor": 0.5}},
        "at least 1 for a rule that opens below",
    ),
    (
        {"when": {"metric": "up", "above": -2}, "release": {"limit_factor": 0.5}},
        "needs a positive limit, got -2",
    ),
    ({"then": []}, "at least 1"),
    (
        {"then": [{"kind": "route", "to": "tiny"}]},
        "breakers.guard.then.0.to: one of llm, got 'tiny'",
    ),
    ({"then": [{"kind": "route", "to": "llm"}]}, "route to another pool than llm itself"),
    ({"then": [{"kind": "refuse", "classes": ["vip"]}]}, "classes: one of chat, got 'vip'"),
    ({"then": [{"kind": "start_standby"}]}, "start_standby needs pools.llm.standby"),
    ({"then": [{"kind": "shrink_batch"}]}, "at least one of max_num_seqs"),
    ({"then": [{"kind": "shrink_batch", "max_num_seqs": 999}]}, "at most the configured 256"),
    ({"then": [{"kind": "shrink_batch", "max_batch_size": 2}]}, "none of the limits of continuous"),
    ({"pool": "gpu"}, "breakers.guard.pool: one of llm, got 'gpu'"),
    ({"tier": 2}, "tier 1 is needed in pool llm, where guard wait"),
    ({"check_every_s": 0}, "greater than 0"),
]


@pytest.mark.parametrize(("changed", "told"), WRONG)
def test_a_rule_that_makes_no_sense_is_one_clear_error(build, changed, told):
    with pytest.raises(DataError, match=told):
        build(breakers=[rule(REFUSE, above=5.0, pool="llm") | changed])


def test_two_rules_of_one_name_and_an_unknown_preset_are_errors(build):
    with pytest.raises(DataError, match="breakers: names must differ, got guard"):
        build(breakers=[rule(REFUSE, above=5.0)] * 2)
    with pytest.raises(DataError, match="bundled one: tiered-default, got 'tierd'"):
        build(breakers="tierd")
