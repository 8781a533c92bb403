"""Where the memory of each pool goes, and how many sequences it leaves room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from capplan.catalog import BYTES
from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import format_value
from capplan.replica.memory import (
    SIXTEEN_BITS,
    kv_blocks,
    memory_use,
    model_of,
    pool_kv_bytes_per_token,
)
from capplan.scenario import Scenario
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool

COMPARED = "16-bit dense models on one accelerator: KV tokens within 3 % of servers' start-up logs"
"""Range in which the formula was compared. Source: blocks that vLLM logged for Llama-2-7B on A100
and H100, Llama-3-8B on H100, Llama-3.1-8B on two cards of 24 GB, 2024-12 to 2026-06."""
OUTSIDE = "outside the compared range: a quantised model of experts had 24 % fewer KV tokens"
"""Source: vLLM 0.9 start-up log of Qwen3-235B-A22B-FP8 on four H100, 2025-07: 178,880 tokens where
the formula gives 234,832 with that server's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Memory of one accelerator of a pool, bytes, and what its replica holds, tokens."""

    pool: str
    model: str
    accelerator: str
    accelerators_per_replica: int
    usable_bytes: float
    weight_bytes: float
    activation_bytes: float
    runtime_bytes: float
    state_bytes: float
    """State of linear attention, of ``max_num_seqs`` sequences."""
    kv_bytes: float
    kv_bytes_per_token: int
    kv_tokens: int
    max_model_len: int
    max_concurrency: float
    """Sequences of ``max_model_len`` that the KV holds, as vLLM logs it at its start."""
    compared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(Displayed):
    """The memory of a scenario's pools; ``unknown`` says why that of a pool is not derived."""

    pools: tuple[PoolMemory, ...]
    unknown: Mapping[str, str]

    def table(self) -> pd.DataFrame:
        """Return one row a pool."""
        return pd.DataFrame([asdict(pool) for pool in self.pools])

    def summary(self) -> str:
        """Return how many sequences each pool holds at once, and which pools are unknown."""
        found = [
            f"A replica of `{p.pool}` holds {p.kv_tokens:,} tokens of KV: "
            f"{format_value(p.max_concurrency)} × {p.max_model_len:,} tokens at once."
            for p in self.pools
        ]
        found += [
            f"The memory of `{name}` is unknown: {why}." for name, why in self.unknown.items()
        ]
        return " ".join(found)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {"pools": [plain(asdict(p)) for p in self.pools], "unknown": dict(self.unknown)}


def memory_plan(scenario: Scenario) -> MemoryPlan:
    """Return where the memory of each pool goes.

    Raises :class:`capplan.schema.DataError` for a model that does not fit, or that an engine would
    not start with.
    """
    found = {pool.name: _pool_memory(pool) for pool in scenario.pools}
    return MemoryPlan(
        pools=tuple(own for own in found.values() if isinstance(own, PoolMemory)),
        unknown={name: why for name, why in found.items() if isinstance(why, str)},
    )


def is_compared(pool: Pool) -> bool:
    """Return whether the memory of pools of this kind was compared with real servers."""
    model = model_of(pool)
    sixteen = BYTES[pool.weight_dtype or model.served_dtype] >= SIXTEEN_BITS
    return sixteen and not model.num_experts and pool.accelerators_per_replica == 1


def _pool_memory(pool: Pool) -> PoolMemory | str:
    """Return the memory of a pool, or why it is unknown."""
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching):
        return f"its batching is {batching.kind}"
    if pool.models:
        return "it serves several models"
    if pool.accelerator is None or (pool.model is None and pool.hf_config is None):
        return "it names no model or no accelerator"
    use, tokens = memory_use(pool), kv_blocks(pool) * batching.block_size
    return PoolMemory(
        pool=pool.name,
        model=model_of(pool).name,
        accelerator=pool.accelerator,
        accelerators_per_replica=pool.accelerators_per_replica,
        usable_bytes=use.usable_bytes,
        weight_bytes=use.weight_bytes,
        activation_bytes=use.activation_bytes,
        runtime_bytes=use.runtime_bytes,
        state_bytes=use.state_bytes,
        kv_bytes=use.kv_bytes,
        kv_bytes_per_token=round(pool_kv_bytes_per_token(pool)),
        kv_tokens=tokens,
        max_model_len=batching.max_model_len,
        max_concurrency=tokens / batching.max_model_len,
        compared=COMPARED if is_compared(pool) else OUTSIDE,
    )
