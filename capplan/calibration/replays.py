"""Measured runs replayed with trial parameters: the misfit, the scope and the caveats of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.calibration.parameters import LAW, Parameter, is_known
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

ROWS = ("decode", "ttft", "ttft_slowest")
"""What is compared: medians of time per token and TTFT, and the TTFT of the slowest tenth."""
SLOWEST = 0.9
BLOCKS = 60
BLOCK_REQUESTS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The beginning of a measured run, ready for replay."""

    measured: Measured
    trace: Trace
    seen: pd.DataFrame
    blocks: npt.NDArray[np.int64]
    parameters: tuple[Parameter, ...]
    """What is fitted."""


def beginning(measured: Measured, most: int, parameters: tuple[Parameter, ...]) -> Run:
    """Return the first ``most`` requests of a measured run, cut into blocks."""
    trace = replay_trace(measured, replay_scenario(measured))
    seen = measured.requests.iloc[:most]
    count = max(1, min(BLOCKS, len(seen) // BLOCK_REQUESTS))
    blocks = np.arange(len(seen)) * count // len(seen)
    return Run(measured, replace(trace, frame=trace.frame.iloc[:most]), seen, blocks, parameters)


def trial_scenario(run: Run, base: Mapping[str, Any], point: Floats) -> Scenario:
    """Return the scenario of a run under trial parameters, in deviations from their priors."""
    pairs = zip(run.parameters, point.tolist(), strict=True)
    values = {one.name: one.value(deviation) for one, deviation in pairs}
    law: dict[str, Any] = {"kind": "calibrated", "base": dict(base)}
    law |= {one.name: values.pop(one.name) for one in LAW}
    return replay_scenario(run.measured, step_time=law, **values)


def misfit(runs: Sequence[Run], base: Mapping[str, Any], point: Floats) -> Floats:
    """Return the logarithm of measured over predicted: a row of ``ROWS``, a column for each block.

    NaN if no request of the block has both.
    """
    parts = []
    for run in runs:
        result = simulate(trial_scenario(run, base, point), trace=run.trace)
        predicted = predicted_requests(run.measured, result)
        decode, ttft = (
            (np.asarray(seen, dtype=np.float64), np.asarray(replayed, dtype=np.float64))
            for seen, replayed in (
                (_decode(run.seen), _decode(predicted)),
                (run.seen["ttft_s"], predicted["ttft_s"]),
            )
        )
        parts.append([
            _apart(*decode, run.blocks, 0.5), _apart(*ttft, run.blocks, 0.5),
            _apart(*ttft, run.blocks, SLOWEST),
        ])  # fmt: skip
    return np.concatenate(parts, axis=1)


def _decode(requests: pd.DataFrame) -> pd.Series[float]:
    """Return the time per token after the first; E2E if TTFT is unknown."""
    tpot = requests["tpot_s"]
    return tpot.where(tpot.notna(), requests["e2e_s"].where(requests["ttft_s"].isna()))


def _apart(
    seen: Floats, replayed: Floats, blocks: npt.NDArray[np.int64], quantile: float
) -> Floats:
    """Return the logarithm of measured over predicted at a quantile, block by block.

    At the median it is that of the requests' own ratios, which differ less than the requests.
    """
    found = np.full(int(blocks.max()) + 1, np.nan)
    known = (seen > 0) & (replayed > 0)
    for block in np.unique(blocks[known]):
        of = known & (blocks == block)
        if quantile == 0.5:  # noqa: PLR2004
            found[block] = np.median(np.log(seen[of] / replayed[of]))
        else:
            high, low = np.quantile(seen[of], quantile), np.quantile(replayed[of], quantile)
            found[block] = np.log(high / low)
    return found


def linearised(
    runs: Sequence[Run], base: Mapping[str, Any], point: Floats
) -> tuple[Floats, Floats]:
    """Return the residuals at a point, and the slopes of the predictions by parameter."""
    here = misfit(runs, base, point)
    slopes = []
    for index, one in enumerate(runs[0].parameters):
        moved = point.copy()
        moved[index] += one.step
        slopes.append((here - misfit(runs, base, moved)) / one.step)
    return here, np.stack(slopes)


UNTOLD = 0.7
"""Standard deviation, in those of the prior, above which a number rests on its prior."""


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


def notes(
    runs: Sequence[Run], base: Mapping[str, Any], spread: Floats, implied: Implied
) -> list[str]:
    """Return the assumptions, the numbers that rest on their prior, and implausible ones."""
    servers = (run.measured.server for run in runs)
    assumed = (note for server in servers for note in assumed_settings(server))
    found = list(dict.fromkeys((*(n for run in runs for n in run.measured.notes), *assumed)))
    found += [
        f"The runs hardly determine {one.name}: it rests on the base and its prior."
        for one, of_prior in zip(runs[0].parameters, spread, strict=True)
        if of_prior > UNTOLD
    ]
    if not is_known(server := runs[0].measured.server, base):
        device = server.accelerator
        found.append(
            f"The roofline of {device} was not compared with measured kernels: it may be off by a "
            "factor of 3, so the scales rest on the runs alone."
        )
    if from_engine(runs):
        found.append("Latencies count from the engine: time outside it was not measured.")
    if not implied.plausible:
        found.append("A fitted number implies more than the accelerator can do: do not trust it.")
    return found
