"""How a replica batches: continuous, dynamic and static batching, and their options."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from capplan.scenario.ending import Ending
from capplan.scenario.layers import Queue
from capplan.scenario.part import (
    ClassName,
    Count,
    CountOrZero,
    Fraction,
    NonNegative,
    Part,
    PositiveSeconds,
    Seconds,
)
from capplan.scenario.step_times import RooflineStep, StepTime


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
    draft_cost_fraction: NonNegative = 0.0
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

    classes: tuple[ClassName, ...] = ()
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

    overdue: ClassVar = Ending("queue_timeout")

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


class ContinuousBatching(Part):
    """Iteration-level batching with paged KV, as in vLLM V1 (field names are its flags').

    ``max_num_batched_tokens`` is the token budget of a step, ``max_num_seqs`` the most sequences
    at once. ``kv_blocks`` None derives the number from the accelerator's memory.
    """

    too_long: ClassVar = Ending("max_model_len", 400, final=True)
    too_large: ClassVar = Ending("kv_capacity", 400, final=True)

    kind: Literal["continuous"] = "continuous"
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 2048
    chunked_prefill: bool = True
    block_size: Count = 16
    kv_blocks: Count | None = None
    gpu_memory_utilization: Annotated[Fraction, Field(gt=0)] = 0.9
    hybrid_kv_context_tokens: Count | None = None
    """Length of a sequence for which layers with a sliding window count with their window where
    ``kv_blocks`` are derived, as vLLM's hybrid KV cache manager keeps them (since 0.9.1, unless
    ``--disable-hybrid-kv-cache-manager``); shorter sequences then count for too little. None =
    every layer counts in full."""
    max_model_len: Count = 8192
    prefix_caching: bool = False
    """Find the KV of known prefixes again (``enable_prefix_caching``): by the trace's
    ``prefix_blocks``, or where it has none, the ``cached_fraction`` of the request's class."""
    long_prefill_token_threshold: CountOrZero = 0
    """Most tokens that one prompt gets in a step, so that others go on beside it; 0 = no limit."""
    max_num_partial_prefills: Count | None = None
    """Most prompts in progress over several steps at once; None = no limit, as in V1. A prompt
    that would be one more waits, and all behind it."""
    max_long_partial_prefills: Count | None = None
    """Most of these with more than ``long_prefill_token_threshold`` tokens to go; None = no
    limit. A long prompt that would be one more is passed by shorter ones, as in V0."""
    watermark: Annotated[Fraction, Field(lt=1)] = 0.0
    """Share of the KV blocks that an admission leaves free, unless nothing else runs."""
    speculation: Speculation | None = None
    beam_width: Count = 1
    """Sequences that decode one answer: each takes a place of ``max_num_seqs`` and KV of its own,
    prompt included; the prompt is computed once."""
    beam_shares_prompt: bool = False
    """Keep the full blocks of the prompt once for all its beams. Source: Kwon et al., "Efficient
    Memory Management … with PagedAttention", SOSP 2023, section 4.4."""
    async_scheduling: bool = False
    """Form each step while the one before it runs (``--async-scheduling``): a request that arrives
    meanwhile waits for one step more, and the host's work (``overhead_s`` and ``per_sequence_s`` of
    the step time) is hidden behind the accelerator's: a step takes the longer of the two."""
    stream_interval: Count = 1
    """Tokens per chunk of a streamed answer, after the first token, which goes at once."""
    cancel_frees: bool = True
    """A request whose caller has left ends with the step; False = it is served to its end."""
    reserved: tuple[Reservation, ...] = ()
    """Places that some classes or priorities find free, beside those they share with all."""
    priority_preemption: bool = False
    """With ``order: priority``, preempt running requests of lower priority (to be computed again)
    for a waiting one that finds no place or no blocks. vLLM's V0 did so; V1 preempts only for
    blocks that a running request needs, as happens here without it."""
    poison: Literal["alone", "batch"] = "alone"
    """Who fails when a step meets a poisoned request: it alone, or all that the step holds."""
    kv_layout: Literal["paged", "contiguous"] = "paged"
    contiguous: ContiguousKv = ContiguousKv()
    """How KV is laid out with ``kv_layout: contiguous``; ``kv_blocks · block_size`` tokens."""
    scheduler: Queue = Queue()
    step_time: StepTime = RooflineStep()

    @model_validator(mode="after")
    def _parts_agree(self) -> ContinuousBatching:
        paged_only = {
            "prefix_caching": self.prefix_caching,
            "watermark": self.watermark > 0,
            "beam_shares_prompt": self.beam_shares_prompt,
        }
        clashes = [
            (
                self.max_num_batched_tokens < self.block_size,
                f"max_num_batched_tokens {self.max_num_batched_tokens} fills no block of "
                f"block_size {self.block_size}: {self.block_size - self.max_num_batched_tokens} "
                "short",
            ),
            (
                self.beam_width > self.max_num_seqs,
                f"beam_width {self.beam_width} needs as many max_num_seqs, {self.max_num_seqs} is "
                f"{self.beam_width - self.max_num_seqs} short",
            ),
            (
                self.beam_shares_prompt and self.beam_width == 1,
                "beam_shares_prompt needs a beam_width above 1",
            ),
            (
                self.beam_width > 1 and self.speculation is not None,
                "beam_width above 1 and speculation exclude each other",
            ),
            (
                self.beam_width > 1 and self.prefix_caching,
                "beam_width above 1 and prefix_caching exclude each other",
            ),
            (
                self.max_long_partial_prefills is not None
                and not self.long_prefill_token_threshold,
                "max_long_partial_prefills needs a long_prefill_token_threshold above 0",
            ),
            (
                max(
                    kept := sum(r.fraction for r in self.reserved),
                    held := sum(r.kv_fraction for r in self.reserved),
                )
                >= 1,
                "reserved: less than 1 in all, so that others find a place, got fraction "
                f"{kept:.6g}, kv_fraction {held:.6g}",
            ),
            *(
                (
                    not reserved.places(self.max_num_seqs),
                    f"reserved: at least one of max_num_seqs {self.max_num_seqs}, got fraction "
                    f"{reserved.fraction:.6g}",
                )
                for reserved in self.reserved
            ),
            (
                self.priority_preemption
                and (self.scheduler.order != "priority" or self.scheduler.ageing_per_s > 0),
                "priority_preemption needs scheduler.order priority without ageing, got "
                f"{self.scheduler.order}, ageing_per_s {self.scheduler.ageing_per_s:.6g}",
            ),
            (
                self.kv_blocks is not None and self.kv_blocks < self.beam_width,
                f"beam_width {self.beam_width} needs as many kv_blocks, got {self.kv_blocks}",
            ),
        ]
        if self.kv_layout == "contiguous":
            clashes += [
                (wrong, f"{name} is of kv_layout paged, got contiguous")
                for name, wrong in paged_only.items()
            ]
        if told := "; ".join(text for wrong, text in clashes if wrong):
            raise ValueError(told)
        return self

    @model_validator(mode="after")
    def _budget_holds_a_prompt(self) -> ContinuousBatching:
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            msg = (
                "without chunked_prefill, max_num_batched_tokens must be at least max_model_len "
                f"({self.max_model_len}): {self.max_num_batched_tokens} is "
                f"{self.max_model_len - self.max_num_batched_tokens} short"
            )
            raise ValueError(msg)
        return self


class ServiceLaw(Part):
    """Service time of one batch: base_s + per_item_s · items + per_size_s · sum of sizes, s."""

    base_s: PositiveSeconds
    per_item_s: NonNegative = 0.0
    per_size_s: NonNegative = 0.0
    exponential: bool = False
    """Draw each batch's time from an exponential law with this mean (for queueing checks)."""


class DynamicBatching(Part):
    """Server-side batching by size and window, as in Triton.

    A batch starts as soon as the replica is free and either ``max_batch_size`` requests wait or
    the oldest has waited ``max_queue_delay_s``. The size of a request is its ``size``, else its
    prompt tokens. Source: NVIDIA, "Triton Inference Server User Guide", section "Dynamic Batcher".
    """

    kind: Literal["dynamic"] = "dynamic"
    max_batch_size: Count = 8
    preferred_batch_sizes: tuple[Count, ...] = ()
    """Sizes that are served at once, the largest that can be filled first; empty = only
    ``max_batch_size``."""
    max_queue_delay_s: Seconds = 0.0
    priority_levels: CountOrZero = 0
    """Levels of priority, 1 first; 0 = one line, in the scheduler's order."""
    default_priority_level: Count = 1
    """Level of requests whose priority is none of 1 … ``priority_levels``."""
    queue_policy: QueuePolicy = QueuePolicy()
    """Limits of each level; the ``scheduler`` queue's hold over all levels."""
    level_policies: tuple[LevelPolicy, ...] = ()
    """Levels with a policy of their own."""
    cancel_frees: bool = True
    """A waiting request whose caller has left is taken out; False = it is served all the same. A
    batch that runs goes on with it in either case."""
    poison: Literal["alone", "batch"] = "alone"
    """Who fails when a batch meets a poisoned request: it alone, or the whole batch."""
    scheduler: Queue = Queue()
    service: ServiceLaw

    @model_validator(mode="after")
    def _sizes_and_levels_exist(self) -> DynamicBatching:
        most, levels = self.max_batch_size, max(self.priority_levels, 1)
        stated = [policy.level for policy in self.level_policies]
        clashes = [
            (size > most, f"preferred_batch_sizes: at most max_batch_size {most}, got {size}")
            for size in self.preferred_batch_sizes
        ]
        clashes += [
            (level > levels, f"level_policies: at most priority_levels {levels}, got {level}")
            for level in stated
        ]
        clashes += [
            (
                self.default_priority_level > levels,
                f"default_priority_level: at most priority_levels {levels}, got "
                f"{self.default_priority_level}",
            ),
            (len(set(stated)) < len(stated), "level_policies: one per level"),
        ]
        if told := "; ".join(text for wrong, text in clashes if wrong):
            raise ValueError(told)
        return self

    @property
    def has_levels(self) -> bool:
        """Return whether requests wait in levels, or with a policy of their own."""
        policies = self.queue_policy != QueuePolicy() or self.level_policies
        return bool(self.priority_levels or policies)


class StaticBatching(Part):
    """Batches of whole requests, padded to the longest, for comparison with continuous batching.

    A batch starts as dynamic batches do; it ends when its longest answer does, and all its answers
    go back then, in one piece. Source: Yu et al., "Orca", OSDI 2022, section 3.1.
    """

    kind: Literal["static"] = "static"
    max_batch_size: Count = 8
    max_queue_delay_s: Seconds = 0.0
    max_model_len: Count = 8192
    """Longest prompt and answer; where the memory is known, it must hold ``max_batch_size``."""
    gpu_memory_utilization: Annotated[Fraction, Field(gt=0)] = 0.9
    cancel_frees: bool = True
    """As in dynamic batching."""
    poison: Literal["alone", "batch"] = "alone"
    """As in dynamic batching."""
    scheduler: Queue = Queue()
    step_time: StepTime = RooflineStep()

    @property
    def as_dynamic(self) -> DynamicBatching:
        """Return how its batches are formed."""
        return DynamicBatching(
            max_batch_size=self.max_batch_size,
            max_queue_delay_s=self.max_queue_delay_s,
            scheduler=self.scheduler,
            service=ServiceLaw(base_s=1.0),
        )

    @property
    def as_continuous(self) -> ContinuousBatching:
        """Return the batching that takes the same memory and steps of the same time."""
        return ContinuousBatching(
            max_num_seqs=self.max_batch_size,
            max_num_batched_tokens=self.max_model_len,
            max_model_len=self.max_model_len,
            gpu_memory_utilization=self.gpu_memory_utilization,
            step_time=self.step_time,
        )


Batching = Annotated[
    ContinuousBatching | DynamicBatching | StaticBatching, Field(discriminator="kind")
]
