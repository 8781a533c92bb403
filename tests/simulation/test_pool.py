import gc
import math

import numpy as np
import pytest

from capplan.scenario.files import load_scenario
from capplan.simulation import simulate
from capplan.simulation.pool import ServingPool


def served_by(log):
    return log["replica"].tolist()


def test_round_robin_takes_turns_and_skips_replicas_that_are_down(single_queue, trace_of, play):
    pool = {"router": {"policy": "round_robin"}}
    scenario = single_queue(3, exponential=False, pool=pool, faults=[{"at_s": 0.5, "down_s": 9.0}])
    log = play(scenario, trace_of([0.0, 0.1, 0.2, 1.3, 1.4, 1.5])).requests
    assert served_by(log) == ["llm-0", "llm-1", "llm-2", "llm-1", "llm-2", "llm-1"]


def test_least_in_flight_fills_evenly(build, trace_of, play):
    log = play(build(replicas=4), trace_of(np.zeros(20))).requests
    assert sorted(served_by(log)) == [f"llm-{i}" for i in range(4) for _ in range(5)]


def test_random_routing_uses_all_replicas_alike(single_queue, trace_of, play):
    scenario = single_queue(
        4, exponential=False, pool={"router": {"policy": "random", "max_in_flight": None}}
    )
    counts = play(scenario, trace_of(np.zeros(4000))).requests["replica"].value_counts()
    assert counts.min() > 1000 - 4 * math.sqrt(4000 * 0.25 * 0.75)


def test_max_in_flight_keeps_the_rest_in_the_service_queue(build, trace_of, play):
    log = play(build(pool={"router": {"max_in_flight": 2}}), trace_of(np.zeros(6))).requests
    waits = (log["scheduler_queue_in_s"] - log["service_queue_in_s"]).tolist()
    assert waits[:2] == [0, 0]
    assert all(wait > 0 for wait in waits[2:])
    assert (log["batch_in_s"] == log["scheduler_queue_in_s"]).all()


def test_without_max_in_flight_all_wait_at_the_replica(build, trace_of, play, dynamic):
    log = play(build(batching=dynamic()), trace_of(np.zeros(4))).requests
    assert (log["scheduler_queue_in_s"] == 0).all()
    assert log["batch_in_s"].tolist() == [0, 1, 2, 3]


def test_a_scheduler_queue_refuses_beyond_its_length_and_lets_go_at_its_limit(
    build, trace_of, play, dynamic
):
    batching = dynamic(scheduler={"length": 2, "wait_limit_s": 1.5})
    log = play(build(batching=batching), trace_of([0.0, 0.1, 0.2, 0.3])).requests
    assert log["reason"].fillna("").tolist() == ["", "", "wait_limit", "queue_full"]
    assert log["outcome_layer"].tolist()[2:] == ["scheduler_queue", "scheduler_queue"]
    assert log["finish_s"].tolist() == pytest.approx([1.0, 2.0, 1.7, 0.3])


def test_a_full_queue_takes_no_request_but_a_free_replica_needs_no_queue(
    single_queue, trace_of, play
):
    scenario = single_queue(1, exponential=False, pool={"queue": {"length": 0}})
    log = play(scenario, trace_of([0.0, 0.5, 1.01, 1.2])).requests
    assert log["outcome"].tolist() == ["succeeded", "rejected", "succeeded", "rejected"]


def test_the_window_is_waited_for_only_while_the_replica_is_free(build, trace_of, play, dynamic):
    batching = dynamic(max_batch_size=4, max_queue_delay_s=0.5)
    log = play(build(batching=batching), trace_of([0.0, 0.2, 1.0])).requests
    assert log["batch_in_s"].tolist() == [0.5, 0.5, 1.5]
    assert log["batch_window_s"].tolist() == pytest.approx([0.5, 0.3, 0.0])
    assert log["batch_size"].tolist() == [2, 2, 1]


def test_the_window_of_a_continuous_batch_is_the_rest_of_the_step(build, trace_of, play):
    log = play(build(), trace_of([0.0, 0.001])).requests
    assert log["batch_window_s"].iloc[0] == 0
    assert log["batch_window_s"].iloc[1] == pytest.approx(log["batch_in_s"].iloc[1] - 0.001)
    assert log["batch_in_s"].iloc[1] == log["prefill_end_s"].iloc[0]


def test_a_crash_fails_what_ran_and_callers_try_again(single_queue, trace_of, play):
    scenario = single_queue(
        2,
        exponential=False,
        classes=[{"name": "chat", "retry": {"max_attempts": 2, "backoff_s": 0.1}}],
        faults=[{"at_s": 0.5, "down_s": 2.0}],
    )
    result = play(scenario, trace_of([0.0, 0.2, 0.3]))
    log = result.requests
    assert log["outcome"].tolist() == ["failed", "succeeded", "succeeded", "succeeded"]
    assert (log["reason"].iloc[0], log["outcome_layer"].iloc[0]) == ("crash", "prefill")
    assert log["finish_s"].tolist() == pytest.approx([0.5, 3.2, 1.2, 2.2])
    up = result.timeline.query("metric == 'replicas'").set_index("time_s")["value"]
    assert set(up) == {1, 2}
    assert up.iloc[-1] == 2


def test_a_crash_loses_the_kv_and_the_replica_returns_empty(build, trace_of, play):
    scenario = build(faults=[{"at_s": 0.1, "down_s": 0.4}])
    result = play(scenario, trace_of([0.0, 0.2], output_tokens=[500, 5]))
    log = result.requests
    assert log["outcome"].tolist() == ["failed", "succeeded"]
    assert log["scheduler_queue_in_s"].iloc[1] == pytest.approx(0.5)
    assert log["wasted_tokens"].iloc[0] > 100
    usage = result.timeline.query("metric == 'kv_usage_fraction' and 0.1 <= time_s < 0.5")
    assert (usage["value"] == 0).all()


def test_with_every_replica_gone_requests_wait_until_the_run_ends(single_queue, trace_of, play):
    scenario = single_queue(2, faults=[{"at_s": 0.0, "count": 9}], drain_s=30.0)
    result = play(scenario, trace_of([0.1, 1.0]))
    assert result.requests["outcome"].tolist() == ["in_flight", "in_flight"]
    assert result.requests["outcome_layer"].tolist() == ["service_queue", "service_queue"]
    assert result.requests["finish_s"].isna().all()
    assert result.duration_s == 31.0
    assert result.timeline["time_s"].max() == 31.0


def test_work_given_up_goes_on_until_its_step_ends_and_holds_its_place(
    single_queue, trace_of, play
):
    scenario = single_queue(1, exponential=False)
    log = play(scenario, trace_of([0.0, 0.0], deadline_s=[0.3, 9.0])).requests
    assert log["outcome"].tolist() == ["timed_out", "succeeded"]
    assert log["batch_in_s"].iloc[1] == 1.0


def test_the_run_ends_when_nothing_is_left_to_happen(build, trace_of, play):
    result = play(build(), trace_of([0.0, 2.0]))
    assert result.duration_s == result.requests["finish_s"].max()


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_hedge_whose_answer_is_made_in_the_same_step_has_lost_all_the_same(
    build, trace_of, play, engine
):
    step = {"kind": "linear", "base_s": 0.1, "per_prefill_token_s": 0.0}
    step |= {"per_sequence_s": 0.0, "per_context_token_s": 0.0}
    scenario = build(
        classes=[{"name": "chat", "hedge": {"after_s": 0.05}}],
        batching={"kind": "continuous", "kv_blocks": 1000, "step_time": step},
    )
    log = play(scenario, trace_of([0.0, 0.01]), engine=engine).requests
    assert log["outcome"].value_counts().to_dict() == {"succeeded": 2, "cancelled": 2}
    both = log[log["request_id"] == "r1"]
    assert both["batch_in_s"].tolist() == pytest.approx([0.1, 0.1])
    assert both["finish_s"].tolist() == pytest.approx([1.1, 1.1])


def test_a_run_leaves_nothing_behind_that_only_the_collector_finds():
    scenario = load_scenario("benchmark", values={"requests": 60})
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(found, ServingPool) for found in gc.get_objects())
        simulate(scenario, seed=1)
        after = sum(isinstance(found, ServingPool) for found in gc.get_objects())
    finally:
        gc.enable()
    assert after == before
