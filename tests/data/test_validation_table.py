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
SMALL, QWEN = "vllm-h100-llama-2-7b-tp1-", "vllm-h100-qwen3-14b-w5_sweep-agg"
FITTED_ON = [f"{SMALL}codegen", f"{SMALL}general"]
OVERLOADS = (f"{SMALL}reasoning", "vllm-h100-llama-2-70b-hf-tp4-reasoning")


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(FOLDER / "errors.csv").fillna({"fitted_on": ""})


@pytest.fixture(scope="module")
def errors(table):
    return table.set_index(["run", "step_times", "metric", "figure"])["error_fraction"].sort_index()


@pytest.fixture(scope="module")
def unseen(table):
    """Return the errors of calibrated step times at loads they were not fitted on."""
    pairs = zip(table["run"], table["fitted_on"], strict=True)
    other = pd.Series([run not in on.split() for run, on in pairs])
    found = table[(table["step_times"] == "calibrated") & other]
    return found.set_index(["metric", "figure", "run"])["error_fraction"].sort_index().abs()


def test_every_run_has_every_source_that_knows_its_server(errors):
    found = {(run, source) for run, source, *_ in errors.index}
    runs = {run for run, _ in found}
    assert len(runs) == 11
    assert {(run, "roofline") for run in runs} <= found
    h100 = {run for run in runs if "h100" in run}
    assert {(run, source) for run in h100 for source in ("silicon", "calibrated")} <= found
    assert errors.index.is_unique


def test_calibrated_step_times_hold_at_unseen_loads(errors, unseen):
    """TPOT and E2E meet their targets without the overloads only."""
    assert unseen["e2e_s", "mean"].size == 6
    assert unseen["ttft_s", "p50"].median() <= 0.03
    assert unseen["ttft_s", "p99"].median() <= 0.08
    for metric in ("tpot_s", "e2e_s"):
        carried = unseen[metric, "mean"].drop(list(OVERLOADS))
        assert carried.median() <= 0.015
        assert carried.max() <= 0.05
        assert unseen[metric, "mean"].median() <= 0.025
    overload = errors[OVERLOADS[0], "calibrated"].abs()
    assert overload["success_fraction", "points"] <= 0.05
    kernels = errors["vllm-rtx4090-llama-3.1-8b", "tables"].abs()
    assert max(kernels[m, "mean"] for m in ("ttft_s", "tpot_s", "e2e_s")) <= 0.05


def test_the_fitted_numbers_have_intervals_and_are_possible():
    fitted = json.loads((FOLDER / "latency.json").read_text(encoding="utf-8"))
    assert fitted["measured"] == FITTED_ON
    assert fitted["fitted_numbers"] == len(fitted["parameters"]) == 7
    assert fitted["implied"]["plausible"]
    for one in fitted["parameters"].values():
        assert one["interval"][0] <= one["value"] <= one["interval"][1]


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
