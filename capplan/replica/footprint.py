"""What each of a pool's models takes of a replica: memory, KV blocks, time to load."""

from __future__ import annotations

from capplan.catalog import model
from capplan.replica.memory import GIB, memory_use, pool_kv_bytes_per_token, weight_bytes
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool, ResidentModel
from capplan.schema import DataError

FULL = 1.0 + 1e-9
"""All of a replica's memory, with what adding up shares may round."""


def pool_of_model(pool: Pool, entry: ResidentModel) -> Pool:
    """Return the pool as it would be with this model's part of each replica, and no other model.

    Raises :class:`DataError` where its KV share holds no block, or where it does not fit alone.
    """
    batching = _continuous(pool)
    law = entry.step_time or batching.step_time
    own = pool.model_copy(
        update={
            "model": entry.model or entry.name,
            "models": (),
            "weight_dtype": entry.weight_dtype or pool.weight_dtype,
            "kv_dtype": entry.kv_dtype or pool.kv_dtype,
            "batching": batching.model_copy(update={"step_time": law}),
        }
    )
    blocks = _kv_blocks(own, entry)
    if blocks < batching.beam_width:
        raise DataError(
            f"a share of the KV memory that holds {batching.beam_width} blocks "
            f"({batching.beam_width - blocks} short)",
            where=_where(pool, entry),
            field="kv_fraction",
            value=entry.kv_fraction,
        )
    kept = batching.model_copy(update={"step_time": law, "kv_blocks": blocks})
    return own.model_copy(update={"batching": kept})


def footprint_fraction(pool: Pool, entry: ResidentModel) -> float:
    """Return the share of a replica's usable memory that a resident model takes.

    With stated ``kv_blocks`` its share of them. Each model is served by a process of its own, so
    each takes the runtime's memory too.
    Raises :class:`DataError` for a model that does not fit even alone, saying by how much.
    """
    batching = _continuous(pool)
    if batching.kv_blocks is not None:
        return entry.kv_fraction
    use = memory_use(_named(pool, entry))
    kv_bytes = entry.kv_fraction * use.usable_bytes
    if (over := kv_bytes - use.kv_bytes) > 0:
        raise DataError(
            f"a model that fits, with its KV share, into {use.usable_bytes / GIB:.1f} GiB per "
            f"accelerator ({over / GIB:.1f} GiB too much: weights {use.weight_bytes / GIB:.1f}, "
            f"activations {use.activation_bytes / GIB:.1f}, KV {kv_bytes / GIB:.1f} GiB)",
            where=_where(pool, entry),
            field="kv_fraction",
            value=entry.kv_fraction,
        )
    return 1.0 + over / use.usable_bytes


def load_seconds(pool: Pool, entry: ResidentModel) -> float:
    """Return how long a model takes to load, s: as stated, else bytes ÷ bandwidth."""
    if entry.load_s is not None:
        return entry.load_s
    if pool.load_bandwidth_bytes_per_s is None:
        raise DataError(
            "load_s, or the pool's load_bandwidth_bytes_per_s to derive it",
            where=_where(pool, entry),
            field="load_s",
        )
    weights = weight_bytes(
        model(entry.model or entry.name),
        dtype=entry.weight_dtype or pool.weight_dtype,
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
    )
    return weights / pool.load_bandwidth_bytes_per_s


def _kv_blocks(own: Pool, entry: ResidentModel) -> int:
    batching = _continuous(own)
    if batching.kv_blocks is not None:
        return int(entry.kv_fraction * batching.kv_blocks + FULL - 1.0)
    usable = entry.kv_fraction * memory_use(own).usable_bytes
    return int(usable // (pool_kv_bytes_per_token(own) * batching.block_size))


def _named(pool: Pool, entry: ResidentModel) -> Pool:
    dtype = entry.weight_dtype or pool.weight_dtype
    return pool.model_copy(update={"model": entry.model or entry.name, "weight_dtype": dtype})


def _where(pool: Pool, entry: ResidentModel) -> str:
    return f"pool {pool.name}, model {entry.name}"


def _continuous(pool: Pool) -> ContinuousBatching:
    if not isinstance(pool.batching, ContinuousBatching):
        msg = f"pool {pool.name}: models are of continuous batching, got {pool.batching.kind}"
        raise ValueError(msg)
    return pool.batching
