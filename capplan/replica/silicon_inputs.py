"""How a pool, its model and its steps are told to the database of aiconfigurator-core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capplan.replica.memory import model_of
from capplan.schema import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capplan.catalog import Model
    from capplan.scenario.pools import Pool

MOST_KV_HEADS = 8
"""KV heads per accelerator up to which decode attention was measured. Source: the column
``num_key_value_heads`` of aiconfigurator-core 0.12, ``generation_attention_perf.parquet``."""


def head_parts(config: dict[str, Any], share: int) -> int:
    """Return into how many the KV heads of one accelerator are divided to be among the measured."""
    if "kv_lora_rank" in config:
        return 1
    heads = config["num_key_value_heads"]
    each = max(heads // share, 1)
    return next(
        part for part in range(1, each + 1) if not each % part and each // part <= MOST_KV_HEADS
    )


def engine_config(asked: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the database's own description of an engine, its model in a folder."""
    weights = asked["weights"]
    dtypes = {
        "weight_dtype": weights,
        "moe_dtype": weights,
        "activation_dtype": None,
        "kv_cache_dtype": asked["kv"],
    }
    return {
        "schema_version": 1,
        "model_name": folder,
        "system_name": asked["system"],
        "backend": asked["backend"],
        "backend_version": asked["backend_version"],
        "tp_size": asked["tensor_parallel"],
        "moe_tp_size": asked["tensor_parallel"],
        "moe_ep_size": 1,
        "pp_size": 1,
        "kv_block_size": None,
        **dtypes,
    }


def scheduled(chunk: float, before: float, sequences: float, context: float) -> dict[str, int]:
    """Return what a step computes: a chunk after tokens before it, sequences with their context."""
    return {
        "num_prefill_requests": int(chunk > 0),
        "sum_prefill_tokens": int(chunk),
        "sum_prefill_kv_tokens": int(before),
        "num_decode_requests": int(sequences),
        "sum_decode_kv_tokens": int(sequences * context),
    }


def weights_type(pool: Pool) -> str | None:
    """Return the database's name for the type of a pool's weights; None = 16 bits."""
    found = model_of(pool)
    dtype = pool.weight_dtype or found.served_dtype
    if dtype in SIXTEEN:
        return None
    if dtype != "fp8":
        raise DataError("fp8 or a type of 16 bits for step times of kind silicon",
                        where=f"pool {pool.name}", field="weight_dtype", value=dtype)  # fmt: skip
    return "fp8_block" if found.kv_lora_rank else "fp8"


def kv_type(pool: Pool) -> str | None:
    """Return the database's name for the type of a pool's KV; None = 16 bits."""
    if pool.kv_dtype is None or pool.kv_dtype in SIXTEEN:
        return None
    if pool.kv_dtype != "fp8":
        raise DataError("fp8 or a type of 16 bits for step times of kind silicon",
                        where=f"pool {pool.name}", field="kv_dtype",
                        value=pool.kv_dtype)  # fmt: skip
    return "fp8"


def model_config(found: Model) -> dict[str, Any]:
    """Return the model as a Hugging Face ``config.json`` of a family the database knows."""
    config: dict[str, Any] = {
        "_name_or_path": found.name,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": found.hidden_size,
        "intermediate_size": found.intermediate_size,
        "num_hidden_layers": found.num_hidden_layers,
        "num_attention_heads": found.num_attention_heads,
        "num_key_value_heads": found.num_key_value_heads,
        "head_dim": found.head_dim,
        "vocab_size": found.vocab_size,
        "max_position_embeddings": found.max_position_embeddings or 131072,
        "tie_word_embeddings": found.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }
    if found.kv_lora_rank:
        return config | _latent(found)
    if not found.num_experts:
        return config
    if found.moe_intermediate_size in (0, found.intermediate_size):
        return config | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": found.num_experts,
            "num_experts_per_tok": found.num_experts_per_tok,
        }
    return config | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": found.num_experts,
        "num_experts_per_tok": found.num_experts_per_tok,
        "moe_intermediate_size": found.moe_intermediate_size,
    }


SIXTEEN: Sequence[str] = ("float16", "bfloat16")


def _latent(found: Model) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "kv_lora_rank": found.kv_lora_rank,
        "q_lora_rank": found.q_lora_rank,
        "qk_rope_head_dim": found.qk_rope_head_dim,
        "qk_nope_head_dim": found.qk_nope_head_dim,
        "v_head_dim": found.v_head_dim,
        "n_routed_experts": found.num_experts,
        "n_shared_experts": found.num_shared_experts,
        "num_experts_per_tok": found.num_experts_per_tok,
        "moe_intermediate_size": found.moe_intermediate_size,
        "first_k_dense_replace": found.first_dense_layers,
    }
