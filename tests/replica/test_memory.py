"""Memory against what real servers logged, and against arithmetic."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.catalog import model
from capplan.replica.kv_capacity import kv_blocks, kv_tokens, sequence_room
from capplan.replica.memory import (
    GIB,
    kv_bytes,
    kv_bytes_per_token,
    memory_use,
    pool_kv_bytes_per_token,
    sequence_state_bytes,
    weight_bytes,
)
from capplan.replica.memory_plan import is_compared
from capplan.scenario.batching import ContinuousBatching, DynamicBatching, ServiceLaw
from capplan.scenario.pools import Pool
from capplan.schema import DataError


def pool(model_name="Llama-3.1-8B", accelerator="H100", tensor_parallel=1, **batching):
    return Pool(
        name="llm",
        model=model_name,
        accelerator=accelerator,
        tensor_parallel=tensor_parallel,
        batching=ContinuousBatching(**batching),
    )


@pytest.mark.parametrize(
    ("name", "accelerator", "max_num_seqs", "blocks"),
    [
        ("meta-llama/Llama-2-7b-hf", "H100-SXM-80GB", 128, 7462),
        ("meta-llama/Llama-3.1-8B", "NVIDIA GeForce RTX 4090", 256, 2588),
    ],
)
def test_blocks_are_within_half_a_percent_of_what_vllm_logged(
    name, accelerator, max_num_seqs, blocks
):
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048}
    assert kv_blocks(pool(name, accelerator, **limits)) == pytest.approx(blocks, rel=0.005)


def test_blocks_agree_with_every_measured_server_whose_settings_are_known(shared_data):
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
    files = sorted(shared_data.glob("measured/*/server.json"))
    servers = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    known = {run: server for run, server in servers.items() if all(n in server for n in names)}
    assert known
    for run, server in known.items():
        predicted = kv_blocks(
            pool(
                server["model"],
                server["accelerator"],
                server["tensor_parallel"],
                **{name: server[name] for name in names},
            )
        )
        assert predicted == pytest.approx(server["kv_blocks"], rel=0.005), run


def test_parts_of_the_memory_sum_to_the_engines_share():
    use = memory_use(pool(gpu_memory_utilization=0.8))
    parts = use.weight_bytes + use.activation_bytes + use.runtime_bytes + use.kv_bytes
    assert parts == pytest.approx(0.8 * use.total_bytes)
    assert use.weight_bytes / GIB == pytest.approx(14.96, abs=0.01), "as vLLM logs it"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama-2-7b-hf", 2 * 32 * 32 * 128 * 2),  # MHA
        ("Llama-3.1-8B", 2 * 32 * 8 * 128 * 2),  # GQA
        ("gemma-3-1b-pt", 2 * 26 * 1 * 256 * 2),  # MQA
        ("DeepSeek-V3", 61 * (512 + 64) * 2),  # MLA, KV of 16 bits beside FP8 weights
        ("DeepSeek-V3.2", 61 * ((512 + 64) * 2 + 128 + 4)),  # and an indexer's keys of 8 bits
        ("gpt-oss-20b", 2 * 24 * 8 * 64 * 2),
        ("Qwen3-Next-80B-A3B", 2 * 12 * 2 * 256 * 2),  # a quarter of the layers keeps KV
        ("gemma-4-31B", 2 * (50 * 16 * 256 + 10 * 4 * 512) * 2),  # two widths of heads
        # Zhao et al., "Insights into DeepSeek-V3", ISCA 2025, table 1, bytes per token.
        ("deepseek-ai/DeepSeek-V3", 70_272),
        ("Qwen2.5-72B", 327_680),
        ("Llama-3.1-405B", 516_096),
    ],
)
def test_kv_of_a_token_by_kind_of_attention(name, expected):
    assert kv_bytes_per_token(model(name)) == expected


def test_kv_is_divided_by_heads_until_each_accelerator_holds_one():
    found = model("Llama-3.1-8B")
    each = [kv_bytes_per_token(found, tensor_parallel=n) for n in (1, 2, 8, 16)]
    assert each == [131072, 65536, 16384, 16384]
    mla = model("DeepSeek-V3")
    assert kv_bytes_per_token(mla, tensor_parallel=8) == kv_bytes_per_token(mla)
    with pytest.raises(DataError, match="tensor_parallel: a divisor of the 32 heads"):
        kv_bytes_per_token(found, tensor_parallel=3)


def test_eight_bit_kv_takes_half():
    found = model("Llama-3.1-8B")
    assert kv_bytes_per_token(found, dtype="fp8") == kv_bytes_per_token(found) / 2
    halved = kv_blocks(pool().model_copy(update={"kv_dtype": "fp8"}))
    assert halved == pytest.approx(2 * kv_blocks(pool()), abs=1)


def test_a_sliding_window_bounds_what_a_layer_keeps():
    mistral, gemma = model("Mistral-7B-v0.1"), model("gemma-3-27b-pt")
    assert kv_bytes(mistral, 32_000) == kv_bytes(mistral, 4096)
    full = kv_bytes_per_token(gemma) * 10_000
    assert kv_bytes(gemma, 1000) == pytest.approx(kv_bytes_per_token(gemma) * 1000)
    assert kv_bytes(gemma, 10_000) == pytest.approx(full * (10 + 52 * 0.1024) / 62)


def test_a_window_saves_what_the_engines_makers_say_it_does():
    # vLLM, issue 11382: 25 % of the KV of Gemma 2, at the 8,192 tokens of its context.
    found = model("gemma-2-9b")
    assert kv_bytes(found, 8192) == pytest.approx(0.75 * 8192 * kv_bytes_per_token(found))


def test_linear_attention_keeps_a_state_for_each_sequence_and_no_more():
    # Page of one layer with 16 heads that vLLM logged: a float32 matrix of 16 x 128 x 128 and
    # three inputs of 6,144 numbers at 16 bits (public log of a Qwen3.5, 2026).
    small = replace(
        model("Qwen3.5-27B"), linear_layers=1, linear_num_value_heads=16, linear_num_key_heads=16
    )
    assert sequence_state_bytes(small) == 16 * 128 * 128 * 4 + 3 * 6144 * 2
    assert sequence_state_bytes(small, tensor_parallel=4) == sequence_state_bytes(small) / 4
    assert sequence_state_bytes(model("Llama-3.1-8B")) == 0


@pytest.mark.parametrize(
    ("name", "weights", "kv"),
    [
        # vLLM on an H100 at 0.9 of 79.18 GiB: llm-d-benchmark, empirical-vllm-memory-results, 2025.
        # Its parts of gpt-oss-120b do not sum to its KV, so that is left out.
        ("gpt-oss-20b", 13.47, 50.28),
        ("gpt-oss-120b", 64.38, None),
        ("Llama-3.1-8B", 14.99, 51.38),
        ("Qwen3-0.6B", 1.12, 64.45),
        ("Qwen3-32B", 61.03, 4.45),
    ],
)
def test_weights_and_kv_are_what_vllm_logged_on_an_h100(name, weights, kv):
    use = memory_use(pool(name, max_num_seqs=1024, max_num_batched_tokens=8192))
    assert use.weight_bytes / GIB == pytest.approx(weights, rel=0.005, abs=0.01)
    if kv is not None:
        assert use.kv_bytes / GIB == pytest.approx(kv, abs=0.55)


def test_weights_by_type_keep_embeddings_at_16_bits():
    found = model("Llama-3.1-8B")
    embeddings = 2 * 128256 * 4096
    assert weight_bytes(found) == found.parameters * 2
    inner = found.parameters - embeddings
    assert weight_bytes(found, dtype="int4") == pytest.approx(inner / 2 + embeddings * 2)
    assert weight_bytes(model("gemma-2-9b")) == pytest.approx(2 * 9241705984), "served at 16 bits"


def test_tensor_parallel_weights_sum_to_the_model_or_more():
    llama, mla = model("Llama-3.1-70B"), model("DeepSeek-V3")
    assert weight_bytes(llama, tensor_parallel=8) * 8 == pytest.approx(weight_bytes(llama))
    assert weight_bytes(llama, tensor_parallel=16) * 16 > weight_bytes(llama)
    latent = 61 * 7168 * (512 + 64 + 1536)
    assert weight_bytes(mla, tensor_parallel=8) * 8 == pytest.approx(weight_bytes(mla) + 7 * latent)


def test_stages_of_a_pipeline_divide_layers_and_keep_embeddings_at_its_ends():
    found = model("Llama-3.1-70B")
    embedding = found.vocab_size * found.hidden_size * 2
    inner = weight_bytes(found) - 2 * embedding
    assert weight_bytes(found, pipeline_parallel=4) == pytest.approx(inner / 4 + embedding)
    three = weight_bytes(found, pipeline_parallel=3)
    assert three == pytest.approx(inner * 27 / 80 + embedding), "80 layers in stages of 27, 27, 26"
    both = weight_bytes(found, tensor_parallel=2, pipeline_parallel=4)
    assert both == pytest.approx((inner / 4 + embedding) / 2)
    with pytest.raises(DataError, match="pipeline_parallel: at most the 80 layers"):
        weight_bytes(found, pipeline_parallel=81)


def test_blocks_of_a_pipeline_hold_the_layers_of_a_stage():
    one = pool("Llama-3.1-8B")
    two = one.model_copy(update={"pipeline_parallel": 2})
    assert two.accelerators == 2
    assert kv_blocks(two) > 2 * kv_blocks(one), "twice the KV memory and more, half the layers"
    assert pool_kv_bytes_per_token(two) == pool_kv_bytes_per_token(one) / 2
    # As many accelerators hold about as many tokens either way.
    assert kv_blocks(two) == pytest.approx(kv_blocks(pool(tensor_parallel=2)), rel=0.05)


def test_a_sequence_holds_its_window_and_its_state_beside_what_grows():
    found, alone = model("gemma-3-27b-pt"), {"max_num_seqs": 1, "max_model_len": 8192}
    gemma = pool("gemma-3-27b-pt", **alone)
    whole = pool("gemma-3-27b-pt", **alone, disable_hybrid_kv_cache_manager=True)
    assert pool_kv_bytes_per_token(whole) == kv_bytes_per_token(found)
    assert not sequence_room(whole).taken
    room = sequence_room(gemma)
    for length in (100, 1024, 8192, 30_000):
        held = (length + room.tokens(length)) * pool_kv_bytes_per_token(gemma)
        assert held == pytest.approx(kv_bytes(found, length))
    assert kv_tokens(gemma, 1024) == pytest.approx(kv_tokens(whole, 1024), rel=0.001)
    share = (10 + 52 * 1024 / 8192) / 62
    assert kv_tokens(gemma, 8192) == pytest.approx(kv_tokens(whole, 8192) / share, rel=0.001)
    mean = pool("gemma-3-27b-pt", max_num_seqs=1, hybrid_kv_context_tokens=8192)
    assert kv_blocks(mean) * 16 == pytest.approx(kv_tokens(gemma, 8192), rel=0.001)

    hybrid = pool("Qwen3.5-27B", tensor_parallel=2, max_num_seqs=1)
    state = sequence_room(hybrid).state_tokens * pool_kv_bytes_per_token(hybrid)
    assert state == sequence_state_bytes(model("Qwen3.5-27B"), tensor_parallel=2)


def test_a_longest_sequence_with_its_window_must_fit():
    lone = {"accelerator": "RTX 4090", "max_num_seqs": 1, "gpu_memory_utilization": 0.75}
    held = kv_blocks(pool("gpt-oss-20b", **lone)) * 16
    with pytest.raises(DataError, match="max_model_len: at most the KV capacity"):
        kv_blocks(pool("gpt-oss-20b", **lone, max_model_len=held))
    assert kv_blocks(pool("gpt-oss-20b", **lone, max_model_len=held - 144)) > 0


def test_stated_blocks_hold_every_layer():
    stated = pool("gpt-oss-20b", kv_blocks=100)
    assert not sequence_room(stated).taken
    assert kv_tokens(stated, 500) == 1600


def test_a_model_that_does_not_fit_says_by_how_much():
    with pytest.raises(DataError, match=r"pool llm: model: .*64\.\d GiB short of one KV block"):
        kv_blocks(pool("Llama-3.1-70B"))
    assert memory_use(pool("Llama-3.1-70B")).kv_bytes < 0
    assert kv_blocks(pool("Llama-3.1-70B", tensor_parallel=4)) > 1000


def test_stated_blocks_need_no_model():
    stated = Pool(name="p", batching=ContinuousBatching(kv_blocks=123))
    assert kv_blocks(stated) == 123


def test_missing_model_accelerator_and_other_batching_are_told_apart():
    with pytest.raises(DataError, match="pool p: model"):
        kv_blocks(Pool(name="p", accelerator="H100", batching=ContinuousBatching()))
    with pytest.raises(DataError, match="pool p: accelerator"):
        kv_blocks(Pool(name="p", model="Llama-3.1-8B", batching=ContinuousBatching()))
    with pytest.raises(ValueError, match="continuous"):
        kv_blocks(Pool(name="p", batching=DynamicBatching(service=ServiceLaw(base_s=1))))


@pytest.mark.parametrize("field", ["model", "accelerator"])
def test_a_name_that_nothing_has_is_told_with_its_pool(field):
    unknown = pool(**{"model_name" if field == "model" else field: "Z900"})
    with pytest.raises(DataError, match=rf"^pool llm: {field}: .*, got 'Z900'$"):
        kv_blocks(unknown)


@given(
    utilisation=st.floats(0.5, 0.94),
    seqs=st.integers(1, 512),
    tokens=st.integers(256, 8192),
    tensor_parallel=st.sampled_from([1, 2, 4]),
)
def test_more_memory_never_gives_fewer_blocks(utilisation, seqs, tokens, tensor_parallel):
    settings = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}

    def blocks(share, n):
        return kv_blocks(pool(tensor_parallel=n, gpu_memory_utilization=share, **settings))

    assert blocks(utilisation + 0.05, tensor_parallel) >= blocks(utilisation, tensor_parallel) > 0
    assert blocks(utilisation, 2 * tensor_parallel) > blocks(utilisation, tensor_parallel)


def test_a_quantised_checkpoint_keeps_the_layers_that_it_leaves_at_16_bits():
    kept, loaded = (
        weight_bytes(model(name), dtype=dtype, tensor_parallel=8) / GIB
        for name, dtype in (("meta-llama/Llama-3.1-405B-FP8", None), ("Llama-3.1-405B", "fp8"))
    )
    assert kept == pytest.approx(57.75, rel=0.02), "as a server on 8 H100 logged it"
    assert loaded == pytest.approx(47.7, abs=0.1), "every layer at 8 bits"
    staged = weight_bytes(
        model("Llama-3.1-405B-Instruct-FP8"), tensor_parallel=8, pipeline_parallel=2
    )
    assert staged / GIB / kept == pytest.approx(0.5, abs=0.01)


def test_a_quantised_model_of_experts_is_overestimated_and_the_plan_says_so():
    fp8 = pool("Qwen3-235B-A22B-FP8", "H100-SXM-80GB", 4, max_model_len=40_960)
    assert kv_blocks(fp8) * 16 == pytest.approx(178_880 * 1.31, rel=0.01)
    assert not is_compared(fp8)
