"""Each widget simulates anew for its values, says what breaks, and starts where the page stands."""

import time

import pytest

import capplan as cp
from capplan import pages
from capplan.budget import WAITING
from capplan.widgets.budget import explore_wait_budget
from capplan.widgets.rerun import explore_batch_window, explore_failure_margin

SECONDS = 10.0
"""A move is meant to take less than one; a loaded machine may take longer."""


@pytest.fixture(scope="module")
def page():
    return pages.open_page("chat-service")


@pytest.fixture(scope="module")
def trace(page):
    return cp.draw(page.scenario, seed=1)


def said(view):
    return " ".join((*view.sentences, *view.broken))


def specs(explorer):
    return [shown.chart.to_dict() for shown in explorer.shown]


def moved(explorer, **values):
    """Set sliders, wait, and return how long the charts took to show it."""
    start = time.perf_counter()
    for name, value in values.items():
        explorer.sliders[name].value = value
    assert explorer.settle(60)
    return time.perf_counter() - start


def test_the_wait_budget_keeps_the_sum_and_a_starved_layer_breaks(page, trace):
    explorer = explore_wait_budget(page.scenario, trace=trace)
    explorer.widget()
    before = specs(explorer)
    assert sum(explorer.values().values()) == pytest.approx(100)
    assert moved(explorer, scheduler_queue=1.0) < SECONDS
    assert explorer.values()["scheduler_queue"] == 1.0
    assert sum(explorer.values().values()) == pytest.approx(100)
    assert specs(explorer) != before
    assert moved(explorer, batch_window=0.0) < SECONDS
    assert "Breaks" in explorer.text.value


def test_the_wait_budget_starts_as_the_scenario_divides_it(page, trace):
    explorer = explore_wait_budget(page.scenario, trace=trace)
    view = explorer.look(explorer.values())
    assert set(explorer.controls) == set(WAITING)
    assert "keep every promise" in said(view)


def studied(page, trace, pool, requests):
    studies = cp.pool_studies(page.scenario, trace, requests=requests, seed=1)
    return next(one for one in studies if one.pool.name == pool)


@pytest.mark.parametrize(("pool", "field"), [("llm", "max_num_seqs"), ("labelling", "load")])
def test_the_batch_window_is_simulated_anew(page, trace, pool, field):
    study = studied(page, trace, pool, 3000)
    explorer = explore_batch_window(study)
    explorer.widget()
    before, text = specs(explorer), explorer.text.value
    assert not explorer.look(explorer.values()).broken
    assert moved(explorer, **{field: 2 if field == "max_num_seqs" else 4.0}) < SECONDS
    assert specs(explorer) != before
    assert explorer.text.value != text


def test_a_batch_too_small_for_the_load_breaks_promises(page, trace):
    study = studied(page, trace, "llm", 1000)
    explorer = explore_batch_window(study)
    view = explorer.look({**explorer.values(), "max_num_seqs": 1})
    assert any("chat" in text for text in view.broken)


def test_losing_replicas_under_load_breaks_and_more_replicas_mend(page, trace):
    explorer = explore_failure_margin(page.scenario, trace=trace, lost=1, seed=1)
    start = explorer.values()
    few = explorer.look({**start, "replicas": 2, "lost": 1, "load": 2.0})
    many = explorer.look({**start, "replicas": 8, "lost": 0, "load": 2.0})
    assert few.broken
    assert len(many.broken) < len(few.broken)


def test_at_least_one_replica_is_left(page, trace):
    explorer = explore_failure_margin(page.scenario, trace=trace, lost=1, seed=1)
    explorer.widget()
    assert moved(explorer, lost=8) < SECONDS
    assert explorer.values()["lost"] == explorer.values()["replicas"] - 1
