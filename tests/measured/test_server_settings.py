"""Settings that a server does not state: those of its engine on its device, named as assumed."""

import json

import pytest

from capplan.measured import read_measured, replay_scenario
from capplan.measured.server import Server, assumed_settings, server_settings
from capplan.validation import validate


@pytest.mark.parametrize(
    ("accelerator", "engine", "seqs", "tokens"),
    [
        ("H100-SXM-80GB", "vllm 0.11.2", 1024, 8192),  # 70 GiB or more, and no A100
        ("H200-SXM-141GB", "vllm", 1024, 8192),
        ("A100-SXM-80GB", "vllm 0.11.2", 256, 2048),
        ("L4", "vllm 0.11.2", 256, 2048),
        ("H100-SXM-80GB", "vllm 0.6.3", 256, 2048),  # before V1
        (None, "vllm 0.11.2", 256, 2048),
    ],
)
def test_batch_limits_follow_device_and_version(accelerator, engine, seqs, tokens):
    found = server_settings(Server(accelerator=accelerator, engine=engine))
    assert (found["max_num_seqs"], found["max_num_batched_tokens"]) == (seqs, tokens)


def test_what_the_server_states_is_kept_and_the_rest_is_named():
    server = Server(accelerator="H100-SXM-80GB", max_num_seqs=64, gpu_memory_utilization=0.8)
    assert server_settings(server)["max_num_seqs"] == 64
    (note,) = assumed_settings(server)
    assert "max_num_batched_tokens 8,192" in note
    assert "max_num_seqs" not in note
    stated = {"max_num_seqs": 1, "max_num_batched_tokens": 8, "block_size": 16}
    assert assumed_settings(Server(**stated, gpu_memory_utilization=0.9)) == []


def test_a_prediction_names_the_settings_it_assumed(tmp_path):
    lines = ["sent_s,prompt_tokens,output_tokens,ttft_s,e2e_s"]
    lines += [f"{i * 0.5},{100 + i},8,0.02,0.1" for i in range(40)]
    (tmp_path / "requests.csv").write_text("\n".join(lines), encoding="utf-8")
    server = {"model": "Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "engine": "vllm 0.11"}
    (tmp_path / "server.json").write_text(json.dumps(server), encoding="utf-8")
    measured = read_measured(tmp_path)
    notes = validate(measured).notes
    assert any("max_num_seqs 1,024, max_num_batched_tokens 8,192" in note for note in notes)
    given = validate(measured, scenario=replay_scenario(measured)).notes
    assert not any("max_num_seqs" in note for note in given)
