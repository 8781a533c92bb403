"""A degraded answer is counted apart, and is a success only for a class that allows it."""

import math

import numpy as np
import pytest

from capplan.results import headline, per_request
from capplan.results.cost import class_cost_usd_per_success
from capplan.scenario.files import with_values
from capplan.slo import judge


@pytest.fixture(name="scenario")
def _scenario(two_classes):
    return with_values(
        two_classes,
        {
            "classes.jobs.allows_degraded": True,
            "classes.chat.promises.availability_fraction": 0.5,
            "classes.jobs.promises.availability_fraction": 0.5,
            "classes.chat.promises.min_samples": 10,
            "classes.jobs.promises.min_samples": 10,
            "pools.0.price_usd_per_accelerator_hour": 36.0,
        },
    )


@pytest.fixture(name="run")
def _run(make_run, served, scenario):
    """Return twenty answers of each class, all but the first five degraded."""
    rows = [
        served(f"{name}{i}", float(i), request_class=name, streaming=name == "chat", degraded=i > 4)
        for name in ("chat", "jobs")
        for i in range(20)
    ]
    return make_run(rows, scenario=scenario)


def test_only_the_class_that_allows_it_counts_it_as_a_success(run):
    table = per_request(run)
    found = table.groupby("request_class")[["success", "good"]].sum()
    assert found.loc["chat"].tolist() == [5, 5]
    assert found.loc["jobs"].tolist() == [20, 20]
    assert (table["outcome"] == "succeeded").all()


def test_the_latency_without_a_success_is_infinite_and_still_listed(run):
    chat = per_request(run).query("request_class == 'chat'")
    assert np.isinf(chat["e2e_censored_s"]).sum() == 15
    assert np.isinf(chat["ttft_censored_s"]).sum() == 15
    assert chat["e2e_s"].notna().all()


def test_degraded_answers_are_counted_apart_for_all_and_by_class(run):
    figures = headline(run)
    assert figures["degraded"] == 30
    assert {name: one["degraded"] for name, one in figures["by_class"].items()} == {
        "chat": 15,
        "jobs": 15,
    }
    assert figures["outcomes"]["succeeded"] == 40
    assert figures["goodput_fraction"] == 25 / 40
    assert figures["by_class"]["chat"]["e2e_censored_s"]["p90"] == math.inf
    assert figures["by_class"]["jobs"]["e2e_censored_s"]["p90"] < 10


def test_availability_latency_and_cost_speak_of_the_same_successes(run):
    verdict = judge(run)
    found = {(r.rule, r.request_class): r for r in verdict.reasons}
    assert found["availability_fraction", "chat"].value == 0.25
    assert found["availability_fraction", "jobs"].value == 1.0
    assert found["ttft_s", "chat"].value == math.inf
    table = per_request(run)
    costs = {name: class_cost_usd_per_success(run, table, name) for name in ("chat", "jobs")}
    assert costs["chat"] == pytest.approx(4 * costs["jobs"])


def test_a_backend_without_the_flag_degrades_no_answer(make_run, served):
    run = make_run([served("a", 0.0, degraded=None)])
    assert per_request(run)["success"].tolist() == [True]
    assert headline(run)["degraded"] == 0
