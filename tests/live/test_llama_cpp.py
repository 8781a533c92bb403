"""Measured runs against llama.cpp's server: its own counts, its queue, its freed slots."""

import json
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import tiny_llama

import capplan as cp
from capplan.cli import main
from capplan.evidence import write_run
from capplan.live import Target, experiment
from capplan.live.telemetry import known_metrics
from tests.live.conftest import SLOTS, running


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return known_metrics(answer.read().decode())


def until_idle(url: str) -> dict[str, float]:
    """Return the metrics once nothing runs or waits."""
    for _ in range(200):
        found = metrics(url)
        if not found["llamacpp:requests_processing"] + found["llamacpp:requests_deferred"]:
            return found
        time.sleep(0.1)
    raise AssertionError(f"a server without work, got {found}")


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_lengths_are_exact_and_the_counts_are_the_servers_own(llama, service, api) -> None:
    before = metrics(llama)
    result = cp.measure(service(rate_rps=10, duration_s=2.0), Target(url=llama, api=api))
    grown = {name: value - before[name] for name, value in metrics(llama).items()}
    requests = result.requests
    assert (requests["outcome"] == "succeeded").all()
    assert (requests["prompt_tokens"] == 50).all()
    assert (requests["output_tokens"] == 10).all()
    probe = 0 if api == "completions" else 1  # the request that shows the chat template
    assert grown["llamacpp:tokens_predicted_total"] == requests["output_tokens"].sum() + probe


def test_the_queue_of_the_server_is_on_the_timeline(llama, service) -> None:
    scenario = service(rate_rps=60, duration_s=2.5, output_tokens={"kind": "fixed", "tokens": 200})
    timeline = cp.measure(scenario, llama).timeline.set_index(["layer", "metric"])["value"]
    assert timeline.loc["decode", "running"].max() == SLOTS
    assert timeline.loc["scheduler_queue", "length"].max() > 0
    until_idle(llama)


def test_a_caller_that_leaves_frees_its_slot(llama, service) -> None:
    tokens = 900
    scenario = service(
        rate_rps=10,
        output_tokens={"kind": "fixed", "tokens": tokens},
        promises={"deadline_s": 0.05},
    )
    before = metrics(llama)
    requests = cp.measure(scenario, llama).requests
    assert (requests["outcome"] == "timed_out").all()
    after = until_idle(llama)
    made = after["llamacpp:tokens_predicted_total"] - before["llamacpp:tokens_predicted_total"]
    assert made < 0.5 * tokens * len(requests)


def test_a_prompt_that_is_too_long_is_refused_for_good(llama, service) -> None:
    scenario = service(
        rate_rps=4,
        prompt_tokens={"kind": "fixed", "tokens": 2000},
        retry={"max_attempts": 3},
    )
    requests = cp.measure(scenario, llama).requests
    assert set(requests["reason"]) == {"bad_request:400"}
    assert (requests["attempt"] == 1).all()


def test_a_server_that_is_killed_leaves_failed_requests_and_a_valid_result(
    service, tmp_path
) -> None:
    scenario = service(rate_rps=10, duration_s=4.0, output_tokens={"kind": "fixed", "tokens": 400})
    with running(tmp_path) as (url, process):
        killer = threading.Timer(2.5, os.kill, (process, signal.SIGKILL))
        killer.start()
        requests = cp.measure(scenario, url).requests
    failed = requests[requests["outcome"] == "failed"]
    assert {"succeeded", "failed"} == set(requests["outcome"])
    assert {"cut_off", "unreachable"} >= set(failed["reason"])
    assert requests["request_id"].is_unique


def test_a_stored_measured_run_can_be_calibrated_from(llama, tmp_path) -> None:
    scenario = cp.load_scenario(described(tmp_path))
    result = cp.measure(scenario, llama)
    write_run(result, cp.judge(result), tmp_path / "run")
    measured = cp.read_measured(tmp_path / "run")
    assert len(measured.succeeded) == (result.requests["outcome"] == "succeeded").sum()
    assert measured.server.max_num_seqs == SLOTS
    fitted = cp.calibrate([measured])
    assert all(one.value > 0 for name, one in fitted.parameters.items() if "scale" in name)


def test_a_calibration_measures_its_own_runs(llama, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(experiment, "RUN_S", 6.0)
    scenario = described(tmp_path)
    out = tmp_path / "latency.json"
    command = ["calibrate", "--url", llama, "--scenario", str(scenario), "--out", str(out)]
    assert main([*command, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["parameters"]) >= {"dense_scale"}
    names = sorted(path.name for path in (tmp_path / "latency-runs").iterdir())
    assert names == ["batches", "mixed", "prompts"]
    prompts = cp.read_measured(tmp_path / "latency-runs" / "prompts")
    assert prompts.succeeded["prompt_tokens"].nunique() > 3
    assert prompts.repetition is None


def test_a_calibration_asks_for_runs_or_a_server(tmp_path, capsys) -> None:
    assert main(["calibrate", "--out", str(tmp_path / "x.json")]) == 2
    assert "--url and --scenario" in capsys.readouterr().err


def described(folder: Path) -> Path:
    """Write the scenario of the server, with its model and accelerator; return its path."""
    (folder / "config.json").write_text(json.dumps(tiny_llama.CONFIG))
    (folder / "core.yaml").write_text(
        "name: core\nmemory_bytes: 8.0e9\nmemory_bandwidth_bytes_per_s: 1.0e10\n"
        "bf16_flop_per_s: 2.0e10\n"
    )
    path = folder / "scenario.yaml"
    path.write_text(
        "name: tiny\ntraffic: {duration_s: 4, shape: {kind: steady, rate_rps: 20}}\n"
        "classes: [{name: chat, prompt_tokens: {kind: fixed, tokens: 50},"
        " output_tokens: {kind: fixed, tokens: 10}}]\n"
        "pools: [{name: llm, model: config.json, accelerator: core.yaml,"
        f" batching: {{kind: continuous, max_num_seqs: {SLOTS}, max_model_len: 1024,"
        " kv_blocks: 256}}]\n"
    )
    return path
