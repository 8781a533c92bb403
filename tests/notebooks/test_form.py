"""Every notebook has the agreed form: a question, typed parameters, prose and short cells."""

import ast
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import nbformat
import papermill
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path for path in FOLDER.rglob("*.ipynb") if "checkpoint" not in str(path))
MOST_CELLS, MOST_LINES, MOST_STATEMENTS = 40, 15, 5
PASSED_BY_REPORT = {"scenario": "str", "trace": "str", "run_folder": "str", "seed": "int"}
DOORS = ("capplan", "capplan.pages")
TYPES = {"str": str, "int": int, "float": float, "bool": bool}

SAYS = r'f"|widgets\.|_parts\(|summary\(|failures\(|pages\.show\((.*, )?\*?[\w.]+\)'
"""A computed sentence: of the cell, asked of a result, or part of a result that is shown."""

NUMBERED = [path for path in NOTEBOOKS if path.parent == FOLDER and path.stem[0].isdigit()]

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parameters(notebook):
    return next(cell for cell in code(notebook) if cell.id == "parameters")


def depth_of_loops(node):
    """Return how many loops and comprehensions stand inside each other."""
    loops = (ast.For, ast.While, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
    inner = max(map(depth_of_loops, ast.iter_child_nodes(node)), default=0)
    return inner + isinstance(node, loops)


def sections(notebook):
    """Yield each section's code, a section being what stands below a ``## `` heading."""
    source = []
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            yield "\n".join(source)
            source = []
        elif cell.cell_type == "code" and cell.id not in ("parameters", "imports"):
            source.append(cell.source)
    yield "\n".join(source)


def root(node):
    """Return the name that a chain of attributes, subscripts and calls starts from."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def public_uses(node, public):
    """Return where ``cp`` or what it returned is asked for something."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and root(n) in public]


def names(node):
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def assigned_from(node, public):
    """Return the names that a part of a page takes from what the public API returned."""
    pairs = [(n.targets[0], n.value) for n in ast.walk(node) if isinstance(n, ast.Assign)]
    loops = (ast.For, ast.comprehension)
    pairs += [(n.target, n.iter) for n in ast.walk(node) if isinstance(n, loops)]
    return {name for left, right in pairs if names(right) & public for name in names(left)}


def test_the_workbook_has_its_pages():
    assert {path.stem for path in NOTEBOOKS} >= {
        "00_tour",
        "01_traffic_profile",
        "02_wait_budget",
        "03_batch_window",
        "04_load_stages",
        "05_failure_margin",
        "07_capacity_report",
        "how_true",
    }


@each_notebook
def test_the_file_is_valid_stripped_and_runs_on_any_python(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "version" not in notebook.metadata.get("language_info", {})
    for cell in code(notebook):
        assert not cell.outputs, f"{cell.id}: outputs are stripped"
        assert cell.execution_count is None, f"{cell.id}: counts are stripped"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "nbstripout", "--verify", "--keep-id", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@each_notebook
def test_the_title_is_a_question_and_cells_are_few_and_short(path):
    notebook = read(path)
    title = notebook.cells[0].source.splitlines()[0]
    assert re.fullmatch(r"# .+\?", title), "the first line is the question"
    assert len(notebook.cells) <= MOST_CELLS
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", one) for one in ids), "ids are words"
    for cell in code(notebook):
        assert len(cell.source.splitlines()) <= MOST_LINES, f"{cell.id}: too long"


@each_notebook
def test_cells_hold_no_definitions_loop_nests_or_magics(path):
    for cell in code(read(path)):
        tree = ast.parse(cell.source)  # a magic is a syntax error here
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        assert not [n for n in ast.walk(tree) if isinstance(n, kinds)], f"{cell.id}: definition"
        assert depth_of_loops(tree) <= 1, f"{cell.id}: a loop in a loop"
        assert "get_ipython" not in cell.source, f"{cell.id}: a magic"


@each_notebook
def test_parameters_come_first_then_imports_then_pages_of_prose_and_short_cells(path):
    notebook = read(path)
    first, second, *others = code(notebook)
    assert [first.id, second.id] == ["parameters", "imports"]
    assert first.metadata.tags == ["parameters"]
    assert [c.id for c in code(notebook) if "parameters" in c.metadata.get("tags", [])] == [
        "parameters"
    ]
    kinds = (ast.Import, ast.ImportFrom)
    assert [n for n in ast.parse(second.source).body if isinstance(n, kinds)], (
        "the second code cell imports"
    )
    for cell in others:
        body = ast.parse(cell.source).body
        assert not [n for n in body if isinstance(n, kinds)], cell.id
        assert len(body) <= MOST_STATEMENTS, f"{cell.id}: more than {MOST_STATEMENTS} statements"
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    assert len(prose) >= 0.4 * len(notebook.cells), "prose is about half of the cells"


@each_notebook
def test_each_cell_is_led_in_by_prose_and_shows_something_with_a_computed_sentence(path):
    cells = read(path).cells
    for before, cell in pairwise(cells):
        if cell.cell_type == "code" and cell.id not in ("parameters", "imports"):
            assert before.cell_type == "markdown", f"{cell.id}: prose leads in"
            assert re.search(r"pages\.show\(|widgets\.", cell.source), f"{cell.id}: shows nothing"
            told = re.search(SAYS, cell.source)
            assert told, f"{cell.id}: says nothing"


@each_notebook
def test_each_section_that_shows_a_result_calls_the_public_api_in_plain_sight(path):
    """A reader who copies the cells has a working study; a widget is one call by itself."""
    public = {"cp"}
    for source in sections(read(path)):
        tree = ast.parse(source)
        for statement in tree.body:
            public |= assigned_from(statement, public)
        by_itself = tree.body and all("widgets." in ast.unparse(one) for one in tree.body)
        if tree.body and not by_itself:
            assert public_uses(tree, public), f"no public call in:\n{source}"


@each_notebook
def test_parameters_are_typed_literals_with_a_comment_and_all_seen_by_papermill(path):
    cell = parameters(read(path))
    written = ast.parse(cell.source).body
    assert all(isinstance(node, ast.AnnAssign) for node in written)
    for node, line in zip(written, cell.source.splitlines(), strict=True):
        kind = TYPES[node.annotation.id]
        assert type(ast.literal_eval(node.value)) is kind, line
        assert line.count("=") == 1, f"papermill drops a second =: {line}"
        assert re.search(r"  # \S.+", line), f"a comment tells meaning and unit: {line}"
    seen = papermill.inspect_notebook(str(path))
    assert list(seen) == [node.target.id for node in written]
    for node in written:
        told = seen[node.target.id]
        assert told["inferred_type_name"] == node.annotation.id
        assert ast.literal_eval(told["default"]) == ast.literal_eval(node.value)
        assert told["help"]


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_a_report_can_pass_scenario_trace_folder_and_seed_to_every_page(path):
    written = ast.parse(parameters(read(path)).source).body
    kinds = {node.target.id: node.annotation.id for node in written}
    assert kinds.items() >= PASSED_BY_REPORT.items()


@each_notebook
def test_notebooks_import_the_package_by_its_public_doors(path):
    """A page is thin: it reads no file and imports nothing below the doors."""
    for cell in code(read(path)):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                assert node.module in DOORS, f"{cell.id}: from {node.module}"
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= {"capplan", "pandas"}, cell.id
