"""What fields declare: whether they change the drawn requests, and the names they refer to."""

import pytest

from capplan.scenario import Scenario
from capplan.scenario.fields import declared, effects, narrowed
from capplan.scenario.files import load_scenario, validate, with_values
from capplan.scenario.part import Affects
from capplan.schema import DataError
from capplan.traffic.draw import draw


@pytest.fixture(scope="module")
def scenario():
    return load_scenario("mixed-modality", values={"requests": 300, "drain_s": 60.0})


@pytest.fixture(scope="module")
def trace(scenario):
    return draw(scenario, seed=3)


def test_every_field_declares_what_it_affects_or_stands_in_a_part_that_does():
    fields = list(declared(Scenario))
    assert len(fields) > 500
    assert [path for path, _, effect in fields if effect is None] == []


CHANGES = {
    "hosts.search-1.compute_units": 16.0,
    "breakers": "tiered-default",
    "pools.llm.replicas": 5,
    "gateway.rate_limits": [],
    "classes.chat.retry.max_attempts": 3,
    "classes.chat.cached_fraction": 0.5,
    "classes.chat.demand.compute_units": 3.0,
    "classes.chat.promises.ttft_s": 9.0,
    "classes.chat.sheddable": True,
    "faults": [{"at_s": 5.0}],
    "budget.rule": "equal",
    "stages.run": ["baseline"],
    "network.one_way_s": 0.05,
}


@pytest.mark.parametrize(("path", "value"), CHANGES.items())
def test_a_field_without_effect_on_traffic_leaves_the_drawn_requests_as_they_are(
    scenario, trace, path, value
):
    assert Affects.TRAFFIC not in effects(Scenario, path)
    changed = draw(with_values(scenario, {path: value}), seed=3)
    assert changed.frame.equals(trace.frame)


DRAWN = {
    "classes.chat.share": 90.0,
    "classes.chat.priority": 4,
    "classes.chat.promises.deadline_s": 11.0,
    "tenants.web-shop.share": 5.0,
    "traffic.arrivals.cv": 2.0,
    "requests": 299,
}


@pytest.mark.parametrize(("path", "value"), DRAWN.items())
def test_a_field_with_effect_on_traffic_changes_the_drawn_requests(scenario, trace, path, value):
    assert Affects.TRAFFIC in effects(Scenario, path)
    changed = draw(with_values(scenario, {path: value}), seed=3)
    assert not changed.frame.equals(trace.frame)


def test_a_path_that_leads_to_no_field_affects_nothing():
    assert effects(Scenario, "pools.llm.replcas") == frozenset()


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"pools.image.hosts": ["media-1", "x"]}, "pools.image.hosts: one of media-1"),
        ({"tenants.studio.classes": ["chat", "x"]}, "tenants.studio.classes: one of chat"),
        ({"faults": [{"at_s": 1.0, "pool": "x"}]}, "faults.0.pool: one of embedding"),
        ({"traffic.mix.0.request_class": "x"}, "traffic.mix.0.request_class: one of chat"),
    ],
)
def test_a_name_that_no_entry_has_is_an_error_at_its_field(scenario, values, rule):
    with pytest.raises(DataError, match=rule):
        with_values(scenario, values)


def test_a_narrowed_scenario_holds_and_names_only_what_is_kept():
    full = load_scenario("protected-chat")
    kept = {"classes": ["batch"], "tenants": ["engineering"], "pools": ["labelling"]}
    data = {**narrowed(full, kept), "breakers": [], "default_class": "batch"}
    found = validate(data, where="test")
    assert [c.name for c in found.classes] == ["batch"]
    assert [t.classes for t in found.tenants] == [("batch",)]
    assert [q.tenant for q in found.gateway.quotas] == ["engineering"]
    assert found.pools == (full.pool("labelling"),)
