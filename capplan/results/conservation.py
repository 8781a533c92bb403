"""Conservation of requests: attempts that enter, leave and end at each layer must add up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.results.cost import accelerator_seconds
from capplan.results.requests import answered_by_gateway, outcome_is, wasted_tokens
from capplan.results.segments import queue_waits
from capplan.schema import OUTCOMES

if TYPE_CHECKING:
    from capplan.results.run import RunResult

PASSAGE = {
    "caller": "intended_start_s",
    "network": "sent_s",
    "gateway": "gateway_in_s",
    "service_queue": "service_queue_in_s",
    "scheduler_queue": "scheduler_queue_in_s",
    "prefill": "batch_in_s",
    "decode": "prefill_end_s",
    "response": "decode_end_s",
}
"""The places an attempt passes and the moment it enters each. The wait for the batch window is part
of ``scheduler_queue``; ``response`` is the way back."""
ENDS = tuple(outcome for outcome in OUTCOMES if outcome != "succeeded")
KEYS = ("request_class", "tenant", "attempt")

Flags = npt.NDArray[np.bool_]


def conservation_table(
    result: RunResult,
    *,
    by: Sequence[str] = KEYS,
    within_s: tuple[float, float] = (-np.inf, np.inf),
) -> pd.DataFrame:
    """Return the counts of each place, per class, tenant and attempt (``by``), warm-up included.

    Only requests with their first intended start ``within_s`` count.

    Returns
    -------
    DataFrame
        The keys, ``layer`` (a key of ``PASSAGE``), ``entered``, ``left`` (for the next place; out
        of ``response`` with success), one count for each other outcome of those that ended there,
        ``wait_mean_s`` and ``wait_total_s`` of those that waited there, and ``wasted_tokens`` and
        ``wasted_accelerator_s`` (:func:`~capplan.results.cost.accelerator_seconds`) of those that
        ended there. A place without any moment of a live server is left out.
    """
    log = result.requests
    entered, left, ended = flows(result)
    waits = queue_waits(log, end_s=result.duration_s)
    spent = {
        "wasted_tokens": wasted_tokens(log),
        "wasted_accelerator_s": accelerator_seconds(result),
    }
    here = _started_within(log, *within_s)
    log, waits = log[here], waits[here]
    entered, left, ended = ({k: v[here] for k, v in f.items()} for f in (entered, left, ended))
    spent = {name: values[here] for name, values in spent.items()}
    codes, keys = _codes(log, by)
    tables = []
    for layer in entered:
        counts = {"entered": _count(entered[layer], codes), "left": _count(left[layer], codes)}
        for outcome in ENDS:
            counts[outcome] = _count(ended[layer] & outcome_is(log, outcome), codes)
        mean, total = _waits(waits, layer, codes, len(keys))
        lost = {name: _sum(v, ended[layer], codes, len(keys)) for name, v in spent.items()}
        columns = {**counts, "wait_mean_s": mean, "wait_total_s": total, **lost}
        tables.append(keys.assign(layer=layer, **columns))
    return pd.concat(tables, ignore_index=True)


def _started_within(log: pd.DataFrame, start_s: float, end_s: float) -> Flags:
    if np.isinf([start_s, end_s]).all():
        return np.ones(len(log), dtype=np.bool_)
    starts = log.groupby("request_id", sort=False, observed=True)["intended_start_s"]
    first = starts.transform("min").to_numpy(np.float64)
    found: Flags = (first >= start_s) & (first < end_s)
    return found


def flows(result: RunResult) -> tuple[dict[str, Flags], dict[str, Flags], dict[str, Flags]]:
    """Return which attempts entered, left and ended at each place with known moments."""
    log = result.requests
    reached = {layer: log[moment].notna().to_numpy() for layer, moment in PASSAGE.items()}
    if result.backend != "simulated":
        reached = {k: v for k, v in reached.items() if v.any() or k == "caller"}
    places = list(reached)
    succeeded = outcome_is(log, "succeeded")
    left = {a: reached[b] for a, b in pairwise(places)}
    left[places[-1]] = succeeded & reached[places[-1]]
    if "gateway" in left:
        left["gateway"] = left["gateway"] | answered_by_gateway(log)
    deepest = np.max([reached[p] * (i + 1) for i, p in enumerate(places)], axis=0) - 1
    ended = {p: (deepest == i) & ~succeeded for i, p in enumerate(places)}
    return reached, left, ended


def _codes(log: pd.DataFrame, by: Sequence[str]) -> tuple[npt.NDArray[np.intp], pd.DataFrame]:
    groups = log.groupby(list(by), sort=True, observed=True, dropna=False)
    keys = groups.size().reset_index()[list(by)]
    return groups.ngroup().to_numpy().astype(np.intp), keys


def _count(flags: Flags, codes: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    size = int(codes.max()) + 1 if codes.size else 0
    return np.bincount(codes[flags], minlength=size).astype(np.int64)


def _waits(
    waits: pd.DataFrame, layer: str, codes: npt.NDArray[np.intp], size: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the mean and the sum of the waits in a place, by group; NaN without a wait."""
    if layer not in waits:
        return np.full(size, np.nan), np.full(size, np.nan)
    wait = waits[layer].to_numpy(np.float64)
    known = ~np.isnan(wait)
    count = np.bincount(codes[known], minlength=size).astype(np.float64)
    total = np.bincount(codes[known], weights=wait[known], minlength=size).astype(np.float64)
    some = count > 0
    return (
        np.where(some, total / np.maximum(count, 1), np.nan),
        np.where(some, total, np.nan),
    )


def _sum(
    values: npt.NDArray[np.float64], of: Flags, codes: npt.NDArray[np.intp], size: int
) -> npt.NDArray[np.float64]:
    """Return the sum over the flagged rows, by group; NaN if one of them is unknown."""
    return np.bincount(codes[of], weights=values[of], minlength=size).astype(np.float64)
