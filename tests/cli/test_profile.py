"""``capplan profile``: columns of a log by option or by scenario, and what people read."""

import json

import pytest

from capplan.cli import main
from capplan.scenario.files import load_scenario, with_values, write_scenario

LOG = "when,in,out,took\n" + "".join(f"{i}000,{10 + i},2,1500\n" for i in range(1, 4))
COLUMNS = {"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out"}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def options(columns):
    return [word for ours, theirs in columns.items() for word in ("--column", f"{ours}={theirs}")]


def test_columns_and_units_may_be_options(log, capsys):
    asked = [*options({**COLUMNS, "observed_e2e_s": "took"}), "--unit", "arrival_s=ms"]
    assert main(["profile", str(log), *asked, "--unit", "observed_e2e_s=ms", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"]["kept"] == 3
    assert document["duration_s"] == 2.0
    assert document["concurrency"]["mean_service_s"] == 1.5


def test_columns_may_be_those_of_a_scenario_and_options_win(log, tmp_path, capsys):
    scenario = tmp_path / "mine.yaml"
    values = {"traffic.columns": COLUMNS, "traffic.units": {"arrival_s": "ms"}}
    scenario.write_text(write_scenario(with_values(load_scenario("benchmark"), values)))
    asked = ["profile", str(log), "--scenario", str(scenario), "--json"]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["duration_s"] == 2.0
    assert main([*asked, "--unit", "arrival_s=s"]) == 0
    assert json.loads(capsys.readouterr().out)["duration_s"] == 2000.0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (options({"arrival_s": "whn"}), "mapping: a column of the file (when, in, out, took)"),
        (options({"arrival": "when"}), "mapping: a column of a trace"),
        (["--unit", "arrival_s=h"], "units: s, ms, us or ns, got 'h'"),
        (["--format", "azur"], "--format"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_two(log, capsys, asked, words):
    assert main(["profile", str(log), *asked]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_people_see_the_assumptions_periods_and_patience(capsys):
    assert main(["profile", "sample"]) == 0
    told = capsys.readouterr().out
    assert "generated from published figures" in told
    for head in ("period", "in flight", "acceptable wait", "class"):
        assert f"\n{head} " in told
    assert "unknown" in told
