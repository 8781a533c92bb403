"""Step time of a continuously batching replica, from what the step computes.

Every source of step times answers one question (:class:`StepTime`): how long does a step take that
prefills so many tokens and decodes so many sequences with so much context?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from capplan.scenario.batching import ContinuousBatching, ServiceLaw
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import (
    CalibratedStep,
    LinearStep,
    RooflineStep,
    SiliconStep,
    TablesStep,
)

StepTimeLaw = LinearStep | RooflineStep | TablesStep | SiliconStep | CalibratedStep


class StepTime(Protocol):
    """How long one step of a replica takes."""

    def seconds(
        self,
        prefill_tokens: float,
        prefill_context_tokens: float,
        decode_sequences: float,
        decode_context_tokens: float,
    ) -> float:
        """Return the duration of a step, s.

        Parameters
        ----------
        prefill_tokens
            Prompt tokens computed in this step, over all its prefill chunks. Tokens found in the
            prefix cache are not computed and do not count.
        prefill_context_tokens
            Pairs of a prefilled token and a token it attends to: the sum over the step's chunks of
            ``chunk × (context before it + chunk / 2)``, in tokens². Context found in the prefix
            cache does count as context before the chunk. For one whole prompt: ``tokens² / 2``.
        decode_sequences
            Sequences that produce one token each in this step.
        decode_context_tokens
            Sum of their context lengths (prompt and output so far).
        """
        ...


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """Step time linear in what the step computes; attention of the prefill is not told apart."""

    base_s: float
    per_prefill_token_s: float
    per_sequence_s: float
    per_context_token_s: float

    def seconds(
        self,
        prefill_tokens: float,
        prefill_context_tokens: float,
        decode_sequences: float,
        decode_context_tokens: float,
    ) -> float:
        """Return the duration of a step, s; see :meth:`StepTime.seconds`.

        >>> round(LinearStepTime(4e-3, 1e-5, 1e-5, 1e-8).seconds(100, 0, 10, 1000), 6)
        0.00511
        """
        return (
            self.base_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_sequence_s * decode_sequences
            + self.per_context_token_s * decode_context_tokens
        )


def step_time(pool: Pool) -> StepTime:
    """Return the step time of a continuously batching pool.

    Raises ``ValueError`` for a pool that batches otherwise, :class:`capplan.schema.DataError` if
    its model or accelerator is unknown.
    """
    if not isinstance(pool.batching, ContinuousBatching):
        msg = f"pool {pool.name}: step_time is of continuous batching, got {pool.batching.kind}"
        raise ValueError(msg)
    return _step_time(pool, pool.batching.step_time)


def _step_time(pool: Pool, law: StepTimeLaw) -> StepTime:
    if isinstance(law, LinearStep):
        return LinearStepTime(
            law.base_s, law.per_prefill_token_s, law.per_sequence_s, law.per_context_token_s
        )
    if isinstance(law, RooflineStep):
        from capplan.replica.roofline import roofline_step

        return roofline_step(pool, law)
    if isinstance(law, TablesStep):
        from capplan.replica.kernel_tables import kernel_tables

        return kernel_tables(pool, law)
    if isinstance(law, SiliconStep):
        from capplan.replica.silicon import silicon

        return silicon(pool, law)
    from capplan.replica.calibrated import calibrated

    return calibrated(_step_time(pool, law.base), law)


def batch_seconds(law: ServiceLaw, items: float, size: float) -> float:
    """Return the mean service time of one batch of ``items`` requests with that sum of sizes, s.

    >>> batch_seconds(ServiceLaw(base_s=0.01, per_item_s=0.002), 5, 0)
    0.02
    """
    return law.base_s + law.per_item_s * items + law.per_size_s * size
