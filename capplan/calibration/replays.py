"""Measured runs replayed with trial parameters, and how far off they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.calibration.result import PARAMETERS, SCALES
from capplan.measured import Measured, replay_scenario, replay_trace
from capplan.simulation import simulate
from capplan.validation import predicted_requests

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

Floats = npt.NDArray[np.float64]

OVERHEAD_UNIT_S = 0.005
"""The overhead is fitted in these, so that all four are of order 1."""
STEP = 0.15
"""Difference at which derivatives are taken."""
BLOCKS = 60
BLOCK_REQUESTS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The beginning of a measured run, ready to be replayed."""

    measured: Measured
    trace: Trace
    seen: pd.DataFrame
    blocks: npt.NDArray[np.int64]


def beginning(measured: Measured, most: int) -> Run:
    """Return the first ``most`` requests of a measured run, cut into blocks."""
    trace = replay_trace(measured, replay_scenario(measured))
    seen = measured.requests.iloc[:most]
    count = max(1, min(BLOCKS, len(seen) // BLOCK_REQUESTS))
    blocks = np.arange(len(seen)) * count // len(seen)
    return Run(measured, replace(trace, frame=trace.frame.iloc[:most]), seen, blocks)


def trial_scenario(run: Run, base: Mapping[str, Any], point: Floats) -> Scenario:
    """Return the scenario of a run under trial parameters."""
    values = parameter_values(point)
    law = {"kind": "calibrated", "base": dict(base), **{name: values[name] for name in SCALES}}
    return replay_scenario(
        run.measured, step_time=law, request_overhead_s=values["request_overhead_s"]
    )


def parameter_values(point: Floats) -> dict[str, float]:
    """Return the parameters of a point: logarithms of the scales, then the overhead's units."""
    scales = {name: math.exp(point[i]) for i, name in enumerate(SCALES)}
    return {**scales, "request_overhead_s": float(max(point[-1], 0.0)) * OVERHEAD_UNIT_S}


def misfit(runs: Sequence[Run], base: Mapping[str, Any], point: Floats) -> Floats:
    """Return two rows, decode and TTFT: measured over predicted, a column for each block.

    NaN where no request of the block has both.
    """
    parts = []
    for run in runs:
        result = simulate(trial_scenario(run, base, point), trace=run.trace)
        told = predicted_requests(run.measured, result)
        parts.append(
            [
                _medians(_log_ratio(_decode(run.seen), _decode(told)), run.blocks),
                _medians(_log_ratio(run.seen["ttft_s"], told["ttft_s"]), run.blocks),
            ]
        )
    return np.concatenate(parts, axis=1)


def _decode(requests: pd.DataFrame) -> Floats:
    """Return the time per token after the first; E2E where TTFT is not known."""
    tpot = requests["tpot_s"]
    found = tpot.where(tpot.notna(), requests["e2e_s"].where(requests["ttft_s"].isna()))
    return np.asarray(found, dtype=np.float64)


def _log_ratio(seen: Any, told: Any) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.asarray(seen, dtype=np.float64) / np.asarray(told, dtype=np.float64))
    return np.where(np.isfinite(ratio), ratio, np.nan)


def _medians(values: Floats, blocks: npt.NDArray[np.int64]) -> Floats:
    found = np.full(int(blocks.max()) + 1, np.nan)
    for block in range(found.size):
        of = values[blocks == block]
        of = of[~np.isnan(of)]
        if of.size:
            found[block] = np.median(of)
    return found


def linearised(
    runs: Sequence[Run], base: Mapping[str, Any], point: Floats
) -> tuple[Floats, Floats]:
    """Return the residuals at a point, and how the predictions change with each parameter."""
    here = misfit(runs, base, point)
    slopes = []
    for index in range(len(PARAMETERS)):
        moved = point.copy()
        moved[index] += STEP if index < len(SCALES) else 1.0
        slopes.append((here - misfit(runs, base, moved)) / (moved[index] - point[index]))
    return here, np.stack(slopes)
