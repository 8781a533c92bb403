"""A retry budget is a boundary; the requests it ended are its proof."""

import numpy as np
import pytest

from capplan.scenario.files import load_scenario, with_values
from capplan.simulation import simulate
from capplan.stages.protection import dropped, protections
from capplan.stages.stage import stage_of

RETRY = "classes.chat.retry"


@pytest.fixture(name="scenario", scope="module")
def _scenario():
    """Return the drill without a deadline, so that the log tells of every dropped retry."""
    values = {"classes.chat.promises.deadline_s": None, "traffic.duration_s": 300.0}
    return load_scenario("drills/retry-budget", values=values)


def total(run):
    rows = run.timeline[run.timeline["metric"] == "retries_dropped_rps"]
    return rows["value"].to_numpy() @ np.diff([*rows["time_s"], run.duration_s])


def test_the_requests_that_were_not_tried_again_are_those_that_the_callers_counted(scenario):
    run = simulate(scenario, seed=1)
    found = dropped(run, "chat")
    assert len(found) == pytest.approx(total(run), rel=1e-9)
    assert len(found) > 50
    assert found["request_id"].is_unique
    assert (found["outcome"] != "succeeded").all()


def test_the_boundary_names_the_budget_and_proves_that_it_acted(scenario):
    run = simulate(scenario, seed=1)
    stage = stage_of("s", "burst", 40.0, run, start_s=0.0, end_s=300.0)
    found = {p.boundary.field: p for p in protections(scenario, [stage])}
    acted = found[f"{RETRY}.budget"]
    assert acted.acted
    assert acted.boundary.action == "drops retries beyond 20% of first attempts plus 0.1/s"
    assert acted.boundary.owner == "chat product"
    assert set(acted.request_ids) <= set(dropped(run, "chat")["request_id"])


def test_without_a_budget_there_is_no_such_boundary(scenario):
    without = with_values(scenario, {f"{RETRY}.budget": None})
    run = simulate(without, seed=1)
    assert dropped(run, "chat").empty
    stage = stage_of("s", "burst", 40.0, run, start_s=0.0, end_s=300.0)
    fields = {p.boundary.field for p in protections(without, [stage])}
    assert f"{RETRY}.budget" not in fields


def test_who_had_no_attempt_or_no_time_left_is_not_among_them(scenario):
    run = simulate(with_values(scenario, {f"{RETRY}.max_attempts": 1}), seed=1)
    assert dropped(run, "chat").empty
    hasty = with_values(scenario, {"classes.chat.promises.deadline_s": 4.5})
    run = simulate(hasty, seed=1)
    firsts = run.requests.groupby("request_id")["intended_start_s"].min()
    found = dropped(run, "chat")
    left_s = firsts[found["request_id"]].to_numpy() + 4.5 - found["finish_s"]
    assert (left_s > 1.0).all()  # the first backoff
    assert 0 < len(found) <= total(run)
