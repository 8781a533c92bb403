"""Accelerator time by attempt: what successes used, and what was spent on the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.results.requests import answered_by_gateway, outcome_is, wasted_tokens
from capplan.results.timelines import held_values

if TYPE_CHECKING:
    from capplan.results.run import RunResult

Floats = npt.NDArray[np.float64]

METHOD = (
    "busy time of each replica, divided among the attempts it served by their share of the tokens "
    "it computed"
)


def computed_tokens(log: pd.DataFrame) -> Floats:
    """Return the tokens that were computed for each attempt; NaN where that is not told.

    Of a success: its prompt without what was found in the cache, and its answer; of one that the
    gateway's response cache answered, none. Of any other: what was wasted on it.
    """
    columns = ["prompt_tokens", "cached_tokens", "output_tokens"]
    prompt, cached, output = log[columns].to_numpy(np.float64, na_value=np.nan).T
    made = np.where(outcome_is(log, "succeeded"), prompt - cached + output, wasted_tokens(log))
    return np.where(answered_by_gateway(log), 0.0, made)


def accelerator_seconds(result: RunResult) -> Floats:
    """Return the accelerator time spent on each attempt of the log, s; 0 for one that never ran.

    The time for which a replica was busy, times its accelerators, is divided among the attempts it
    served by the tokens it computed for each. That is an attribution, no measurement: a step's
    time is not proportional to its tokens, and a decoded token takes longer than one of a prompt.
    NaN where the timeline does not tell how busy the replica was, or the log no tokens.
    """
    log = result.requests
    tokens = computed_tokens(log)
    replica = log["replica"].astype(object)
    codes, names = pd.factorize(replica)
    served = codes >= 0
    rates = np.full(len(names) + 1, np.nan)  # the last one is of no replica
    total = np.bincount(codes[served], weights=np.nan_to_num(tokens[served]), minlength=len(names))
    for code, name in enumerate(names):
        busy_s = _busy_s(result, str(name)) * _accelerators(result, str(name))
        rates[code] = busy_s / total[code] if total[code] > 0 else np.nan
    spent = tokens * rates[codes]
    return np.where(tokens == 0, 0.0, spent)


def _busy_s(result: RunResult, replica: str) -> float:
    rows = result.timeline
    rows = rows[rows["replica"] == replica]
    values, spans = held_values(rows, "busy_fraction", start_s=0.0, end_s=result.duration_s)
    told = (spans > 0) & ~np.isnan(values)
    return float(values[told] @ spans[told]) if told.any() else np.nan


def _accelerators(result: RunResult, replica: str) -> int:
    """Return the accelerators of a replica, which is named by its pool and a number."""
    pools = {p.name: p.accelerators // p.replicas for p in result.scenario.pools}
    return pools.get(replica.rpartition("-")[0], 1)
