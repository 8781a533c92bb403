import nbformat
import papermill
import pytest

from capplan.report.notebook import chosen, declared
from capplan.schema import DataError

NOTEBOOK = """\
scenario: str = "benchmark"  # scenario file or bundled name
points: int = 40  # points of the curve
scale: float = 1  # factor = 1 on the curve
fast: bool = False  # skip the slow part
loads_rps: list[float] = [1.0, 2.0]  # loads, 1/s"""


@pytest.fixture
def make(tmp_path):
    def write(source, name="a.ipynb", tags=("parameters",)):
        cell = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})
        metadata = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
        notebook = nbformat.v4.new_notebook(cells=[cell], metadata=metadata)
        nbformat.write(notebook, tmp_path / name)
        return tmp_path / name

    return write


def test_every_declared_parameter_is_seen(make):
    found = declared(make(NOTEBOOK))
    assert {p.name: (p.type, p.default) for p in found.values()} == {
        "scenario": ("str", "benchmark"),
        "points": ("int", 40),
        "scale": ("float", 1),
        "fast": ("bool", False),
        "loads_rps": ("list[float]", [1.0, 2.0]),
    }
    assert found["points"].meaning == "points of the curve"


def test_papermill_sees_what_we_see(make):
    notebook = make(NOTEBOOK.replace("factor = 1", "factor 1"))
    assert list(papermill.inspect_notebook(str(notebook))) == list(declared(notebook))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("points", "-3", -3),
        ("scale", "2", 2.0),
        ("scale", "1e-3", 0.001),
        ("scenario", "7", "7"),
        ("fast", "true", True),
        ("loads_rps", "1, 2.5", [1.0, 2.5]),
        ("loads_rps", "", []),
    ],
)
def test_a_text_becomes_a_value_of_the_declared_type(make, name, text, value):
    notebook = make(NOTEBOOK)
    assert chosen([notebook], [(name, text)], {}) == {notebook: {name: value}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pionts", "3", "-p: one of fast, loads_rps, points, scale, got 'pionts'"),
        ("scenario", "x", "-p: one of fast, loads_rps, points, scale, got 'scenario'"),
        ("points", "3.5", "a.ipynb: -p points: int (points of the curve), got '3.5'"),
        ("points", "many", "a.ipynb: -p points: int (points of the curve), got 'many'"),
        ("scale", "nan", None),
        ("loads_rps", "1,inf", None),
        ("fast", "1", "a.ipynb: -p fast: bool (skip the slow part), got '1'"),
        ("loads_rps", "1,x", "a.ipynb: -p loads_rps: list[float] (loads, 1/s), got '1,x'"),
    ],
)
def test_an_unknown_name_or_a_wrong_type_is_an_error(make, name, text, message):
    with pytest.raises(DataError) as caught:
        chosen([make(NOTEBOOK)], [(name, text)], {"scenario": "scenario.yaml"})
    assert message is None or str(caught.value) == message


def test_a_notebook_is_passed_only_what_it_declares(make):
    first = make("seed: int = 0  # seed\npoints: int = 1  # points", "1.ipynb")
    second = make("points: float = 1.0  # points", "2.ipynb")
    third = make("print('no parameters')", "3.ipynb", tags=())
    values = chosen([first, second, third], [("points", "4")], {"seed": 7, "trace": ""})
    assert values == {first: {"seed": 7, "points": 4}, second: {"points": 4.0}, third: {}}
    assert isinstance(values[second]["points"], float)


@pytest.mark.parametrize(
    "line",
    ["x = 1", "x: int | None = 3", "x: int = 2 * 3", "x: int = 1.5", "x: tuple = (1, 2)", "x: int"],
)
def test_a_line_that_papermill_would_drop_is_an_error(make, line):
    with pytest.raises(DataError, match="name: type = literal"):
        declared(make(line))
