"""What a model is: the numbers of its ``config.json`` that decide memory and time."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.catalog.dtypes import Dtype


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
    """Width of the dense MLP; without meaning where every layer has experts."""
    vocab_size: int
    tie_word_embeddings: bool = False
    dtype: Dtype = "bfloat16"
    """Type of the weights as published (for models kept in float32, see ``served_dtype``)."""
    max_position_embeddings: int = 0
    sliding_window: int = 0
    """Tokens that a layer with a sliding window attends to; 0 = no such layer."""
    sliding_layers: int = 0
    """How many layers have the window."""
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

    @property
    def moe_layers(self) -> int:
        """Return how many layers have experts."""
        return self.num_hidden_layers - self.first_dense_layers if self.num_experts else 0

    @property
    def served_dtype(self) -> Dtype:
        """Return the type that an engine serves the weights in: float32 is served as bfloat16.

        Source: vLLM, ``--dtype auto``, 2026.
        """
        return "bfloat16" if self.dtype == "float32" else self.dtype
