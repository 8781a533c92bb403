"""Step time from the accelerator's and the model's own numbers."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.catalog import BYTES, Model, attention_parameters, expert_parameters
from capplan.replica.memory import accelerator_of, kv_bytes_per_token, model_of
from capplan.scenario import ContinuousBatching, Pool, RooflineStep


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """Step time as the sum of kernels, each bound by compute or memory."""

    overhead_s: float
    weights_s: float
    """Reading every weight once, s."""
    per_token_s: float
    """Matrix products of one token, s."""
    per_pair_s: float
    """Attention of one pair of a prefilled token and its context, s."""
    per_context_token_s: float
    """Reading the KV of one token of context, s."""

    def seconds(
        self,
        prefill_tokens: float,
        prefill_context_tokens: float,
        decode_sequences: float,
        decode_context_tokens: float,
    ) -> float:
        """Return the duration of a step, s; see :class:`capplan.replica.latency.StepTime`."""
        compute = self.per_token_s * (prefill_tokens + decode_sequences)
        return (
            self.overhead_s
            + (compute if compute > self.weights_s else self.weights_s)
            + self.per_pair_s * prefill_context_tokens
            + self.per_context_token_s * decode_context_tokens
        )


def roofline(pool: Pool) -> RooflineStepTime:
    """Return the roofline of a pool's replica."""
    m, a = model_of(pool), accelerator_of(pool)
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching) or not isinstance(
        batching.step_time, RooflineStep
    ):
        msg = f"pool {pool.name}: no roofline step time"
        raise ValueError(msg)
    law = batching.step_time
    tp = pool.tensor_parallel
    flops = a.bf16_flop_per_s * law.compute_efficiency
    bandwidth = a.memory_bandwidth_bytes_per_s * law.memory_efficiency
    active = active_parameters(m)
    pair_flops = 4 * m.num_hidden_layers * m.num_attention_heads * m.head_dim / tp
    return RooflineStepTime(
        overhead_s=law.overhead_s,
        weights_s=active * BYTES[m.torch_dtype] / tp / bandwidth,
        per_token_s=2 * active / tp / flops,
        per_pair_s=pair_flops / flops,
        per_context_token_s=kv_bytes_per_token(m, tensor_parallel=tp) / bandwidth,
    )


def active_parameters(m: Model) -> int:
    """Return the parameters that one token's matrix products touch."""
    moe = m.moe_layers
    dense = m.num_hidden_layers - moe
    experts = m.num_experts_per_tok + m.num_shared_experts
    return (
        m.num_hidden_layers * attention_parameters(m)
        + dense * 3 * m.hidden_size * m.intermediate_size
        + moe * experts * expert_parameters(m)
        + m.vocab_size * m.hidden_size
    )
