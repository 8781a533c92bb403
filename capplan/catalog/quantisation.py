"""What a ``config.json`` says of quantised weights: their type, and what keeps 16 bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

from capplan.catalog.models import (
    BYTES,
    Dtype,
    Model,
    expert_parameters,
    global_shape,
    latent_projections,
    linear_projections,
    projections,
)
from capplan.schema import DataError

FLOATS = {(8, None): "fp8", (4, 32): "mxfp4", (4, 16): "nvfp4"}
"""Types of floating weights, by their bits and, below eight, the numbers that share a scale."""


def weights_dtype(text: Mapping[str, Any], where: object) -> Dtype:
    """Return the type of the weights; raises :class:`DataError` for one that is not known."""
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
    """Return the one type of quantised weights."""
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    groups = list((config.get("config_groups") or {}).values())
    found = {_group_dtype(group.get("weights") or {}) for group in groups}
    if not groups:
        named = str(config.get("quant_algo") or method).lower()
        floating = next((name for name in ("fp8", "mxfp4", "nvfp4") if name in named), "")
        bits = config.get("bits")
        found = {floating or {4: "int4", 8: "int8"}.get(bits if isinstance(bits, int) else 0, "")}
    if len(found) != 1 or "" in found:
        raise DataError(
            "one known quantisation (FP8, MXFP4, NVFP4, or whole numbers of 4 or 8 bits)",
            where=where,
            field="quantization_config",
            value=method,
        )
    return cast("Dtype", found.pop())


def _group_dtype(weights: Mapping[str, Any]) -> str:
    bits = weights.get("num_bits")
    if weights.get("type") != "float":
        return {4: "int4", 8: "int8"}.get(bits or 0, "")
    size = None if bits == 8 else weights.get("group_size")  # noqa: PLR2004
    return FLOATS.get((bits or 0, size), "")


def kept_parameters(found: Model, kinds: Sequence[str], config: Mapping[str, Any]) -> int:
    """Return the parameters of attention and MLP that a quantisation leaves at 16 bits.

    ``kinds`` are the kinds of the layers. A module is named by its path or a part of it, with
    ``*``, or by an expression after ``re:``. Routed experts and routers are not counted;
    embeddings keep 16 bits in any case.
    """
    names = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    modules = [str(module) for name in names for module in config.get(name) or ()]
    sizes = _module_sizes(found, kinds) if modules else ()
    return sum(size for path, size in sizes if _is_kept(path, modules))


def _is_kept(path: str, modules: Sequence[str]) -> bool:
    return any(
        re.match(module[3:], path)
        if module.startswith("re:")
        else fnmatchcase(f".{path}.", f"*.{module.replace('language_model.', '')}.*")
        for module in modules
    )


def _module_sizes(found: Model, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the path and parameters of every module that may be left as it was."""
    hidden, dense = found.hidden_size, found.num_hidden_layers - found.moe_layers
    shared = expert_parameters(found) // 3 * found.num_shared_experts
    for layer, kind in enumerate(kinds):
        place = "linear_attn" if kind == "linear_attention" else "self_attn"
        sizes = {f"{place}.{name}": size for name, size in _mixing(found, kind).items()}
        inside = "mlp" if layer < dense else "mlp.shared_experts"
        each = hidden * found.intermediate_size if layer < dense else shared
        sizes |= {f"{inside}.{part}_proj": each for part in ("gate", "up", "down")}
        for name, size in sizes.items():
            yield f"model.layers.{layer}.{name}", size


def _mixing(found: Model, kind: str) -> dict[str, int]:
    if found.kv_lora_rank:
        return latent_projections(found)
    if kind == "linear_attention":
        return linear_projections(found)
    if kind == "full_attention":
        return projections(found, *global_shape(found), full=True)
    return projections(found, found.num_key_value_heads, found.head_dim)
