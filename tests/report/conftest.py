import inspect
from pathlib import Path

import nbformat
import pytest

from capplan.report.build import build_report
from capplan.scenario.files import load_scenario

NOTEBOOKS = Path(__file__).parent / "notebooks"
QUICK = {
    "parameters": """
        seed: int = 0  # seed of all that is random
        fail: bool = False  # fail on purpose
        signal: int = 0  # signal that the kernel sends itself
    """,
    "do": """
        import os

        if signal:
            os.kill(os.getpid(), signal)
        assert not fail, "asked to fail\\nsecond line"
    """,
    "after": "seed",
}


@pytest.fixture
def make_report():
    """Return a function that makes a report of two small notebooks with charts."""

    def make(out, seed=0):
        return build_report(load_scenario("benchmark"), out, seed=seed, notebooks=NOTEBOOKS)

    return make


@pytest.fixture
def make_quick(tmp_path_factory):
    """Return a function that makes a report of one notebook that imports next to nothing."""
    folder = tmp_path_factory.mktemp("notebooks")
    cells = [nbformat.v4.new_markdown_cell("# Does it run?", id="title")]
    for name, source in QUICK.items():
        tags = [name] if name == "parameters" else []
        code = inspect.cleandoc(source)
        cells.append(nbformat.v4.new_code_cell(code, id=name, metadata={"tags": tags}))
    metadata = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.write(notebook, folder / "1_quick.ipynb")
    (folder / "aside.ipynb").write_text("not numbered, so never read", encoding="utf-8")

    def make(out, **parameters):
        texts = list(parameters.items())
        return build_report(load_scenario("benchmark"), out, parameters=texts, notebooks=folder)

    return make


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Return a report of two small notebooks, made once; not to be changed."""
    out = tmp_path_factory.mktemp("made") / "report"
    return build_report(load_scenario("chat-service"), out, seed=3, notebooks=NOTEBOOKS)
