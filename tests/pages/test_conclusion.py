"""The conclusion: the worst part decides, a missing page is unknown, defaults are named."""

import json

import pytest

from capplan import pages
from capplan.encoding import to_text
from capplan.pages.conclusion import conclude
from capplan.results import mean_segments, segments
from capplan.simulation import simulate
from capplan.slo import judge
from capplan.traffic.draw import draw


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return pages.open_page("chat-service", run_folder=str(folder), requests=800, warmup_s=0.0)


@pytest.fixture(scope="module")
def result(page):
    return simulate(page.scenario, trace=draw(page.scenario, seed=1), seed=1)


@pytest.fixture(scope="module")
def conclusion(page, result):
    return conclude(page, result, judge(result))


def test_pages_that_have_not_run_are_unknown(conclusion):
    missing = {"traffic", "wait budget", "batch window", "failure margin"}
    assert missing <= set(conclusion.unknowns)
    assert conclusion.outcome in ("unknown", "fail", "blocked")


def test_a_description_does_not_decide_and_the_worst_part_does(page, result):
    verdict = judge(result)
    page.leave("profile.json", {"rate_rps": 1.0, "gap_cv": 1.0, "prompt_tokens": {"p99": 9},
                                "output_tokens": {"p99": 9}})  # fmt: skip
    page.leave("budget.json", {"verdict": {"outcome": "blocked", "reasons": []}})
    found = conclude(page, result, verdict)
    assert found.parts[0].outcome == "description"
    assert found.outcome == "blocked"
    for name in ("profile.json", "budget.json"):
        (page.folder / name).unlink()


@pytest.mark.parametrize(
    ("rules", "finding"),
    [
        (1, "Missing owner: name one"),
        (2, "Missing owner: name one (and 1 more finding)"),
        (3, "Missing owner: name one (and 2 more findings)"),
    ],
)
def test_the_finding_of_the_budget_counts_only_others(page, result, rules, finding):
    reasons = [{"rule": "missing_owner", "next_action": "name one"}] * rules
    page.leave("budget.json", {"verdict": {"outcome": "fail", "reasons": reasons}})
    found = conclude(page, result, judge(result))
    part = next(part for part in found.parts if part.part == "wait budget")
    assert part.finding.lower() == finding.lower()
    (page.folder / "budget.json").unlink()


def test_the_first_lines_name_verdict_scope_and_defaults(conclusion):
    said = conclusion.summary()
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


def test_limits_that_were_not_sized_have_no_rows(conclusion):
    assert conclusion.operating_limits().empty


def test_the_time_by_layer_adds_up_to_the_mean_latency(result):
    layers = mean_segments(result.judged).groupby("request_class")["mean_s"].sum()
    done = result.judged[result.judged["outcome"] == "succeeded"]
    parts = segments(done).drop(columns="send_lag_s")
    for name, total in layers.items():
        own = parts[(done["request_class"] == name).to_numpy()]
        assert total == pytest.approx(own.mean().sum())


def test_the_finding_of_the_load_names_the_limits_that_acted(result, tmp_path):
    page = pages.open_page("chat-service", run_folder=str(tmp_path))
    acted = {
        "classes.chat.promises.deadline_s": True,
        "gateway.rate_limits": True,
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
    [load] = [p for p in conclude(page, result, judge(result)).parts if p.part == "load"]
    assert load.finding == (
        "no promise broken up to 3 requests/s. "
        "Limits that acted: gateway.rate_limits and breakers.overfull"
    )
    page.leave("stages/summary.json", {**summary, "stages": []})
    [unloaded] = [p for p in conclude(page, result, judge(result)).parts if p.part == "load"]
    assert unloaded.finding.startswith("no ramp was run")


def limit(name, outcome, load_rps=None):
    return {"row": name, "outcome": outcome, "load_rps": load_rps, "evidence": f"{name} judged"}


WITHOUT = {"row": "stable load", "load_rps": 4.0, "evidence": ""}
"""A row as it was written before rows had outcomes."""
BURST = ["burst protection"]


@pytest.mark.parametrize(
    ("rows", "outcome", "not_known"),
    [
        ([limit("stable load", "pass", 4.0), limit("burst protection", "fail")], "fail", []),
        ([limit("burst protection", "unknown")], "unknown", BURST),
        ([WITHOUT, WITHOUT | {"row": "burst protection", "load_rps": None}], "unknown", BURST),
        ([limit("burst protection", "does not apply")], "pass", []),
        ([limit("burst protection", "pass", 9.0)], "pass", []),
    ],
)
def test_every_limit_takes_part_in_the_conclusion(tmp_path, result, rows, outcome, not_known):
    page = pages.open_page("chat-service", run_folder=str(tmp_path))
    sized = {"pool": "llm", "replicas": {"0": 2}, "verdict": {"outcome": "pass"}}
    page.leave("capacity_table.json", sized | {"capacity_table": rows})
    found = conclude(page, result, judge(result))
    [margin] = [p for p in found.parts if p.part == "failure margin"]
    assert margin.outcome == outcome
    assert ("burst protection judged" in margin.finding) == (outcome == "fail")
    assert [one for one in found.unknowns if one == "burst protection"] == not_known
    assert found.operating_limits()["outcome"].tolist()[-1] == rows[-1].get("outcome", "unknown")


def test_the_finding_of_the_margin_says_how_many_there_are_and_are_needed(tmp_path, result):
    page = pages.open_page("chat-service", run_folder=str(tmp_path))
    answer = "There is 1 replica of llm, needed are 2 (none lost), because with 1 chat: late."
    sized = {"pool": "llm", "replicas": {"0": 2}, "answer": answer, "verdict": {"outcome": "fail"}}
    page.leave("capacity_table.json", sized)
    [margin] = [
        p for p in conclude(page, result, judge(result)).parts if p.part == "failure margin"
    ]
    assert margin.finding.startswith(f"{answer[:-1]}; replicas of llm that keep every promise: 2")
