"""The frozen table of errors: whole, within the goals, and the same when computed again."""

import importlib.util
import json

import pandas as pd
import pytest

from capplan.bundled import data_path
from capplan.measured import read_measured, replay_scenario
from capplan.replica.kernel_tables import find_profile
from capplan.validation import validate

FOLDER = data_path("validation")
FITTED_ON = "vllm-h100-llama-2-7b-tp1-codegen"


@pytest.fixture(scope="module")
def errors():
    table = pd.read_csv(FOLDER / "errors.csv")
    return table.set_index(["run", "step_times", "metric", "figure"])["error_fraction"].sort_index()


def test_every_run_has_every_source_that_knows_its_server(errors):
    found = {(run, source) for run, source, *_ in errors.index}
    runs = {run for run, _ in found}
    assert len(runs) == 5
    assert {(run, source) for run in runs for source in ("roofline", "tables")} <= found
    h100 = {run for run in runs if "h100" in run}
    assert {(run, source) for run in h100 for source in ("silicon", "calibrated")} <= found
    assert errors.index.is_unique


def test_the_frozen_errors_meet_the_goals(errors):
    for load in ("general", "roleplay"):
        of = errors[f"vllm-h100-llama-2-7b-tp1-{load}", "calibrated"].abs()
        for metric in ("e2e_s", "tpot_s"):
            assert of[metric, "mean"] <= 0.03
            assert of[metric, "p50"] <= 0.03
            assert of[metric, "p99"] <= 0.06
        assert of["ttft_s", "p50"] <= 0.08
        assert of["ttft_s", "p99"] <= 0.15
    overload = errors["vllm-h100-llama-2-7b-tp1-reasoning", "calibrated"].abs()
    assert overload["success_fraction", "points"] <= 0.05
    kernels = errors["vllm-rtx4090-llama-3.1-8b", "tables"].abs()
    assert max(kernels[m, "mean"] for m in ("ttft_s", "tpot_s", "e2e_s")) <= 0.05


def test_the_fitted_numbers_are_few_told_with_intervals_and_possible():
    fitted = json.loads((FOLDER / "latency.json").read_text(encoding="utf-8"))
    assert fitted["measured"] == [FITTED_ON]
    assert fitted["fitted_numbers"] == len(fitted["parameters"]) == 4
    assert fitted["implied"]["plausible"]
    for one in fitted["parameters"].values():
        assert one["interval"][0] < one["value"] < one["interval"][1]


def test_the_overlaid_series_agree(errors):
    series = pd.read_csv(FOLDER / "rtx4090-series.csv")
    for name in ("running", "waiting"):
        seen, told = series[f"{name}_measured"], series[f"{name}_predicted"]
        assert seen.corr(told) > 0.9
        frozen = errors["vllm-rtx4090-llama-3.1-8b", "tables", name, "mean"]
        assert told.mean() / seen.mean() - 1 == pytest.approx(frozen, abs=1e-3)


def test_computing_a_part_again_gives_what_is_frozen(errors, shared_data):
    measured = read_measured(shared_data / "measured" / "vllm-rtx4090-llama-3.1-8b")
    folder = find_profile(shared_data / "profiles", replay_scenario(measured).pool())
    found = validate(measured, step_time={"kind": "tables", "path": str(folder)})
    frozen = errors["vllm-rtx4090-llama-3.1-8b", "tables"]
    for metric, figures in found.latencies.items():
        for key, figure in figures.items():
            assert figure.error_fraction == pytest.approx(frozen[metric, key], abs=1e-3)


def test_the_script_that_made_the_table_is_one():
    spec = importlib.util.spec_from_file_location("make_table", FOLDER / "make_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FITTED_ON == FITTED_ON
