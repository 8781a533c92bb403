"""A model from its Hugging Face ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from capplan.catalog.models import Model, count_parameters
from capplan.catalog.quantisation import kept_parameters, weights_dtype
from capplan.schema import DataError

ARCHITECTURES: Mapping[str, str] = MappingProxyType({
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForConditionalGeneration",
    "mistral": "MistralForCausalLM",
    "ministral3": "Mistral3ForConditionalGeneration",
    "mixtral": "MixtralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_text": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe_text": "Qwen3VLMoeForConditionalGeneration",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe_text": "Qwen3_5MoeForConditionalGeneration",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "kimi_k2": "KimiK25ForConditionalGeneration",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForConditionalGeneration",
    "gpt_oss": "GptOssForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
})  # fmt: skip
"""Values of ``model_type``, of the text if it is a part, whose layers :class:`Model` describes, and
the architecture of each."""

LINEAR = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
DENSE_BESIDE = ("llama4_text", "gemma4_text")
"""Families with an MLP of ``intermediate_size`` beside the experts of a layer. Source: Hugging Face
``transformers``, ``modeling_llama4.py`` (``shared_expert``), ``modeling_gemma4.py`` (``mlp``)."""
SLIDING = "sliding_attention"
KINDS: Mapping[str, str] = MappingProxyType({
    "full_attention": "full_attention",
    SLIDING: SLIDING,
    "chunked_attention": SLIDING,
    "deepseek_sparse_attention": "full_attention",
    "linear_attention": "linear_attention",
})  # fmt: skip
"""Values of ``layer_types``; a chunk counts as a window of its length, and sparse attention keeps
the KV of the whole sequence."""

REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
GEMMA3_PATTERN = 6
QUANTISATION = "hf_quant_config.json"
"""File of NVIDIA's ModelOpt beside a ``config.json`` that says nothing of the quantisation."""


def model_from_config(path: str | Path) -> Model:
    """Return the model of a ``config.json``, its parameters counted.

    A quantisation may stand in ``hf_quant_config.json`` beside it. Raises :class:`DataError` for an
    unreadable file, an unknown architecture (layers other than those of :class:`Model` would give
    wrong numbers) and an unknown quantisation.
    """
    file = Path(path)
    config, beside = _read(file), file.with_name(QUANTISATION)
    if not config.get("quantization_config") and beside.is_file():
        config |= {"quantization_config": _read(beside).get("quantization")}
    return model_from_mapping(config, name=file.parent.name or file.stem, where=file)


def model_from_mapping(config: Mapping[str, Any], *, name: str, where: object = None) -> Model:
    """Return the model of the content of a ``config.json``, its parameters counted.

    ``name`` is used if the content has none, ``where`` in messages; raises as
    :func:`model_from_config`.
    """
    text = {**config, **(config.get("text_config") or {})}
    kind = str(text.get("model_type"))
    if kind not in ARCHITECTURES:
        stated = text.get("architectures")
        known = sorted(set(ARCHITECTURES.values() if stated else ARCHITECTURES))
        field = "architectures" if stated else "model_type"
        rule = f"one of {', '.join(known)}"
        raise DataError(rule, where=where, field=field, value=stated or text.get("model_type"))
    for field in REQUIRED:
        _positive(text, field, where)
    kinds = _layer_kinds(text, kind, where)
    experts = _experts(text, kind, where)
    if not experts or experts["first_dense_layers"]:
        _positive(text, "intermediate_size", where)
    heads = text["num_attention_heads"]
    found = Model(
        name=str(config.get("_name_or_path") or name),
        num_hidden_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        num_attention_heads=heads,
        num_key_value_heads=text.get("num_key_value_heads") or heads,
        head_dim=_head_dim(text),
        intermediate_size=_first(text, "intermediate_size_mlp", "intermediate_size"),
        vocab_size=text["vocab_size"],
        tie_word_embeddings=bool(text.get("tie_word_embeddings", kind.startswith("gemma"))),
        dtype=weights_dtype(text, where),
        max_position_embeddings=text.get("max_position_embeddings") or 0,
        attention_bias=bool(text.get("attention_bias", kind.startswith("qwen2"))),
        **_sliding(text, kinds),
        **_global(text),
        **_linear(text, kinds, where),
        **experts,
        **_latent(text),
    )
    kept = kept_parameters(found, kinds, text.get("quantization_config") or {})
    return replace(found, parameters=count_parameters(found), unquantized_parameters=kept)


def _head_dim(text: Mapping[str, Any]) -> int:
    stated = text.get("head_dim") or text.get("v_head_dim")
    return int(stated or text["hidden_size"] // text["num_attention_heads"])


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise DataError("an existing config.json", where=file) from err
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as err:
        raise DataError(f"a readable JSON file ({err})", where=file) from err
    if not isinstance(config, dict):
        raise DataError("a JSON object", where=file, value=type(config).__name__)
    return config


def _layer_kinds(text: Mapping[str, Any], kind: str, where: object) -> list[str]:
    """Return how each layer attends: as listed, else by the rule of its family.

    Source: Hugging Face ``transformers`` 4.57, ``configuration_*.py`` of each family.
    """
    layers = int(text["num_hidden_layers"])
    stated = text.get("layer_types")
    if stated is not None:
        kinds = [KINDS.get(str(one)) for one in stated]
        if len(kinds) != layers or None in kinds:
            rule = f"{layers} of {', '.join(KINDS)}"
            raise DataError(rule, where=where, field="layer_types", value=stated)
        return [str(one) for one in kinds]
    if kind in LINEAR:
        every, other = int(text.get("full_attention_interval") or 4), "linear_attention"
    else:
        every, other = _every_full(text, kind), SLIDING
    return ["full_attention" if every and not (k + 1) % every else other for k in range(layers)]


def _every_full(text: Mapping[str, Any], kind: str) -> int:
    """Return of how many layers one has no window; 0 = none, 1 = all."""
    if kind == "llama4_text":
        return int(text.get("no_rope_layer_interval") or 4)
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return 1
    if kind.startswith("gemma3"):
        return int(text.get("sliding_window_pattern") or GEMMA3_PATTERN)
    return 2 if kind == "gemma2" else 0


def _sliding(text: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
    """Return the window and the number of layers with it; none if no sequence fills it."""
    window = int(text.get("sliding_window") or text.get("attention_chunk_size") or 0)
    number = list(kinds).count(SLIDING)
    longest = text.get("max_position_embeddings") or math.inf
    if not number or not window or window >= longest:
        return {}
    return {"sliding_window": window, "sliding_layers": number}


def _global(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs in layers without a window (Gemma 4), and gates (Qwen3-Next)."""
    gate = text.get("attn_output_gate", text.get("model_type") == "qwen3_next")
    return {
        "global_head_dim": int(text.get("global_head_dim") or 0),
        "num_global_key_value_heads": int(text.get("num_global_key_value_heads") or 0),
        "attention_k_eq_v": bool(text.get("attention_k_eq_v")),
        "attn_output_gate": bool(gate),
    }


def _linear(text: Mapping[str, Any], kinds: Sequence[str], where: object) -> dict[str, Any]:
    number = list(kinds).count("linear_attention")
    if not number:
        return {}
    names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
             "linear_value_head_dim", "linear_conv_kernel_dim")  # fmt: skip
    sizes = {name: _positive(text, name, where) for name in names}
    return {
        "linear_layers": number,
        "mamba_ssm_dtype": text.get("mamba_ssm_dtype") or "bfloat16",
        **sizes,
    }


def _experts(text: Mapping[str, Any], kind: str, where: object) -> dict[str, Any]:
    number = _first(text, "num_local_experts", "num_experts", "n_routed_experts")
    if not number:
        return {}
    chosen = _first(text, "num_experts_per_tok", "num_experts_per_token", "top_k_experts")
    if not chosen:
        raise DataError("a positive integer", where=where, field="num_experts_per_tok")
    width = _first(text, "moe_intermediate_size", "intermediate_size")
    shared = _first(text, "n_shared_experts", "num_shared_experts")
    beside = _first(text, "shared_expert_intermediate_size") or (
        text["intermediate_size"] if kind in DENSE_BESIDE else 0
    )
    return {
        "num_experts": number,
        "num_experts_per_tok": chosen,
        "num_shared_experts": shared or beside // width,
        "moe_intermediate_size": width,
        "first_dense_layers": _dense_layers(text),
    }


def _dense_layers(text: Mapping[str, Any]) -> int:
    """Return the number of layers without experts."""
    layers, listed = int(text["num_hidden_layers"]), text.get("mlp_layer_types")
    if listed is not None:
        return list(listed).count("dense")
    if isinstance(text.get("moe_layer_freq"), list):
        return list(text["moe_layer_freq"]).count(0)
    step = _first(text, "interleave_moe_layer_step", "decoder_sparse_step") or 1
    named = _first(text, "first_k_dense_replace") or len(text.get("mlp_only_layers") or ())
    return layers - layers // step if step > 1 else named


def _latent(text: Mapping[str, Any]) -> dict[str, Any]:
    if not text.get("kv_lora_rank"):
        return {}
    names = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    found = {name: int(text.get(name) or 0) for name in names}
    if not text.get("index_topk"):
        return found
    listed = text.get("indexer_types")
    layers = list(listed).count("full") if listed else int(text["num_hidden_layers"])
    index = {name: int(text[name]) for name in ("index_topk", "index_n_heads", "index_head_dim")}
    return {**found, **index, "index_layers": layers}


def _first(text: Mapping[str, Any], *names: str) -> int:
    """Return the first number that is stated under these names, else 0."""
    return next((int(text[name]) for name in names if text.get(name)), 0)


def _positive(text: Mapping[str, Any], field: str, where: object) -> int:
    value = text.get(field)
    if not isinstance(value, int) or value < 1:
        raise DataError("a positive integer", where=where, field=field, value=value)
    return value
