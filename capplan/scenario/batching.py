"""How a replica batches: continuous, dynamic and static batching, and their options."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

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
    together,
)
from capplan.scenario.step_times import RooflineStep, StepTime, TimeLaw


class Speculation(Part):
    """Speculative decoding: drafted tokens that the model checks in one step.

    A drafted token is accepted with probability ``acceptance`` if all before it were, and the
    model adds one: a step makes ``(1 - a^(g+1)) / (1 - a)`` tokens of a sequence on average. The
    simulation makes exactly this mean over time. The check costs as much as ``g`` more tokens per
    sequence, the draft ``g · draft_cost_fraction`` of a plain decode step.
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
    """Places of a batch, and KV, kept for some requests, which may take other places as well.

    They are requests of ``classes``, and those of priority ``priority_at_most`` or lower (more
    urgent). A request of several reservations counts in each.
    """

    classes: tuple[ClassName, ...] = ()
    priority_at_most: int | None = None
    fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of ``max_num_seqs``, rounded down to whole sequences."""
    kv_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the KV blocks that an admission of others leaves free as well."""

    def places(self, sequences: int) -> int:
        """Return how many of the sequences are kept.

        >>> Reservation(classes=("chat",), fraction=0.29).places(100)
        29
        """
        return math.floor(round(self.fraction * sequences, 9))

    def blocks(self, kv_blocks: int) -> int:
        """Return how many of the KV blocks are kept."""
        return math.floor(round(self.kv_fraction * kv_blocks, 9))

    def _broken(self) -> Iterator[str]:
        if not self.classes and self.priority_at_most is None:
            yield "classes or priority_at_most: at least one of them"


class QueuePolicy(Part):
    """Limits of waiting in a dynamic batcher; field names are close to Triton's.

    Source: NVIDIA, "Triton Inference Server", ``model_config.proto``, ``ModelQueuePolicy``, 2025.
    """

    overdue: ClassVar = Ending("queue_timeout")

    timeout_s: PositiveSeconds | None = None
    """Wait after which a request is late, checked when a batch forms; None = never."""
    timeout_action: Literal["reject", "delay"] = "reject"
    """Reject a late request, or serve it after all others of its level."""
    max_queue_size: Count | None = None
    """Most waiting requests of a level; None = no limit."""


class LevelPolicy(QueuePolicy):
    """The policy of one priority level."""

    level: Count


class ContiguousKv(Part):
    """KV in one piece per sequence, reserved at admission, first fit.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", SOSP 2023, sections 3.1 and 6.1 (Orca "Max", "Pow2", "Oracle").
    """

    reserve: Literal["max", "pow2", "oracle"] = "max"
    """Size of the piece: ``max_model_len``; the prompt and the output rounded up to a power of two;
    or exactly prompt and output."""
    compaction: bool = False
    """Move all sequences together when the free space is enough but no hole is."""
    copy_s_per_token: Seconds | None = None
    """Time to move the KV of a token; None = its bytes read and written at the memory bandwidth."""


class ContinuousBatching(Part):
    """Iteration-level batching with paged KV, as in vLLM V1 (field names are its flags').

    ``max_num_batched_tokens`` is the token budget of a step, ``max_num_seqs`` the most sequences
    at once; without them a pool takes those of its accelerator (``Pool.assumed_settings``).
    ``kv_blocks`` None derives the number from the accelerator's memory.
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
    """Length of a sequence for whose mean token ``kv_blocks`` are derived, windows included. None =
    each sequence holds its own windows."""
    disable_hybrid_kv_cache_manager: bool = False
    """Keep the KV of the whole sequence in layers with a sliding window too, as engines without a
    hybrid block manager do (vLLM before 0.9.1, and for the chunks of Llama 4)."""
    max_model_len: Count = 8192
    prefix_caching: bool = False
    """Reuse the KV of known prefixes (``enable_prefix_caching``): by the trace's ``prefix_blocks``,
    else the ``cached_fraction`` of the class."""
    long_prefill_token_threshold: CountOrZero = 0
    """Most tokens of one prompt in a step; 0 = no limit."""
    max_num_partial_prefills: Count | None = None
    """Most prompts spread over several steps at once; None = no limit, as in V1. One more waits,
    and so do all behind it."""
    max_long_partial_prefills: Count | None = None
    """Most of these with more than ``long_prefill_token_threshold`` tokens left; None = no limit.
    Shorter prompts overtake one more, as in V0."""
    watermark: Annotated[Fraction, Field(lt=1)] = 0.0
    """Share of the KV blocks that an admission leaves free, unless the replica is idle."""
    speculation: Speculation | None = None
    beam_width: Count = 1
    """Sequences per answer; each takes a place of ``max_num_seqs`` and KV, prompt included."""
    beam_shares_prompt: bool = False
    """Store the full blocks of the prompt once for all beams. Source: Kwon et al., "Efficient
    Memory Management … with PagedAttention", SOSP 2023, section 4.4."""
    async_scheduling: bool = False
    """Form each step while the one before it runs (``--async-scheduling``): a new request waits one
    step more, and a step takes the longer of the host's work (``overhead_s``, ``per_sequence_s``
    of the step time) and the accelerator's."""
    stream_interval: Count = 1
    """Tokens per chunk of a streamed answer; the first token is sent alone."""
    cancel_frees: bool = True
    """End a request with the step if its caller has left; False = serve it to its end."""
    reserved: tuple[Reservation, ...] = ()
    """Places kept for some classes or priorities."""
    priority_preemption: bool = False
    """With ``order: priority``, preempt running requests of lower priority (and compute them again)
    for a waiting one without a place or blocks, as vLLM's V0. False = preempt only for blocks
    that a running request needs, as V1."""
    poison: Literal["alone", "batch"] = "alone"
    """What fails with a poisoned request: the request alone, or all requests of the step."""
    kv_layout: Literal["paged", "contiguous"] = "paged"
    contiguous: ContiguousKv = ContiguousKv()
    """Options of ``kv_layout: contiguous``, which holds ``kv_blocks · block_size`` tokens."""
    scheduler: Queue = Queue()
    step_time: StepTime = RooflineStep()

    def _broken(self) -> Iterator[str]:
        yield from together(self._clashes())
        yield from self._budget_holds_a_prompt()

    def _clashes(self) -> Iterator[str]:
        tokens, block, seqs = self.max_num_batched_tokens, self.block_size, self.max_num_seqs
        order, ageing = self.scheduler.order, self.scheduler.ageing_per_s
        if tokens < block:
            yield (
                f"max_num_batched_tokens {tokens} fills no block of block_size {block}: "
                f"{block - tokens} short"
            )
        yield from self._beam_clashes()
        if self.max_long_partial_prefills is not None and not self.long_prefill_token_threshold:
            yield "max_long_partial_prefills needs a long_prefill_token_threshold above 0"
        kept, held = (
            sum(getattr(r, f) for r in self.reserved) for f in ("fraction", "kv_fraction")
        )
        if max(kept, held) >= 1:
            yield (
                "reserved: fractions that sum to less than 1, got fraction "
                f"{kept:.6g}, kv_fraction {held:.6g}"
            )
        for fraction in [r.fraction for r in self.reserved if not r.places(seqs)]:
            yield f"reserved: at least one of max_num_seqs {seqs}, got fraction {fraction:.6g}"
        if self.priority_preemption and (order != "priority" or ageing > 0):
            yield (
                f"priority_preemption needs scheduler.order priority without ageing, got {order}, "
                f"ageing_per_s {ageing:.6g}"
            )
        if self.kv_layout == "contiguous":
            for name in ("prefix_caching", "watermark", "beam_shares_prompt"):
                if getattr(self, name):
                    yield f"{name} is of kv_layout paged, got contiguous"

    def _beam_clashes(self) -> Iterator[str]:
        beams, seqs = self.beam_width, self.max_num_seqs
        if beams > seqs:
            yield f"beam_width {beams} needs as many max_num_seqs, {seqs} is {beams - seqs} short"
        if self.beam_shares_prompt and beams == 1:
            yield "beam_shares_prompt needs a beam_width above 1"
        if beams > 1 and self.speculation is not None:
            yield "beam_width above 1 and speculation exclude each other"
        if beams > 1 and self.prefix_caching:
            yield "beam_width above 1 and prefix_caching exclude each other"
        if self.kv_blocks is not None and self.kv_blocks < beams:
            yield f"beam_width {beams} needs as many kv_blocks, got {self.kv_blocks}"

    def _budget_holds_a_prompt(self) -> Iterator[str]:
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            yield (
                "without chunked_prefill, max_num_batched_tokens must be at least max_model_len "
                f"({self.max_model_len}): {self.max_num_batched_tokens} is "
                f"{self.max_model_len - self.max_num_batched_tokens} short"
            )


class ServiceLaw(TimeLaw):
    """Service time of one batch: base_s + per_item_s · items + per_size_s · sum of sizes, s."""

    base_s: PositiveSeconds
    per_item_s: NonNegative = 0.0
    per_size_s: NonNegative = 0.0
    exponential: bool = False
    """Draw each batch's time from an exponential law with this mean, for queueing checks."""


class DynamicBatching(Part):
    """Batching by size and window, as in Triton.

    A batch starts when the replica is free and either ``max_batch_size`` requests wait or the
    oldest has waited ``max_queue_delay_s``. The size of a request is its ``size``, else its prompt
    tokens. Source: NVIDIA, "Triton Inference Server User Guide", section "Dynamic Batcher".
    """

    kind: Literal["dynamic"] = "dynamic"
    max_batch_size: Count = 8
    preferred_batch_sizes: tuple[Count, ...] = ()
    """Sizes that start at once, the largest that can be filled first; empty = only the maximum."""
    max_queue_delay_s: Seconds = 0.0
    priority_levels: CountOrZero = 0
    """Levels of priority, 1 first; 0 = one queue in the scheduler's order."""
    default_priority_level: Count = 1
    """Level of requests with a priority outside 1 … ``priority_levels``."""
    queue_policy: QueuePolicy = QueuePolicy()
    """Limits of each level, beside those of the ``scheduler`` queue over all levels."""
    level_policies: tuple[LevelPolicy, ...] = ()
    """Policies of single levels, in place of ``queue_policy``."""
    cancel_frees: bool = True
    """Drop a waiting request if its caller has left; False = serve it. A running batch goes on."""
    poison: Literal["alone", "batch"] = "alone"
    """What fails with a poisoned request: the request alone, or the whole batch."""
    scheduler: Queue = Queue()
    service: ServiceLaw

    def _broken(self) -> Iterator[str]:
        yield from together(self._clashes())

    def _clashes(self) -> Iterator[str]:
        most, levels = self.max_batch_size, max(self.priority_levels, 1)
        stated = [policy.level for policy in self.level_policies]
        for size in [size for size in self.preferred_batch_sizes if size > most]:
            yield f"preferred_batch_sizes: at most max_batch_size {most}, got {size}"
        for level in [level for level in stated if level > levels]:
            yield f"level_policies: at most priority_levels {levels}, got {level}"
        if (level := self.default_priority_level) > levels:
            yield f"default_priority_level: at most priority_levels {levels}, got {level}"
        if len(set(stated)) < len(stated):
            yield "level_policies: one per level"

    @property
    def has_levels(self) -> bool:
        """Return whether requests wait in levels or under a policy."""
        policies = self.queue_policy != QueuePolicy() or self.level_policies
        return bool(self.priority_levels or policies)


class StaticBatching(Part):
    """Batches of whole requests, padded to the longest: a baseline for continuous batching.

    A batch starts as a dynamic one does and ends with its longest answer; all answers are sent
    then, whole. Source: Yu et al., "Orca", OSDI 2022, section 3.1.
    """

    kind: Literal["static"] = "static"
    max_batch_size: Count = 8
    max_queue_delay_s: Seconds = 0.0
    max_model_len: Count = 8192
    """Longest prompt and answer; a known memory must hold ``max_batch_size`` of them."""
    gpu_memory_utilization: Annotated[Fraction, Field(gt=0)] = 0.9
    cancel_frees: bool = True
    """See dynamic batching."""
    poison: Literal["alone", "batch"] = "alone"
    """See dynamic batching."""
    scheduler: Queue = Queue()
    step_time: StepTime = RooflineStep()

    @property
    def as_dynamic(self) -> DynamicBatching:
        """Return the dynamic batching that forms the same batches."""
        return DynamicBatching(
            max_batch_size=self.max_batch_size,
            max_queue_delay_s=self.max_queue_delay_s,
            scheduler=self.scheduler,
            service=ServiceLaw(base_s=1.0),
        )

    @property
    def as_continuous(self) -> ContinuousBatching:
        """Return the continuous batching with the same memory and step time."""
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
