"""How much of its maker's figures an accelerator reaches, and what kernels take beside their work.

Shares that were measured on an accelerator stand in the catalogue; those of an accelerator that
nobody measured, and what is common to all, stand here. None comes from a measured server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capplan.catalog import Accelerator, Model
    from capplan.scenario.step_times import RooflineStep

COMPUTE_EFFICIENCY = 0.74
"""Share of the peak rate in large 16-bit products, of an accelerator that nobody measured: among
those of A100, H100 and B200 (0.71 to 0.75); see the catalogue."""

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

IDLE_PAIR_TOKENS = 400.0
"""Tokens of context that each prefilled token seems to have besides: blocks of queries and keys
that are only partly used, and too few of them for the whole accelerator. Source: prefill attention
of 32 heads in aiconfigurator-core 0.12 (H100, A100, L40S) and LLMServingSim (RTX 4090): its share
of the peak at 1,024 and 2,048 tokens against that at 16,384 (300 to 700)."""

KV_EFFICIENCY = 0.9
"""Share of the peak bandwidth in reading KV, likewise; 0.8 (A100) to 0.95 (RTX 4090) measured."""

IDLE_CONTEXT_TOKENS = 64.0
"""Tokens of context that each decoding sequence seems to have besides: half of its last block of
128 keys (Shah et al., above). Source: decode attention of 64 to 256 sequences of 128 to 1,024
tokens in aiconfigurator-core 0.12 (H100) and LLMServingSim (RTX 4090): 30 to 180 above the line
through long contexts."""

LINK_EFFICIENCY = 0.5
"""Share of the link's rate in an all-reduce of a ring's traffic. Source, both over 2, 4 and 8
accelerators: Vidur, the collective library, 0.31 to 0.67 for 7 to 37 MiB on DGX A100 and H100;
aiconfigurator-core 0.12, vLLM's own all-reduce, 0.22 to 0.41 for 2 to 32 MiB."""

ALL_REDUCE_S = 5.5e-6
"""Latency of one all-reduce, s. Source: likewise, 8 KiB: 4.5 to 5.3 µs on H100, 5.3 to 6.5 on A100,
7 to 8 on B200."""

HOP_EFFICIENCY = 0.8
"""Share of the link's rate in handing over to the next stage of a pipeline. Source: Vidur's profile
of an H100 DGX (``network/h100_dgx``, MIT): 0.84 in its largest transfers."""

HOP_S = 1e-5
"""Latency of handing over. Source: aiconfigurator-core 0.12, ``p2p_latency``."""

EXPERT_EFFICIENCY = 0.8
"""Of the share that dense products reach, in the grouped ones of experts. Source: whole prefills of
Mixtral-8x7B and Qwen3-30B-A3B in aiconfigurator-core 0.12 (H100) against this roofline without it:
15 and 21 to 29 % longer."""

LAYER_KERNELS = 10
"""Kernels of a dense layer: two norms, QKV, rotation, writing KV, attention, output projection,
gate and up, activation, down. Source: vLLM, ``model_executor/models/llama.py``, 2026."""

EXPERT_KERNELS = 4
"""More in a layer of experts: router, choice, sorting, sum. Source: vLLM, ``fused_moe.py``."""

LATENT_KERNELS = 6
"""More in a layer with MLA: projections down and up, their norms, two absorbed products."""

EIGHT_BIT_KERNELS = 4
"""More in a layer of 8-bit products: quantising the input of each."""

ACTIVATION_BYTES = 2.0


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
