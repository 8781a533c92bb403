"""Fits that find what is known, and fits to one real server that hold for others."""

import json

import pytest

from capplan.calibration import calibrate, read_latency
from capplan.encoding import to_text
from capplan.measured import read_measured
from capplan.schema import DataError
from capplan.validation import validate

TRUE = {"dense_scale": 1.15, "context_scale": 0.85, "prefill_scale": 1.25}
OVERHEAD_S = 0.009
LAW = {"kind": "calibrated", "base": {"kind": "roofline"}, **TRUE}


@pytest.fixture
def run(measured, requests):
    """Return a run measured by simulation with known scales, at a low and then a high load."""
    rows = requests(300, 4.0).assign(output_tokens=range(100, 400))
    late = requests(500, 9.0, seed=1).assign(output_tokens=250)
    late["intended_start_s"] += rows["intended_start_s"].iloc[-1] + 10.0
    rows = type(rows)(data=[*rows.to_dict("records"), *late.to_dict("records")])
    law = {"step_time": LAW, "request_overhead_s": OVERHEAD_S}
    return measured(rows, model="Llama-2-7b-hf", **law)


def test_known_scales_are_found(run):
    found = calibrate([run])
    for name, value in TRUE.items():
        assert found.parameters[name].value == pytest.approx(value, rel=0.03), name
    # An arrival waits for the step that runs, some 8 ms: the overhead is told to a part of that.
    assert found.request_overhead_s == pytest.approx(OVERHEAD_S, abs=0.6e-3)
    assert found.residual["decode"] < 0.005
    assert found.step_time["kind"] == "calibrated"


def test_what_is_fitted_predicts_its_own_run(run):
    found = calibrate([run])
    again = validate(run, step_time=found.step_time, request_overhead_s=found.request_overhead_s)
    for figures in again.latencies.values():
        for key in ("mean", "p50"):
            assert abs(figures[key].error_fraction) < 0.01


def test_the_file_holds_what_validate_needs_and_what_a_reader_wants(run, tmp_path):
    found = calibrate([run])
    file = tmp_path / "latency.json"
    file.write_text(to_text(found.to_json()), encoding="utf-8")
    law, overhead_s = read_latency(file)
    assert law == found.step_time
    assert overhead_s == found.request_overhead_s
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["fitted_numbers"] == 4
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
    assert 0.7 < scale.value < 1.4  # a standard deviation of the prior
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
    ],
)
def test_a_file_that_calibrate_did_not_write_is_refused(tmp_path, text, message):
    file = tmp_path / "latency.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_latency(file)
    with pytest.raises(DataError, match="an existing file"):
        read_latency(tmp_path / "nowhere.json")


@pytest.mark.slow
def test_a_fit_to_one_measured_run_holds_for_others(shared_data):
    """The goals of the project: calibrated on codegen alone, asked about other loads."""

    def read(name):
        return read_measured(shared_data / "measured" / f"vllm-h100-llama-2-7b-tp1-{name}")

    fitted = calibrate([read("codegen")])
    assert fitted.implied.plausible
    limits = {"mean": 0.03, "p50": 0.03, "p99": 0.06}
    for name in ("general", "roleplay"):
        found = validate(
            read(name), step_time=fitted.step_time, request_overhead_s=fitted.request_overhead_s
        )
        for key, limit in limits.items():
            assert abs(found.latencies["e2e_s"][key].error_fraction) <= limit
            assert abs(found.latencies["tpot_s"][key].error_fraction) <= limit
        assert abs(found.latencies["ttft_s"]["p50"].error_fraction) <= 0.08
        assert abs(found.latencies["ttft_s"]["p99"].error_fraction) <= 0.15
