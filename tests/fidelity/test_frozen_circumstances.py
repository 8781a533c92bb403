"""The frozen figures of what bends a comparison: they show what is said of them."""

import importlib.util

import pandas as pd
import pytest

from capplan.bundled import data_path
from capplan.schema import DataError
from capplan.validation.circumstances import FILE, Circumstances, read_circumstances

FOLDER = data_path("validation")
CODEGEN = "vllm-h100-llama-2-7b-tp1-codegen"


@pytest.fixture(scope="module")
def frozen():
    return read_circumstances(FOLDER)


def error(frozen, run, left_out):
    rows = frozen.frame.set_index(["run", "left_out", "metric", "figure"])["error_fraction"]
    return rows[run, left_out, "ttft_s", "p99"]


def test_every_run_stands_there_as_a_whole_and_without_the_first_minute(frozen):
    runs = frozen.frame.groupby("run")["left_out"].agg(set)
    assert len(runs) == 11
    assert all({"nothing", "first_60_s"} <= found for found in runs)


def test_the_late_first_tokens_of_codegen_are_its_stalls(frozen):
    stalled = frozen.frame[frozen.frame["left_out"] == "stalls"]
    assert set(stalled["run"]) == {CODEGEN}
    assert stalled["stall_period_s"].between(2.7, 2.9).all()
    assert error(frozen, CODEGEN, "nothing") < -0.2
    assert abs(error(frozen, CODEGEN, "stalls")) < 0.08
    assert "`h100-llama-2-7b-tp1-codegen` about every 2.8" in frozen.summary()


def test_the_table_shows_runs_that_something_bends_first_as_a_whole(frozen):
    table = frozen.table()
    assert not table["run"].str.contains("roleplay").any()
    first = table.groupby("run", sort=False)["left_out"].first()
    assert set(first) == {"nothing"}
    assert table["requests_left_out_fraction"].between(0, 1).all()


def test_runs_without_stalls_are_said_to_have_none(frozen):
    rows = frozen.frame[frozen.frame["left_out"] != "stalls"]
    assert "Periodic stalls: no run." in Circumstances(frame=rows).summary()


def test_a_file_without_a_column_is_refused(tmp_path, frozen):
    frozen.frame.drop(columns="left_out").to_csv(tmp_path / FILE, index=False)
    with pytest.raises(DataError, match="left_out"):
        read_circumstances(tmp_path)


@pytest.mark.slow
def test_computing_a_run_again_gives_what_is_frozen(frozen, shared_data):
    from capplan.measured import read_measured
    from capplan.validation import validate

    spec = importlib.util.spec_from_file_location("made", FOLDER / "make_circumstances.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = validate(read_measured(shared_data / "measured" / CODEGEN))
    again = pd.DataFrame(module.rows(found), columns=frozen.frame.columns)
    then = frozen.frame[frozen.frame["run"] == CODEGEN]
    assert again["error_fraction"].tolist() == pytest.approx(list(then["error_fraction"]), abs=1e-3)
