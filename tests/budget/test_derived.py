"""Numbers that a scenario leaves to the wait budget by the word ``derived``."""

import pytest

from capplan.budget import allocate, applied_text, apply, resolved, varied
from capplan.scenario.fields import derived_fields
from capplan.scenario.files import (
    find_scenario,
    load_scenario,
    validate,
    with_values,
    write_scenario,
)
from capplan.scenario.yaml_text import parse_value
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.slo import judge

WORDS = {
    "gateway.concurrency": "derived",
    "pools.encoder.queue.length": "derived",
    "pools.encoder.queue.wait_limit_s": "derived",
    "pools.encoder.router.max_in_flight": "derived",
}


@pytest.fixture(scope="module")
def stated():
    """Return a scenario with every number of its budget written out."""
    bundled = load_scenario("embedding-batch", values={"requests": 300, "warmup_s": 0.0})
    return apply(bundled, allocate(bundled))


@pytest.fixture(scope="module")
def scenario(stated):
    return with_values(stated, WORDS)


def test_a_word_becomes_the_budgets_number(stated, scenario):
    found = resolved(scenario)
    assert found.derived == tuple(WORDS)
    assert found.gateway == stated.gateway
    assert found.pools == stated.pools
    assert resolved(stated) is stated


def test_a_derived_number_follows_a_change_of_its_inputs(scenario):
    more = resolved(with_values(scenario, {"pools.encoder.replicas": 3}))
    slower = resolved(with_values(scenario, {"classes.index.promises.deadline_s": 90.0}))
    assert more.gateway.concurrency > resolved(scenario).gateway.concurrency
    assert slower.pool().queue.wait_limit_s > resolved(scenario).pool().queue.wait_limit_s


def test_what_varies_a_resolved_scenario_derives_its_numbers_again(scenario):
    own = resolved(scenario)
    more = varied(own, {"pools.encoder.replicas": 3})
    assert more == resolved(with_values(scenario, {"pools.encoder.replicas": 3}))
    kept = with_values(own, {"pools.encoder.replicas": 3})
    assert kept.gateway.concurrency == own.gateway.concurrency < more.gateway.concurrency


def test_a_trace_is_drawn_once_for_the_scenarios_that_share_it(monkeypatch):
    from capplan.traffic import draw as drawing

    calls = []
    drawn = drawing.draw
    monkeypatch.setattr(drawing, "draw", lambda *a, **o: calls.append(1) or drawn(*a, **o))
    chat = load_scenario("chat-service", values={"traffic.duration_s": 1234.5})
    for values in ({}, {"pools.llm.replicas": 5}, {"network.one_way_s": 0.02}, {"requests": 100}):
        resolved(with_values(chat, values))
    assert len(calls) <= 2, "only a change of the traffic (or of what a closed loop needs) draws"
    resolved(with_values(chat, {"traffic.duration_s": 999.0}))
    assert len(calls) == 3


def test_a_shorter_run_has_the_same_derived_numbers():
    chat = load_scenario("chat-service")
    short = resolved(with_values(chat, {"requests": 500}))
    assert short.pools == resolved(chat).pools
    assert allocate(with_values(chat, {"requests": 500})).derived["gateway.concurrency"] == (
        short.gateway.concurrency
    )


def test_a_run_and_its_verdict_rest_on_the_derived_numbers(stated, scenario):
    result = simulate(scenario)
    assert result.scenario == resolved(scenario)
    assert result.requests.equals(simulate(stated).requests)
    reasons = judge(result, scenario).reasons
    assert reasons == judge(simulate(stated)).reasons
    assert not {r.rule for r in reasons} & {"scope", "no_requests"}


def test_a_budget_shows_derived_numbers_and_finds_no_difference(scenario):
    budget = allocate(scenario)
    assert set(budget.derived) == set(WORDS)
    assert budget.derived["gateway.concurrency"] == budget.settings["gateway.concurrency"]
    assert not {f.rule for f in budget.findings} & {"unlimited", "differs_from_budget"}
    assert list(budget.derived_table()["field"]) == list(WORDS)


def test_a_number_that_is_set_is_no_longer_derived(scenario):
    found = with_values(resolved(scenario), {"gateway.concurrency": 5})
    assert found.gateway.concurrency == 5
    assert "gateway.concurrency" not in found.derived


def test_a_written_scenario_keeps_the_word(scenario):
    again = validate(parse_value(write_scenario(scenario)), where="test")
    assert again == scenario
    assert set(derived_fields(again)) == set(WORDS)


def test_applying_a_budget_writes_numbers_over_the_word():
    chat = load_scenario("chat-service")
    text = applied_text(find_scenario("chat-service"), allocate(chat))
    assert derived_fields(chat)
    assert ": derived" not in text


@pytest.mark.parametrize("field", ["pools.encoder.queue.length", "gateway.concurrency"])
def test_a_number_that_does_not_follow_is_an_error_at_its_field(stated, field):
    nothing = {f"classes.{c.name}.promises": {} for c in stated.classes}
    with pytest.raises(DataError, match=f"{field}: a number"):
        resolved(with_values(stated, {**nothing, field: "derived"}))


def test_any_other_word_is_an_error(stated):
    with pytest.raises(DataError, match=r"gateway.concurrency: .*integer"):
        with_values(stated, {"gateway.concurrency": "enough"})
