"""The conclusion: the worst part decides, a missing page is unknown, defaults are named."""

import json
from dataclasses import replace

import pytest

from capplan import pages
from capplan.encoding import to_text
from capplan.pages.conclusion import Finding, capacity_table, conclude, time_by_layer
from capplan.results import segments
from capplan.simulation import simulate


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return pages.open_page("chat-service", run_folder=str(folder), seed=1, warmup_s=0.0)


@pytest.fixture(scope="module")
def result(page):
    return simulate(page.scenario, trace=page.draw(requests=800), seed=1)


@pytest.fixture(scope="module")
def conclusion(page, result):
    return conclude(page, result)


def test_pages_that_have_not_run_are_unknown(conclusion):
    missing = {"traffic", "wait budget", "batch window", "failure margin"}
    assert missing <= set(conclusion.unknowns)
    assert conclusion.outcome in ("unknown", "fail", "blocked")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "told"], "pass"),
        (["pass", "retest"], "retest"),
        (["retest", "unknown"], "unknown"),
        (["unknown", "fail"], "fail"),
        (["fail", "blocked"], "blocked"),
    ],
)
def test_the_worst_part_decides(conclusion, outcomes, expected):
    findings = tuple(
        Finding(part=str(i), outcome=outcome, said="", artefact="")
        for i, outcome in enumerate(outcomes)
    )
    assert replace(conclusion, findings=findings).outcome == expected


def test_the_first_lines_name_verdict_scope_and_defaults(conclusion):
    said = conclusion.said()
    assert said.startswith(f"**Verdict: {conclusion.outcome}**")
    for rule in conclusion.defaults:
        assert rule in said
    assert "simulated" in said
    assert "wait budget" in said


def test_the_artefact_is_json_that_the_report_reads(conclusion):
    data = json.loads(to_text(conclusion.to_json()))
    assert data["verdict"]["outcome"] == conclusion.outcome
    assert {"name", "value", "unit"} <= set(data["figures"][0])
    assert any("has not run" in warning for warning in data["warnings"])


def test_a_capacity_table_that_was_not_made_has_no_rows(page):
    assert capacity_table(page).empty


def test_the_time_by_layer_adds_up_to_the_mean_latency(result):
    layers = time_by_layer(result).groupby("request_class")["mean_s"].sum()
    done = result.judged[result.judged["outcome"] == "succeeded"]
    parts = segments(done).drop(columns="send_lag_s")
    for name, total in layers.items():
        own = parts[(done["request_class"] == name).to_numpy()]
        assert total == pytest.approx(own.mean().sum())


def test_the_finding_of_the_load_names_the_limits_that_acted(result, tmp_path):
    page = pages.open_page("chat-service", run_folder=str(tmp_path), seed=1)
    acted = {
        "classes.chat.promises.deadline_s": True,
        "gateway.rate_limit": True,
        "breakers.overfull": True,
        "gateway.queue.length": False,
    }
    summary = {
        "stages": [{"kind": "ramp", "load_rps": 3.0}],
        "first_degradation": None,
        "protective_actions": [{"boundary": b, "acted": did} for b, did in acted.items()],
        "verdict": {"outcome": "pass"},
    }
    page.leave("stages/summary.json", summary)
    [load] = [f for f in conclude(page, result).findings if f.part == "load"]
    assert load.said == (
        "no promise broken up to 3 requests/s. "
        "Limits that acted: gateway.rate_limit and breakers.overfull"
    )
