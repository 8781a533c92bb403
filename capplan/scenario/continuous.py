"""Continuous batching: the plain scheduler, and what an engine has beyond it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.batching import ContiguousKv, Reservation, Speculation
from capplan.scenario.layers import Queue
from capplan.scenario.part import Count, Fraction, Part
from capplan.scenario.steptimes import RooflineStep, StepTime


class ContinuousBatching(Part):
    """Iteration-level batching with paged KV, as in vLLM V1 (field names are its flags').

    ``max_num_batched_tokens`` is the token budget of a step, ``max_num_seqs`` the most sequences
    at once. ``kv_blocks`` None derives the number from the accelerator's memory.
    """

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
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = 0
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
