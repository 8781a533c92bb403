import json
import re

import nbformat
import pytest

from capplan.evidence import read_run
from capplan.report.build import build_report
from capplan.report.notebook import NotebookError, execute
from capplan.scenario.files import load_scenario
from capplan.schema import DataError

pytestmark = pytest.mark.slow


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_report_is_pages_an_index_the_notebooks_and_the_run_folder(report):
    assert names(report.folder) == [
        "01_first.html",
        "02_last.html",
        "index.html",
        "notebooks",
        "run",
    ]
    assert names(report.folder / "notebooks") == ["01_first.ipynb", "02_last.ipynb"]
    assert names(report.folder / "run") == [
        "conclusion.json",
        "manifest.json",
        "profile.json",
        "scenario.yaml",
    ]
    assert names(report.folder.parent) == ["report"]


def test_the_verdict_is_what_the_last_notebook_concluded(report):
    assert report.conclusion.outcome == "pass"
    assert report.record.verdict["reasons"][0]["rule"] == "worst wait"


def test_parameters_and_seed_reach_the_notebooks_that_declare_them(report):
    assert json.loads((report.folder / "run" / "profile.json").read_text())["seed"] == 3


def test_the_index_says_what_a_reader_has_to_know_first(report):
    html = (report.folder / "index.html").read_text()
    for told in (
        '<html lang="en">',
        "<title>Capacity of chat-service</title>",
        '<span class="verdict verdict-pass">pass</span>',
        "The curve is made &lt;up&gt;.",
        "generated from published figures, not recorded",
        '<a href="01_first.html">Who calls, and when?</a>',
        report.record.run_id,
        report.record.manifest["inputs"]["trace"]["file_sha256"],
    ):
        assert told in html


def test_the_manifest_of_the_run_folder_can_be_checked(report):
    record = read_run(report.folder / "run")
    assert set(record.manifest["files"]) == {"conclusion.json", "profile.json", "scenario.yaml"}
    record.verify()


def test_pages_hold_code_figures_and_no_widget(report):
    first = (report.folder / "01_first.html").read_text()
    last = (report.folder / "02_last.html").read_text()
    assert first.count('class="chart"') == 2
    assert 'aria-label="Waiting by load, each point"' in first
    assert first.count("vegaEmbed(live") == 1
    assert "vegaEmbed(live" not in last
    assert "widget-view" not in last
    assert "injected" not in first
    assert "<strong>1 s</strong>" in last


def test_nothing_on_a_page_points_outside(report):
    for page in report.folder.glob("*.html"):
        text = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
        links = re.findall(r'(?:src|href)="([^"]+)"', text)
        assert all(re.match(r"#|data:|[\w]+\.html$", link) for link in links), links
        assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]+"', "", text)


def test_the_same_inputs_give_the_same_figures(make_report, report, tmp_path):
    again = make_report(tmp_path / "one", seed=3)
    other = make_report(tmp_path / "two", seed=3)
    for name in ("profile.json", "conclusion.json"):
        one, two = (r.folder / "run" / name for r in (again, other))
        assert one.read_bytes() == two.read_bytes()
    for page in ("01_first.html", "02_last.html"):
        assert (again.folder / page).read_bytes() == (other.folder / page).read_bytes()
    assert again.record.run_id == other.record.run_id != report.record.run_id
    written = [re.sub(r"<dt>written</dt>.*", "", r.index.read_text()) for r in (again, other)]
    assert written[0] == written[1]


def test_only_numbered_notebooks_are_part_of_a_report(make_quick, tmp_path):
    made = make_quick(tmp_path / "report")
    assert names(made.folder / "notebooks") == ["1_quick.ipynb"]
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "how_true.ipynb").touch()
    with pytest.raises(DataError, match="a folder with numbered notebooks"):
        build_report(load_scenario("benchmark"), tmp_path / "other", notebooks=aside)


def test_a_failing_notebook_is_named_and_kept_and_the_old_report_stays(make_quick, tmp_path):
    made = make_quick(tmp_path / "report")
    before = {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()}
    with pytest.raises(NotebookError) as caught:
        make_quick(tmp_path / "report", fail="true")
    kept = tmp_path / "report.failed" / "notebooks" / "1_quick.ipynb"
    assert str(caught.value) == (
        f"1_quick.ipynb: cell 3 (do): AssertionError: asked to fail (half-executed: {kept})"
    )
    counts = {c.id: c.get("execution_count") for c in nbformat.read(kept, 4).cells}
    assert counts["parameters"] is not None
    assert counts["after"] is None
    assert {path: path.read_bytes() for path in before} == before
    assert names(tmp_path) == ["report", "report.failed"]


def test_a_second_failure_replaces_the_first_but_nothing_else(make_quick, tmp_path):
    (tmp_path / "report.failed").mkdir()
    (tmp_path / "report.failed" / "thesis.txt").write_text("mine")
    for _ in range(2):
        with pytest.raises(NotebookError, match=r"report\.failed-2"):
            make_quick(tmp_path / "report", fail="true")
    assert names(tmp_path) == ["report.failed", "report.failed-2"]
    assert names(tmp_path / "report.failed") == ["thesis.txt"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_kernel_that_dies_is_a_failure_of_its_cell(make_quick, tmp_path):
    with pytest.raises(NotebookError, match=r"cell 3 \(do\): the kernel died"):
        make_quick(tmp_path / "report", signal="9")


def test_kernels_of_a_report_build_no_grammar_of_iris(make_quick, tmp_path):
    made = make_quick(tmp_path / "report")
    notebook = nbformat.read(made.folder / "notebooks" / "1_quick.ipynb", 4)
    source = "import sys\nimport altair\nassert sys.modules['rfc3987_syntax'] is None"
    notebook.cells = [nbformat.v4.new_code_cell(source)]
    nbformat.write(notebook, tmp_path / "altair.ipynb")
    execute(tmp_path / "altair.ipynb", tmp_path / "done.ipynb", {}, cwd=tmp_path)


def test_a_wrong_parameter_stops_before_anything_runs(make_quick, tmp_path):
    with pytest.raises(DataError, match="-p signal: int"):
        make_quick(tmp_path / "report", signal="KILL")
    assert names(tmp_path) == []


def test_a_folder_that_is_no_report_is_left_alone(make_quick, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="an earlier report"):
        make_quick(tmp_path)
    with pytest.raises(DataError, match="a folder, or a name for a new one"):
        make_quick(tmp_path / "thesis.txt")
    assert names(tmp_path) == ["thesis.txt"]


def test_the_same_report_again_takes_the_place_of_the_earlier_one(make_quick, tmp_path):
    make_quick(tmp_path / "report")
    (tmp_path / "report" / "old.html").write_text("")
    made = make_quick(tmp_path / "report", fail="false")
    assert made.earlier is None
    assert not (tmp_path / "report" / "old.html").exists()
    assert made.record.manifest["inputs"]["asked"]["parameters"] == {"fail": "false"}
    assert names(tmp_path) == ["report"]


def test_an_earlier_report_with_another_run_is_kept_beside_the_new_one(make_quick, tmp_path):
    make_quick(tmp_path / "report")
    for number in (1, 2):
        raw = tmp_path / "report" / "run" / "raw.parquet"
        raw.write_text(f"requests of run {number}")
        made = make_quick(tmp_path / "report")
        assert made.earlier == tmp_path / f"report.earlier-{number}"
        kept = made.earlier / "run" / "raw.parquet"
        assert kept.read_text() == f"requests of run {number}"
        assert not raw.exists()
    assert names(tmp_path) == ["report", "report.earlier-1", "report.earlier-2"]


def test_a_finished_report_removes_what_failed_before_it_and_nothing_else(make_quick, tmp_path):
    (tmp_path / "report.failed").mkdir()
    (tmp_path / "report.failed" / "thesis.txt").write_text("mine")
    with pytest.raises(NotebookError):
        make_quick(tmp_path / "report", fail="true")
    assert names(tmp_path) == ["report.failed", "report.failed-2"]
    make_quick(tmp_path / "report")
    assert names(tmp_path) == ["report", "report.failed"]
    assert names(tmp_path / "report.failed") == ["thesis.txt"]


def test_without_a_terminal_each_notebook_has_a_line(make_quick, tmp_path, capsys):
    make_quick(tmp_path / "report")
    told = capsys.readouterr()
    assert re.fullmatch(r"\[1/1\] 1_quick … \d+\.\d s\n", told.err)
    assert told.out == ""


def test_on_a_terminal_the_one_line_of_progress_stands_alone(
    make_quick, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    make_quick(tmp_path / "report")
    assert "1_quick" not in capsys.readouterr().err  # no line a notebook, as there is in a log
