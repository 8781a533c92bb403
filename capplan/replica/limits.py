"""Limits of a replica's batches that are tighter than configured, while a breaker holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capplan.scenario.batching import ContinuousBatching


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a batch may hold at most; inf = as configured.

    >>> (Limits(sequences=8) & Limits(sequences=4, tokens=512)).sequences
    4
    """

    sequences: float = math.inf
    """Sequences of a step, or requests of a dynamic batch; 0 = nobody is admitted."""
    tokens: float = math.inf
    """Tokens of a step of continuous batching."""
    window_s: float = math.inf
    """How long a dynamic batch waits to fill, s."""

    def __and__(self, other: Limits) -> Limits:
        """Return the tighter of each."""
        return Limits(
            sequences=min(self.sequences, other.sequences),
            tokens=min(self.tokens, other.tokens),
            window_s=min(self.window_s, other.window_s),
        )

    def of_continuous(self, batching: ContinuousBatching) -> tuple[int, int]:
        """Return the sequences and the tokens of a step, within what is configured."""
        sequences = min(self.sequences, batching.max_num_seqs)
        return int(sequences), int(min(self.tokens, batching.max_num_batched_tokens))


NO_LIMITS = Limits()
"""As configured."""
