"""A request as a replica sees it: its lengths, and the moments the replica writes on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Job:
    """One request inside a replica: its lengths, and what has happened to it so far.

    The moments are NaN until they come. ``prefilled_tokens`` counts every prompt token computed,
    also those computed again after a preemption; ``generated_tokens`` the output tokens made.
    (Not keyword-only: Python fills in the defaults of so many keywords slowly.)
    """

    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    size: float = math.nan
    prefix_blocks: Sequence[int] = ()
    """Ids of the prompt's prefix blocks, from the trace."""
    prefix_block_tokens: int = 0
    cached_fraction: float = 0.0
    """Share of the prompt that a prefix cache finds for a job without ids."""

    scheduler_queue_in_s: float = math.nan
    batch_in_s: float = math.nan
    batch_window_s: float = math.nan
    prefill_end_s: float = math.nan
    decode_end_s: float = math.nan
    batch_id: float = math.nan
    batch_size: float = math.nan

    prefilled_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""

    known_tokens: int = 0
    """Tokens to prefill: the prompt, and after a preemption what was generated too."""
    computed_tokens: int = 0
    """Tokens of this prefill whose KV exists."""
    kv_tokens: int = 0
    """Tokens that its KV blocks have room for, while it prefills."""
    finish_step: int = 0
    """Tick (token of every decoding sequence) that makes the last token; 0 = not decoding."""
    phase: int = 0
    """Ticks (modulo the block size) at which decoding needs a new KV block."""
    admission: int = 0
    """Order of admission into the running batch."""
    block_names: Any = None
    """What ``prefix_cache.block_names`` returns, once a prefix cache has asked for it."""
    streams: bool = True
    """Whether its replica can send tokens before the last."""
    stream_interval: int = 1
    """Tokens per chunk of its answer, after the first."""
    beam_width: int = 1
    """Sequences that decode its answer."""
    greedy: bool = False
    """Decode one sequence, however wide the beams of its replica are."""

    @property
    def tenant(self) -> str:
        """Return the tenant of its request; "" if unknown."""
        return ""

    @property
    def request_class(self) -> str:
        """Return the class of its request; "" if unknown."""
        return ""

    @property
    def leaves_s(self) -> float:
        """Return when its caller leaves, s; inf without a deadline."""
        return math.inf

    @property
    def spent_tokens(self) -> int:
        """Return how many tokens the replica has computed for this job."""
        return self.prefilled_tokens + self.generated_tokens * self.beam_width

    @property
    def batch_items(self) -> float:
        """Return the size that a service law sees: ``size``, else the prompt tokens."""
        return float(self.prompt_tokens) if math.isnan(self.size) else self.size
