"""The page on fidelity runs from an empty folder, with the measured runs and without."""

from pathlib import Path

import nbformat
import papermill
import pytest
from traitlets.config import Config

SOURCE = Path(__file__).resolve().parents[2] / "notebooks" / "how_true.ipynb"
IPC = Config({"ConnectionFileMixin": {"transport": "ipc"}, "KernelManager": {"transport": "ipc"}})

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def run(folder, **values):
    """Run the page in an empty folder and return its data, cell by cell."""
    work = folder / "empty"
    work.mkdir()
    papermill.execute_notebook(
        str(SOURCE),
        str(folder / "out.ipynb"),
        values,
        cwd=str(work),
        progress_bar=False,
        store_widget_state=False,
        config=IPC,
    )
    assert not list(work.iterdir()), "nothing is left where the page ran"
    cells = nbformat.read(folder / "out.ipynb", as_version=4).cells
    outputs = [one for cell in cells for one in cell.get("outputs", [])]
    assert not [one for one in outputs if one.output_type == "stream"]
    return [one["data"] for one in outputs if "data" in one]


def told(data):
    return "\n".join(one["text/markdown"] for one in data if "text/markdown" in one)


def figures(data):
    return [one for one in data if "<svg" in one.get("text/html", "")]


def test_without_measured_runs_the_frozen_figures_are_shown_and_that_they_hold_is_unknown(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("CAPPLAN_DATA", raising=False)
    data = run(tmp_path)
    assert len(figures(data)) == 2
    assert "goals are met" in told(data)
    assert "nan" not in told(data)
    assert "**Unknown.**" in told(data)
    assert "The frozen ones hold" not in told(data)


def test_with_measured_runs_the_frozen_figures_hold(tmp_path, shared_data):
    data = run(tmp_path, data=str(shared_data.resolve()))
    assert len(figures(data)) == 3
    assert "**The frozen ones hold.**" in told(data)
