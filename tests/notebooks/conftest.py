"""How the notebooks' tests run a page and read what it shows."""

from pathlib import Path

import nbformat
import papermill
import pytest
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SMALL = {"requests": 1500, "steps": 2, "jobs": 1}
IPC = Config({"ConnectionFileMixin": {"transport": "ipc"}, "KernelManager": {"transport": "ipc"}})


class Shown:
    """An executed page, by what it shows."""

    def __init__(self, notebook):
        self.notebook = notebook
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        self.outputs = [one for cell in code for one in cell.outputs]
        data = [one["data"] for one in self.outputs if "data" in one]
        self.told = "\n".join(d["text/markdown"] for d in data if "text/markdown" in d)
        self.figures = [html for d in data if "<svg" in (html := d.get("text/html", ""))]


@pytest.fixture
def run(tmp_path):
    """Return the function that runs a notebook in an empty folder, with few requests."""

    def run_notebook(stem, folder=tmp_path, **values):
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
        return Shown(nbformat.read(folder / "out.ipynb", as_version=4))

    return run_notebook
