"""Measured runs replayed with trial parameters: the misfit, the scope and the caveats of a fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.calibration.result import PARAMETERS, SCALES, Fitted
from capplan.measured import Measured, replay_scenario, replay_trace
from capplan.measured.server import assumed_settings
from capplan.replica.step_time import Implied
from capplan.simulation import simulate
from capplan.validation import predicted_requests

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

Floats = npt.NDArray[np.float64]

OVERHEAD_UNIT_S = 0.005
"""Unit of the fitted overhead: all four numbers are of order 1."""
STEP = 0.15
"""Difference of the finite derivatives."""
BLOCKS = 60
BLOCK_REQUESTS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The beginning of a measured run, ready for replay."""

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

    NaN if no request of the block has both.
    """
    parts = []
    for run in runs:
        result = simulate(trial_scenario(run, base, point), trace=run.trace)
        predicted = predicted_requests(run.measured, result)
        parts.append(
            [
                _medians(_log_ratio(_decode(run.seen), _decode(predicted)), run.blocks),
                _medians(_log_ratio(run.seen["ttft_s"], predicted["ttft_s"]), run.blocks),
            ]
        )
    return np.concatenate(parts, axis=1)


def _decode(requests: pd.DataFrame) -> Floats:
    """Return the time per token after the first; E2E if TTFT is unknown."""
    tpot = requests["tpot_s"]
    found = tpot.where(tpot.notna(), requests["e2e_s"].where(requests["ttft_s"].isna()))
    return np.asarray(found, dtype=np.float64)


def _log_ratio(seen: Any, predicted: Any) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.asarray(seen, dtype=np.float64) / np.asarray(predicted, dtype=np.float64))
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
    """Return the residuals at a point, and the slopes of the predictions by parameter."""
    here = misfit(runs, base, point)
    slopes = []
    for index in range(len(PARAMETERS)):
        moved = point.copy()
        moved[index] += STEP if index < len(SCALES) else 1.0
        slopes.append((here - misfit(runs, base, moved)) / (moved[index] - point[index]))
    return here, np.stack(slopes)


WIDE = 0.6
"""Logarithm of high over low above which a number rests on its prior: half of the prior's own."""


def from_engine(runs: Sequence[Run]) -> bool:
    """Return whether no run shows the time of a request outside the engine."""
    return all(run.measured.origin == "scheduler_queue_in_s" for run in runs)


def scope(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the scope of the fit: server, and the load in requests in flight."""
    server = runs[0].measured.server
    loads = np.concatenate([_in_flight(run.seen) for run in runs])
    contexts = np.concatenate(
        [(run.seen["prompt_tokens"] + run.seen["output_tokens"] / 2).to_numpy() for run in runs]
    )
    return {
        "model": server.model,
        "accelerator": server.accelerator,
        "tensor_parallel": server.tensor_parallel,
        "dtype": server.dtype,
        "engine": server.engine,
        "in_flight": [float(x) for x in np.quantile(loads, [0.05, 0.95])],
        "context_tokens": [float(x) for x in np.quantile(contexts, [0.05, 0.95])],
    }


def _in_flight(requests: pd.DataFrame) -> Floats:
    """Return the number of requests in flight at the start of each."""
    start = requests["start_s"].to_numpy()
    stays = requests["e2e_s"].fillna(requests["ttft_s"])
    ends = np.sort((start + stays.fillna(0.0)).to_numpy())
    began = np.arange(1, len(start) + 1)
    return np.asarray(began - np.searchsorted(ends, start, side="right"), dtype=np.float64)


def notes(runs: Sequence[Run], fitted: Mapping[str, Fitted], implied: Implied) -> list[str]:
    """Return the assumptions, the numbers that rest on their prior, and implausible ones."""
    servers = (run.measured.server for run in runs)
    assumed = (note for server in servers for note in assumed_settings(server))
    found = list(dict.fromkeys((*(n for run in runs for n in run.measured.notes), *assumed)))
    found += [
        f"The runs hardly determine {name}: it rests on the base and its prior."
        for name in SCALES
        if math.log(fitted[name].high / fitted[name].low) > WIDE
    ]
    if from_engine(runs):
        found.append("Latencies count from the engine: request_overhead_s was not measured.")
    if not implied.plausible:
        found.append("A fitted number implies more than the accelerator can do: do not trust it.")
    return found
