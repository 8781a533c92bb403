"""The proof that a run loses no request: each is accounted for once, at every place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.results.conservation import PASSAGE, Flags, flows
from capplan.results.requests import outcome_is
from capplan.schema import LAYERS, OUTCOMES, DataError

if TYPE_CHECKING:
    from capplan.results.run import RunResult

SLACK_S = 1e-6


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
    entered, left, ended = flows(result)
    for layer in entered:
        wrong = entered[layer] != (left[layer] | ended[layer])
        rule = f"every attempt that entered {layer} left it or ended there"
        _refuse(log, wrong | (left[layer] & ended[layer]), rule, "outcome")
    _check_deciders(log, entered)


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
