"""Step time from the accelerator's and the model's own numbers.

A step runs kernel after kernel, so its time is a sum over kinds of kernels:

- matrix products: ``2 · parameters touched · tokens`` FLOP and the bytes of the weights, as the
  cube root of the sum of their cubes (near the ridge neither hides the other entirely). The output
  head runs for decoded tokens only;
- likewise, apart from them, the grouped products of experts: a token computes with ``k`` of ``E``,
  and a step of ``n`` tokens reads those that any of them chose, ``E · (1 - (1 - k / E) ** n)`` if
  all are chosen equally often (each token misses a given one with probability ``1 - k / E``;
  Feller, "An Introduction to Probability Theory and Its Applications", vol. 1, 1968, section IV.2);
- attention of the prefill: FLOP per pair of a token and a token before it;
- attention of the decode: KV bytes, or FLOP, per token of context; more beside a prefill;
- element-wise kernels (norms, rotation, activation, writing KV, gathering and summing the tokens
  of experts): bytes per token; under tensor parallelism every accelerator moves whole tokens;
- what each kernel takes beside its work (launch, first and last wave), kernel by kernel;
- two all-reduces a layer under tensor parallelism: latency, and bytes per token over the link;
- under pipeline parallelism, see below;

and beside the kernels the host's work, per step and per sequence: added to the step, or hidden
behind them if the engine forms steps ahead.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; Yuan et al., "LLM Inference
Unveiled: Survey and Roofline Model Insights", 2024.

The shares of the peaks are the accelerator's own, from tables of measured kernels (catalogue:
aiconfigurator-core 0.12, Vidur, LLMServingSim), never from measured servers. Products fitted to
16,000 measured ones on each of H100, H200, B200 and L40S and 4,100 on A100, as that cube root plus
a latency (squares and fourth powers are no better over all five): half are within 6 to 8 %, nine of
ten within 13 to 20 %.

Pipeline parallelism: a step's decoding sequences are split over as many micro-batches as stages,
which follow each other through them; a round takes as many times as there are stages what the
fullest micro-batch takes on one, and the others wait for it (the bubble). Prompts are split over
them too, but each stays whole. Source: Agrawal et al., "Sarathi-Serve", OSDI 2024, section 3.3.

Checked on what it was not fitted to, replaying measured vLLM servers: see ``data/validation``.
Trust a step within about 20 % for dense models, experts and latent attention on an accelerator with
known shares (30 % at 8 bits where prefill and decodes mix), within 40 % elsewhere, and not at all
for sparse attention: :mod:`capplan.replica.family_errors`. Mean TPOT of DeepSeek-R1 on 8 H200
(SGLang 0.5.9, 15 loads) comes out 6 % too short to 18 % too long. It has no kernel that misses its
efficiency (odd shapes, other attention backends, skewed experts). It is the engine alone: HTTP and
tokenizer come before it
(``capplan.measured.replay.REQUEST_OVERHEAD_S``). Calibrate it for decisions.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from capplan.catalog import BYTES, Accelerator, Model, attention_parameters, expert_parameters
from capplan.replica.attention_time import attention_time
from capplan.replica.compiled.step_laws import RooflineStepTime
from capplan.replica.memory import accelerator_of, model_of, undivided_parameters
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import RooflineStep
from capplan.schema import DataError

COMPUTE_EFFICIENCY = 0.74
"""Share of the peak rate in large 16-bit products, of an accelerator without measured shares:
among those of A100, H100 and B200 (0.71 to 0.75); see the catalogue."""

MEMORY_EFFICIENCY = 0.8
"""Share of the peak bandwidth in reading weights, likewise. Source: aiconfigurator-core 0.12,
``systems/*.yaml`` (``mem_bw_empirical_scaling_factor``)."""

EIGHT_BIT = ("fp8", "int8")
"""Types whose products run at a rate of their own."""

EIGHT_BIT_EFFICIENCY = 0.7
"""Of the share that 16-bit products reach. Source: aiconfigurator-core 0.12, H100, vLLM 0.24,
products of 8,192 rows: FP8 0.55 of its peak, bfloat16 0.78."""

PREFILL_ATTENTION_EFFICIENCY = 0.6
"""Share of the peak rate in causal attention, likewise. Source: Dao, "FlashAttention-2", ICLR 2024
(50 to 73 % on A100); Shah et al., "FlashAttention-3", NeurIPS 2024 (up to 75 % on H100)."""

KV_EFFICIENCY = 0.9
"""Share of the peak bandwidth in reading KV, likewise; 0.8 (A100) to 0.95 (RTX 4090) measured."""

LINK_EFFICIENCY = 0.6
"""Share of the link's rate in an all-reduce of a ring's traffic. Source, over 2, 4 and 8
accelerators and messages of 16 KiB to 256 MiB: aiconfigurator-core 0.12, vLLM's own all-reduce
(its messages are counted in numbers of 16 bits): 0.52 on B200, 0.57 on A100, 0.63 on H100, 0.66 on
H200; Vidur, the collective library, 0.31 to 0.67 for 7 to 37 MiB on DGX A100 and H100."""

ALL_REDUCE_S = 5.5e-6
"""Latency of one all-reduce, s. Source: likewise, 8 KiB: 4.5 to 5.3 µs on H100, 5.3 to 6.5 on A100,
7 to 8 on B200."""

HOP_EFFICIENCY = 0.8
"""Share of the link's rate in handing over to the next stage of a pipeline. Source: Vidur's profile
of an H100 DGX (``network/h100_dgx``, MIT): 0.84 in its largest transfers."""

HOP_S = 1e-5
"""Latency of handing over. Source: aiconfigurator-core 0.12, ``p2p_latency``."""

EXPERT_EFFICIENCY = 0.85
"""Of the share that dense products of 16 bits reach, in the grouped ones of experts of any type:
those of 8 bits, scaled by blocks, are not faster (at 0.92 of that on H100 and H200)."""

EXPERT_MOVES = 5.0
"""Hidden sizes moved for each expert that a token chooses: gathered, written, read for the sum, and
what is padded. Source of both: 4,500 grouped products of 8 to 512 experts at 16 bits and tensor
parallelism up to 8 in aiconfigurator-core 0.12 (vLLM; H100 and H200), balanced and skewed: 0.74 to
0.95, and 4.1 to 6.3 (L40S: 1.0 to 1.16, and 2.3 to 2.7); half are within 3 to 9 %."""

MIXED_FRACTION = 0.8
"""By how much longer a decoding sequence attends in a step that also prefills, with grouped
queries: both are one kernel, which then reads KV for each query instead of each group. Source:
LLMServingSim, profiler/perf/RTX4090 (vLLM 0.19, Llama-3.1-8B; MIT), what decodes add to chunks of
16 to 2,048 tokens over what they take alone: 0.74 for 8 sequences, 0.79 for 32, 1.04 for 64, of any
context above 256 tokens. Not known without groups; MLA has two kernels."""

LAYER_KERNELS = 10
"""Kernels of a dense layer: two norms, QKV, rotation, writing KV, attention, output projection,
gate and up, activation, down. Source: vLLM, ``model_executor/models/llama.py``, 2026."""

EXPERT_KERNELS = 4
"""More in a layer of experts: router, choice, sorting, sum. Source: vLLM, ``fused_moe.py``."""

LATENT_KERNELS = 8
"""More in a layer with MLA: projections down and up, their norms, two absorbed products, and two of
attention. Source: aiconfigurator-core 0.12, vLLM 0.24, MLA of one head and sequence on H200: 60 µs
beside reading weights, that is 13 kernels with the five of any attention."""

EIGHT_BIT_KERNELS = 4
"""More in a layer of 8-bit products: quantising the input of each."""

ACTIVATION_BYTES = 2.0


def roofline(pool: Pool) -> RooflineStepTime:
    """Return the roofline of a pool's replica.

    Raises ``ValueError`` for a pool without a roofline step time and :class:`DataError` if model or
    accelerator are unknown, or the accelerator lacks a rate that the model needs.
    """
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching) or not isinstance(
        batching.step_time, RooflineStep
    ):
        raise ValueError(f"pool {pool.name}: no roofline step time")
    return roofline_step(pool, batching.step_time)


def roofline_step(pool: Pool, law: RooflineStep | None = None) -> RooflineStepTime:
    """Return the roofline of a pool's model and accelerator, whatever step time it states."""
    law, found, device = law or RooflineStep(), model_of(pool), accelerator_of(pool)
    share, dtype = pool.tensor_parallel, pool.weight_dtype or found.served_dtype
    known = shares_of(device, law)
    sixteen = _rate(pool, device, "bfloat16") * known.compute
    flop = _rate(pool, device, dtype) * known.compute
    if law.compute_efficiency is None and dtype in EIGHT_BIT:
        flop *= EIGHT_BIT_EFFICIENCY
    attention = _rate(pool, device, "bfloat16") * known.attention * share
    bandwidth = device.memory_bandwidth_bytes_per_s * known.memory
    size, head = BYTES[dtype], found.vocab_size * found.hidden_size / share
    kv_bandwidth = device.memory_bandwidth_bytes_per_s * known.kv
    attending = attention_time(pool, found, bandwidth=kv_bandwidth, flop_per_s=attention)
    links = _links(pool, found, device)
    touched = found.num_experts_per_tok / found.num_experts if found.num_experts else 0.0
    dense, kept = _dense_parameters(found, share), found.unquantized_parameters / share
    kept = kept if size < ACTIVATION_BYTES else 0.0
    dense_s = 2 * ((dense - kept) / flop + kept / sixteen)
    grouped_s = 2 * _chosen_experts(found) / share / (sixteen * EXPERT_EFFICIENCY)
    stages = pool.pipeline_parallel
    return RooflineStepTime(
        host_s=law.overhead_s * stages,
        host_per_sequence_s=law.per_sequence_s,
        host_hidden=hides_host(pool),
        kernels_s=law.kernel_s * kernels(found, dtype) + links.latency_s,
        weights_s=(dense * size + kept * (ACTIVATION_BYTES - size)) / bandwidth,
        per_token_s=dense_s + grouped_s,
        per_prompt_token_s=dense_s + grouped_s,
        head_weights_s=head * max(size, ACTIVATION_BYTES) / bandwidth,
        head_per_token_s=2 * head / sixteen,
        moved_per_token_s=_moved_bytes(found, share) / bandwidth + links.per_token_s,
        **asdict(attending),
        experts_s=_all_experts(found) / share * size / bandwidth,
        experts_fraction=grouped_s / (dense_s + grouped_s),
        untouched_fraction=1 - touched,
        stages=float(stages),
        mixed_fraction=mixed_fraction(found),
    )


def mixed_fraction(found: Model) -> float:
    """Return by how much longer a decoding sequence attends beside a prefill.

    >>> from capplan.catalog import model
    >>> mixed_fraction(model("Llama-3.1-8B")), mixed_fraction(model("Llama-2-7b-hf"))
    (0.8, 0.0)
    """
    grouped = found.num_key_value_heads < found.num_attention_heads and not found.kv_lora_rank
    return MIXED_FRACTION if grouped else 0.0


def hides_host(pool: Pool) -> bool:
    """Return whether the host works for a step while the accelerator computes another one.

    It does if steps are formed ahead, and if several micro-batches are under way. Source:
    vLLM, PR 19970 and 23569 (asynchronous scheduling), ``v1/engine/core.py`` (``batch_queue``).
    """
    batching = pool.batching
    formed_ahead = isinstance(batching, ContinuousBatching) and batching.async_scheduling
    return formed_ahead or pool.pipeline_parallel > 1


def one_stage(pool: Pool, kind: str) -> None:
    """Raise :class:`DataError` for a pipeline whose steps come from tables of whole models."""
    if pool.pipeline_parallel > 1:
        raise DataError(
            f"1 for step times of kind {kind} (a pipeline's are of kind roofline)",
            where=f"pool {pool.name}",
            field="pipeline_parallel",
            value=pool.pipeline_parallel,
        )


def active_parameters(found: Model) -> int:
    """Return the parameters that one token's matrix products touch, without the output head.

    >>> from capplan.catalog import model
    >>> round(active_parameters(model("Mixtral-8x7B-v0.1")) / 1e9, 1)
    12.6
    """
    dense = found.num_hidden_layers - found.moe_layers
    return (
        attention_parameters(found)
        + dense * 3 * found.hidden_size * found.intermediate_size
        + found.moe_layers * found.num_shared_experts * expert_parameters(found)
        + found.moe_layers * found.hidden_size * found.num_experts
        + _chosen_experts(found)
    )


def _chosen_experts(found: Model) -> int:
    return found.moe_layers * found.num_experts_per_tok * expert_parameters(found)


def _all_experts(found: Model) -> int:
    return found.moe_layers * found.num_experts * expert_parameters(found)


def _dense_parameters(found: Model, share: int) -> float:
    """Return what one of so many accelerators multiplies each token with, without experts and head.

    Routers and what MLA compresses are not divided. Source: vLLM, ``ReplicatedLinear`` in
    ``model_executor/models/deepseek_v2.py``, 2026.
    """
    undivided, held = undivided_parameters(found, share)
    router = found.moe_layers * found.hidden_size * found.num_experts
    divided = active_parameters(found) - _chosen_experts(found) - undivided - router
    return divided / share + held + router


def _moved_bytes(found: Model, share: int) -> float:
    """Return the bytes that one accelerator's element-wise kernels move for a token, all layers.

    Two fused additions and norms (4 hidden each); for each chosen expert ``EXPERT_MOVES`` hidden;
    and, divided among accelerators, rotation (query and key, read and written), the gated
    activation (two widths read, one written), KV written and read once. Source: counted in vLLM's
    ``csrc/`` (``layernorm_kernels.cu``, ``pos_encoding_kernels.cu``, ``activation_kernels.cu``,
    ``cache_kernels.cu``), 2026.
    """
    heads, kv = found.num_attention_heads, found.num_key_value_heads
    query, key_value = heads * found.head_dim, kv * found.head_dim
    if found.kv_lora_rank:
        key_value = found.kv_lora_rank + found.qk_rope_head_dim
    layers, moe = found.num_hidden_layers, found.moe_layers
    active = found.num_experts_per_tok + found.num_shared_experts
    gated = 3 * (
        (layers - moe) * found.intermediate_size + moe * active * found.moe_intermediate_size
    )
    whole = found.hidden_size * (8 * layers + EXPERT_MOVES * moe * found.num_experts_per_tok)
    return ACTIVATION_BYTES * (whole + (layers * (2 * query + 6 * key_value) + gated) / share)


@dataclass(frozen=True, slots=True)
class _Links:
    """The time that links take in a step, s."""

    per_token_s: float
    latency_s: float


def _links(pool: Pool, found: Model, device: Accelerator) -> _Links:
    """Return the time of a step's all-reduces, and of passing activations between stages.

    A ring moves ``2 (n - 1) / n`` of the message over each link. Source: Patarasu and Yuan,
    "Bandwidth optimal all-reduce algorithms", J. Parallel Distrib. Comput. 69, 2009.
    """
    n, hops = pool.tensor_parallel, pool.pipeline_parallel - 1
    if n == 1 and not hops:
        return _Links(0.0, 0.0)
    link = device.interconnect_bytes_per_s
    if not link > 0:
        kind = "tensor" if n > 1 else "pipeline"
        rule = f"a known interconnect_bytes_per_s for {kind} parallelism"
        raise DataError(rule, where=f"pool {pool.name}", field="accelerator", value=device.name)
    message = found.hidden_size * ACTIVATION_BYTES
    reduces = 2 * found.num_hidden_layers if n > 1 else 0
    reduced_s = reduces * 2 * (n - 1) / n * message / (link * LINK_EFFICIENCY)
    handed_s = hops * message / (link * HOP_EFFICIENCY)
    return _Links(reduced_s + handed_s, reduces * ALL_REDUCE_S + hops * HOP_S)


def _rate(pool: Pool, device: Accelerator, dtype: str) -> float:
    rate = device.flop_per_s(dtype)
    if not rate > 0:
        rule = f"an accelerator with a known rate of {dtype} products"
        raise DataError(rule, where=f"pool {pool.name}", field="accelerator", value=device.name)
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What an accelerator reaches, as shares of its peak rates."""

    compute: float
    """Of the rate, in large 16-bit products."""
    memory: float
    """Of the bandwidth, in reading weights."""
    kv: float
    """Of the bandwidth, in reading KV."""
    attention: float
    """Of the rate, in attention of prefills."""


def shares_of(device: Accelerator, law: RooflineStep) -> Shares:
    """Return what an accelerator reaches: as the law says, else as measured, else as usual.

    >>> from capplan.catalog import accelerator
    >>> from capplan.scenario.step_times import RooflineStep
    >>> shares_of(accelerator("H100"), RooflineStep(memory_efficiency=0.5)).memory
    0.5
    """
    return Shares(
        compute=law.compute_efficiency or _known(device.gemm_compute_fraction, COMPUTE_EFFICIENCY),
        memory=law.memory_efficiency or _known(device.gemm_bandwidth_fraction, MEMORY_EFFICIENCY),
        kv=_known(device.kv_bandwidth_fraction, KV_EFFICIENCY),
        attention=_known(device.attention_compute_fraction, PREFILL_ATTENTION_EFFICIENCY),
    )


def kernels(found: Model, dtype: str) -> int:
    """Return how many kernels a step runs one after the other.

    >>> from capplan.catalog import model
    >>> kernels(model("Llama-3.1-8B"), "bfloat16")
    320
    """
    each = LAYER_KERNELS
    each += EIGHT_BIT_KERNELS if dtype in EIGHT_BIT else 0
    each += LATENT_KERNELS if found.kv_lora_rank else 0
    return each * found.num_hidden_layers + EXPERT_KERNELS * found.moe_layers


def _known(share: float, otherwise: float) -> float:
    return otherwise if math.isnan(share) else share
