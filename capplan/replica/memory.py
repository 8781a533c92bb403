"""What fits into a replica's memory: weights, activations, KV blocks, sequences."""

from __future__ import annotations

from capplan.catalog import BYTES, Accelerator, Model, accelerator, model
from capplan.scenario import ContinuousBatching, Pool
from capplan.schema import DataError

GIB = 2**30

NON_TORCH_BYTES = 0.06 * GIB
"""Memory of the runtime outside the allocator."""

SAMPLER_BYTES_PER_LOGIT = 36.0


def kv_blocks(pool: Pool) -> int:
    """Return the number of KV blocks of one replica: as stated, else what the memory leaves.

    Raises :class:`DataError` if the model does not fit, saying by how much.
    """
    batching = _continuous(pool)
    if batching.kv_blocks is not None:
        return batching.kv_blocks
    m, a = model_of(pool), accelerator_of(pool)
    tp = pool.tensor_parallel
    room = a.usable_bytes * batching.gpu_memory_utilization
    left = room - weight_bytes(m) / tp - activation_bytes(m, batching) - NON_TORCH_BYTES
    block = kv_bytes_per_token(m, tensor_parallel=tp) * batching.block_size
    blocks = int(left // block)
    if blocks < 1:
        raise DataError(
            f"a model that fits: {m.name} needs {-left / GIB:.1f} GiB more per accelerator",
            where=f"pool {pool.name}",
        )
    return blocks


def weight_bytes(m: Model) -> float:
    """Return the bytes of all weights."""
    return m.parameters * BYTES[m.torch_dtype]


def kv_bytes_per_token(m: Model, *, tensor_parallel: int = 1) -> float:
    """Return the KV bytes of one token on one accelerator."""
    heads = max(m.num_key_value_heads / tensor_parallel, 1)
    return 2 * m.num_hidden_layers * heads * m.head_dim * BYTES[m.torch_dtype]


def activation_bytes(m: Model, batching: ContinuousBatching) -> float:
    """Return the peak of activations that the engine's profiling run sees."""
    layer = batching.max_num_batched_tokens * (3 * m.intermediate_size + 4 * m.hidden_size) * 2.0
    sampler = batching.max_num_seqs * m.vocab_size * SAMPLER_BYTES_PER_LOGIT
    return max(layer, sampler)


def model_of(pool: Pool) -> Model:
    """Return the pool's model from the catalogue."""
    if pool.model is None:
        raise DataError("a model, to derive memory or step time", where=f"pool {pool.name}")
    return model(pool.model)


def accelerator_of(pool: Pool) -> Accelerator:
    """Return the pool's accelerator from the catalogue."""
    if pool.accelerator is None:
        raise DataError("an accelerator, to derive memory or step time", where=f"pool {pool.name}")
    return accelerator(pool.accelerator)


def _continuous(pool: Pool) -> ContinuousBatching:
    if not isinstance(pool.batching, ContinuousBatching):
        msg = f"pool {pool.name}: KV blocks are of continuous batching, got {pool.batching.kind}"
        raise ValueError(msg)
    return pool.batching
