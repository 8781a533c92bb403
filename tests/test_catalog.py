"""The catalogue: every number has a source, is plausible, and agrees with what it implies."""

import csv
import json
import math

import pytest

from capplan.bundled import data_path
from capplan.catalog import (
    BYTES,
    accelerator,
    accelerator_names,
    count_parameters,
    embedding_parameters,
    model,
    model_from_config,
    model_from_mapping,
    model_names,
    price,
    prices,
)
from capplan.catalog.huggingface import ARCHITECTURES
from capplan.schema import DataError


def table(name):
    with data_path("catalog", name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


UNITS = {
    "memory_bytes": ("bytes", 16e9, 300e9),
    "usable_bytes": ("bytes", 16e9, 300e9),
    "memory_bandwidth_bytes_per_s": ("bytes/s", 200e9, 10e12),
    "bf16_flop_per_s": ("FLOP/s", 50e12, 3e15),
    "fp8_flop_per_s": ("FLOP/s", 100e12, 6e15),
    "int8_flop_per_s": ("FLOP/s", 100e12, 6e15),
    "interconnect_bytes_per_s": ("bytes/s", 16e9, 1e12),
    "gemm_compute_fraction": ("fraction", 0.4, 1),
    "gemm_bandwidth_fraction": ("fraction", 0.5, 1),
    "kv_bandwidth_fraction": ("fraction", 0.5, 1),
    "attention_compute_fraction": ("fraction", 0.3, 1),
}


@pytest.mark.parametrize("name", ["accelerators.csv", "models.csv", "prices.csv"])
def test_every_row_has_a_source_and_a_date(name):
    for row in table(name):
        assert len(row["source"]) > 10, row
        year, month = row["date"].split("-")
        assert 2020 <= int(year) <= 2026, row
        assert 1 <= int(month) <= 12, row


def test_every_number_of_an_accelerator_has_its_unit_and_is_plausible():
    seen = set()
    for row in table("accelerators.csv"):
        unit, low, high = UNITS[row["field"]]
        assert row["unit"] == unit
        assert low <= float(row["value"]) <= high, row
        seen.add((row["accelerator"], row["field"]))
    assert len(seen) == len(table("accelerators.csv")), "no number stands twice"


@pytest.mark.parametrize("name", accelerator_names())
def test_an_accelerator_agrees_with_itself(name):
    found = accelerator(name)
    assert 0.9 * found.memory_bytes < found.usable_bytes < 1.1 * found.memory_bytes
    for better in (found.fp8_flop_per_s, found.int8_flop_per_s):
        assert math.isnan(better) or 1.9 < better / found.bf16_flop_per_s < 4.1
    assert found.flop_per_s("int4") == found.flop_per_s("bfloat16") == found.bf16_flop_per_s
    ridge = found.bf16_flop_per_s / found.memory_bandwidth_bytes_per_s
    assert 100 < ridge < 500, "FLOP per byte at the ridge"


def test_the_promised_accelerators_and_models_are_there():
    for name in ("A10G", "A100 40GB", "A100-80GB", "L4", "L40S", "RTX 4090", "H100 SXM",
                 "H100-PCIe", "H200", "B200", "MI300X"):  # fmt: skip
        assert accelerator(name).memory_bytes > 0
    families = {name.split("/")[0] for name in model_names()}
    assert {"meta-llama", "mistralai", "Qwen", "deepseek-ai", "google", "openai", "zai-org",
            "microsoft"} <= families  # fmt: skip
    sizes = [model(name).parameters for name in model_names() if "Llama" in name]
    assert min(sizes) < 2e9
    assert max(sizes) > 400e9


@pytest.mark.parametrize("name", model_names())
def test_published_parameters_are_what_the_shapes_give(name):
    found = model(name)
    assert count_parameters(found) == pytest.approx(found.parameters, rel=3e-4)
    assert found.num_attention_heads % found.num_key_value_heads == 0
    assert found.sliding_layers <= found.num_hidden_layers
    assert (found.sliding_layers > 0) == (found.sliding_window > 0)
    assert found.num_experts_per_tok <= found.num_experts
    assert found.dtype in BYTES


PUBLISHED = {
    # OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025, table 1.
    "openai/gpt-oss-120b": 116.83e9,
    "openai/gpt-oss-20b": 20.91e9,
    # Names and cards of the models: rounded, and with towers for images and a layer that predicts
    # one more token, neither of which is counted here.
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 109e9,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 400e9,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 80e9,
    "Qwen/Qwen3.5-27B": 27e9,
    "Qwen/Qwen3.5-35B-A3B": 35e9,
    "Qwen/Qwen3.5-122B-A10B": 122e9,
    "Qwen/Qwen3.5-397B-A17B": 397e9,
    "deepseek-ai/DeepSeek-V3.2": 671e9,
    "zai-org/GLM-4.5": 355e9,
    "zai-org/GLM-4.5-Air": 106e9,
    "zai-org/GLM-5": 744e9,
    "google/gemma-4-31B-it": 30.7e9,
    "google/gemma-4-26B-A4B": 25.2e9,
    "microsoft/phi-4": 14.7e9,
    "microsoft/Phi-4-mini-instruct": 3.8e9,
    "MiniMaxAI/MiniMax-M2.5": 230e9,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counted_parameters_are_within_two_percent_of_the_published_number(name):
    assert count_parameters(model(name)) == pytest.approx(PUBLISHED[name], rel=0.02)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100-sxm-80gb", "H100-SXM-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("a100 80GB", "A100-SXM-80GB"),
    ],
)
def test_names_are_found_in_any_spelling(spelling, name):
    assert accelerator(spelling) is accelerator(name)


def test_models_are_found_by_id_short_name_and_alias():
    found = model("meta-llama/Llama-3.1-8B")
    assert model("llama-3.1-8b") is model("meta-llama/Meta-Llama-3.1-8B-Instruct") is found
    assert model("llama-3.1-8b-instruct") is found


def test_an_unknown_name_lists_near_ones():
    with pytest.raises(DataError, match="near: H100-SXM-80GB"):
        accelerator("H100-SMX")
    with pytest.raises(DataError, match=r"Qwen/Qwen3-8B.*got 'Qwen3-9B'"):
        model("Qwen3-9B")
    with pytest.raises(DataError, match="near: H100-SXM-80GB, H100-PCIe-80GB, H200"):
        accelerator("H9")
    for unlike in ("zzzzz", ""):
        with pytest.raises(DataError, match="capplan catalog"):
            accelerator(unlike)


def test_every_alias_leads_to_an_entry_and_hides_none():
    known = {*accelerator_names(), *model_names()}
    for row in table("aliases.csv"):
        assert row["name"] in known
        assert row["alias"] not in known


def test_prices_are_positive_lists_and_unknown_ones_are_nan():
    for row in table("prices.csv"):
        assert row["accelerator"] in accelerator_names()
        assert 0.1 < float(row["usd_per_accelerator_hour"]) < 20
        assert row["kind"] == "list"
    assert price("H100") == prices("H100")[0].usd_per_hour
    assert math.isnan(price("L4"))
    assert prices("L4") == ()
    assert [one.usd_per_hour for one in prices("MI300X")] == [1.85, 6.0]


OWN = {"name": "lab", "memory_bytes": 48e9, "memory_bandwidth_bytes_per_s": 9e11,
       "bf16_flop_per_s": 2e14}  # fmt: skip


def write_yaml(tmp_path, data, name="own.yaml"):
    file = tmp_path / name
    file.write_text(json.dumps(data), encoding="utf-8")
    return str(file)


def test_own_hardware_comes_from_a_yaml_file(tmp_path):
    found = accelerator(write_yaml(tmp_path, {**OWN, "source": "measured here"}))
    assert (found.name, found.usable_bytes) == ("lab", 48e9)
    assert math.isnan(found.fp8_flop_per_s)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": -1}, "memory_bytes: a positive finite number, got -1"),
        ({"memory_bytes": "much"}, "memory_bytes: a number, got 'much'"),
        ({"bandwidth": 1}, "bandwidth: one of"),
        ({"name": None}, "name: a name"),
    ],
)
def test_broken_own_hardware_names_file_field_and_rule(tmp_path, change, message):
    with pytest.raises(DataError, match=rf"own\.yaml: {message}"):
        accelerator(write_yaml(tmp_path, {**OWN, **change}))


def test_missing_numbers_and_files_of_own_hardware_are_data_errors(tmp_path):
    without = {key: value for key, value in OWN.items() if key != "bf16_flop_per_s"}
    with pytest.raises(DataError, match="bf16_flop_per_s: a required number"):
        accelerator(write_yaml(tmp_path, without))
    with pytest.raises(DataError, match="an existing file"):
        accelerator(str(tmp_path / "none.yaml"))
    with pytest.raises(DataError, match="a mapping"):
        accelerator(write_yaml(tmp_path, [1]))


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 16, "intermediate_size": 21504,
        "vocab_size": 262208, "sliding_window": 1024, "torch_dtype": "bfloat16",
    },
}  # fmt: skip


def config(tmp_path, data, **changes):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**data, **changes}), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (LLAMA, "meta-llama/Llama-3.1-8B"),
        (DEEPSEEK, "deepseek-ai/DeepSeek-V3"),
        (GEMMA3, "google/gemma-3-27b-pt"),
    ],
)
def test_a_config_file_gives_the_catalogues_model(tmp_path, data, name):
    read, known = model(config(tmp_path, data)), model(name)
    for field in ("num_key_value_heads", "head_dim", "sliding_window", "sliding_layers",
                  "num_experts", "num_shared_experts", "first_dense_layers", "kv_lora_rank",
                  "tie_word_embeddings", "dtype"):  # fmt: skip
        assert getattr(read, field) == getattr(known, field), field
    assert read.parameters == pytest.approx(known.parameters, rel=3e-4)


SMALL = {
    "num_hidden_layers": 12, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 24, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
          "v_head_dim": 16}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
INDEX = {"index_topk": 128, "index_n_heads": 4, "index_head_dim": 16}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
          "n_shared_experts": 1, "first_k_dense_replace": 1}  # fmt: skip
OF_FAMILY = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": EXPERTS,
    "qwen3_moe": EXPERTS,
    "qwen3_vl_moe_text": EXPERTS,
    "qwen3_next": EXPERTS | LINEAR | {"shared_expert_intermediate_size": 32},
    "qwen3_5_text": LINEAR | {"attn_output_gate": True},
    "qwen3_5_moe_text": EXPERTS | LINEAR | {"attn_output_gate": True},
    "deepseek_v2": ROUTED | LATENT,
    "deepseek_v3": ROUTED | LATENT,
    "deepseek_v32": ROUTED | LATENT | INDEX,
    "kimi_k2": ROUTED | LATENT,
    "glm4_moe": ROUTED,
    "glm_moe_dsa": ROUTED | LATENT | INDEX,
    "gemma2": {"sliding_window": 256},
    "gemma3": {"sliding_window": 256},
    "gemma3_text": {"sliding_window": 256},
    "gemma4_text": {
        "sliding_window": 256, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32,
    },
    "gpt_oss": {
        "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 6,
        "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True,
    },
    "llama4_text": {
        "attention_chunk_size": 512, "num_local_experts": 4, "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128,
    },
}  # fmt: skip
LAYERS = {
    # Layers with all of the context, with a window, with linear attention; dense beside experts.
    "gemma2": (6, 6, 0, 0), "gemma3": (2, 10, 0, 0), "gemma3_text": (2, 10, 0, 0),
    "gemma4_text": (2, 10, 0, 0), "gpt_oss": (6, 6, 0, 0), "llama4_text": (3, 9, 0, 6),
    "qwen3_next": (3, 0, 9, 0), "qwen3_5_text": (3, 0, 9, 0), "qwen3_5_moe_text": (3, 0, 9, 0),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe",
                     "glm_moe_dsa"), (12, 0, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_config_of_every_family_works_by_path(tmp_path, kind):
    text = {**SMALL, "model_type": kind, **OF_FAMILY.get(kind, {})}
    file = {"architectures": [ARCHITECTURES[kind]], **text}
    if kind.endswith("_text"):
        file = {"model_type": kind.removesuffix("_text"), "text_config": text}
    found = model(config(tmp_path, file))
    layers = (found.full_layers, found.sliding_layers, found.linear_layers,
              found.first_dense_layers)  # fmt: skip
    assert layers == LAYERS.get(kind, (12, 0, 0, 0))
    assert (found.num_experts > 0) == any(
        "experts_per_tok" in key or "top_k" in key for key in text
    )
    assert found.parameters == count_parameters(found) > embedding_parameters(found)
    assert sum(part.layers for part in found.attentions() if part.number_bytes is None) == (
        found.num_hidden_layers - found.linear_layers
    )


def test_a_window_that_no_sequence_fills_is_none():
    assert model_from_mapping({**LLAMA, "sliding_window": 262144}, name="x").sliding_layers == 0


def test_a_quantisation_beside_the_config_counts(tmp_path):
    path = config(tmp_path, LLAMA)
    algorithm = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(algorithm), encoding="utf-8")
    assert model_from_config(path).dtype == "nvfp4"


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
                }
            },
            "fp8",
        ),
        ({"torch_dtype": None, "dtype": "float16"}, "float16"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        (
            {
                "quantization_config": {
                    "quant_method": "modelopt",
                    "config_groups": {
                        "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}
                    },
                }
            },
            "nvfp4",
        ),
    ],
)
def test_types_and_quantisations_are_read(tmp_path, changes, dtype):
    assert model_from_config(config(tmp_path, LLAMA, **changes)).dtype == dtype


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            r"config.json: architectures: one of .*GptOssForCausalLM.*, got \['MambaForCausalLM'\]",
        ),
        ({"layer_types": ["full_attention"] * 31 + ["mamba"]}, "layer_types: 32 of"),
        ({"num_local_experts": 8}, "num_experts_per_tok: a positive integer"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers: a positive integer, got '32'"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "one known quantisation"),
        ({"torch_dtype": "int3"}, "torch_dtype: one of"),
    ],
)
def test_a_config_that_cannot_be_computed_is_a_data_error(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        model_from_config(config(tmp_path, LLAMA, **changes))


def test_a_missing_or_truncated_config_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="existing config"):
        model_from_config(tmp_path / "none.json")
    broken = tmp_path / "config.json"
    broken.write_text('{"model_type": "lla', encoding="utf-8")
    with pytest.raises(DataError, match="readable JSON"):
        model_from_config(broken)
    broken.write_text("[1]", encoding="utf-8")
    with pytest.raises(DataError, match="a JSON object"):
        model_from_config(broken)


def test_an_own_model_comes_from_a_yaml_file(tmp_path):
    data = {
        "name": "mine", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 100,
    }  # fmt: skip
    found = model(write_yaml(tmp_path, data))
    assert found.parameters == count_parameters(found) > 0
    for change, message in [
        ({"hidden_size": -1}, "not negative"),
        ({"hidden_size": 1.5}, "int"),
        ({"wings": 2}, "wings: one of"),
        ({"dtype": "bf8"}, "dtype: one of"),
    ]:
        with pytest.raises(DataError, match=message):
            model(write_yaml(tmp_path, {**data, **change}))
    del data["vocab_size"]
    with pytest.raises(DataError, match="required"):
        model(write_yaml(tmp_path, data))


KEPT = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 100, "vocab_size": 50,
}  # fmt: skip
ATTENTION, MLP = 64 * (64 + 2 * 32) + 64 * 64, 3 * 64 * 100


@pytest.mark.parametrize(
    ("modules", "kept"),
    [
        ([], 0),
        (["lm_head"], 0),
        (["self_attn"], 4 * ATTENTION),
        (["model.layers.0", "model.layers.3.mlp"], ATTENTION + 2 * MLP),
        ([f"model.layers.{i}.self_attn.q_proj" for i in range(4)], 4 * 64 * 64),
        (["re:.*layers\\.[12]\\..*down_proj"], 2 * 64 * 100),
        (["model.layers.1"], ATTENTION + MLP),
        (["model.layers.*.self_attn"], 4 * ATTENTION),
        (["model.language_model.layers.2.mlp*"], MLP),
    ],
)
def test_what_a_checkpoint_does_not_quantise_is_counted(modules, kept):
    for name in ("modules_to_not_convert", "ignore"):
        config = KEPT | {"quantization_config": {"quant_method": "fp8", name: modules}}
        assert model_from_mapping(config, name="x").unquantized_parameters == kept
