"""For what a fit holds, and what to beware of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.calibration.replays import Floats, Run
from capplan.calibration.result import SCALES, Fitted
from capplan.measured.server import assumed_settings
from capplan.replica.step_time import Implied

if TYPE_CHECKING:
    import pandas as pd

WIDE = 0.6
"""Logarithm of high over low from which a number rests on its prior: half of the prior's own."""


def from_engine(runs: Sequence[Run]) -> bool:
    """Return whether no run tells what a request takes outside the engine."""
    return all(run.measured.origin == "scheduler_queue_in_s" for run in runs)


def scope(runs: Sequence[Run]) -> dict[str, Any]:
    """Return for what the numbers were fitted: server, and the load in requests in flight."""
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
    """Return how many requests were in flight when each one started."""
    start = requests["start_s"].to_numpy()
    stays = requests["e2e_s"].fillna(requests["ttft_s"])
    ends = np.sort((start + stays.fillna(0.0)).to_numpy())
    began = np.arange(1, len(start) + 1)
    return np.asarray(began - np.searchsorted(ends, start, side="right"), dtype=np.float64)


def notes(runs: Sequence[Run], fitted: Mapping[str, Fitted], said: Implied) -> list[str]:
    """Return what was assumed, which numbers the runs hardly tell, and what is not plausible."""
    servers = (run.measured.server for run in runs)
    assumed = (note for server in servers for note in assumed_settings(server))
    found = list(dict.fromkeys((*(n for run in runs for n in run.measured.notes), *assumed)))
    found += [
        f"The runs hardly tell {name}: it rests on the base and its prior."
        for name in SCALES
        if math.log(fitted[name].high / fitted[name].low) > WIDE
    ]
    if from_engine(runs):
        found.append("Latencies count from the engine: request_overhead_s was not measured.")
    if not said.plausible:
        found.append("A fitted number implies more than the accelerator can do: do not trust it.")
    return found
