"""Measured runs against a server whose delays are known."""

import json
import math
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import capplan as cp
from capplan.cli import main
from capplan.evidence import write_run
from capplan.live import Target
from capplan.live.prompts import Vocabulary
from capplan.schema import DataError
from capplan.simulation.attempt import Request


def test_each_request_succeeds_with_its_exact_tokens(server, service) -> None:
    result = cp.measure(service(), server.target(ttft_s=0.05, itl_s=0.005))
    requests = result.requests
    assert len(requests) == len(result.trace.frame)
    assert (requests["outcome"] == "succeeded").all()
    assert (requests["prompt_tokens"] == 50).all()
    assert (requests["output_tokens"] == 10).all()
    assert result.backend == "live"


def test_latencies_are_those_of_the_server(server, service) -> None:
    result = cp.measure(service(rate_rps=10), server.target(ttft_s=0.2, itl_s=0.02))
    requests = result.requests
    ttft_s = requests["first_token_s"] - requests["intended_start_s"]
    e2e_s = requests["finish_s"] - requests["intended_start_s"]
    assert ttft_s.min() >= 0.2
    assert ttft_s.median() == pytest.approx(0.2, abs=0.05)
    assert e2e_s.min() >= 0.2 + 9 * 0.02


def test_an_open_loop_never_waits_for_answers(server, service) -> None:
    result = cp.measure(service(rate_rps=40), server.target(ttft_s=1.5))
    assert result.requests["sent_s"].max() < 1.2  # the first answer comes at 1.5 s
    assert result.client.achieved_rps == pytest.approx(result.client.asked_rps, rel=0.1)


def test_what_a_server_does_not_show_is_unknown(server, service) -> None:
    result = cp.measure(service(), server.target())
    hidden = ["service_queue_in_s", "scheduler_queue_in_s", "batch_in_s", "wasted_tokens"]
    assert result.requests[hidden].isna().all(axis=None)


def test_a_refusal_is_tried_again_after_the_time_it_names(server, service) -> None:
    retry = {"max_attempts": 2, "backoff_s": 0.01}
    target = server.target(status=503, retry_after=1)
    requests = cp.measure(service(rate_rps=5, retry=retry), target).requests
    first, second = (requests[requests["attempt"] == n].set_index("request_id") for n in (1, 2))
    assert (requests["outcome"] == "rejected").all()
    assert (requests["reason"] == "refused:503").all()
    assert len(second) == len(first)
    assert (second["intended_start_s"] - first["finish_s"]).min() >= 1.0


@pytest.mark.parametrize(
    ("how", "outcome", "reason"),
    [
        ({"status": 400}, "rejected", "bad_request:400"),
        ({"status": 500}, "failed", "server_error:500"),
        ({"fail": "error_event", "fail_after": 3}, "rejected", "refused:503"),
        ({"fail": "half", "fail_after": 3}, "failed", "cut_off"),
        ({"fail": "reset", "fail_after": 0}, "failed", "cut_off"),
    ],
)
def test_a_failure_ends_as_in_the_simulation(server, service, how, outcome, reason) -> None:
    retry = {"max_attempts": 2, "backoff_s": 0.01}
    requests = cp.measure(service(rate_rps=5, retry=retry), server.target(**how)).requests
    assert set(requests["outcome"]) == {outcome}
    assert set(requests["reason"]) == {reason}
    assert requests["attempt"].max() == (1 if "bad_request" in reason else 2)


def test_a_caller_that_leaves_frees_the_server(server, service) -> None:
    promises = {"deadline_s": 0.3}
    target = server.target(ttft_s=0.1, itl_s=1.0)
    result = cp.measure(service(rate_rps=10, promises=promises), target)
    requests = result.requests
    assert (requests["outcome"] == "timed_out").all()
    assert requests["first_token_s"].notna().all()
    stays_s = requests["finish_s"] - requests["intended_start_s"]
    assert stays_s.median() == pytest.approx(0.3, abs=0.05)
    time.sleep(1.2)  # a token later it would notice at the latest
    assert server.state()["running"] == 0


def test_an_answer_that_is_not_streamed_arrives_whole(server, service) -> None:
    requests = cp.measure(service(streaming=False), server.target(ttft_s=0.1)).requests
    assert (requests["first_token_s"] == requests["finish_s"]).all()
    assert (requests["output_tokens"] == 10).all()


def test_chunks_are_no_tokens(server, service) -> None:
    result = cp.measure(service(), server.target(per_chunk=5))
    assert (result.client.exchanges["chunks"] == 2).all()
    assert (result.requests["output_tokens"] == 10).all()


def test_a_user_of_a_closed_loop_waits_for_each_answer(server, service) -> None:
    shape = {"kind": "closed", "users": 3, "think": {"kind": "fixed", "seconds": 0.05}}
    traffic = {"duration_s": 2.0, "shape": shape}
    result = cp.measure(service(traffic=traffic), server.target(ttft_s=0.2))
    in_flight = result.timeline.query("layer == 'gateway' and metric == 'in_flight'")["value"]
    assert 0 < in_flight.max() <= 3
    assert (result.requests["outcome"] == "succeeded").sum() > 3


def test_the_verdict_of_a_mechanism_that_is_not_shown_is_unknown(server, service) -> None:
    scenario = service(promises={"ttft_s": 5.0, "quantile": 0.5, "min_samples": 5})
    result = cp.measure(scenario, server.target())
    rules = {reason.rule: reason.outcome for reason in cp.judge(result, scenario).reasons}
    assert rules["ttft_s"] == "pass"
    assert "pass" not in {rules.get("double_queue"), rules.get("double_queueing")}


def test_a_server_that_is_not_private_needs_a_confirmation(service) -> None:
    with pytest.raises(DataError, match="8888"):
        cp.measure(service(), "http://8.8.8.8:8888")


def test_a_server_that_is_not_there_is_named(service) -> None:
    with pytest.raises(DataError, match="can be reached"):
        cp.measure(service(), "http://127.0.0.1:9")


def test_client_figures_count_every_attempt(server, service) -> None:
    figures = cp.measure(service(), server.target()).client.to_json()
    assert figures["send_lag_s"]["p50"] < 0.1
    assert 0 < figures["cpu_fraction"] < math.inf
    assert not figures["partial"]


def test_a_failed_scrape_is_a_gap(server, service) -> None:
    result = cp.measure(service(), server.target())  # the mock server has no metrics
    assert not (result.timeline["layer"] == "scheduler_queue").any()


def test_a_key_reaches_the_server_and_no_record(server, service, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("THE_KEY", "secret-4711")
    target = Target(url=server.url, key_variable="THE_KEY", extra={"mock": {"need_key": True}})
    result = cp.measure(service(), target)
    assert (result.requests["outcome"] == "succeeded").all()
    write_run(result, cp.judge(result, result.scenario), tmp_path / "run")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert b"secret-4711" not in kept


def test_a_key_variable_that_is_not_set_is_named(server, service) -> None:
    with pytest.raises(DataError, match="NO_SUCH_KEY"):
        cp.measure(service(), Target(url=server.url, key_variable="NO_SUCH_KEY"))


def test_a_kept_connection_that_the_server_has_closed_costs_no_request(server, service) -> None:
    result = cp.measure(service(rate_rps=10), server.target(stale=True))
    assert (result.requests["outcome"] == "succeeded").all()
    assert result.client.exchanges["reconnects"].sum() > 0


def test_shared_prefix_blocks_are_shared_words(server, service) -> None:
    words = Vocabulary(texts=tuple("abcdefgh"), ids=np.arange(8))
    first, second, third = (
        Request(
            row=row, request_id="", request_class="", tenant="", session="", priority=0,
            streaming=True, deadline_s=1.0, size=1.0, prompt_tokens=40, output_tokens=1,
            first_start_s=0.0, prefix_blocks=blocks, prefix_block_tokens=16,
        )
        for row, blocks in enumerate([(7, 8), (7, 9), (5, 9)])
    )  # fmt: skip
    salted = Vocabulary(texts=words.texts, ids=words.ids, salt=1)
    assert (salted.words(first) != words.words(first)).any()
    one, two, three = (words.words(request) for request in (first, second, third))
    assert len(one) == 40
    assert (one[:16] == two[:16]).all()
    assert (one[16:32] != two[16:32]).any()
    assert (two[16:32] == three[16:32]).all()


def test_the_command_keeps_a_partial_run_at_an_interrupt(server, tmp_path) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: s\ntraffic: {duration_s: 60, shape: {kind: steady, rate_rps: 10}}\n"
        "classes: [{name: chat, prompt_tokens: {kind: fixed, tokens: 50}}]\n"
        "pools: [{name: llm, model: meta-llama/Llama-3.1-8B, accelerator: H100-SXM,"
        " batching: {kind: continuous}}]\n"
    )
    command = ["measure", str(scenario), "--url", server.url, "--extra", "{}", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "capplan", *command, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    served = server.state()["served"]
    while server.state()["served"] < served + 5:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["client"]["partial"]
    assert 5 <= found["outcomes"]["succeeded"] < 200
    assert (tmp_path / "out" / "exchanges.parquet").is_file()


def test_users_of_a_closed_loop_stop_at_an_interrupt(server, service) -> None:
    shape = {"kind": "closed", "users": 3, "think": {"kind": "fixed", "seconds": 0.05}}
    scenario = service(traffic={"duration_s": 30.0, "shape": shape})
    interrupt = threading.Timer(1.5, signal.raise_signal, (signal.SIGINT,))
    interrupt.start()
    result = cp.measure(scenario, server.target(ttft_s=0.2))
    assert result.client.partial
    assert result.duration_s < 5.0
    assert (result.requests["outcome"] == "succeeded").all()


def test_each_run_sends_prompts_of_its_own(server, service) -> None:
    sent = []
    for _ in range(2):
        cp.measure(service(rate_rps=5), server.target())
        sent.append(server.state()["last_prompt"])
    assert sent[0] != sent[1]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--url", "ftp://x"], "url"),
        (["--url", "http://127.0.0.1:9", "--api", "telepathy"], "api"),
        (["--url", "http://127.0.0.1:9", "--extra", "[1]"], "--extra"),
    ],
)
def test_a_wrong_option_is_named(options, named, capsys) -> None:
    assert main(["measure", "benchmark", *options]) == 2
    assert named in capsys.readouterr().err
