import math

import pytest

from capplan.results import headline, per_request


def test_a_request_counts_from_its_first_attempt_and_ends_with_its_success(make_run, served, ended):
    run = make_run(
        [
            ended("a", 0.0, at="gateway_in_s", outcome="rejected", layer="gateway", finish=0.2),
            served("a", 5.0, attempt=2),
        ]
    )
    table = per_request(run)
    assert len(table) == 1
    row = table.iloc[0]
    assert (row["outcome"], row["attempts"], row["intended_start_s"]) == ("succeeded", 2, 0.0)
    assert row["ttft_s"] == pytest.approx(5.0 + 0.1 + 0.1 + 1.0 + 0.1)
    assert row["e2e_s"] == pytest.approx(row["ttft_s"] + 2.0)
    assert row["tpot_s"] == pytest.approx(2.0 / 20)


def test_the_outcome_is_that_of_the_last_attempt_when_none_succeeded(make_run, ended):
    rows = [
        ended("a", 5.0, at="sent_s", outcome="failed", layer="network", finish=6.0, attempt=2),
        ended("a", 0.0, at="gateway_in_s", outcome="rejected", layer="gateway", finish=0.2),
    ]
    row = per_request(make_run(rows)).iloc[0]
    assert (row["outcome"], row["outcome_layer"]) == ("failed", "network")
    assert math.isnan(row["e2e_s"])
    assert row["e2e_censored_s"] == math.inf


def test_an_attempt_in_flight_keeps_the_request_in_flight(make_run, ended):
    rows = [
        ended("a", 0.0, at="gateway_in_s", outcome="in_flight", layer=None),
        ended("a", 1.0, at="sent_s", outcome="cancelled", layer="network", finish=2.0, attempt=2),
    ]
    assert per_request(make_run(rows))["outcome"].tolist() == ["in_flight"]


def test_requests_of_the_warmup_are_left_out_with_all_their_attempts(make_run, served, two_classes):
    scenario = two_classes.model_copy(update={"warmup_s": 10.0})
    rows = [served("a", 9.0), served("a", 12.0, attempt=2), served("b", 11.0)]
    run = make_run(rows, scenario=scenario)
    assert per_request(run)["request_id"].tolist() == ["b"]
    assert run.judged["request_id"].tolist() == ["b"]
    assert len(per_request(run, warmup=True)) == 2


def test_tpot_of_one_token_and_of_an_answer_in_one_piece_is_undefined(make_run, served):
    rows = [
        served("one", 0.0, output_tokens=1),
        served("whole", 1.0, streaming=False, first_token_s=4.3),
    ]
    assert per_request(make_run(rows))["tpot_s"].isna().all()


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ({}, 1.0),
        ({"waits": (0.0, 0.0, 0.8)}, 0.0),  # TTFT 1.3 + 0.8 > 2.0
        ({"waits": (0.0, 0.0, 0.7)}, 1.0),  # exactly 2.0
        ({"output_tokens": 4}, 0.0),  # 2 s over 3 gaps > 0.5
        ({"output_tokens": 1}, 1.0),  # no gap, nothing broken
        ({"deadline_s": 3.0}, 0.0),  # E2E 3.3
        ({"degraded": True}, 0.0),
        ({"first_token_s": math.nan}, math.nan),
        ({"request_class": "jobs", "streaming": False}, 1.0),
        ({"request_class": "jobs", "streaming": False, "finish_s": 5.1}, 0.0),
    ],
)
def test_good_is_a_success_with_every_promise_to_the_request_held(make_run, served, values, good):
    found = per_request(make_run([served("a", 0.0, **values)]))["good"].iloc[0]
    assert found == pytest.approx(good, nan_ok=True)


def test_the_class_deadline_holds_where_the_request_has_none(make_run, served):
    run = make_run([served("a", 0.0, waits=(0.0, 0.0, 0.0), finish_s=10.5, output_tokens=100)])
    assert per_request(run)["good"].tolist() == [0.0]


def test_waste_is_summed_over_attempts_and_zero_for_what_never_ran(make_run, served, ended):
    rows = [
        served("a", 0.0, outcome="failed", outcome_layer="decode", wasted_tokens=70),
        ended("a", 9.0, at="sent_s", outcome="failed", layer="network", finish=9.5, attempt=2),
    ]
    assert per_request(make_run(rows))["wasted_tokens"].tolist() == [70.0]


def test_ttft_and_tpot_are_of_streamed_answers_alone(make_run, served, ended):
    """An answer that is not streamed has its first token with its last: 3 s, which is no TTFT."""
    lost = {"at": "gateway_in_s", "outcome": "rejected", "layer": "gateway", "finish": 0.2}
    run = make_run(
        [
            served("a", 0.0),
            served("b", 1.0, streaming=False),
            ended("c", 2.0, streaming=False, **lost),
            ended("d", 3.0, **lost),
            served("e", 4.0, request_class="jobs", streaming=False),
        ]
    )
    table = per_request(run).set_index("request_id")
    assert table["ttft_s"].dropna().to_dict() == {"a": pytest.approx(1.3)}
    assert table["tpot_s"].dropna().to_dict() == {"a": pytest.approx(0.1)}
    assert table["ttft_censored_s"].dropna().to_dict() == {"a": pytest.approx(1.3), "d": math.inf}
    assert table["e2e_censored_s"].notna().all()
    shown = run.table().set_index("request_class")
    assert math.isnan(shown.loc["jobs", "TTFT p50_s"])
    assert shown.loc["jobs", "E2E p50_s"] == pytest.approx(3.3)
    figures = headline(run)
    assert figures["ttft_s"]["p99"] == pytest.approx(1.3)
    assert (figures["samples"]["ttft_s"], figures["samples"]["e2e_s"]) == (1, 3)
