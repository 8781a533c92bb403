"""Step time from the accelerator's and the model's own numbers.

A step runs kernel after kernel, so its time is a sum over kinds of kernels, each bound by what it
computes or by what it moves, whichever takes longer:

- matrix products: ``2 · parameters touched · tokens`` FLOP, or the bytes of the weights. The
  output head runs for decoded tokens only. In a model of experts a token computes with its
  experts, and the step reads every expert that any of its tokens chose;
- attention of the prefill: FLOP per pair of a token and a token before it;
- attention of the decode: KV bytes, or FLOP, per token of context;
- element-wise kernels (norms, rotation, activation, writing KV): bytes per token;
- two all-reduces a layer under tensor parallelism: latency, and bytes per token over the link;
- what the accelerator idles: per step and per sequence.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; Yuan et al., "LLM Inference
Unveiled: Survey and Roofline Model Insights", 2024.

Efficiencies: 0.8 of the memory bandwidth is aiconfigurator-core 0.12's own correction
(``systems/*.yaml``, ``mem_bw_empirical_scaling_factor``). The other shares and the overheads are
fitted by eye to that package's measured kernels of Llama-3.1-8B on H100 (decode of 32 × 1,024
tokens 8.32 ms, prefill of 2,048 tokens 43.5 ms), nothing else.

Checked on what it was not fitted to, replaying measured vLLM servers with their prefix cache
(``data/validation``): E2E within 7 % and TPOT within 7 % of four loads of Llama-2-7B on H100, 11 %
and 9 % of an overloaded Llama-3.1-8B on RTX 4090.

Trust it within about 20 % for dense models at 16 bits, batches from 1 to 128 and prompts from 512
tokens, within 40 % elsewhere: prompts below 512 tokens come out up to 35 % too fast, so do a single
sequence and a prefill in a model of experts, and decode on A100 up to 25 %. It knows no kernel that
misses its efficiency (small products near the ridge, other attention backends, skewed experts), no
pipeline stages and no contention of host and accelerator: TTFT comes out too low by what HTTP, host
and tokenizer take (about 7 ms on the measured H100). Calibrate it for decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

from capplan.catalog import (
    BYTES,
    Accelerator,
    Model,
    attention_parameters,
    expert_parameters,
)
from capplan.replica.memory import accelerator_of, kv_bytes_per_token, model_of
from capplan.scenario import ContinuousBatching, Pool, RooflineStep
from capplan.schema import DataError

PREFILL_ATTENTION_EFFICIENCY = 0.6
"""Share of the peak rate in causal attention. Source: Dao, "FlashAttention-2", ICLR 2024 (50 to
73 % on A100); Shah et al., "FlashAttention-3", NeurIPS 2024 (up to 75 % on H100)."""

KV_EFFICIENCY = 0.9
"""Share of the peak bandwidth in reading KV. Source: aiconfigurator-core 0.12, vLLM: going from
32 × 1,024 to 32 × 8,192 tokens of context, a decode step of Llama-3.1-8B reads 30 GB at 0.95 of
the peak on H100, 0.88 on H200, 0.92 on B200, 0.66 on A100 and 0.75 on L40S."""

LINK_EFFICIENCY = 0.8
"""Share of the link's rate in a large all-reduce. Source: Vidur's profile of an H100 DGX
(``network/h100_dgx/all_reduce.csv``, MIT): 64 MiB over 8 accelerators in 0.35 ms is 0.84."""

ALL_REDUCE_S = 1e-5
"""Latency of one all-reduce, s. Source: aiconfigurator-core 0.12, ``p2p_latency``."""

ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineStepTime:
    """Step time as a sum of kernels, each bound by compute or memory; coefficients in s."""

    overhead_s: float
    """Per step: idle time, and the latency of its all-reduces."""
    per_sequence_s: float
    weights_s: float
    """Reading the weights that every step reads."""
    per_token_s: float
    """Matrix products of one token, without the output head."""
    head_weights_s: float
    head_per_token_s: float
    moved_per_token_s: float
    """Element-wise kernels and all-reduces of one token."""
    per_pair_s: float
    """Attention of a prefilled token to one token before it."""
    per_context_token_s: float
    """Attention of a decoded token to one token of context, in layers without a window."""
    window_tokens: float
    per_window_token_s: float
    """The same in layers with a sliding window of ``window_tokens``; 0 without such layers."""
    experts_s: float
    """Reading every expert once; 0 in a dense model."""
    untouched_fraction: float
    """Chance that one token leaves a given expert untouched."""

    def seconds(
        self,
        prefill_tokens: float,
        prefill_context_tokens: float,
        decode_sequences: float,
        decode_context_tokens: float,
    ) -> float:
        """Return the duration of a step, s; see :class:`capplan.replica.latency.StepTime`."""
        tokens = prefill_tokens + decode_sequences
        moved = self.weights_s
        if self.experts_s:
            moved += self.experts_s * (1.0 - self.untouched_fraction**tokens)
        computed = self.per_token_s * tokens
        head = self.head_per_token_s * decode_sequences
        seconds = (
            self.overhead_s
            + self.per_sequence_s * decode_sequences
            + (computed if computed > moved else moved)
            + (head if head > self.head_weights_s else self.head_weights_s)
            + self.moved_per_token_s * tokens
            + self.per_pair_s * prefill_context_tokens
            + self.per_context_token_s * decode_context_tokens
        )
        if self.per_window_token_s:
            window = self.window_tokens * decode_sequences
            seen = decode_context_tokens if decode_context_tokens < window else window
            seconds += self.per_window_token_s * seen
        return seconds


def roofline(pool: Pool) -> RooflineStepTime:
    """Return the roofline of a pool's replica.

    Raises ``ValueError`` for a pool without a roofline step time and :class:`DataError` if model or
    accelerator are unknown, or the accelerator lacks a rate that the model needs.
    """
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching) or not isinstance(
        batching.step_time, RooflineStep
    ):
        msg = f"pool {pool.name}: no roofline step time"
        raise ValueError(msg)
    return roofline_step(pool, batching.step_time)


def roofline_step(pool: Pool, law: RooflineStep | None = None) -> RooflineStepTime:
    """Return the roofline of a pool's model and accelerator, whatever its own step time is."""
    law, found, device = law or RooflineStep(), model_of(pool), accelerator_of(pool)
    share, dtype = pool.tensor_parallel, pool.weight_dtype or found.served_dtype
    flop = _rate(pool, device, dtype) * law.compute_efficiency * share
    flop16 = _rate(pool, device, "bfloat16") * share
    bandwidth = device.memory_bandwidth_bytes_per_s * law.memory_efficiency * share
    size, head = BYTES[dtype], found.vocab_size * found.hidden_size
    context_s = _context_s(pool, found, device, flop16)
    windowed = found.sliding_layers / found.num_hidden_layers
    reduce_s, latency_s = _all_reduce_s(pool, found, device)
    touched = found.num_experts_per_tok / found.num_experts if found.num_experts else 0.0
    return RooflineStepTime(
        overhead_s=law.overhead_s + latency_s,
        per_sequence_s=law.per_sequence_s,
        weights_s=(active_parameters(found) - _chosen_experts(found)) * size / bandwidth,
        per_token_s=2 * active_parameters(found) / flop,
        head_weights_s=head * max(size, ACTIVATION_BYTES) / bandwidth,
        head_per_token_s=2 * head / (flop16 * law.compute_efficiency),
        moved_per_token_s=_moved_bytes(found) / bandwidth + reduce_s,
        per_pair_s=_pair_flop(found) / (flop16 * PREFILL_ATTENTION_EFFICIENCY),
        per_context_token_s=context_s * (1 - windowed),
        window_tokens=float(found.sliding_window),
        per_window_token_s=context_s * windowed,
        experts_s=found.moe_layers
        * found.num_experts
        * expert_parameters(found)
        * size
        / bandwidth,
        untouched_fraction=1 - touched,
    )


def active_parameters(found: Model) -> int:
    """Return the parameters that one token's matrix products touch, without the output head.

    >>> from capplan.catalog import model
    >>> round(active_parameters(model("Mixtral-8x7B-v0.1")) / 1e9, 1)
    12.6
    """
    dense = found.num_hidden_layers - found.moe_layers
    return (
        found.num_hidden_layers * attention_parameters(found)
        + dense * 3 * found.hidden_size * found.intermediate_size
        + found.moe_layers * found.num_shared_experts * expert_parameters(found)
        + found.moe_layers * found.hidden_size * found.num_experts
        + _chosen_experts(found)
    )


def _chosen_experts(found: Model) -> int:
    return found.moe_layers * found.num_experts_per_tok * expert_parameters(found)


def _pair_flop(found: Model) -> float:
    """Return the FLOP of attending from one token to another, over all layers."""
    if found.kv_lora_rank:
        width = found.qk_nope_head_dim + found.qk_rope_head_dim + found.v_head_dim
    else:
        width = 2 * found.head_dim
    return 2.0 * found.num_hidden_layers * found.num_attention_heads * width


def _context_s(pool: Pool, found: Model, device: Accelerator, flop16: float) -> float:
    """Return the time of attending to one token of context in decode, over all layers, s.

    MLA attends in the compressed space, so one vector serves all heads: many FLOP for few bytes.
    Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.2.
    """
    per_token = kv_bytes_per_token(found, dtype=pool.kv_dtype, tensor_parallel=pool.tensor_parallel)
    moved_s = per_token / (device.memory_bandwidth_bytes_per_s * KV_EFFICIENCY)
    width = 2 * found.head_dim
    if found.kv_lora_rank:
        width = 2 * found.kv_lora_rank + found.qk_rope_head_dim
    flop = 2.0 * found.num_hidden_layers * found.num_attention_heads * width
    return max(moved_s, flop / (flop16 * PREFILL_ATTENTION_EFFICIENCY))


def _moved_bytes(found: Model) -> float:
    """Return the bytes that element-wise kernels move for one token, over all layers.

    Two fused additions and norms (4 hidden each), rotation (query and key, read and written), the
    gated activation (two widths read, one written), KV written and read once. Source: counted in
    vLLM's ``csrc/`` (``layernorm_kernels.cu``, ``pos_encoding_kernels.cu``,
    ``activation_kernels.cu``, ``cache_kernels.cu``), 2026.
    """
    heads, kv = found.num_attention_heads, found.num_key_value_heads
    query, key_value = heads * found.head_dim, kv * found.head_dim
    if found.kv_lora_rank:
        key_value = found.kv_lora_rank + found.qk_rope_head_dim
    dense = found.num_hidden_layers - found.moe_layers
    active = found.num_experts_per_tok + found.num_shared_experts
    gated = 3 * (
        dense * found.intermediate_size + found.moe_layers * active * found.moe_intermediate_size
    )
    per_layer = 8 * found.hidden_size + 2 * query + 6 * key_value
    return ACTIVATION_BYTES * (found.num_hidden_layers * per_layer + gated)


def _all_reduce_s(pool: Pool, found: Model, device: Accelerator) -> tuple[float, float]:
    """Return the time of a step's all-reduces: per token, and their latency, s.

    A ring moves ``2 (n - 1) / n`` of the message over each link. Source: Patarasu and Yuan,
    "Bandwidth optimal all-reduce algorithms", J. Parallel Distrib. Comput. 69, 2009.
    """
    n = pool.tensor_parallel
    if n == 1:
        return 0.0, 0.0
    link = device.interconnect_bytes_per_s * LINK_EFFICIENCY
    if not link > 0:
        raise DataError(
            "a known interconnect_bytes_per_s for tensor parallelism",
            where=f"pool {pool.name}",
            field="accelerator",
            value=device.name,
        )
    message = found.hidden_size * ACTIVATION_BYTES
    times = 2 * found.num_hidden_layers
    return times * 2 * (n - 1) / n * message / link, times * ALL_REDUCE_S


def _rate(pool: Pool, device: Accelerator, dtype: str) -> float:
    rate = device.flop_per_s(dtype)
    if not rate > 0:
        raise DataError(
            f"an accelerator with a known rate of {dtype} products",
            where=f"pool {pool.name}",
            field="accelerator",
            value=device.name,
        )
    return rate
