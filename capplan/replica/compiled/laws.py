"""The step laws compiled, and a step time as the numbers they take."""

# mypy: disable-error-code="no-any-return,arg-type"

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import numpy as np
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from capplan.replica.compiled import step_laws
from capplan.replica.compiled.jit import compiled
from capplan.replica.compiled.step_laws import (
    Curve,
    LinearStepTime,
    MixTable,
    RooflineStepTime,
    ScaledStepTime,
    StepTime,
    TableStepTime,
    scaled,
)

Numbers = NDArray[np.float64]
Law = Any
"""One record of ``LAW``."""

LINEAR, ROOFLINE, TABLES = 0.0, 1.0, 2.0
KINDS: dict[type, float] = {
    LinearStepTime: LINEAR,
    RooflineStepTime: ROOFLINE,
    TableStepTime: TABLES,
}
"""The step times that have a compiled form, alone or scaled."""


def _scalars(kind: type) -> list[str]:
    return [name for name, hint in get_type_hints(kind).items() if hint in {float, bool}]


_NAMES = [name for kind in (*KINDS, ScaledStepTime) for name in _scalars(kind)]
LAW = np.dtype([(name, np.float64) for name in dict.fromkeys(["kind", "is_scaled", *_NAMES])])
"""The numbers of a step time under the names of its fields; those of other kinds are 0."""


def step_law(step_time: StepTime) -> tuple[NDArray[np.void], Numbers] | None:
    """Return a step time as one record ``LAW`` and the numbers of its tables.

    None if its kind has no compiled form.
    """
    is_scaled = isinstance(step_time, ScaledStepTime)
    base = step_time.base if isinstance(step_time, ScaledStepTime) else step_time
    if type(base) not in KINDS:
        return None
    law = np.zeros(1, LAW)
    law["kind"], law["is_scaled"] = KINDS[type(base)], is_scaled
    for part in (step_time, base):
        for name in _scalars(type(part)):
            law[name] = getattr(part, name)
    return law, np.array([*_tables(base)] if isinstance(base, TableStepTime) else [], np.float64)


def _tables(steps: TableStepTime) -> Iterator[float]:
    """Yield the tables in the order in which :func:`tables` reads them."""
    mix = steps.mix
    yield from (len(steps.dense.axis), len(steps.head.axis), mix.per_prompt)
    yield from map(len, (mix.chunks, mix.befores, mix.sequences, mix.contexts))
    for values in (*steps.dense, *steps.head, *mix[1:]):
        yield from values


@compiled
def tables(numbers: Numbers) -> tuple[Curve, Curve, MixTable]:
    """Return dense kernels, output head and mix of a step time of tables."""
    dense, head, chunks, befores = (
        int(numbers[0]), int(numbers[1]), int(numbers[3]), int(numbers[4]),
    )  # fmt: skip
    sequences, contexts, at = int(numbers[5]), int(numbers[6]), 7
    points, at = numbers[at : at + 2 * dense], at + 2 * dense
    first = Curve(points[:dense], points[dense:])
    points, at = numbers[at : at + 2 * head], at + 2 * head
    last = Curve(points[:head], points[head:])
    axis, at = numbers[at : at + chunks], at + chunks
    levels, at = numbers[at : at + befores], at + befores
    batches, at = numbers[at : at + sequences], at + sequences
    lengths, at = numbers[at : at + contexts], at + contexts
    decode, at = numbers[at : at + sequences * contexts], at + sequences * contexts
    alone, at = numbers[at : at + chunks * befores], at + chunks * befores
    mix = MixTable(numbers[2], axis, levels, batches, lengths, decode, alone, numbers[at:])
    return first, last, mix


@overload(bisect_right)
def _bisect_right(axis: Any, value: Any) -> Callable[[Any, Any], int]:
    """Give numba what it lacks of the standard library."""

    def found(axis: Any, value: Any) -> int:
        low, high = 0, len(axis)
        while low < high:
            middle = (low + high) // 2
            if value < axis[middle]:
                high = middle
            else:
                low = middle + 1
        return low

    return found


for _function in (step_laws.place, step_laws.at_point, step_laws.between, step_laws.of_mix, scaled):
    register_jitable(_function)

_linear_seconds = compiled(LinearStepTime.seconds)
_roofline_seconds = compiled(RooflineStepTime.seconds)
_table_seconds = compiled(TableStepTime.seconds)


@compiled
def _base_seconds(  # noqa: PLR0917
    law: Law, numbers: Numbers, tokens: float, pairs: float, sequences: float, context: float
) -> float:
    if law.kind == LINEAR:
        return _linear_seconds(law, tokens, pairs, sequences, context)
    if law.kind == ROOFLINE:
        return _roofline_seconds(law, tokens, pairs, sequences, context)
    dense, head, mix = tables(numbers)
    steps = TableStepTime(
        law.host_s, law.host_per_sequence_s, law.host_hidden, dense, head, mix,
        law.per_prefill_token_s, law.per_pair_s, law.per_sequence_s, law.per_context_token_s,
    )  # fmt: skip
    return _table_seconds(steps, tokens, pairs, sequences, context)


@compiled
def step_seconds(  # noqa: PLR0917
    law: Law, numbers: Numbers, tokens: float, pairs: float, sequences: float, context: float
) -> float:
    """Return the duration of a step, s; the last four are those of ``StepTime.seconds``."""
    if not law.is_scaled:
        return _base_seconds(law, numbers, tokens, pairs, sequences, context)
    decode = bare = 0.0
    if sequences != 0.0:
        decode = _base_seconds(law, numbers, 0.0, 0.0, sequences, context)
        bare = _base_seconds(law, numbers, 0.0, 0.0, sequences, 0.0)
    whole = decode
    if tokens != 0.0:
        whole = _base_seconds(law, numbers, tokens, pairs, sequences, context)
    return scaled(law, tokens, sequences, bare, decode, whole)
