"""Parameters counted from the shapes of a model.

Source: the module shapes of Hugging Face ``transformers`` 4.5x (``modeling_llama.py``,
``modeling_mixtral.py``, ``modeling_deepseek_v3.py``). Norms are left out (below 0.02 %).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capplan.catalog.models import Model


def count_parameters(model: Model) -> int:
    """Return the number of parameters that the shapes give."""
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
    """Return the parameters of input embedding and output head; one matrix where tied."""
    return model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
