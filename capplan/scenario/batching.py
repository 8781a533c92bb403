"""Parts of a pool's batching that are switched on as a whole: speculation, contiguous KV."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.part import Count, Fraction, Name, Part, PositiveSeconds, Seconds


class Speculation(Part):
    """Speculative decoding: a draft of some tokens per step, checked by the model at once.

    Each drafted token is accepted with probability ``acceptance`` as long as all before it were,
    and the model adds one, so a step makes on average ``(1 - a^(g+1)) / (1 - a)`` tokens of each
    decoding sequence. The simulation makes exactly this mean, rounded down over all steps so far:
    the draw of every step is averaged away, the rate is kept. The check costs what ``g`` more
    tokens per sequence cost, the draft ``g · draft_cost_fraction`` of a plain decode step.
    Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative
    Decoding", ICML 2023, equation 1 and theorem 3.8.
    """

    num_speculative_tokens: Count
    acceptance: Fraction
    draft_cost_fraction: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Time of one run of the draft model, as a share of one decode step of the model."""

    @property
    def tokens_per_step(self) -> float:
        """Return the expected tokens that one step makes of one sequence.

        >>> Speculation(num_speculative_tokens=4, acceptance=0.5).tokens_per_step
        1.9375
        >>> Speculation(num_speculative_tokens=4, acceptance=1.0).tokens_per_step
        5.0
        """
        return sum(self.acceptance**k for k in range(self.num_speculative_tokens + 1))


class Reservation(Part):
    """Places of a batch, and KV, that only some requests may take; they may take others as well.

    It holds for requests of ``classes`` and for those of ``priority_at_most`` or lower, which are
    served first. A request of several reservations counts in each.
    """

    classes: tuple[Name, ...] = ()
    priority_at_most: int | None = None
    fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of ``max_num_seqs``, rounded down to whole sequences."""
    kv_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the KV blocks that an admission of others leaves free as well."""

    def places(self, sequences: int) -> int:
        """Return how many of so many sequences are kept.

        >>> Reservation(classes=("chat",), fraction=0.29).places(100)
        29
        """
        return math.floor(round(self.fraction * sequences, 9))

    def blocks(self, kv_blocks: int) -> int:
        """Return how many of so many KV blocks are kept."""
        return math.floor(round(self.kv_fraction * kv_blocks, 9))

    @model_validator(mode="after")
    def _for_somebody(self) -> Reservation:
        if not self.classes and self.priority_at_most is None:
            msg = "classes or priority_at_most: at least one, or the places are nobody's"
            raise ValueError(msg)
        return self


class QueuePolicy(Part):
    """What a dynamic batcher does with those who wait; field names near Triton's.

    Source: NVIDIA, "Triton Inference Server", ``model_config.proto``, ``ModelQueuePolicy``, 2025.
    """

    timeout_s: PositiveSeconds | None = None
    """How long a request is in time, looked at whenever a batch is formed; None = always."""
    timeout_action: Literal["reject", "delay"] = "reject"
    """Reject it, or serve it after all of its level that are in time."""
    max_queue_size: Count | None = None
    """Most requests that wait in a level; None = no limit."""


class LevelPolicy(QueuePolicy):
    """The policy of one priority level."""

    level: Count


class ContiguousKv(Part):
    """KV in one piece per sequence, reserved at admission, first fit in the address space.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", SOSP 2023, sections 3.1 and 6.1 (Orca "Max", "Pow2", "Oracle").
    """

    reserve: Literal["max", "pow2", "oracle"] = "max"
    """How much: ``max_model_len``; the prompt and the output rounded up to a power of two; or
    exactly prompt and output, as if the engine knew the length of the answer."""
    compaction: bool = False
    """Move all sequences together when the free space would do but no hole does."""
    copy_s_per_token: Seconds | None = None
    """Time to move one token's KV; None = its bytes read and written at the accelerator's
    memory bandwidth."""
