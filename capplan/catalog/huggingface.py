"""A model from its Hugging Face ``config.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from capplan.catalog.models import BYTES, Dtype, Model, count_parameters
from capplan.schema import DataError

KNOWN = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2",
    "deepseek_v3", "kimi_k2", "gemma", "gemma2", "gemma3", "gemma3_text",
)  # fmt: skip
"""Values of ``model_type`` with the layers that :class:`Model` describes."""

REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
            "vocab_size")  # fmt: skip
GEMMA3_PATTERN = 6


def model_from_config(path: str | Path) -> Model:
    """Return the model of a ``config.json``, its parameters counted.

    Raises :class:`DataError` for an unreadable file, an unknown ``model_type`` (an attention other
    than full, sliding or MLA would give wrong numbers) and an unknown quantisation.
    """
    file = Path(path)
    return model_from_mapping(_read(file), name=file.parent.name or file.stem, where=file)


def model_from_mapping(config: Mapping[str, Any], *, name: str, where: object = None) -> Model:
    """Return the model of the content of a ``config.json``, its parameters counted.

    ``name`` is used if the content has none, ``where`` in messages; raises as
    :func:`model_from_config`.
    """
    text = {**config, **(config.get("text_config") or {})}
    kind = text.get("model_type")
    if kind not in KNOWN:
        raise DataError(f"one of {', '.join(KNOWN)}", where=where, field="model_type", value=kind)
    for field in REQUIRED:
        if not isinstance(text.get(field), int) or text[field] < 1:
            raise DataError("a positive integer", where=where, field=field, value=text.get(field))
    heads = text["num_attention_heads"]
    found = Model(
        name=str(config.get("_name_or_path") or name),
        num_hidden_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        num_attention_heads=heads,
        num_key_value_heads=text.get("num_key_value_heads") or heads,
        head_dim=_head_dim(text),
        intermediate_size=text["intermediate_size"],
        vocab_size=text["vocab_size"],
        tie_word_embeddings=bool(text.get("tie_word_embeddings", kind.startswith("gemma"))),
        dtype=_dtype(text, where),
        max_position_embeddings=text.get("max_position_embeddings") or 0,
        attention_bias=bool(text.get("attention_bias", kind.startswith("qwen2"))),
        **_sliding(text, kind),
        **_experts(text),
        **_latent(text),
    )
    kept = kept_parameters(found, _kept_modules(text.get("quantization_config") or {}))
    return replace(found, parameters=count_parameters(found), unquantized_parameters=kept)


def _kept_modules(config: Mapping[str, Any]) -> list[str]:
    """Return the modules that a quantisation leaves as they are, by any of the usual names."""
    names = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    return [str(module) for name in names for module in config.get(name) or ()]


def kept_parameters(found: Model, modules: Sequence[str]) -> int:
    """Return the parameters of attention and dense MLP that these modules hold.

    A module is named by its path or a part of it, or by an expression after ``re:``. Experts and
    the projections of MLA are not counted; embeddings keep 16 bits in any case.
    """
    if not modules:
        return 0
    hidden, heads = found.hidden_size, found.num_attention_heads * found.head_dim
    kv = found.num_key_value_heads * found.head_dim
    sizes = {} if found.kv_lora_rank else {
        "self_attn.q_proj": hidden * heads,
        "self_attn.k_proj": hidden * kv,
        "self_attn.v_proj": hidden * kv,
        "self_attn.o_proj": hidden * heads,
    }  # fmt: skip
    mlp = {f"mlp.{part}_proj": hidden * found.intermediate_size for part in ("gate", "up", "down")}
    dense = found.num_hidden_layers - found.moe_layers
    total = 0
    for layer in range(found.num_hidden_layers):
        parts = {**sizes, **(mlp if layer < dense else {})}
        paths = {f"model.layers.{layer}.{part}": size for part, size in parts.items()}
        total += sum(size for path, size in paths.items() if _is_kept(path, modules))
    return total


def _is_kept(path: str, modules: Sequence[str]) -> bool:
    return any(
        re.match(module[3:], path) if module.startswith("re:") else f".{module}." in f".{path}."
        for module in modules
    )


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


def _sliding(text: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Return the window and the number of layers with it."""
    window, layers = text.get("sliding_window"), int(text["num_hidden_layers"])
    if not window or text.get("use_sliding_window") is False:
        return {}
    types = text.get("layer_types")
    if types is not None:
        number = sum(t == "sliding_attention" for t in types)
    elif kind == "gemma2":
        number = (layers + 1) // 2
    elif kind.startswith("gemma3"):
        number = layers - layers // int(text.get("sliding_window_pattern", GEMMA3_PATTERN))
    else:
        number = layers
    return {"sliding_window": int(window), "sliding_layers": number}


def _experts(text: Mapping[str, Any]) -> dict[str, int]:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    number = next((int(text[name]) for name in names if text.get(name)), 0)
    if not number:
        return {}
    width = int(text.get("moe_intermediate_size") or text["intermediate_size"])
    shared = int(text.get("n_shared_experts") or 0)
    shared = shared or int(text.get("shared_expert_intermediate_size") or 0) // width
    return {
        "num_experts": number,
        "num_experts_per_tok": int(text["num_experts_per_tok"]),
        "num_shared_experts": shared,
        "moe_intermediate_size": width,
        "first_dense_layers": int(
            text.get("first_k_dense_replace") or len(text.get("mlp_only_layers") or ())
        ),
    }


def _latent(text: Mapping[str, Any]) -> dict[str, int]:
    if not text.get("kv_lora_rank"):
        return {}
    names = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return {name: int(text.get(name) or 0) for name in names}


def _dtype(text: Mapping[str, Any], where: object) -> Dtype:
    quantised = text.get("quantization_config")
    if quantised:
        return _quantised(quantised, where)
    stated = text.get("torch_dtype") or text.get("dtype") or "bfloat16"
    if stated not in BYTES:
        raise DataError(
            f"one of {', '.join(BYTES)}", where=where, field="torch_dtype", value=stated
        )
    return cast("Dtype", stated)


def _quantised(config: Mapping[str, Any], where: object) -> Dtype:
    """Return the type of quantised weights: FP8, or whole numbers of 4 or 8 bits."""
    groups = list((config.get("config_groups") or {}).values())
    weights = (groups[0].get("weights") or {}) if groups else {}
    method = str(config.get("quant_method") or config.get("quant_algo") or "")
    bits = weights.get("num_bits") or config.get("bits")
    floating = "fp8" in method.lower() or weights.get("type") == "float"
    found = "fp8" if floating and bits in {None, 8} else {4: "int4", 8: "int8"}.get(bits or 0)
    if found is None or (floating and found != "fp8"):
        raise DataError(
            "a known quantisation (FP8, or whole numbers of 4 or 8 bits)",
            where=where,
            field="quantization_config",
            value=method,
        )
    return cast("Dtype", found)
