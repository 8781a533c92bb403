"""The step time of a pool, from whatever source its batching names.

Every source answers one question (:class:`StepTime`): how long does a step take that prefills so
many tokens and decodes so many sequences with so much context?

*Calibrated*: another source, its terms scaled to a measured server by up to six numbers:

- ``dense_scale``: matrix products and whatever else a decode step does for any context, that is
  reading the weights at small batches and computing at large ones;
- ``context_scale``: attention of the decode, that is reading the KV;
- ``prefill_scale``: what a prefill adds, that is computing;
- ``fixed_s``, added to each step;
- ``mixed_fraction``: by how much longer the decode's attention takes in a step that also prefills.
  Its kernel then works in tiles of 64 or 128 query rows, of which a decoding sequence fills one for
  each head, so it computes for many rows beside reading the KV. Against reading alone that is
  ``rows × bandwidth / rate`` for any model of 16 bits: two thirds on H100 (128 rows). Measured: 0.9
  on it, 0.4 on an RTX 4090 (64 rows; LLMServingSim, ``attention.csv``: steps against their parts);
- ``tile_fraction``: the share of products that take whole tiles of 128 tokens
  (``capplan.replica.compiled.step_laws.TILE_ROWS``), about an average of half a tile. Measured on
  H100: a step with a prompt of 1,000 tokens jumps by 6 ms where decodes take it beyond 1,024.

The shape stays that of the base, the larger of memory and compute or a table, so that a server
measured with 20 sequences gives figures for 80: step times linear in the batch, fitted at 10 to 30
sequences, were 10 to 14 % off at 60. Over a roofline the scales are shares of the maker's figures
(:func:`implied`): a bandwidth or rate above them says that a fit has gone wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from capplan.catalog import BYTES, expert_parameters
from capplan.replica.compiled.step_laws import (
    LinearStepTime,
    RooflineStepTime,
    ScaledStepTime,
    StepTime,
)
from capplan.replica.memory import accelerator_of, context_reads, model_of, weight_bytes
from capplan.replica.roofline import active_parameters, roofline_step
from capplan.scenario.batching import ServiceLaw
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import (
    CalibratedStep,
    LinearStep,
    RooflineStep,
    SiliconStep,
    TablesStep,
)

StepTimeLaw = LinearStep | RooflineStep | TablesStep | SiliconStep | CalibratedStep


def step_time(pool: Pool) -> StepTime:
    """Return the step time of a continuously batching pool.

    Raises ``ValueError`` for a pool that batches otherwise, :class:`capplan.schema.DataError` if
    its model or accelerator is unknown.
    """
    return _step_time(pool, pool.continuous.step_time)


def _step_time(pool: Pool, law: StepTimeLaw) -> StepTime:
    if isinstance(law, LinearStep):
        return LinearStepTime(
            law.base_s, law.per_prefill_token_s, law.per_sequence_s, law.per_context_token_s
        )
    if isinstance(law, RooflineStep):
        return roofline_step(pool, law)
    if isinstance(law, TablesStep):
        from capplan.replica.kernel_tables import kernel_tables

        return kernel_tables(pool, law)
    if isinstance(law, SiliconStep):
        from capplan.replica.silicon import silicon

        return silicon(pool, law)
    return _calibrated(_step_time(pool, law.base), law, _narrow_tokens(pool))


NARROW_ROWS = 64
"""Query rows up to which attention keeps the tile of a step that only decodes.
Source: vLLM's FlashAttention, ``hopper/heuristics.h`` (``use_one_mma_wg``: the longest chunk times
the heads that share a KV head), 2026."""


def _narrow_tokens(pool: Pool) -> float:
    """Return the prefilled tokens of a step up to which decoding sequences attend as without."""
    found = model_of(pool)
    return NARROW_ROWS * found.num_key_value_heads / found.num_attention_heads


def _calibrated(base: StepTime, law: CalibratedStep, narrow_tokens: float) -> StepTime:
    """Return the step time of a base with its terms scaled.

    A roofline stays one: weights, products of decoded tokens and element-wise kernels take
    ``dense_scale``, KV ``context_scale``, products and attention of prefilled tokens
    ``prefill_scale``.
    """
    if not isinstance(base, RooflineStepTime):
        return ScaledStepTime(
            base=base,
            dense_scale=law.dense_scale,
            context_scale=law.context_scale,
            prefill_scale=law.prefill_scale,
            fixed_s=law.fixed_s,
            mixed_fraction=law.mixed_fraction or 0.0,
            narrow_tokens=narrow_tokens,
        )
    if law.mixed_fraction is not None:
        base = replace(base, mixed_fraction=law.mixed_fraction, narrow_tokens=narrow_tokens)
    dense, context, prefill = law.dense_scale, law.context_scale, law.prefill_scale
    return replace(
        base,
        kernels_s=base.kernels_s * dense + law.fixed_s,
        weights_s=base.weights_s * dense,
        experts_s=base.experts_s * dense,
        head_weights_s=base.head_weights_s * dense,
        moved_per_token_s=base.moved_per_token_s * dense,
        per_token_s=base.per_token_s * dense,
        head_per_token_s=base.head_per_token_s * dense,
        per_prompt_token_s=base.per_prompt_token_s * prefill,
        per_prefill_token_s=base.per_prefill_token_s * prefill,
        per_pair_s=base.per_pair_s * prefill,
        per_sequence_s=base.per_sequence_s * context,
        per_context_token_s=base.per_context_token_s * context,
        per_window_pair_s=base.per_window_pair_s * prefill,
        per_window_token_s=base.per_window_token_s * context,
        tile_fraction=law.tile_fraction,
    )


def batch_seconds(law: ServiceLaw, items: float, size: float) -> float:
    """Return the mean service time of one batch of ``items`` requests with that sum of sizes, s.

    >>> batch_seconds(ServiceLaw(base_s=0.01, per_item_s=0.002), 5, 0)
    0.02
    """
    return law.base_s + law.per_item_s * items + law.per_size_s * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Implied:
    """What a step time implies about the accelerator, as shares of its maker's figures."""

    weights_bandwidth_fraction: float
    kv_bandwidth_fraction: float
    compute_fraction: float

    @property
    def plausible(self) -> bool:
        """Return whether none is above what the accelerator can do (5 % for rounding)."""
        shares = (
            self.weights_bandwidth_fraction, self.kv_bandwidth_fraction, self.compute_fraction,
        )  # fmt: skip
        return all(0 < share <= IMPLAUSIBLE for share in shares)


IMPLAUSIBLE = 1.05
PROBE_TOKENS = 8192.0
PROBE_SEQUENCES = 32.0


def implied(pool: Pool, steps: StepTime) -> Implied:
    """Return the bandwidth and rate that a step time implies, over all accelerators of a replica.

    Weights: bytes of the weights (of the experts, those of one token) over a step that decodes one
    sequence without context. KV: bytes of the context over what 8,192 tokens of it add to each of
    32 sequences. Compute: FLOP of the products over what the second 8,192 prefilled tokens take
    without attention.
    """
    found, device, share = model_of(pool), accelerator_of(pool), pool.tensor_parallel
    bandwidth = device.memory_bandwidth_bytes_per_s
    weights = weight_bytes(found, dtype=pool.weight_dtype, tensor_parallel=share)
    dtype = pool.weight_dtype or found.served_dtype
    if not found.tie_word_embeddings:  # the embedding is looked up
        weights -= found.vocab_size * found.hidden_size * 2 / share
    unread = found.moe_layers * (found.num_experts - found.num_experts_per_tok)
    weights -= unread * expert_parameters(found) * BYTES[dtype] / share
    reads = context_reads(found, dtype=pool.kv_dtype, tensor_parallel=share)
    kv = sum(each * max(min(most - PROBE_TOKENS, PROBE_TOKENS), 0.0) for each, most in reads)
    n, context = PROBE_SEQUENCES, PROBE_SEQUENCES * PROBE_TOKENS
    reading_s = steps.seconds(0, 0, n, 2 * context) - steps.seconds(0, 0, n, context)
    one, two = (steps.seconds(k * PROBE_TOKENS, 0, 0, 0) for k in (1, 2))
    flop = 2 * active_parameters(found) * PROBE_TOKENS / share
    return Implied(
        weights_bandwidth_fraction=weights / steps.seconds(0, 0, 1, 0) / bandwidth,
        kv_bandwidth_fraction=n * kv / reading_s / bandwidth,
        compute_fraction=flop / (two - one) / device.flop_per_s(dtype),
    )
