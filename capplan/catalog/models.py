"""Models: the numbers of a config.json that decide memory and time, number types, parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]

BYTES: Mapping[str, float] = MappingProxyType({
    "float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5,
    "mxfp4": 4.25 / 8, "nvfp4": 4.5 / 8,
})  # fmt: skip
"""Bytes of one number. Floating types of 4 bits include their 8-bit scales, of 32 numbers (Open
Compute Project, "Microscaling Formats (MX)", 2023) or of 16 (NVIDIA, "Introducing NVFP4", 2025).
Scales and zero points of other types are left out: in groups of 128 with 16-bit scales they add
0.125 bits a number (3 % of int4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Layers of a model that attend alike, and what one of them takes for one token."""

    layers: int
    kv_heads: int
    """Parts in which accelerators divide the KV; 0 = each holds it for all heads."""
    kv_numbers: int
    """Numbers kept for a token, of one of these parts."""
    prefill_flop: float
    """FLOP of attending from a prefilled token to one before it."""
    decode_flop: float
    """The same from a decoded token; MLA does it in the compressed space."""
    window_tokens: float = math.inf
    """Most tokens that a token attends to."""
    drops_kv: bool = False
    """Whether KV outside the window is never read again."""
    number_bytes: float | None = None
    """Bytes of each number; None = those of the type of the KV."""
    divided: bool = True
    """Whether accelerators divide its heads; else each computes all."""


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
    """Tokens of the window of a sliding layer, or of a chunk within which a layer attends: the most
    that it sees, twice the mean; 0 without such layers."""
    sliding_layers: int = 0
    """Layers with the window."""
    global_head_dim: int = 0
    """Of the layers without a window, if it differs from ``head_dim``."""
    num_global_key_value_heads: int = 0
    """Likewise."""
    attention_k_eq_v: bool = False
    """Whether the layers without a window make keys and values by one projection."""
    attn_output_gate: bool = False
    """Whether a gate as wide as the query multiplies the output of full attention."""
    linear_layers: int = 0
    """Layers of linear attention (gated delta rule): a state for each sequence, no KV."""
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0
    mamba_ssm_dtype: Dtype = "bfloat16"
    """Type of that state."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    num_shared_experts: int = 0
    moe_intermediate_size: int = 0
    first_dense_layers: int = 0
    """Layers with a dense MLP in a model of experts; counted as its first ones."""
    kv_lora_rank: int = 0
    """Rank of the compressed KV of multi-head latent attention (MLA); 0 = no MLA."""
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    index_layers: int = 0
    """Layers with an indexer, which chooses the tokens that sparse attention reads; 0 = none."""
    index_topk: int = 0
    """Tokens that it chooses."""
    index_n_heads: int = 0
    index_head_dim: int = 0
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
    def full_layers(self) -> int:
        """Return the number of layers that keep the KV of the whole sequence."""
        return self.num_hidden_layers - self.sliding_layers - self.linear_layers

    @property
    def served_dtype(self) -> Dtype:
        """Return the type of the weights in an engine: float32 is served as bfloat16.

        Source: vLLM, ``--dtype auto``, 2026.
        """
        return "bfloat16" if self.dtype == "float32" else self.dtype

    def attentions(self) -> tuple[Attention, ...]:
        """Return the layers that keep KV, by how they attend.

        Source: Ainslie et al., "GQA", EMNLP 2023; DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1
        (MLA); DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1 (indexer).

        >>> from capplan.catalog import model
        >>> [(part.layers, part.window_tokens) for part in model("gpt-oss-20b").attentions()]
        [(12, inf), (12, 128)]
        """
        if self.kv_lora_rank:
            return (_latent(self), _indexer(self)) if self.index_layers else (_latent(self),)
        full = _grouped(self, *global_shape(self), layers=self.full_layers)
        if not self.sliding_layers:
            return (full,)
        sliding = replace(
            _grouped(self, self.num_key_value_heads, self.head_dim, layers=self.sliding_layers),
            window_tokens=self.sliding_window,
            drops_kv=True,
        )
        return (full, sliding) if self.full_layers else (sliding,)


def global_shape(model: Model) -> tuple[int, int]:
    """Return KV heads and head width of the layers without a window."""
    heads = model.num_global_key_value_heads or model.num_key_value_heads
    return heads, model.global_head_dim or model.head_dim


def _grouped(model: Model, kv_heads: int, width: int, *, layers: int) -> Attention:
    flop = 4.0 * model.num_attention_heads * width
    return Attention(
        layers=layers,
        kv_heads=kv_heads,
        kv_numbers=2 * width,
        prefill_flop=flop,
        decode_flop=flop,
    )


def _latent(model: Model) -> Attention:
    """Return MLA; what an indexer chose is attended to in the compressed space in prefills too.

    Source: vLLM, ``v1/attention/backends/mla/flashmla_sparse.py``, 2025.
    """
    heads, rope = model.num_attention_heads, model.qk_rope_head_dim
    compressed = 2.0 * heads * (2 * model.kv_lora_rank + rope)
    widened = 2.0 * heads * (model.qk_nope_head_dim + rope + model.v_head_dim)
    return Attention(
        layers=model.num_hidden_layers,
        kv_heads=0,
        kv_numbers=model.kv_lora_rank + rope,
        prefill_flop=compressed if model.index_layers else widened,
        decode_flop=compressed,
        window_tokens=model.index_topk or math.inf,
    )


def _indexer(model: Model) -> Attention:
    """Return the indexer: a key of one byte a number and its 4-byte scale.

    Source: vLLM, ``model_executor/models/deepseek_v2.py`` (``DeepseekV32IndexerCache``), 2025.
    """
    flop = 2.0 * model.index_n_heads * model.index_head_dim
    return Attention(
        layers=model.index_layers,
        kv_heads=0,
        kv_numbers=model.index_head_dim + 4,
        prefill_flop=flop,
        decode_flop=flop,
        number_bytes=1.0,
        divided=False,
    )


def count_parameters(model: Model) -> int:
    """Return the number of parameters of the shapes, of the language model alone.

    Source: the module shapes of Hugging Face ``transformers`` 4.5x (``modeling_llama.py``,
    ``modeling_mixtral.py``, ``modeling_deepseek_v3.py``, ``modeling_qwen3_next.py``,
    ``modeling_gpt_oss.py``, ``modeling_llama4.py``). Norms and biases of experts are left out
    (below 0.05 %), as are towers for images and sound.
    """
    moe = model.moe_layers
    dense = model.num_hidden_layers - moe
    experts = model.num_experts + model.num_shared_experts
    mlp = dense * 3 * model.hidden_size * model.intermediate_size
    mlp += moe * experts * expert_parameters(model) + moe * model.hidden_size * model.num_experts
    return attention_parameters(model) + mlp + embedding_parameters(model)


def attention_parameters(model: Model) -> int:
    """Return the parameters that mix tokens, over all layers: the projections of attention."""
    if model.kv_lora_rank:
        return model.num_hidden_layers * sum(latent_projections(model).values()) + (
            model.index_layers * indexer_parameters(model)
        )
    own = (model.num_key_value_heads, model.head_dim)
    total = model.full_layers * sum(projections(model, *global_shape(model), full=True).values())
    total += model.sliding_layers * sum(projections(model, *own).values())
    total += model.linear_layers * sum(linear_projections(model).values())
    biases = model.num_attention_heads + 2 * model.num_key_value_heads
    return total + model.num_hidden_layers * biases * model.head_dim * model.attention_bias


def projections(model: Model, kv_heads: int, width: int, *, full: bool = False) -> dict[str, int]:
    """Return the parameters of each projection of one layer of attention, by its name."""
    hidden, query = model.hidden_size, model.num_attention_heads * width
    shared = full and model.attention_k_eq_v
    return {
        "q_proj": hidden * query * (2 if model.attn_output_gate else 1),
        "k_proj": hidden * kv_heads * width,
        "v_proj": 0 if shared else hidden * kv_heads * width,
        "o_proj": hidden * query,
    }


def linear_projections(model: Model) -> dict[str, int]:
    """Return the parameters of each projection of one layer of linear attention.

    Source: Hugging Face ``transformers`` 4.57, ``modeling_qwen3_next.py``
    (``Qwen3NextGatedDeltaNet``).
    """
    hidden = model.hidden_size
    key = model.linear_num_key_heads * model.linear_key_head_dim
    value = model.linear_num_value_heads * model.linear_value_head_dim
    return {
        "in_proj_qkv": hidden * (2 * key + value),
        "in_proj_z": hidden * value,
        "in_proj_ba": hidden * 2 * model.linear_num_value_heads,
        "conv1d": (2 * key + value) * model.linear_conv_kernel_dim,
        "out_proj": value * hidden,
    }


def latent_projections(model: Model) -> dict[str, int]:
    """Return the parameters of each projection of one layer with MLA."""
    hidden, heads, rank = model.hidden_size, model.num_attention_heads, model.q_lora_rank
    query = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    up = model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
    return {
        **({"q_a_proj": hidden * rank, "q_b_proj": rank * query} if rank else {}),
        **({} if rank else {"q_proj": hidden * query}),
        "kv_a_proj_with_mqa": hidden * (model.kv_lora_rank + model.qk_rope_head_dim),
        "kv_b_proj": up,
        "o_proj": heads * model.v_head_dim * hidden,
    }


def indexer_parameters(model: Model) -> int:
    """Return the parameters of one indexer: query, key and weights of its heads."""
    heads, width = model.index_n_heads, model.index_head_dim
    return model.q_lora_rank * heads * width + model.hidden_size * (width + heads)


def linear_state_bytes(model: Model) -> float:
    """Return the bytes of state that linear attention keeps for a sequence, over all layers.

    A matrix of key by value width for each value head, and the last inputs of a short convolution
    at 16 bits. Source: vLLM, ``model_executor/layers/mamba/mamba_utils.py``
    (``gated_delta_net_state_shape``), 2025.
    """
    key = model.linear_num_key_heads * model.linear_key_head_dim
    value = model.linear_num_value_heads * model.linear_value_head_dim
    matrix = value * model.linear_key_head_dim * BYTES[model.mamba_ssm_dtype]
    inputs = max(model.linear_conv_kernel_dim - 1, 0) * (2 * key + value) * BYTES["bfloat16"]
    return model.linear_layers * (matrix + inputs)


def expert_parameters(model: Model) -> int:
    """Return the parameters of one expert: gate, up and down projection."""
    return 3 * model.hidden_size * model.moe_intermediate_size


def embedding_parameters(model: Model) -> int:
    """Return the parameters of input embedding and output head; one matrix if tied."""
    return model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
