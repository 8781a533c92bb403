"""The bundled service with protective actions: each acts when four times the load comes."""

import pytest

from capplan.results.breakers import open_spans
from capplan.results.headline import headline
from capplan.results.replica_lifecycle import lifecycle_table
from capplan.scenario.files import load_scenario
from capplan.simulation import simulate

SURGE_S = (1200.0, 2400.0)


@pytest.fixture(name="runs", scope="module")
def _runs():
    protected = load_scenario("protected-chat")
    shape = protected.traffic.shape.model_dump(mode="json")
    plain = load_scenario("chat-service", values={"traffic.shape": shape, "replicas": 2})
    return simulate(protected), simulate(plain)


def test_protection_keeps_the_goodput_that_the_same_service_loses_without(runs):
    kept, lost = (headline(run)["goodput_fraction"] for run in runs)
    assert kept > 0.98
    assert lost < 0.85


def test_breakers_open_in_the_surge_and_close_in_it(runs):
    spans = open_spans(runs[0])
    assert set(spans) == {("long-answers", "llm"), ("overfull", "llm")}
    for begin, end in (span for found in spans.values() for span in found):
        assert SURGE_S[0] < begin < end < SURGE_S[1]


def test_only_answers_of_the_class_that_allows_it_are_degraded(runs):
    log = runs[0].requests
    degraded = log[log["degraded"]]
    assert set(degraded["request_class"]) == {"chat"}
    assert degraded["output_tokens"].max() <= 256
    refused = log[log["reason"] == "breaker:overfull"]
    assert set(refused["request_class"]) == {"assistant"}


def test_replicas_come_for_the_surge_within_the_accelerators_and_leave_after_it(runs):
    came = lifecycle_table(runs[0])
    first = came[came["warm"]]["ready_s"].min()
    assert SURGE_S[0] < first < SURGE_S[0] + 60.0
    counts = runs[0].timeline.query("metric == 'replicas' and replica == 'llm'")
    assert counts["value"].max() == 6
    assert counts["value"].iloc[-1] == 2
    assert not [f for scaled in headline(runs[0])["scaling"] for f in scaled["findings"]]
