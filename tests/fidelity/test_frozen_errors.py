"""The frozen errors: what is met, what is missed, what cannot be known."""

import json
from dataclasses import replace

import numpy as np
import pytest

from capplan.bundled import data_path
from capplan.fidelity import frozen_errors, holding
from capplan.schema import DataError


@pytest.fixture(scope="module")
def frozen():
    return frozen_errors()


@pytest.fixture
def changed(frozen):
    """Return a function that returns the frozen figures with some errors replaced."""

    def change(value, **where):
        errors = frozen.errors.copy()
        rows = np.logical_and.reduce([errors[name] == wanted for name, wanted in where.items()])
        assert rows.any()
        errors.loc[rows, "error_fraction"] = value
        return replace(frozen, errors=errors)

    return change


def calibrated(table):
    """Return the goal of the worst E2E mean with calibrated step times."""
    return table[table["bound_fraction"] == 0.05].iloc[0]


def test_every_run_has_a_row_per_source_and_the_fitted_one_is_marked(frozen):
    table = frozen.table()
    assert len(table) == len(frozen.errors.groupby(["run", "step_times"]))
    own = table[table["step_times"] == "calibrated (own run)"]
    assert own["run"].tolist() == frozen.fitted_on
    assert {"codegen", "general"} <= set(frozen.fitted_on)
    assert not {"roleplay", "Qwen3-14B 6/s"} & set(frozen.fitted_on)
    raw = frozen.errors.set_index(["run", "step_times", "metric", "figure"])["error_fraction"]
    row = table[(table["run"] == "general") & (table["step_times"] == "silicon")].iloc[0]
    assert row["TTFT p99_fraction"] == raw["general", "silicon", "TTFT", "p99"]


def test_a_goal_is_missed_by_one_figure_and_unknown_without_one(changed):
    calm = {"step_times": "calibrated", "metric": "E2E", "figure": "mean"}
    where = {"run": "roleplay", **calm}
    assert calibrated(changed(0.0, **calm).goals())["goal"] == "met"
    missed = calibrated(changed(-0.9, **where).goals())
    assert (missed["goal"], missed["worst_fraction"], missed["at"]) == (
        "missed",
        -0.9,
        "mean of `roleplay`",
    )
    found = changed(0.0, **calm)
    rows = (found.errors["run"] == "roleplay") & (found.errors["step_times"] == "calibrated")
    errors = found.errors.assign(error_fraction=found.errors["error_fraction"].mask(rows))
    assert calibrated(replace(found, errors=errors).goals())["goal"] == "unknown"


def test_a_goal_of_a_median_bears_one_run_far_off(changed):
    where = {"step_times": "calibrated", "metric": "E2E", "figure": "mean"}
    median = changed(0.01, **where).goals().iloc[0]
    assert (median["goal"], median["worst_fraction"]) == ("met", 0.01)
    one = changed(0.01, **where)
    far = one.errors["error_fraction"].mask(
        (one.errors["run"] == "roleplay") & (one.errors["step_times"] == "calibrated"), 0.9
    )
    assert (
        replace(one, errors=one.errors.assign(error_fraction=far)).goals().iloc[0]["goal"] == "met"
    )
    assert changed(0.02, **where).goals().iloc[0]["goal"] == "missed"


def test_a_goal_of_no_figure_at_all_is_unknown_not_met(changed):
    table = changed(np.nan, step_times="silicon").goals()
    silicon = table[table["step_times"] == "silicon"]
    assert set(silicon["goal"]) == {"unknown"}
    assert silicon["worst_fraction"].isna().all()


def test_medians_beside_the_published_ones_leave_out_the_run_of_the_fit(frozen, changed):
    row = {"run": "codegen", "metric": "E2E", "figure": "mean", "step_times": "calibrated"}
    before, after = frozen.peers(), changed(9.0, **row).peers()
    assert before.equals(after)
    moved = changed(9.0, **{**row, "run": "roleplay"}).peers()
    assert not before.equals(moved)


def test_what_passes_a_bound_is_named_with_the_place(frozen, changed):
    said = changed(0.5, step_times="roofline", metric="TPOT").distrusted({"TPOT": 0.08})
    first, *others = said.splitlines()
    assert first == ("- **roofline**: don't trust TPOT to within 8 % (+50 % at mean of `codegen`).")
    assert len(others) == 3
    nothing = changed(np.nan, step_times="tables").distrusted({"E2E": 0.1})
    assert "- **tables**: don't trust E2E, of which nothing is known." in nothing
    assert "every bound holds" in frozen.distrusted({"E2E": 100.0})


def test_too_low_counts_the_figures_of_a_server_slower_than_planned(changed):
    table = changed(-0.01, step_times="tables").trust().set_index("step_times")
    assert table["too_low_fraction"]["tables"] == 1.0
    assert table["too_low_fraction"]["silicon"] < 1.0


def test_what_the_fit_implies_is_possible_for_the_accelerator(frozen):
    shares = frozen.implied()["of_peak_fraction"]
    assert shares.between(0.0, 1.0, inclusive="neither").all()


def test_a_frozen_file_without_a_column_is_named(tmp_path):
    (tmp_path / "errors.csv").write_text("run,step_times\na,b\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"errors\.csv: metric, figure, error_fraction, fitted_on: a req"
    ):
        frozen_errors(tmp_path)


def test_the_series_are_those_of_the_file(frozen):
    text = data_path("validation", "rtx4090-series.csv").read_text(encoding="utf-8")
    assert len(frozen.series) == 4 * (len(text.splitlines()) - 1)
    assert set(frozen.series["series"]) == {"running", "waiting"}
    assert set(frozen.series["reading"]) == {"measured", "predicted"}
    assert (
        frozen.computed
        == json.loads(data_path("validation", "latency.json").read_text(encoding="utf-8"))[
            "computed"
        ]
    )


def test_without_measured_runs_it_is_unknown_whether_the_figures_hold(frozen, monkeypatch):
    monkeypatch.delenv("CAPPLAN_DATA", raising=False)
    again = frozen.recomputed()
    assert again.summary().startswith("**Unknown.**")
    assert "hold" not in again.summary()
    assert again.table().empty


def test_a_named_folder_that_is_not_there_is_an_error(frozen, tmp_path):
    with pytest.raises(DataError, match="a folder of measured runs"):
        frozen.recomputed(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("apart", "word"),
    [(0.0009, "The frozen ones hold"), (0.0011, "out of date"), (np.nan, "Unknown")],
)
def test_figures_computed_anew_hold_are_out_of_date_or_cannot_be_compared(apart, word):
    import pandas as pd

    compared = pd.DataFrame({"now_fraction": [0.1, 0.2 + apart], "frozen_fraction": [0.1, 0.2]})
    assert word in holding(compared, "2026-11-29")
