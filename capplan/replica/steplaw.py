"""Step times as rows of numbers, which the compiled step loop evaluates without calling Python.

A law is a one-dimensional array: its kind, then the kind's coefficients, in the order in which
``capplan.replica.compiled.step_seconds`` reads them. A new kind needs a branch there, a branch
here, and a case in ``tests/replica/test_compiled.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capplan.replica.compiled import LINEAR, ROOFLINE
from capplan.replica.latency import LinearStepTime
from capplan.replica.roofline import RooflineStepTime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capplan.replica.latency import StepTime


def step_law(step_time: StepTime) -> NDArray[np.float64] | None:
    """Return a step time in compiled form; None where its kind has none.

    >>> from capplan.replica.latency import LinearStepTime
    >>> step_law(LinearStepTime(4e-3, 1e-5, 1e-5, 1e-8)).tolist()
    [0.0, 0.004, 1e-05, 1e-05, 1e-08]
    """
    if isinstance(step_time, LinearStepTime):
        return np.array([LINEAR, *_linear(step_time)])
    if isinstance(step_time, RooflineStepTime):
        return np.array([ROOFLINE, *_roofline(step_time)])
    return None


def _linear(law: LinearStepTime) -> tuple[float, ...]:
    return law.base_s, law.per_prefill_token_s, law.per_sequence_s, law.per_context_token_s


def _roofline(law: RooflineStepTime) -> tuple[float, ...]:
    return (
        law.host_s,
        law.host_per_sequence_s,
        float(law.host_hidden),
        law.kernels_s,
        law.weights_s,
        law.per_token_s,
        law.per_prompt_token_s,
        law.head_weights_s,
        law.head_per_token_s,
        law.moved_per_token_s,
        law.per_prefill_token_s,
        law.per_pair_s,
        law.per_sequence_s,
        law.per_context_token_s,
        law.window_tokens,
        law.per_window_token_s,
        law.experts_s,
        law.untouched_fraction,
        law.stages,
    )
