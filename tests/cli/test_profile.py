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
    for head in ("request class", "period", "patience from", "in flight p99"):
        assert head in told
    assert "unknown" in told


@pytest.fixture
def servegen(tmp_path):
    """A ServeGen profile of two folders, each with one client of 5 requests a second."""
    laws = {"0": {"input_tokens": "{10: 0.5, 30: 0.5}", "output_tokens": "{7: 1.0}"}}
    for name in ("small", "large"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        rows = "".join(f"{start},5.0,1.0,Gamma,1,1\n" for start in (0, 600, 1200))
        (folder / "chunk-0-trace.csv").write_text(rows)
        (folder / "chunk-0-dataset.json").write_text(json.dumps(laws))
    return tmp_path / "data"


def test_the_span_and_the_folder_of_a_profile_may_be_options(servegen, capsys):
    asked = ["profile", str(servegen), "--span", "600:700", "--only", "small", "--json"]
    assert main(asked) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["duration_s"] == 100.0
    assert document["rows"]["kept"] == pytest.approx(500, abs=100)
    assert main(["profile", str(servegen), "--only", "medium"]) == 2
    assert "only: a folder of the profile, got 'medium'" in capsys.readouterr().err.replace(
        f"{servegen}: ", ""
    )


@pytest.mark.parametrize("span", ["600", "700:600", "a:b", "-5:5", "0:inf", "0:nan"])
def test_a_span_is_two_times_in_order(servegen, capsys, span):
    assert main(["profile", str(servegen), f"--span={span}"]) == 2
    assert "--span: FROM:TO, two times in seconds in order" in capsys.readouterr().err


def test_times_as_web_servers_log_them_are_read(tmp_path, capsys):
    path = tmp_path / "access.csv"
    path.write_text(
        "when,in,out\n"
        "[29/Nov/2026:23:59:59 +0100],10,2\n"
        "[29/Nov/2026:23:00:01 +0000],11,2\n"
        "30/Nov/2026:00:00:04 +0100,12,2\n"
    )
    assert main(["profile", str(path), *options(COLUMNS), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"]["kept"] == 3
    assert document["duration_s"] == 5.0


def test_a_scenario_gives_the_service_times_of_its_own_step_times(capsys):
    from capplan.budget import allocate

    assert main(["profile", "sample", "--scenario", "chat-service", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["service_time"]["origin"] == "scenario"
    budget = allocate(load_scenario("chat-service"))
    little = sum(c.in_flight for c in budget.classes)
    assert document["concurrency"]["little"] == pytest.approx(little)
    assert main(["profile", "sample", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["service_time"]["origin"] == "default"
    assert alone["concurrency"]["little"] != pytest.approx(little, rel=0.1)


@pytest.mark.parametrize("asked", [["--unit", "arrival_s=ms"], ["--column", "arrival_s=x"]])
def test_options_that_the_sample_cannot_heed_are_refused(capsys, asked):
    assert main(["profile", "sample", *asked]) == 2
    assert asked[1] in capsys.readouterr().err


def test_a_field_is_set_to_something(capsys):
    assert main(["budget", "benchmark", "--set", "replicas="]) == 2
    assert "--set replicas: a value" in capsys.readouterr().err


@pytest.mark.parametrize(("rows", "is_bounded"), [(11, False), (2000, True)])
def test_a_p99_that_the_rows_do_not_bound_is_not_stated(tmp_path, capsys, rows, is_bounded):
    file = tmp_path / "t.csv"
    lines = [f"{i * 1.5},{100 + i % 997},{10 + i % 89}" for i in range(rows)]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]))
    assert main(["profile", str(file)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert ("longest percent" in first) == is_bounded
    assert ("too few" in first) != is_bounded
