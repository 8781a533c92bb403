"""Step times as rows of numbers, which the compiled step loop evaluates without calling Python.

A law is a one-dimensional array: its kind, then the kind's coefficients, in the order in which
``capplan.replica.compiled.step_seconds`` reads them. A new kind needs a branch there, a branch
here, and a case in ``tests/replica/test_compiled.py``.

A curve is its axis, then its levels. A table over four numbers (``MixTable``) is whether it is per
prompt, the lengths of its axes, the axes (chunks, tokens before, sequences, contexts), what decode
batches take alone, what chunks take alone, and what the one adds to the other.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from capplan.replica.calibrated import ScaledStepTime
from capplan.replica.compiled import KERNELS, LINEAR, MIX, ROOFLINE, SCALED
from capplan.replica.kernel_tables import KernelStepTime
from capplan.replica.mix_table import MixTable
from capplan.replica.roofline import RooflineStepTime
from capplan.replica.silicon import SiliconStepTime
from capplan.replica.step_time import LinearStepTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from capplan.replica.step_time import StepTime


def step_law(step_time: StepTime) -> NDArray[np.float64] | None:
    """Return a step time in compiled form; None where its kind has none.

    >>> from capplan.replica.step_time import LinearStepTime
    >>> step_law(LinearStepTime(4e-3, 1e-5, 1e-5, 1e-8)).tolist()
    [0.0, 0.004, 1e-05, 1e-05, 1e-08]
    """
    if isinstance(step_time, LinearStepTime):
        return np.array([LINEAR, *_linear(step_time)])
    if isinstance(step_time, RooflineStepTime):
        return np.array([ROOFLINE, *_roofline(step_time)])
    if isinstance(step_time, KernelStepTime):
        return np.array([KERNELS, *_host(step_time), *_kernels(step_time)])
    if isinstance(step_time, SiliconStepTime):
        return np.array([MIX, *_host(step_time), *_mix(step_time.steps)])
    if isinstance(step_time, ScaledStepTime):
        return _scaled(step_time)
    return None


def _scaled(law: ScaledStepTime) -> NDArray[np.float64] | None:
    base = step_law(law.base)
    if base is None or base[0] == SCALED:
        return None
    scales = law.fixed_s, law.dense_scale, law.context_scale, law.prefill_scale
    return np.array([SCALED, *scales, *base])


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


def _host(law: KernelStepTime | SiliconStepTime) -> tuple[float, ...]:
    return law.overhead_s, law.per_sequence_s, float(law.host_hidden)


def _kernels(law: KernelStepTime) -> Iterator[float]:
    attention = law.attention
    yield from (isinstance(attention, MixTable), len(law.dense.axis), len(law.head.axis))
    yield from (*law.dense.axis, *law.dense.levels, *law.head.axis, *law.head.levels)
    if isinstance(attention, MixTable):
        yield from _mix(attention)
    else:
        yield from (attention.per_prefill_token_s, attention.per_pair_s)
        yield from (attention.per_sequence_s, attention.per_context_token_s)


def _mix(table: MixTable) -> Iterator[float]:
    alone, decode = table.alone, table.decode
    axes = alone.first, alone.second, decode.first, decode.second
    yield table.per_prompt
    yield from map(len, axes)
    for axis in axes:
        yield from axis
    for plane in (decode, alone, *chain.from_iterable(table.beside)):
        yield from chain.from_iterable(plane.rows)
