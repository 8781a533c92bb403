"""Models: the numbers of a config.json that decide memory and time, number types, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16", "fp8", "int8", "int4"]

BYTES: Mapping[str, float] = MappingProxyType(
    {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
)
"""Bytes of one number. Scales and zero points of a quantisation are left out: in groups of 128
with 16-bit scales they add 0.125 bits a number (3 % of int4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer; field names follow Hugging Face's ``config.json``."""

    name: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    """Width of the dense MLP; unused if every layer has experts."""
    vocab_size: int
    tie_word_embeddings: bool = False
    dtype: Dtype = "bfloat16"
    """Type of the weights as published (for models kept in float32, see ``served_dtype``)."""
    max_position_embeddings: int = 0
    sliding_window: int = 0
    """Tokens of the window of a sliding layer; 0 without such layers."""
    sliding_layers: int = 0
    """Layers with the window."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    num_shared_experts: int = 0
    moe_intermediate_size: int = 0
    first_dense_layers: int = 0
    """Leading layers with a dense MLP in a model of experts."""
    kv_lora_rank: int = 0
    """Rank of the compressed KV of multi-head latent attention (MLA); 0 = no MLA."""
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    attention_bias: bool = False
    parameters: int = 0
    """All parameters: as published, else counted from the shapes."""
    unquantized_parameters: int = 0
    """Parameters, beside the embeddings, that a checkpoint below 16 bits keeps at 16."""

    @property
    def moe_layers(self) -> int:
        """Return the number of layers with experts."""
        return self.num_hidden_layers - self.first_dense_layers if self.num_experts else 0

    @property
    def served_dtype(self) -> Dtype:
        """Return the type of the weights in an engine: float32 is served as bfloat16.

        Source: vLLM, ``--dtype auto``, 2026.
        """
        return "bfloat16" if self.dtype == "float32" else self.dtype


def count_parameters(model: Model) -> int:
    """Return the number of parameters of the shapes.

    Source: the module shapes of Hugging Face ``transformers`` 4.5x (``modeling_llama.py``,
    ``modeling_mixtral.py``, ``modeling_deepseek_v3.py``). Norms are left out (below 0.02 %).
    """
    moe = model.moe_layers
    dense = model.num_hidden_layers - moe
    experts = model.num_experts + model.num_shared_experts
    mlp = dense * 3 * model.hidden_size * model.intermediate_size
    mlp += moe * experts * expert_parameters(model) + moe * model.hidden_size * model.num_experts
    return model.num_hidden_layers * attention_parameters(model) + mlp + embedding_parameters(model)


def attention_parameters(model: Model) -> int:
    """Return the parameters of one layer's attention: query, key, value, output projections."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.kv_lora_rank:
        qk, rank = model.qk_nope_head_dim + model.qk_rope_head_dim, model.q_lora_rank
        query = rank * (hidden + heads * qk) if rank else hidden * heads * qk
        down = hidden * (model.kv_lora_rank + model.qk_rope_head_dim)
        up = model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
        return query + down + up + heads * model.v_head_dim * hidden
    qkv = (heads + 2 * model.num_key_value_heads) * model.head_dim
    bias = qkv if model.attention_bias else 0
    return hidden * (qkv + heads * model.head_dim) + bias


def expert_parameters(model: Model) -> int:
    """Return the parameters of one expert: gate, up and down projection."""
    return 3 * model.hidden_size * model.moe_intermediate_size


def embedding_parameters(model: Model) -> int:
    """Return the parameters of input embedding and output head; one matrix if tied."""
    return model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
