"""Fits that find what is known, and fits to one real server that hold for others."""

import json
import math

import numpy as np
import pytest

from capplan.calibration import calibrate, read_latency
from capplan.catalog import accelerator
from capplan.encoding import to_text
from capplan.measured import read_measured
from capplan.scenario.step_times import CalibratedStep
from capplan.schema import DataError
from capplan.validation import validate

TRUE = {"dense_scale": 1.12, "context_scale": 0.9, "prefill_scale": 1.15, "mixed_fraction": 1.0}
FRONT_END = {"request_overhead_s": 0.009, "overhead_per_in_flight_s": 6e-5}
LAW = {"kind": "calibrated", "base": {"kind": "roofline"}, "tile_fraction": 0.8, **TRUE}


@pytest.fixture
def run(measured, requests):
    """Return a run measured by simulation with known scales, at a low and then a high load."""
    rows = requests(300, 4.0).assign(output_tokens=range(100, 400))
    late = requests(500, 9.0, seed=1).assign(output_tokens=250)
    late["intended_start_s"] += rows["intended_start_s"].iloc[-1] + 10.0
    rows = type(rows)(data=[*rows.to_dict("records"), *late.to_dict("records")])
    return measured(rows, model="Llama-2-7b-hf", step_time=LAW, front_end=FRONT_END)


def test_known_scales_are_found(run):
    found = calibrate([run])
    for name, value in TRUE.items():
        near = 0.03 if name.endswith("_scale") else 0.1
        assert found.parameters[name].value == pytest.approx(value, abs=near), name
    # An arrival waits for the step that runs, some 8 ms: the overhead is told to a part of that.
    each_s = found.front_end["request_overhead_s"], FRONT_END["request_overhead_s"]
    assert each_s[0] == pytest.approx(each_s[1], abs=1e-3)
    for name, value in {**TRUE, **FRONT_END, "tile_fraction": 0.8}.items():
        assert found.parameters[name].low < value < found.parameters[name].high, name
    assert found.residual["decode"] < 0.005
    assert found.step_time["kind"] == "calibrated"


def test_what_is_fitted_predicts_its_own_run(run):
    found = calibrate([run])
    again = validate(run, step_time=found.step_time, **found.front_end)
    for figures in again.latencies.values():
        for key in ("mean", "p50"):
            assert abs(figures[key].error_fraction) < 0.01


def test_the_file_holds_what_validate_needs_and_what_a_reader_wants(run, tmp_path):
    found = calibrate([run])
    file = tmp_path / "latency.json"
    file.write_text(to_text(found.to_json()), encoding="utf-8")
    law, front_end = read_latency(file)
    assert law == found.step_time
    assert front_end == found.front_end
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["fitted_numbers"] == 7
    for one in document["parameters"].values():
        low, high = one["interval"]
        assert low <= one["value"] <= high
    assert document["implied"]["plausible"] in (True, False)
    assert document["scope"]["model"] == "Llama-2-7b-hf"
    low, high = document["scope"]["in_flight"]
    assert 0 < low < high


def test_a_scale_that_no_request_determines_stays_at_its_prior_and_is_noted(measured, requests):
    rows = requests(200, 2.0).assign(prompt_tokens=8, output_tokens=64)
    found = calibrate([measured(rows)])
    scale = found.parameters["prefill_scale"]
    assert scale.low < 1.0 < scale.high
    assert 0.9 < scale.value < 1.1  # a standard deviation of the prior
    assert any("prefill_scale" in note for note in found.notes)


def test_runs_of_different_servers_are_not_mixed(measured, requests):
    one = measured(requests(60, 5.0))
    other = measured(requests(60, 5.0), name="other", accelerator="A100")
    with pytest.raises(DataError, match=r"other: accelerator: 'H100' as in run, got 'A100'"):
        calibrate([one, other])


def test_a_handful_of_requests_fits_nothing(measured, requests):
    with pytest.raises(DataError, match="at least 30 requests that succeeded, got 29"):
        calibrate([measured(requests(29, 5.0))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a readable JSON file"),
        ("[]", "step_time: the fields of a step time"),
        ('{"step_time": {}, "request_overhead_s": -1}', "request_overhead_s: seconds, not neg"),
        ('{"step_time": {}, "overhead_per_in_flight_s": "1"}', "overhead_per_in_flight_s: seco"),
    ],
)
def test_a_file_that_calibrate_did_not_write_is_refused(tmp_path, text, message):
    file = tmp_path / "latency.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_latency(file)
    with pytest.raises(DataError, match="an existing file"):
        read_latency(tmp_path / "nowhere.json")


def test_a_file_of_four_numbers_loads_with_what_it_lacks_at_zero(tmp_path):
    law = {"kind": "calibrated", "dense_scale": 1.1, "context_scale": 1.0, "prefill_scale": 0.9}
    file = tmp_path / "latency.json"
    file.write_text(json.dumps({"step_time": law, "request_overhead_s": 0.006}), encoding="utf-8")
    found, front_end = read_latency(file)
    assert front_end == {"request_overhead_s": 0.006, "overhead_per_in_flight_s": 0.0}
    assert CalibratedStep.model_validate(found).mixed_fraction == 0.0
    assert CalibratedStep.model_validate(found).tile_fraction == 0.0


def test_an_accelerator_of_unknown_shares_may_be_far_off_and_is_found_again(measured, requests):
    rows = requests(400, 0.7).assign(output_tokens=100)
    truth = {"dense_scale": 2.5, "context_scale": 2.5, "prefill_scale": 2.5}
    law = {"kind": "calibrated", "base": {"kind": "roofline"}, **truth}
    known = accelerator("A10G")
    assert math.isnan(known.gemm_compute_fraction)
    found = calibrate([measured(rows, step_time=law, accelerator=known.name)])
    for name, value in truth.items():
        one = found.parameters[name]
        assert one.low < value < one.high, name
    assert found.parameters["dense_scale"].value == pytest.approx(2.5, rel=0.05)
    assert any("factor of 3" in note for note in found.notes)


H100 = "measured/vllm-h100-"
SERVERS = {
    "7b": (f"{H100}llama-2-7b-tp1-codegen", f"{H100}llama-2-7b-tp1-general",
           f"{H100}llama-2-7b-tp1-roleplay"),
    "qwen": (f"{H100}qwen3-14b-w5_sweep-agg6", f"{H100}qwen3-14b-w5_sweep-agg12"),
}  # fmt: skip
"""Loads of one server each, without those that it could not carry."""


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_intervals_of_one_load_hold_what_another_gives(shared_data, server):
    """Most pairs of a load and a number; 95 % would be if loads did not matter."""
    fits = [calibrate([read_measured(shared_data / name)]) for name in SERVERS[server]]
    held = [
        one.low <= other.parameters[name].value <= one.high
        for fit in fits
        for other in fits
        if other is not fit
        for name, one in fit.parameters.items()
    ]
    assert np.mean(held) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(("seen", "unseen"), [(0, 1), (1, 0)])
def test_a_fit_to_one_load_holds_for_another(shared_data, seen, unseen):
    """Where prefills are whole prompts, of a load twice or half of that fitted on."""
    fitted = calibrate([read_measured(shared_data / SERVERS["qwen"][seen])])
    assert fitted.implied.plausible
    found = validate(
        read_measured(shared_data / SERVERS["qwen"][unseen]),
        step_time=fitted.step_time,
        **fitted.front_end,
    ).latencies
    assert abs(found["tpot_s"]["mean"].error_fraction) <= 0.035
    assert abs(found["e2e_s"]["mean"].error_fraction) <= 0.035
    assert abs(found["ttft_s"]["p50"].error_fraction) <= 0.03
    assert abs(found["ttft_s"]["p99"].error_fraction) <= 0.08
