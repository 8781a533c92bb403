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
from capplan.schema import LAYERS, OUTCOMES, DataError

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
SLACK_S = 1e-6

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
        ``wasted_accelerator_s`` (:func:`~capplan.results.waste.accelerator_seconds`) of those that
        ended there. A place without any moment of a live server is left out.
    """
    log = result.requests
    entered, left, ended = _flows(result)
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


def check_conservation(result: RunResult) -> None:
    """Check that every request is accounted for once; DataError names the first entry that isn't.

    The log has every request of the trace and no other (users of a closed loop may leave out their
    last ones), attempts are numbered from 1, at most one succeeded, moments are in order, every
    attempt that entered a place left it or ended there, and every ended attempt has an end.
    """
    log = result.requests
    _check_values(log)
    _check_requests(result)
    _check_moments(log)
    _check_ends(log)
    entered, left, ended = _flows(result)
    for layer in entered:
        wrong = entered[layer] != (left[layer] | ended[layer])
        rule = f"every attempt that entered {layer} left it or ended there"
        _refuse(log, wrong | (left[layer] & ended[layer]), rule, "outcome")
    _check_deciders(log, entered)


def _flows(result: RunResult) -> tuple[dict[str, Flags], dict[str, Flags], dict[str, Flags]]:
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


def _check_values(log: pd.DataFrame) -> None:
    known = log["outcome"].isin(OUTCOMES).to_numpy()
    _refuse(log, ~known, f"one of {', '.join(OUTCOMES)}", "outcome")
    failed = ~outcome_is(log, "succeeded") & ~outcome_is(log, "in_flight")
    named = log["outcome_layer"].isin(LAYERS).to_numpy()
    _refuse(log, failed & ~named, f"one of {', '.join(LAYERS)}", "outcome_layer")


def _check_requests(result: RunResult) -> None:
    log = result.requests
    codes, _ = pd.factorize(log["request_id"])
    attempt = log["attempt"].to_numpy(np.float64)
    order = np.lexsort((attempt, codes))
    first = np.flatnonzero(np.diff(codes[order], prepend=-1))
    expected = np.empty(len(log))
    sizes = np.diff(first, append=len(log))
    expected[order] = np.arange(1, len(log) + 1) - np.repeat(first, sizes)
    _refuse(log, attempt != expected, "numbered from 1", "attempt")
    successes = np.bincount(codes[outcome_is(log, "succeeded")], minlength=first.size)
    _refuse(log, successes[codes] > 1, "at most one success a request", "outcome")
    frame = result.trace.frame
    if "request_id" not in frame:
        return
    drawn, seen = set(frame["request_id"]), set(log["request_id"])
    if drawn - seen:
        drawn -= _never_sent(frame, seen)
    if drawn != seen:
        odd = sorted(drawn ^ seen)[0]
        rule = f"the same {len(drawn)} requests in trace and log ({len(seen)})"
        raise DataError(rule, where="requests", field="request_id", value=odd)


def _never_sent(frame: pd.DataFrame, seen: set[str]) -> set[str]:
    """Return the requests that users of a closed loop did not reach: each user's last ones."""
    if "user" not in frame:
        return set()
    rows = frame[frame["user"].notna()]
    sent = rows["request_id"].isin(seen)
    last_sent = sent[::-1].groupby(rows["user"][::-1], sort=False).cumsum()
    return set(rows["request_id"][last_sent == 0])


def _check_moments(log: pd.DataFrame) -> None:
    before = np.full(len(log), -np.inf)
    for moment in (*PASSAGE.values(), "finish_s"):
        time = log[moment].to_numpy(np.float64, na_value=np.nan)
        early = time < before - SLACK_S
        if moment == "finish_s":  # a caller may leave while a replica still works
            early &= outcome_is(log, "succeeded") | outcome_is(log, "failed")
        _refuse(log, early, "moments in order", moment)
        before = np.fmax(before, time)
    late = (log["first_token_s"] > log["finish_s"] + SLACK_S).to_numpy(np.bool_)
    _refuse(log, late, "the first token before the end", "first_token_s")


def _check_ends(log: pd.DataFrame) -> None:
    finished = log["finish_s"].notna().to_numpy()
    inside = outcome_is(log, "in_flight")
    _refuse(log, finished & inside, "no end of an attempt in flight", "finish_s")
    _refuse(log, ~finished & ~inside, "an end of every attempt not in flight", "finish_s")
    silent = outcome_is(log, "succeeded") & log["first_token_s"].isna().to_numpy()
    if silent.all():  # unknown for the whole log, unlike a log that lacks one
        return
    _refuse(log, silent, "a first token of every success", "first_token_s")


def _check_deciders(log: pd.DataFrame, reached: dict[str, Flags]) -> None:
    """Check that an attempt reached the layer that decided its outcome."""
    for layer in ("gateway", "service_queue", "scheduler_queue", "prefill", "decode"):
        if layer in reached:
            decided = log["outcome_layer"].eq(layer).fillna(False).to_numpy(np.bool_)
            ended = decided & ~outcome_is(log, "succeeded")
            _refuse(
                log,
                ended & ~reached[layer],
                f"every attempt that ended at {layer} reached it",
                "outcome_layer",
            )


def _refuse(log: pd.DataFrame, wrong: Flags, rule: str, field: str) -> None:
    if not wrong.any():
        return
    row = log.iloc[int(np.argmax(wrong))]
    name = f"requests: {row['request_id']!s} attempt {row['attempt']!s}"
    raise DataError(rule, where=name, field=field, value=row[field])
