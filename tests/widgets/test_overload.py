"""Protective actions moved under a surge: each changes something, and a storm is told as one."""

import json
import math
import re
from types import SimpleNamespace

import pytest

from capplan import pages, widgets
from capplan.scenario.files import load_scenario, with_values
from capplan.schema import DataError
from capplan.stages.run_load import loads_of
from capplan.widgets.explorer import Choice
from capplan.widgets.overload import (
    ACTIONS,
    choice_of,
    choices,
    comeback,
    explore_actions,
    overload_summary,
)
from capplan.widgets.protection import ProtectiveActions, protected
from capplan.widgets.surge import (
    SHOWN_REQUESTS,
    Aftermath,
    Surge,
    SurgeRuns,
    no_surge,
    surge_of,
)

STORM = 5.0
"""Planned peaks of the drill's blip."""
LOADS = SimpleNamespace(planned_rps=4.0, peak_rps=8.0)
BUSY = {
    "pools.llm.router": {"max_in_flight": 8},
    "pools.llm.queue": {"owner": "platform", "length": 40},
    "pools.llm.cold_start_s": 2.0,
    "pools.llm.autoscaler": {
        "min_replicas": 1,
        "max_replicas": 4,
        "metrics": [{"metric": "in_flight", "source": "external", "target": 2.0}],
    },
    "breakers": [
        {
            "name": "full",
            "owner": "platform",
            "when": {"metric": "queue_length", "above": 10},
            "then": [{"kind": "refuse", "status": 503, "retry_after_s": 1.0}],
            "release": {"below": 2, "after_s": 20.0},
        }
    ],
}
"""The drill with everything that a control can move, and a queue in which requests wait."""


@pytest.fixture(scope="module")
def storm():
    scenario = load_scenario("drills/retry-storm")
    return SurgeRuns(scenario=scenario, surge=surge_of(loads_of(scenario), strength=STORM), seed=1)


@pytest.fixture(scope="module")
def busy():
    scenario = load_scenario("drills/retry-storm", values=BUSY)
    return SurgeRuns(scenario=scenario, surge=surge_of(LOADS, strength=STORM), seed=1)


def sentence(bench, **values):
    explorer = explore_actions(bench, strength=STORM)
    [said] = explorer.look({**explorer.values(), **values}).sentences
    return said


def as_table(run):
    return run.flows.to_json() + json.dumps({n: q.to_json() for n, q in run.queues.items()})


def test_naive_retries_do_not_come_back_and_a_retry_budget_with_jitter_does(storm):
    naive = sentence(storm)
    assert ": **it does not come back** within" in naive
    assert "0 % of those after it do" in naive
    assert "as it is" not in naive, "there is nothing to compare it with"
    saved = sentence(storm, retry_budget=1.0, backoff=1.0)
    assert re.search(r": \*\*it comes back\*\* [\d.]+ s after it \(as it is: it does not", saved)


def test_jitter_alone_does_not_end_the_storm_but_few_attempts_do(storm):
    assert "**it does not come back**" in sentence(storm, backoff=1.0)
    assert "**it does not come back**" in sentence(storm, attempts=3.0)
    assert "**it comes back**" in sentence(storm, attempts=1.0)


def test_what_it_cost_is_counted(storm):
    naive = storm.run(STORM).aftermath
    saved = storm.run(STORM, ProtectiveActions(retry_budget=True, backoff=True)).aftermath
    assert naive.good_before_fraction == saved.good_before_fraction == 1.0
    assert math.isinf(naive.back_s)
    assert 0 < saved.back_s < 30
    assert saved.good_after_fraction > 0.9 > naive.good_after_fraction
    assert naive.attempts_per_request > 5
    assert 1 < saved.attempts_per_request < 1.5
    assert saved.wasted_tokens < naive.wasted_tokens / 4
    assert storm.run(STORM).longest("scheduler_queue") == 60


def test_the_flows_of_the_storm_are_those_of_its_runs(storm):
    run, surge = storm.run(STORM), storm.surge
    rates = run.flows.pivot_table(index="time_s", columns="figure", values="flow_rps")
    begin, end = surge.times_s
    inside = rates[(rates.index >= begin) & (rates.index < end - 1e-6)]
    assert inside["offered"].mean() == pytest.approx(40, rel=0.1)
    assert (rates["goodput"] <= rates["offered"] + 1e-9).all()
    after = rates[rates.index >= end]
    assert after["offered"].mean() == pytest.approx(4, rel=0.15)
    assert after["attempts"].mean() > 4 * after["offered"].mean()
    assert after["goodput"].max() == 0


@pytest.mark.parametrize(
    "moved",
    [
        {"attempts": 1.0},
        {"attempts": 5.0},
        {"backoff": 1.0},
        {"retry_budget": 1.0},
        {"queue_limits": 2.0},
        {"breakers": 2.0},
    ],
    ids=str,
)
def test_each_control_changes_something(busy, moved):
    assert as_table(busy.run(STORM, choice_of(moved))) != as_table(busy.run(STORM))


def test_an_autoscaler_ends_the_storm_that_goes_on_without_it(busy):
    scaled = busy.run(STORM, choice_of({"breakers": 2.0})).aftermath
    fixed = busy.run(STORM, choice_of({"breakers": 2.0, "autoscaler": 2.0})).aftermath
    assert math.isfinite(scaled.back_s)
    assert math.isinf(fixed.back_s)


def test_the_bundled_breakers_change_a_queue_that_grows_beyond_their_limit():
    queue = {"pools.llm.router": {"max_in_flight": 8}, "pools.llm.queue": {"owner": "platform"}}
    scenario = load_scenario("drills/retry-storm", values=queue)
    bench = SurgeRuns(scenario=scenario, surge=surge_of(LOADS, strength=STORM), seed=1)
    found = bench.run(STORM, choice_of({"breakers": 1.0}))
    assert found.longest("service_queue") < bench.run(STORM).longest("service_queue")


def test_a_stronger_surge_is_another_load_with_the_same_usual_one(storm):
    weak, strong = storm.run(0.5), storm.run(STORM)
    assert weak.aftermath.good_surge_fraction > strong.aftermath.good_surge_fraction
    first = [run.flows.query("figure == 'offered'").iloc[0]["flow_rps"] for run in (weak, strong)]
    assert first[0] == first[1]
    assert "**it holds**" in overload_summary(storm.surge, 0.5, weak)


def test_no_choice_leaves_the_scenario_and_its_run_alone(storm):
    assert choice_of({"strength": 3.0, "attempts": 0.0, **dict.fromkeys(ACTIONS, 0.0)}) == (
        ProtectiveActions()
    )
    assert protected(storm.scenario, ProtectiveActions()) is storm.scenario
    assert storm.run(STORM, ProtectiveActions()) is storm.run(STORM)


def test_what_changes_nothing_is_said_to(storm):
    said = overload_summary(storm.surge, STORM, storm.run(STORM), storm.run(STORM))
    assert said.endswith("; what was moved changes none of it.")


def test_only_what_can_be_another_has_a_control(storm, busy):
    found = choices(storm.scenario)
    assert "autoscaler" not in found, "no pool has one"
    assert next(iter(found["attempts"].settings)) == "as it is (6)"
    assert list(found["breakers"].settings) == ["as it is", "tiered-default"]
    assert list(found["retry_budget"].settings) == ["as it is", "on"]
    assert set(choices(busy.scenario)) == {"attempts", *ACTIONS}
    saved = load_scenario("drills/retry-budget")
    assert list(choices(saved)["retry_budget"].settings) == ["as it is", "off"]


def test_a_retry_budget_that_a_class_has_is_kept():
    own = load_scenario("drills/retry-budget")
    on = protected(own, ProtectiveActions(retry_budget=True)).classes[0].retry.budget
    assert on == own.classes[0].retry.budget
    assert protected(own, ProtectiveActions(retry_budget=False)).classes[0].retry.budget is None


def test_unlimited_queues_displace_nobody_and_have_no_policy():
    scenario = with_values(
        load_scenario("embedding-batch"),
        {
            "gateway.when_full": "displace_lowest",
            "pools.encoder.batching.priority_levels": 2,
            "pools.encoder.batching.queue_policy": {"max_queue_size": 9},
            "pools.encoder.batching.level_policies": [{"level": 1, "max_queue_size": 3}],
        },
    )
    free = protected(scenario, ProtectiveActions(queue_limits=False))
    pool = free.pool()
    for queue in (free.gateway.queue, pool.queue, pool.batching.scheduler):
        assert queue.length is None
        assert queue.wait_limit_s is None
    assert pool.batching.queue_policy.max_queue_size is None
    assert pool.batching.level_policies == ()
    assert free.gateway.when_full == "refuse_new"


@pytest.mark.parametrize("name", ["embedding-batch", "drills/infinite-queue", "benchmark"])
def test_other_services_are_simulated_too(name):
    scenario = load_scenario(name)
    loads = SimpleNamespace(planned_rps=50.0, peak_rps=60.0)
    bench = SurgeRuns(scenario=scenario, surge=surge_of(loads, strength=4.0))
    explorer = explore_actions(bench, strength=4.0)
    view = explorer.look({**explorer.values(), "queue_limits": 2.0})
    assert len(view.charts) == 2
    assert not re.search(r"\bnan\b", view.sentences[0])


def test_a_closed_loop_and_an_unknown_load_are_told_instead_of_played(monkeypatch):
    shown = []
    monkeypatch.setattr(pages, "show", lambda *parts: shown.extend(parts))
    closed = load_scenario(
        "drills/retry-storm",
        values={
            "traffic.shape": {
                "kind": "closed", "users": 20, "think": {"kind": "fixed", "seconds": 1.0},
            }
        },
    )  # fmt: skip
    widgets.protective_actions(closed, loads=loads_of(closed))
    assert shown[0].startswith("The 20 users of the closed loop wait")
    unknown = SimpleNamespace(planned_rps=math.nan, peak_rps=2.0)
    widgets.protective_actions(load_scenario("drills/retry-storm"), loads=unknown)
    assert shown[1] == "The planned load is unknown, so there is nothing that a surge could exceed."
    assert no_surge(load_scenario("drills/retry-storm"), LOADS) is None


@pytest.mark.parametrize("rate", [0.001, 4.0, 5000.0])
def test_a_surge_takes_about_as_many_requests_as_are_simulated_quickly(rate):
    loads = SimpleNamespace(planned_rps=rate, peak_rps=2 * rate)
    surge = surge_of(loads, strength=3.0)
    begin, end = surge.times_s
    count = rate * (surge.judged_s + surge.length_s - (end - begin)) + 6 * rate * (end - begin)
    assert 0 < count < 1.1 * SHOWN_REQUESTS
    assert surge.length_s <= 30


@pytest.mark.parametrize("strength", [0.0, -1.0, math.nan])
def test_a_surge_of_no_strength_is_an_error(strength):
    with pytest.raises(ValueError, match="strength of a surge must be positive"):
        surge_of(LOADS, strength=strength)


def test_what_cannot_be_judged_stays_unknown():
    surge = Surge(usual_rps=4.0, peak_rps=8.0, length_s=10.0)
    figures = dict.fromkeys(Aftermath.__dataclass_fields__, math.nan)
    assert "**unknown**" in comeback(surge, Aftermath(**figures))
    poor = {**figures, "good_before_fraction": 0.2, "back_s": 0.0}
    assert "**nothing to come back to**: 20 %" in comeback(surge, Aftermath(**poor))
    late = {**figures, "good_before_fraction": 1.0, "good_surge_fraction": 0.3, "back_s": 0.0}
    assert comeback(surge, Aftermath(**late)) == "**it comes back** as soon as the surge ends"


def test_without_a_reader_the_page_shows_charts_the_sentence_and_each_action_alone(
    storm, monkeypatch
):
    shown = []
    monkeypatch.setattr(pages, "show", lambda *parts: shown.extend(parts))
    loads = loads_of(storm.scenario)
    widgets.protective_actions(storm.scenario, loads=loads, strength=STORM, attempts=1, seed=1)
    flows, waiting, said, table = shown
    assert "grey: as it is" in json.dumps(flows.to_dict())
    assert "Waiting in the scheduler queue" in json.dumps(waiting.to_dict())
    assert said == sentence(storm, attempts=1.0)
    alone = {row[0]: row[1] for row in table.rows}
    assert list(alone)[:3] == ["as it is", "attempts: 1", "attempts: 5"]
    assert alone["as it is"].startswith("it does not come back")
    assert alone["retry budget: on"].startswith("it comes back")


def test_a_button_pressed_is_simulated_and_drawn(storm):
    explorer = explore_actions(storm, strength=STORM)
    explorer.widget()
    before = [shown.chart.to_dict() for shown in explorer.shown]
    assert "it does not come back within" in explorer.text.value
    explorer.sliders["retry_budget"].value = 1.0
    assert explorer.settle(60)
    assert "it comes back" in explorer.text.value
    assert [shown.chart.to_dict() for shown in explorer.shown] != before
    assert explorer.values()["retry_budget"] == 1.0


def test_a_choice_starts_on_the_setting_that_it_was_given():
    buttons = Choice(title="x", value=2.0, settings={"as it is": 0.0, "off": 2.0}).slider()
    assert buttons.label == "off"
    found = choices(load_scenario("drills/retry-storm"), attempts=9)["attempts"]
    assert found.value == 9.0
    assert "9" in found.settings
    with pytest.raises(DataError):
        protected(load_scenario("drills/retry-storm"), choice_of({"attempts": -1.0}))
