"""Where the memory of each pool goes, and how many sequences it leaves room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from capplan.catalog import BYTES
from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import format_value, in_words
from capplan.replica.kv_capacity import kv_tokens, sequence_room
from capplan.replica.memory import (
    SIXTEEN_BITS,
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


BESIDE = ("window_bytes_per_sequence", "state_bytes_per_sequence")


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
    kv_bytes: float
    kv_bytes_per_token: int
    """Of the layers whose KV grows with a sequence to its end."""
    window_bytes_per_sequence: int
    """KV inside the windows of a sequence of ``max_model_len``."""
    state_bytes_per_sequence: int
    """Of linear attention."""
    kv_tokens: int
    """Of sequences of ``max_model_len``, as vLLM logs it at its start: each with its state, and
    with its windows and the tokens of a step in them (``v1/kv_cache_interface.py``, 2025)."""
    max_model_len: int
    max_concurrency: float
    """Sequences of ``max_model_len`` that the KV holds, likewise."""
    compared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(Displayed):
    """The memory of a scenario's pools; ``unknown`` says why that of a pool is not derived."""

    pools: tuple[PoolMemory, ...]
    unknown: Mapping[str, str]

    def table(self) -> pd.DataFrame:
        """Return quantity and, for each pool, its figure with its unit, as texts.

        Windows and states have no row where no model has any.
        """
        figures = {pool.pool: asdict(pool) for pool in self.pools}
        shown = [
            name
            for name in PoolMemory.__dataclass_fields__
            if name != "pool"
            and not (name in BESIDE and not any(values[name] for values in figures.values()))
        ]
        columns = {pool: [_as_text(name, values[name]) for name in shown]
                   for pool, values in figures.items()}  # fmt: skip
        return pd.DataFrame({"quantity": [_in_words(name) for name in shown], **columns})

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


def _in_words(name: str) -> str:
    return in_words(name.removesuffix("_bytes"))


def _as_text(name: str, value: Any) -> str:
    return format_value(value, "_bytes" if name.endswith("_bytes") else "")


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
    kinds = model.num_experts or model.sliding_layers or model.linear_layers
    return sixteen and not kinds and pool.accelerators_per_replica == 1


def _pool_memory(pool: Pool) -> PoolMemory | str:
    """Return the memory of a pool, or why it is unknown."""
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching):
        return f"its batching is {batching.kind}"
    if pool.models:
        return "it serves several models"
    if pool.accelerator is None or (pool.model is None and pool.hf_config is None):
        return "it names no model or no accelerator"
    longest, each = batching.max_model_len, pool_kv_bytes_per_token(pool)
    use, room = memory_use(pool), sequence_room(pool)
    tokens = kv_tokens(pool, longest, chunk_tokens=batching.max_num_batched_tokens - 1)
    return PoolMemory(
        pool=pool.name,
        model=model_of(pool).name,
        accelerator=pool.accelerator,
        accelerators_per_replica=pool.accelerators_per_replica,
        usable_bytes=use.usable_bytes,
        weight_bytes=use.weight_bytes,
        activation_bytes=use.activation_bytes,
        runtime_bytes=use.runtime_bytes,
        kv_bytes=use.kv_bytes,
        kv_bytes_per_token=round(each),
        window_bytes_per_sequence=round((room.tokens(longest) - room.state_tokens) * each),
        state_bytes_per_sequence=round(room.state_tokens * each),
        kv_tokens=int(tokens),
        max_model_len=longest,
        max_concurrency=tokens / longest,
        compared=COMPARED if is_compared(pool) else OUTSIDE,
    )
