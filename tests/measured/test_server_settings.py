"""Settings that a server does not state: those of its engine on its device, named as assumed."""

import json

import pytest

from capplan.measured import read_measured, replay_scenario
from capplan.measured.server import Server, assumed_settings, server_settings
from capplan.replica.memory import accelerator_of, model_of
from capplan.schema import DataError
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


SHAPE = {
    "num_layers": 4,
    "hidden_dim": 512,
    "num_heads": 8,
    "num_kv_heads": 2,
    "intermediate_dim": 1024,
    "vocab_size": 1000,
    "num_local_experts": 0,
}
CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


def served(tmp_path, **server):
    """Return the run of a folder with that server, read."""
    lines = ["sent_s,prompt_tokens,output_tokens,ttft_s,e2e_s", "0,100,8,0.02,0.1"]
    (tmp_path / "requests.csv").write_text("\n".join(lines), encoding="utf-8")
    known = {"accelerator": "H100-SXM-80GB", **server}
    (tmp_path / "server.json").write_text(json.dumps(known), encoding="utf-8")
    return read_measured(tmp_path)


def test_a_model_outside_the_catalogue_is_what_the_server_states_of_it(tmp_path):
    run = served(tmp_path, model="ours", model_config=SHAPE)
    found = model_of(replay_scenario(run).pool())
    assert (found.num_hidden_layers, found.num_key_value_heads, found.num_experts) == (4, 2, 0)
    assert "Assumed: ours has the layers of Llama (no model_type stated)." in validate(run).notes
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    run = served(tmp_path, model="ours", model_config={**SHAPE, **experts})
    assert model_of(replay_scenario(run).pool()).num_experts == 4


def test_a_config_that_the_server_states_counts_before_the_catalogue(tmp_path):
    run = served(tmp_path, model="Llama-3.1-8B", model_config=CONFIG)
    assert model_of(replay_scenario(run).pool()).num_hidden_layers == 6
    assert not any("layers of" in note for note in validate(run).notes)


def test_numbers_that_contradict_the_catalogue_are_refused(tmp_path):
    right = served(tmp_path, model="Llama-3.1-8B", model_config={"num_layers": 32})
    assert replay_scenario(right).pool().hf_config is None
    wrong = served(tmp_path, model="Llama-3.1-8B", model_config={"num_layers": 16})
    with pytest.raises(DataError, match=r"model_config.num_layers: 32, as the .*, got 16"):
        replay_scenario(wrong)


def test_files_that_the_server_names_lie_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    rates = "memory_bytes: 48e9\nmemory_bandwidth_bytes_per_s: 9e11\nbf16_flop_per_s: 3e14\n"
    (folder / "card.yaml").write_text(f"name: Card\n{rates}", encoding="utf-8")
    run = served(folder, model="config.json", accelerator="card.yaml")
    pool = replay_scenario(run).pool()
    assert model_of(pool).num_hidden_layers == 6
    assert accelerator_of(pool).name == "Card"
    (folder / "config.json").unlink()
    with pytest.raises(DataError, match=r"config\.json"):
        model_of(replay_scenario(served(folder, model="config.json")).pool())
