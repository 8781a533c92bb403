"""What attention takes in a step: pairs of a prefill, context of a decode, state of linear layers.

Source of the terms: FLOP and bytes of :meth:`capplan.catalog.Model.attentions`. A layer with a
window, and sparse attention, read at most their window; an indexer reads all of the context. A
layer of linear attention reads and writes the state of each decoding sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from capplan.catalog import Attention, Model, linear_state_bytes
from capplan.replica.memory import token_bytes
from capplan.scenario.pools import Pool

IDLE_PAIR_TOKENS = 400.0
"""Tokens of context that each prefilled token seems to have besides: blocks of queries and keys
that are only partly used, and too few of them for the whole accelerator. Source: prefill attention
of 32 heads in aiconfigurator-core 0.12 (H100, A100, L40S) and LLMServingSim (RTX 4090): its share
of the peak at 1,024 and 2,048 tokens against that at 16,384 (300 to 700)."""

IDLE_CONTEXT_TOKENS = 64.0
"""Tokens of context that each decoding sequence seems to have besides: half of its last block of
128 keys (Shah et al., "FlashAttention-3", NeurIPS 2024). Source: decode attention of 64 to 256
sequences of 128 to 1,024 tokens in aiconfigurator-core 0.12 (H100) and LLMServingSim (RTX 4090):
30 to 180 above the line through long contexts."""

LINEAR_CHUNK_TOKENS = 64.0
"""Tokens that a prefill of linear attention computes as matrix products. Source: Yang et al.,
"Parallelizing Linear Transformers with the Delta Rule over Sequence Length", NeurIPS 2024; flash-
linear-attention, ``fla/ops/gated_delta_rule/chunk.py`` (``BT = 64``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """The coefficients of attention in a roofline, s; see ``RooflineStepTime``."""

    per_prefill_token_s: float
    per_pair_s: float
    per_sequence_s: float
    per_context_token_s: float
    window_tokens: float
    per_window_pair_s: float
    per_window_token_s: float


def attention_time(
    pool: Pool, found: Model, *, bandwidth: float, flop_per_s: float
) -> AttentionTime:
    """Return what attention takes in one replica of a pool.

    ``bandwidth`` is that of one accelerator, ``flop_per_s`` that of all, as attention reaches them.
    """
    parts, share = found.attentions(), pool.tensor_parallel
    whole = [part for part in parts if math.isinf(part.window_tokens)]
    bounded = [part for part in parts if not math.isinf(part.window_tokens)]

    def pair_s(some: Iterable[Attention]) -> float:
        flop = sum(part.prefill_flop * _undivided(part, share) for part in some)
        return flop / flop_per_s

    def context_s(some: Iterable[Attention]) -> float:
        return sum(_context_s(pool, found, part, bandwidth, flop_per_s) for part in some)

    state_s = 2 * linear_state_bytes(found) / share / bandwidth
    linear_s = found.linear_layers * _linear_flop(found) / flop_per_s
    return AttentionTime(
        per_prefill_token_s=pair_s(parts) * IDLE_PAIR_TOKENS + linear_s,
        per_pair_s=pair_s(whole),
        per_sequence_s=context_s(parts) * IDLE_CONTEXT_TOKENS + state_s,
        per_context_token_s=context_s(whole),
        window_tokens=float(max((part.window_tokens for part in bounded), default=0.0)),
        per_window_pair_s=pair_s(bounded),
        per_window_token_s=context_s(bounded),
    )


def _context_s(
    pool: Pool, found: Model, part: Attention, bandwidth: float, flop_per_s: float
) -> float:
    """Return the time of attending to one token of context in decode, in layers that are alike, s.

    MLA attends in the compressed space, so one vector serves all heads: many FLOP for few bytes.
    Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.2.
    """
    share = pool.tensor_parallel
    moved = token_bytes(found, part, dtype=pool.kv_dtype, tensor_parallel=share)
    return max(moved / bandwidth, part.decode_flop * _undivided(part, share) / flop_per_s)


def _undivided(part: Attention, share: int) -> int:
    """Return how often a layer's FLOP count, over all accelerators and layers that are alike."""
    return part.layers * (1 if part.divided else share)


def _linear_flop(found: Model) -> float:
    """Return the FLOP of one prefilled token in a layer of linear attention.

    In a chunk of ``C`` tokens, of each value head: ``2 C (3 k + 2 v)`` for products among its
    tokens and ``6 k v`` for those with the state. Source: Yang et al., see
    ``LINEAR_CHUNK_TOKENS``, equations 8 to 11, counted.
    """
    key, value = found.linear_key_head_dim, found.linear_value_head_dim
    inside = 2 * LINEAR_CHUNK_TOKENS * (3 * key + 2 * value)
    return found.linear_num_value_heads * (inside + 6.0 * key * value)
