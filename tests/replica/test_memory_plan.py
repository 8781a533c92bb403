"""What an engine would log at its start: KV tokens and concurrency, or why it would not start."""

import json

import pytest

import capplan as cp
from capplan.cli import main
from capplan.replica.memory_plan import COMPARED, OUTSIDE, memory_plan
from capplan.schema import DataError

POOL = "pools.llm"
ON_24_GB = {
    f"{POOL}.accelerator": "RTX-4090",
    f"{POOL}.batching.max_model_len": 131072,
    f"{POOL}.batching.gpu_memory_utilization": 0.9,
}


def test_kv_tokens_are_those_of_a_server_s_start_up_log():
    values = {
        **ON_24_GB,
        f"{POOL}.batching.max_model_len": 8192,
        f"{POOL}.batching.max_num_seqs": 256,
    }
    (pool,) = memory_plan(cp.load_scenario("chat-service", values=values)).pools
    assert pool.kv_tokens == pytest.approx(2588 * 16, rel=0.005)  # vLLM 0.19 on one RTX 4090
    assert pool.max_concurrency == pytest.approx(pool.kv_tokens / 8192)
    assert (
        pool.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    )  # keys and values, layers, heads, 16 bits


def test_a_window_and_a_state_are_shown_for_a_sequence():
    changes = {f"{POOL}.accelerator": "H100", f"{POOL}.batching.max_model_len": 131_072}
    shown = {}
    for name in ("openai/gpt-oss-20b", "Qwen/Qwen3.5-27B"):
        values = {**changes, f"{POOL}.model": name}
        (shown[name],) = memory_plan(cp.load_scenario("chat-service", values=values)).pools
    oss, qwen = shown.values()
    each = 2 * 12 * 8 * 64 * 2  # keys and values, half of the layers, heads, 16 bits
    assert oss.kv_bytes_per_token == each
    assert oss.window_bytes_per_sequence == 128 * each
    assert oss.state_bytes_per_sequence == qwen.window_bytes_per_sequence == 0
    assert qwen.state_bytes_per_sequence == 48 * (48 * 128 * 128 * 4 + 3 * 80 * 128 * 2)
    steps = cp.load_scenario("chat-service", values=changes).pool("llm").continuous
    longest = 131_072 + 127 + steps.max_num_batched_tokens
    assert oss.max_concurrency == pytest.approx(oss.kv_bytes / each / longest, rel=0.001)
    assert oss.kv_tokens == pytest.approx(oss.max_concurrency * 131_072)


def test_the_table_has_a_column_for_each_pool_and_rows_for_what_its_model_has():
    rows = {}
    for name in ("Llama-3.1-8B", "Qwen/Qwen3.5-27B"):
        study = cp.load_scenario(
            "chat-service", values={f"{POOL}.model": name, f"{POOL}.accelerator": "H100"}
        )
        shown = memory_plan(study).table()
        assert list(shown.columns) == ["quantity", "llm"]
        rows[name] = set(shown["quantity"])
    plain, hybrid = rows.values()
    assert hybrid - plain == {"state bytes per sequence"}


def test_an_engine_that_would_not_start_is_refused_with_the_capacity():
    values = {**ON_24_GB, f"{POOL}.batching.max_num_seqs": 256}
    study = cp.load_scenario("chat-service", values=values)
    rule = r"pools.llm.batching.max_model_len: at most the KV capacity of 41,424 tokens, got 131072"
    with pytest.raises(DataError, match=rule):
        memory_plan(study)
    with pytest.raises(DataError, match=rule):
        cp.simulate(study)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, COMPARED),
        ({f"{POOL}.weight_dtype": "fp8"}, OUTSIDE),
        ({f"{POOL}.tensor_parallel": 2}, OUTSIDE),
        ({f"{POOL}.model": "Qwen/Qwen3-30B-A3B"}, OUTSIDE),
        ({f"{POOL}.model": "google/gemma-3-12b-pt"}, OUTSIDE),
    ],
)
def test_the_plan_states_whether_it_was_compared_with_servers(changes, note):
    (pool,) = memory_plan(cp.load_scenario("chat-service", values=changes)).pools
    assert pool.compared == note


def test_a_pool_without_a_model_is_unknown_not_zero(capsys):
    assert main(["memory", "chat-service", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [pool["pool"] for pool in document["pools"]] == ["llm"]
    assert document["unknown"] == {"labelling": "its batching is dynamic"}


def test_the_catalogue_lists_models_and_accelerators_and_unknown_prices(capsys):
    assert main(["catalog", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    prices = {row["accelerator"]: row["usd_per_hour"] for row in document["accelerators"]}
    assert "meta-llama/Llama-3.1-8B" in document["models"]
    figures = {row["model"]: row for row in document["model_figures"]}
    oss = figures["openai/gpt-oss-20b"]
    assert (oss["full_layers"], oss["window_layers"], oss["window_tokens"]) == (12, 12, 128)
    assert prices["H100-SXM-80GB"] > 0
    assert prices["L4"] is None
