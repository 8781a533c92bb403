"""Predictions against measured runs: of ourselves, exactly; of real servers, within bounds."""

import json

import numpy as np
import pytest

from capplan.encoding import to_text
from capplan.measured import REQUEST_OVERHEAD_S, read_measured, replay_scenario
from capplan.replica.kernel_tables import find_profile
from capplan.validation import Figure, validate


def test_a_run_measured_by_its_own_replay_has_no_error(measured, requests):
    found = validate(measured(requests(150, 8.0)), request_overhead_s=0.0)
    assert found.n == 150
    for figures in found.latencies.values():
        assert all(abs(figure.error_fraction) < 1e-6 for figure in figures.values())
    assert abs(found.throughput.error_fraction) < 1e-6
    assert found.in_flight.predicted == pytest.approx(found.in_flight.measured, rel=1e-6)


def test_an_unknown_server_takes_as_long_before_the_engine_as_the_usual_one(measured, requests):
    run = measured(requests(150, 8.0))
    usual, none = validate(run), validate(run, request_overhead_s=0.0)
    later = usual.latencies["ttft_s"]["p50"].predicted - none.latencies["ttft_s"]["p50"].predicted
    assert later == pytest.approx(REQUEST_OVERHEAD_S, rel=0.3)
    assert "Assumed: 7 ms a request before the engine (HTTP, tokenizer)." in usual.notes
    assert not any("Assumed" in note for note in none.notes)
    rows = requests(150, 8.0)
    rows["scheduler_queue_in_s"] = rows["intended_start_s"]
    engine = measured(rows, clock="engine: from scheduler_queue_in_s")
    assert validate(engine).latencies["ttft_s"]["p50"].error_fraction == pytest.approx(0, abs=1e-6)


def test_a_client_with_a_cap_waits_and_the_wait_counts_by_its_clock(measured, write, requests):
    rows = requests(120, 40.0)
    capped = {"client_max_in_flight": 4}
    intended = validate(measured(rows, **capped))
    sent = validate(
        write(rows.assign(sent_s=rows["intended_start_s"]), clock="client: from sent_s", **capped)
    )
    free = validate(write(rows))
    waits, serves, open_loop = (v.latencies["ttft_s"]["mean"].predicted
                                for v in (intended, sent, free))  # fmt: skip
    assert waits > 1.0  # mostly in the client
    assert serves < 0.1
    assert open_loop < 0.3


def test_a_timeout_of_the_client_is_no_success(measured, requests):
    rows = requests(60, 50.0)
    found = validate(measured(rows, client_timeout_s=0.8, max_num_seqs=8), request_overhead_s=0.0)
    assert 0 < found.success.measured < 1
    assert found.success.predicted == found.success.measured
    assert found.n == round(60 * found.success.measured)


def test_the_json_has_the_keys_that_scripts_rely_on(write, requests):
    document = json.loads(to_text(validate(write(requests(40, 4.0))).to_json()))
    assert document["n"] == 40
    assert set(document["metrics"]) == {"ttft_s", "tpot_s", "e2e_s", "throughput_tokens_per_s"}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert set(document["metrics"][name]) == {"mean", "p50", "p90", "p99"}
    figure = document["metrics"]["e2e_s"]["p50"]
    assert set(figure) == {"measured", "predicted", "error_fraction"}
    assert figure["error_fraction"] == pytest.approx(figure["predicted"] / figure["measured"] - 1)
    assert document["source"] == "roofline"


def test_nothing_measured_is_null_not_zero(write, requests):
    rows = requests(40, 4.0).drop(columns="ttft_s")
    document = json.loads(to_text(validate(write(rows)).to_json()))
    assert document["metrics"]["ttft_s"]["p50"]["measured"] is None
    assert document["metrics"]["ttft_s"]["p50"]["error_fraction"] is None
    assert np.isnan(Figure(measured=0.0, predicted=1.0).error_fraction)


def test_an_overload_on_a_4090_is_predicted_from_its_kernels_without_seeing_the_run(shared_data):
    measured = read_measured(shared_data / "measured" / "vllm-rtx4090-llama-3.1-8b")
    folder = find_profile(shared_data / "profiles", replay_scenario(measured).pool())
    found = validate(measured, step_time={"kind": "tables", "path": str(folder)}, source="tables")
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert abs(found.latencies[name]["mean"].error_fraction) <= 0.05
    assert abs(found.series["waiting"].error_fraction) <= 0.05
    assert abs(found.series["running"].error_fraction) <= 0.10
    overlay = found.overlay
    for name in ("running", "waiting"):
        seen, told = overlay[f"{name}_measured"], overlay[f"{name}_predicted"]
        assert np.corrcoef(seen, told)[0, 1] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["codegen", "general", "roleplay"])
def test_the_roofline_is_within_a_tenth_of_servers_it_was_not_fitted_to(shared_data, name):
    measured = read_measured(shared_data / "measured" / f"vllm-h100-llama-2-7b-tp1-{name}")
    found = validate(measured)
    for key in ("mean", "p50", "p90", "p99"):
        assert abs(found.latencies["e2e_s"][key].error_fraction) <= 0.10
        assert abs(found.latencies["tpot_s"][key].error_fraction) <= 0.08


@pytest.mark.slow
def test_an_overload_of_kv_is_predicted_with_its_timeouts(shared_data):
    found = validate(read_measured(shared_data / "measured/vllm-h100-llama-2-7b-tp1-reasoning"))
    assert abs(found.success.predicted - found.success.measured) <= 0.05
    assert abs(found.in_flight.error_fraction) <= 0.05
    assert abs(found.latencies["ttft_s"]["p99"].error_fraction) <= 0.05


def test_the_replay_of_an_overload_keeps_every_answer(measured, requests):
    rows = requests(400, 100.0).assign(output_tokens=600)
    found = validate(measured(rows, max_num_seqs=1), request_overhead_s=0.0)
    last_s = found.result.requests["finish_s"].max()
    assert last_s > rows["intended_start_s"].max() + 600.0
    assert (found.success.measured, found.success.predicted) == (1.0, 1.0)
    assert found.throughput.error_fraction == pytest.approx(0.0, abs=1e-6)
