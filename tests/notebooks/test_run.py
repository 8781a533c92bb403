"""Every notebook runs from a clean kernel in an empty folder, and leaves its artefacts."""

import json
import re
import shutil

import pytest

LEAVES = {
    "00_tour": [],
    "01_traffic_profile": ["profile.json"],
    "02_wait_budget": ["budget.json"],
    "03_batch_window": ["sweep.parquet", "chosen_point.json"],
    "04_load_stages": ["stages/summary.json"],
    "05_failure_margin": ["capacity_table.json"],
    "07_capacity_report": ["conclusion.json"],
}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("stem", sorted(LEAVES))
def test_a_notebook_runs_and_leaves_its_artefacts(stem, run, tmp_path):
    page = run(stem)
    streams = [one for one in page.outputs if one.output_type == "stream"]
    assert not streams, "no progress, print or warning in a page"
    assert page.told
    assert not re.search(r"\bnan\b", page.told)
    for name in LEAVES[stem]:
        assert (tmp_path / "run" / name).is_file(), name
    assert not any("widget-view" in key for one in page.outputs for key in one.get("data", {}))


def test_the_static_twin_of_a_widget_is_in_the_page(run):
    cell = next(cell for cell in run("02_wait_budget").notebook.cells if cell.id == "try")
    assert [one for one in cell.outputs if "<svg" in one["data"].get("text/html", "")]
    assert "keep every promise" in "".join(
        one["data"].get("text/markdown", "") for one in cell.outputs
    )


def test_the_report_says_unknown_of_pages_that_have_not_run(run, tmp_path):
    page = run("07_capacity_report")
    conclusion = json.loads((tmp_path / "run" / "conclusion.json").read_text())
    assert conclusion["verdict"]["outcome"] in ("unknown", "fail", "blocked")
    outcomes = {part["part"]: part["outcome"] for part in conclusion["parts"]}
    assert outcomes["wait budget"] == outcomes["failure margin"] == "unknown"
    outcome = conclusion["decision"]["outcome"]
    assert page.told.startswith(f"**Decision: {outcome}**")
    assert outcome == conclusion["verdict"]["outcome"]
    assert "**Scope:**" in page.told
    assert "defaults, not promises" in page.told


def test_the_same_inputs_give_the_same_figures(run, tmp_path):
    texts = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        texts.append(run("00_tour", folder).told)
        shutil.rmtree(folder)
    assert texts[0] == texts[1]
