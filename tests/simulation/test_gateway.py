import numpy as np
import pytest


def test_over_the_limit_exactly_burst_plus_rate_times_time_get_through(build, trace_of, play):
    scenario = build(gateway={"rate_limits": {"rate_rps": 5.0, "burst": 10}})
    log = play(scenario, trace_of(np.arange(2000) / 100)).requests
    through = log["outcome"] == "succeeded"
    assert through.sum() == 10 + 5 * 20 - 1
    assert set(log.loc[~through, "reason"]) == {"rate_limit"}
    assert set(log.loc[~through, "outcome_layer"]) == {"gateway"}


def test_at_exactly_the_limit_no_request_is_refused(build, trace_of, play):
    scenario = build(gateway={"rate_limits": {"rate_rps": 10.0}})
    log = play(scenario, trace_of(np.cumsum(np.full(500, 0.1)))).requests
    assert (log["outcome"] == "succeeded").all()


def test_who_comes_back_when_told_finds_a_token(build, trace_of, play):
    retry = {"max_attempts": 2}
    scenario = build(
        classes=[{"name": "chat", "retry": retry}], gateway={"rate_limits": {"rate_rps": 0.7}}
    )
    log = play(scenario, trace_of([0.0, 0.3])).requests
    assert log["outcome"].tolist() == ["succeeded", "rejected", "succeeded"]
    assert log["sent_s"].iloc[2] == pytest.approx(1 / 0.7, abs=1e-8)


def test_concurrency_holds_a_slot_until_the_answer_has_left(single_queue, trace_of, play):
    scenario = single_queue(
        5,
        exponential=False,
        gateway={"concurrency": 2, "overhead_s": 0.5, "queue": {"length": 2, "wait_limit_s": 1.2}},
    )
    log = play(scenario, trace_of([0.0, 0.0, 0.1, 0.2, 0.3, 1.4])).requests
    assert log["gateway_admitted_s"].tolist()[:2] == [0.0, 0.0]
    assert log["reason"].isna().tolist() == [True, True, False, False, False, True]
    assert log["reason"].tolist()[2:5] == ["wait_limit", "wait_limit", "queue_full"]
    assert log["finish_s"].tolist()[2:4] == pytest.approx([1.3, 1.4])
    assert log["gateway_admitted_s"].iloc[5] == 1.5


def test_serialisation_takes_its_share_of_first_and_last_token(build, trace_of, play):
    plain = play(build(network={"one_way_s": 0.01}), trace_of([1.0])).requests.iloc[0]
    scenario = build(network={"one_way_s": 0.01}, gateway={"overhead_fraction": 0.2})
    slow = play(scenario, trace_of([1.0])).requests.iloc[0]
    for moment in ("first_token_s", "finish_s"):
        assert slow[moment] - 1 == pytest.approx((plain[moment] - 1) / 0.8)


def test_a_slot_that_frees_among_many_who_are_refused_further_on(build, trace_of, play):
    """Each next one is refused by the full service queue at once: 3,000 in one instant."""
    scenario = build(
        classes=[{"name": "chat"}, {"name": "long"}],
        gateway={"concurrency": 1},
        batching={
            "kind": "dynamic",
            "max_batch_size": 1,
            "scheduler": {"length": 0},
            "service": {"base_s": 1.0},
        },
        faults=[{"at_s": 0.5}],
        pool={"queue": {"length": 0}},
        drain_s=1.0,
    )
    log = play(scenario, trace_of(np.zeros(3000))).requests
    assert log["outcome"].value_counts().to_dict() == {"rejected": 2999, "failed": 1}
