"""Every notebook runs from a clean kernel in an empty folder, and leaves its artefacts."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import papermill
import pytest
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SMALL = {"requests": 1500, "steps": 2, "jobs": 1}
LEAVES = {
    "00_tour": [],
    "01_traffic_profile": ["profile.json"],
    "02_wait_budget": ["budget.json"],
    "03_batch_window": ["sweep.parquet", "chosen_point.json"],
    "04_load_stages": ["stages/summary.json"],
    "05_failure_margin": ["capacity_table.json"],
    "07_capacity_report": ["conclusion.json"],
}
IPC = Config({"ConnectionFileMixin": {"transport": "ipc"}, "KernelManager": {"transport": "ipc"}})

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def run(stem, folder, **values):
    """Run a notebook in an empty folder and return it with its outputs."""
    source = FOLDER / f"{stem}.ipynb"
    known = papermill.inspect_notebook(str(source))
    small = {name: value for name, value in SMALL.items() if name in known}
    work = folder / "empty"
    work.mkdir()
    papermill.execute_notebook(
        str(source),
        str(folder / "out.ipynb"),
        {**small, "run_folder": str(folder / "run"), **values},
        cwd=str(work),
        progress_bar=False,
        store_widget_state=False,
        config=IPC,
    )
    assert not list(work.iterdir()), "nothing is left where the page ran"
    return nbformat.read(folder / "out.ipynb", as_version=4)


def outputs(notebook):
    return [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]


def told(notebook):
    shown = [one["data"] for one in outputs(notebook) if "data" in one]
    return "\n".join(data["text/markdown"] for data in shown if "text/markdown" in data)


def figures(notebook):
    shown = [one["data"] for one in outputs(notebook) if "data" in one]
    return [html for data in shown if "<svg" in (html := data.get("text/html", ""))]


@pytest.mark.parametrize("stem", sorted(LEAVES))
def test_a_notebook_runs_and_leaves_its_artefacts(stem, tmp_path):
    notebook = run(stem, tmp_path)
    streams = [one for one in outputs(notebook) if one.output_type == "stream"]
    assert not streams, "no progress, print or warning in a page"
    assert told(notebook)
    assert not re.search(r"\bnan\b", told(notebook))
    for name in LEAVES[stem]:
        assert (tmp_path / "run" / name).is_file(), name
    assert not any("widget-view" in key for one in outputs(notebook) for key in one.get("data", {}))


@pytest.mark.parametrize("scenario", ["benchmark", "embedding-batch", "mixed-modality"])
@pytest.mark.parametrize("stem", ["02_wait_budget", "03_batch_window"])
def test_a_page_takes_any_bundled_scenario(stem, scenario, tmp_path):
    notebook = run(stem, tmp_path, scenario=scenario, requests=300)
    assert told(notebook)
    assert figures(notebook)


@pytest.mark.parametrize("stem", ["00_tour", "05_failure_margin"])
def test_a_page_stands_a_service_that_does_not_stream(stem, tmp_path):
    assert told(run(stem, tmp_path, scenario="embedding-batch", requests=300))


def test_a_page_stands_a_trace_of_one_request(tmp_path):
    trace = tmp_path / "one.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    notebook = run("01_traffic_profile", tmp_path, trace=str(trace))
    assert "Nothing to draw here." in told(notebook)
    assert not re.search(r"\bnan\b", told(notebook))


def test_equal_lengths_make_the_choice_unknown(tmp_path):
    run("03_batch_window", tmp_path, scenario="benchmark", requests=300)
    chosen = json.loads((tmp_path / "run" / "chosen_point.json").read_text())
    assert {pool["outcome"] for pool in chosen["pools"]} == {"unknown"}
    assert "unknown" in chosen["pools"][0]["said"]


def test_the_static_twin_of_a_widget_is_in_the_page(tmp_path):
    notebook = run("02_wait_budget", tmp_path)
    cell = next(cell for cell in notebook.cells if cell.id == "try")
    assert [one for one in cell.outputs if "<svg" in one["data"].get("text/html", "")]
    assert "keep every promise" in "".join(
        one["data"].get("text/markdown", "") for one in cell.outputs
    )


def test_the_report_says_unknown_of_pages_that_have_not_run(tmp_path):
    notebook = run("07_capacity_report", tmp_path)
    conclusion = json.loads((tmp_path / "run" / "conclusion.json").read_text())
    assert conclusion["verdict"]["outcome"] in ("unknown", "fail", "blocked")
    outcomes = {part["part"]: part["outcome"] for part in conclusion["parts"]}
    assert outcomes["wait budget"] == outcomes["failure margin"] == "unknown"
    first = next(one for one in outputs(notebook) if "text/markdown" in one.get("data", {}))
    lines = first["data"]["text/markdown"]
    assert lines.startswith(f"**Verdict: {conclusion['verdict']['outcome']}**")
    assert "**Scope:**" in lines
    assert "defaults, not promises" in lines


def test_the_same_inputs_give_the_same_figures(tmp_path):
    texts = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        texts.append(told(run("00_tour", folder)))
        shutil.rmtree(folder)
    assert texts[0] == texts[1]
