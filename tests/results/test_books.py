import pandas as pd
import pytest
from conservation_checks import check_conservation

from capplan.results import conservation_table
from capplan.schema import DataError


@pytest.fixture
def mixed(served, ended):
    return [
        served("a", 0.0),
        ended("b", 1.0, at="gateway_in_s", outcome="rejected", layer="gateway", finish=1.2),
        served("b", 2.0, attempt=2, waits=(0.0, 3.0, 0.0)),
        ended(
            "c", 2.0, at="service_queue_in_s", outcome="timed_out", layer="service_queue",
            finish=8.2,
        ),
        ended("d", 9.0, at="sent_s", outcome="in_flight", layer=None),
    ]  # fmt: skip


def test_the_table_counts_attempts_that_entered_left_and_ended_in_each_place(make_run, mixed):
    run = make_run(mixed)
    check_conservation(run)
    table = conservation_table(run).groupby("layer", sort=False)[
        ["entered", "left", "rejected", "timed_out", "in_flight"]
    ].sum()  # fmt: skip
    assert table.loc["caller"].tolist() == [5, 5, 0, 0, 0]
    assert table.loc["network"].tolist() == [5, 4, 0, 0, 1]
    assert table.loc["gateway"].tolist() == [4, 3, 1, 0, 0]
    assert table.loc["service_queue"].tolist() == [3, 2, 0, 1, 0]
    assert table.loc["response"].tolist() == [2, 2, 0, 0, 0]


def test_books_balance_per_class_tenant_and_attempt(make_run, mixed):
    table = conservation_table(make_run(mixed))
    ends = ["rejected", "timed_out", "cancelled", "failed", "in_flight"]
    assert (table["entered"] == table["left"] + table[ends].sum(axis=1)).all()
    second = table[(table["attempt"] == 2) & (table["layer"] == "service_queue")]
    assert second["wait_mean_s"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("row", "change", "field"),
    [
        (0, {"outcome": "lost"}, "outcome"),
        (0, {"finish_s": None}, "finish_s"),
        (0, {"batch_in_s": None}, "outcome"),
        (0, {"prefill_end_s": 0.1}, "prefill_end_s"),
        (0, {"first_token_s": None}, "first_token_s"),
        (0, {"decode_end_s": 99.0}, "finish_s"),
        (1, {"outcome_layer": "service_queue"}, "outcome_layer"),
        (1, {"outcome_layer": None}, "outcome_layer"),
        (1, {"outcome": "succeeded"}, "outcome"),
        (2, {"attempt": 3}, "attempt"),
        (4, {"finish_s": 12.0}, "finish_s"),
    ],
)
def test_a_log_that_does_not_balance_is_refused(make_run, mixed, row, change, field):
    mixed[row] |= change
    with pytest.raises(DataError) as error:
        check_conservation(make_run(mixed))
    assert error.value.field == field


def test_a_request_of_the_trace_that_is_not_in_the_log_is_refused(make_run, mixed):
    run = make_run(mixed)
    run.trace.frame = pd.DataFrame({"request_id": ["a", "b", "c", "d", "lost"]})
    with pytest.raises(DataError, match="lost"):
        check_conservation(run)


def test_places_that_a_live_server_does_not_tell_are_left_out(make_run, served):
    row = served("a", 0.0)
    for moment in ("service_queue_in_s", "scheduler_queue_in_s", "batch_in_s", "prefill_end_s",
                   "decode_end_s", "gateway_in_s", "gateway_admitted_s"):  # fmt: skip
        row[moment] = None
    run = make_run([row], backend="live")
    check_conservation(run)
    assert conservation_table(run)["layer"].tolist() == ["caller", "network"]


def test_books_hold_the_waits_and_the_waste_of_those_that_ended_there(make_run, mixed, busy):
    served = mixed[0] | {"replica": "llm-0"}
    lost = {"request_id": "e", "outcome": "timed_out", "outcome_layer": "caller"}
    rows = [served, served | lost | {"wasted_tokens": 40, "output_tokens": 0}, *mixed[1:]]
    run = make_run(rows, timeline=busy("llm-0", 0.25), duration_s=644.0)
    table = conservation_table(run, by=("request_class",)).set_index("layer")
    assert table.loc["service_queue", "wait_total_s"] == pytest.approx(3.0 + 6.0)
    assert table["wasted_tokens"].sum() == table.loc["response", "wasted_tokens"] == 40
    assert table.loc["response", "wasted_accelerator_s"] == pytest.approx(40.0)


def test_books_of_a_part_of_a_run_are_of_the_requests_that_start_in_it(make_run, mixed):
    table = conservation_table(make_run(mixed), within_s=(1.0, 9.0), by=("attempt",))
    caller = table[table["layer"] == "caller"].set_index("attempt")
    assert caller["entered"].tolist() == [2, 1]
