"""Servers that cannot be, told in one message with by how much; own models and own hardware."""

import json

import pytest
from ruamel.yaml import YAML

from capplan.bundled import data_path
from capplan.catalog import model, model_from_mapping
from capplan.cli import main
from capplan.replica.kv_capacity import kv_blocks
from capplan.replica.memory import model_of
from capplan.scenario.files import load_scenario, write_scenario

POOL, BATCHING = "pools.llm", "pools.llm.batching"


@pytest.fixture
def call(capsys):
    """Return a function that runs a command line and gives back code and stderr."""

    def run(*words):
        code = main([str(word) for word in words])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            f"{POOL}.model",
            "Llama-3.1-70B",
            r"pool llm: model: .* 71.2 GiB .*60.7 GiB short of one KV",
        ),
        (f"{BATCHING}.gpu_memory_utilization", 0.1, "7.4 GiB short of one KV block"),
        (
            f"{BATCHING}.kv_blocks",
            0,
            "kv_blocks: input should be greater than or equal to 1, got 0",
        ),
        (f"{BATCHING}.max_num_batched_tokens", 8, "8 fills no block of block_size 16: 8 short"),
        (f"{BATCHING}.chunked_prefill", "false", r"at least max_model_len \(16384\).* 14336 short"),
        (f"{POOL}.weight_dtype", "fp7", "weight_dtype: input should be 'float32', .*got 'fp7'"),
        (f"{POOL}.kv_dtype", "int9", "kv_dtype: input should be 'float32', .*got 'int9'"),
        (f"{POOL}.model", "Lama-3", "near: meta-llama/Llama-3.*got 'Lama-3'"),
        (f"{POOL}.model", "nowhere/config.json", "config.json: an existing config.json"),
        (f"{POOL}.accelerator", "H101", "near: .*H100-SXM-80GB.*got 'H101'"),
        (f"{POOL}.accelerator", "nowhere.yaml", "nowhere.yaml: an existing file"),
        (f"{POOL}.tensor_parallel", 3, "a divisor of the 32 heads .*its 8 KV heads, got 3"),
        (f"{POOL}.pipeline_parallel", 33, "at most the 32 layers .*got 33"),
        (f"{POOL}.hf_config", '{"model_type": "mamba"}', "hf_config: model_type: .*got 'mamba'"),
    ],
)
def test_a_server_that_cannot_be_is_refused(call, field, value, said):
    import re

    code, err = call(
        "simulate", "chat-service", "--set", "requests=20", "--set", f"{field}={value}"
    )
    assert code == 2
    assert re.search(said, err), err
    assert len(err.splitlines()) == 1


CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def scenario_of(folder, **pool):
    yaml = YAML(typ="safe", pure=True)
    data = yaml.load(data_path("scenarios", "chat-service.yaml").read_text(encoding="utf-8"))
    data["pools"][0].update(pool)
    file = folder / "own.yaml"
    with file.open("w", encoding="utf-8") as out:
        yaml.dump(data, out)
    return file


def test_a_model_outside_the_catalogue_is_told_by_its_config_inline_or_beside_the_scenario(
    tmp_path, monkeypatch
):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    monkeypatch.chdir("/")
    found = [
        load_scenario(scenario_of(tmp_path, **pool)).pool()
        for pool in (
            {"model": "house", "hf_config": CONFIG},
            {"model": "house", "hf_config": "config.json"},
            {"model": "config.json"},
            {"model": "Llama-3.2-1B"},
        )
    ]
    assert kv_blocks(found[0]) == kv_blocks(found[1]) == kv_blocks(found[2])
    assert kv_blocks(found[0]) == pytest.approx(kv_blocks(found[3]), rel=1e-3)
    assert model_of(found[0]).name == "house"
    counted, published = model_of(found[0]).parameters, model("Llama-3.2-1B").parameters
    assert counted == pytest.approx(published, rel=1e-3)  # norms are not counted
    assert model_from_mapping(CONFIG, name="x").num_hidden_layers == 16


def test_an_inline_config_survives_writing_and_reading(tmp_path):
    first = load_scenario(scenario_of(tmp_path, model="house", hf_config=CONFIG))
    (tmp_path / "again.yaml").write_text(write_scenario(first), encoding="utf-8")
    assert load_scenario(tmp_path / "again.yaml") == first


def test_a_config_needs_a_name_and_one_model(call, tmp_path):
    for pool, said in (
        ({"model": None, "hf_config": CONFIG}, "hf_config needs model, its name"),
        (
            {"model": None, "hf_config": CONFIG, "models": [{"name": "a", "kv_fraction": 0.5}]},
            "hf_config and models exclude each other",
        ),
    ):
        code, err = call("simulate", scenario_of(tmp_path, **pool))
        assert code == 2
        assert said in err


def test_own_hardware_lies_beside_the_scenario(tmp_path, monkeypatch):
    card = "name: lab-card\nmemory_bytes: 48.0e9\nmemory_bandwidth_bytes_per_s: 9.0e11\n"
    (tmp_path / "card.yaml").write_text(card + "bf16_flop_per_s: 2.0e14\n", encoding="utf-8")
    monkeypatch.chdir("/")
    assert kv_blocks(load_scenario(scenario_of(tmp_path, accelerator="card.yaml")).pool()) > 1000
