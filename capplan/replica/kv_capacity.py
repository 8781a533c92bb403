"""How many KV blocks a replica has, and what a sequence holds beside the KV that grows with it.

An engine with a hybrid block manager keeps of a layer with a sliding window no more than the
window, and of linear attention one state for each sequence. Both take blocks of the same memory as
the KV of the other layers, so they are counted in tokens of that. A sequence takes its room when it
is admitted, as large as its answer will make it, and keeps it until it leaves; what an engine holds
for the chunk that it computes is left out.
Source: vLLM, ``docs/design/hybrid_kv_cache_manager.md`` and ``v1/kv_cache_interface.py``
(``SlidingWindowSpec``, ``MambaSpec``), 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from capplan.replica.memory import (
    GIB,
    growing_attentions,
    memory_use,
    model_of,
    pool_kv_bytes_per_token,
    sequence_state_bytes,
    stage_layers,
    token_bytes,
)
from capplan.scenario.pools import Pool
from capplan.schema import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRoom:
    """The room of one sequence, in tokens of the KV that grows.

    >>> SequenceRoom(window_tokens=100, window_share=2.0).blocks(1000, block_size=16)
    13
    """

    state_tokens: float = 0.0
    window_tokens: float = 0.0
    window_share: float = 0.0
    """Bytes of a token in the layers with a window, over those in the layers that grow."""

    @property
    def taken(self) -> bool:
        """Return whether a sequence holds anything beside its growing KV."""
        return self.state_tokens + self.window_share > 0

    def tokens(self, stored_tokens: float, *, chunk_tokens: float = 0.0) -> float:
        """Return the room of a sequence that stores so many tokens in the end.

        While it computes a chunk of its prompt, a window holds that too.
        """
        window = min(stored_tokens, self.window_tokens + chunk_tokens)
        return self.state_tokens + self.window_share * window

    def blocks(self, stored_tokens: float, *, block_size: int) -> int:
        """Return that room in whole blocks."""
        return math.ceil(self.tokens(stored_tokens) / block_size)


NO_ROOM = SequenceRoom()


def sequence_room(pool: Pool) -> SequenceRoom:
    """Return what a sequence of a pool holds beside its growing KV.

    Nothing where ``kv_blocks`` are stated, which then hold every layer, and in contiguous KV.
    """
    batching = pool.continuous
    if batching.kv_blocks is not None or batching.kv_layout == "contiguous":
        return NO_ROOM
    found, share, stages = model_of(pool), pool.tensor_parallel, pool.pipeline_parallel
    grows = growing_attentions(pool)
    windows = [part for part in found.attentions() if part not in grows]
    window_bytes = sum(
        token_bytes(found, part, dtype=pool.kv_dtype, tensor_parallel=share) for part in windows
    )
    state = sequence_state_bytes(found, tensor_parallel=share, pipeline_parallel=stages)
    stage = stage_layers(found, stages) / found.num_hidden_layers
    each = pool_kv_bytes_per_token(pool)
    return SequenceRoom(
        state_tokens=state / each,
        window_tokens=max((part.window_tokens for part in windows), default=0.0),
        window_share=window_bytes * stage / each,
    )


def kv_blocks(pool: Pool) -> int:
    """Return the number of KV blocks of one replica: as stated, else what the memory leaves.

    A block holds ``block_size`` tokens of the layers whose KV grows with a sequence; what it holds
    beside is its :class:`SequenceRoom`. Of a pipeline's stages the one with the least room decides,
    as in vLLM (``v1/core/kv_cache_utils.py``).
    Raises :class:`DataError` if the model does not fit, saying by how much, and if a stated
    ``max_model_len`` exceeds the capacity, with which vLLM does not start.
    """
    batching = pool.continuous
    blocks = batching.kv_blocks if batching.kv_blocks is not None else _blocks_left(pool)
    stated = "max_model_len" in batching.model_fields_set
    if not stated:
        return blocks
    most = batching.max_model_len
    room = sequence_room(pool).blocks(most, block_size=batching.block_size)
    if most > (tokens := max(blocks - room, 0) * batching.block_size):
        raise DataError(
            f"at most the KV capacity of {tokens:,} tokens",
            field=f"pools.{pool.name}.batching.max_model_len",
            value=batching.max_model_len,
        )
    return blocks


def _blocks_left(pool: Pool) -> int:
    """Return the KV blocks that the memory of one accelerator has room for."""
    batching, use = pool.continuous, memory_use(pool)
    found = model_of(pool)
    block_bytes = pool_kv_bytes_per_token(pool) * batching.block_size
    if use.kv_bytes < block_bytes:
        short_gib = (block_bytes - use.kv_bytes) / GIB
        rule = (
            f"a model that fits into {use.usable_bytes / GIB:.1f} GiB per accelerator "
            f"({short_gib:.1f} GiB short of one KV block: weights {use.weight_bytes / GIB:.1f}, "
            f"activations {use.activation_bytes / GIB:.1f} GiB)"
        )
        raise DataError(rule, where=f"pool {pool.name}", field="model", value=found.name)
    return int(use.kv_bytes // block_bytes)


def kv_tokens(pool: Pool, sequence_tokens: float, *, chunk_tokens: float = 0.0) -> float:
    """Return the tokens that the KV of a replica holds, of sequences of such a length.

    Without windows and states it is ``kv_blocks · block_size``; ``chunk_tokens`` as in
    :meth:`SequenceRoom.tokens`.
    """
    whole = kv_blocks(pool) * pool.continuous.block_size
    room = sequence_room(pool)
    beside = room.tokens(sequence_tokens, chunk_tokens=chunk_tokens)
    return whole * sequence_tokens / (sequence_tokens + beside)
