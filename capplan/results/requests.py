"""From attempts to intended requests: one row for each, with its outcome and latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.scenario import Scenario

if TYPE_CHECKING:
    from capplan.results.run import RunResult

Floats = npt.NDArray[np.float64]

SLACK_S = 1e-9
"""Rounding of a difference of two moments, far below a microsecond."""

KEPT = (
    "request_id",
    "request_class",
    "tenant",
    "priority",
    "session",
    "streaming",
    "deadline_s",
    "size",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "degraded",
    "outcome",
    "outcome_layer",
    "reason",
    "replica",
    "finish_s",
)
"""Columns taken from the decisive attempt."""


def per_request(result: RunResult, *, warmup: bool = False) -> pd.DataFrame:
    """Return one row per intended request, in order of intended start.

    The outcome is that of the decisive attempt: the first that succeeded, else one still in
    flight, else the last to end. ``success``: it succeeded and its answer was not
    degraded, or its class allows that. Latencies count from the first attempt's intended start
    and are NaN unless the request succeeded; ``ttft_censored_s`` and ``e2e_censored_s`` are
    +inf unless it is a success (also for a request still in flight, whose latency is at least
    beyond the run). TTFT and ``tpot_s`` are NaN for an answer that is not streamed, also where
    censored; ``tpot_s`` for one token too.
    ``good`` is 1.0 for a success with every promise to the request held, 0.0 otherwise, NaN
    if a promise cannot be checked.

    Requests that start within the scenario's warm-up are left out, unless ``warmup``.

    Returns
    -------
    DataFrame
        Columns ``KEPT``, then ``intended_start_s, attempts, wasted_tokens, success, ttft_s,
        e2e_s, tpot_s, ttft_censored_s, e2e_censored_s, good``; index 0..n-1.
    """
    log = result.requests.reset_index(drop=True)
    codes, first, decisive = _attempt_groups(log)
    count = first.size
    table = log.loc[decisive, list(KEPT)].reset_index(drop=True)
    table["intended_start_s"] = log["intended_start_s"].to_numpy(np.float64)[first]
    table["attempts"] = np.bincount(codes, minlength=count)
    table["wasted_tokens"] = np.bincount(codes, weights=wasted_tokens(log), minlength=count)
    first_token = log["first_token_s"].to_numpy(np.float64)[decisive]
    table["success"] = _successes(table, result.scenario)
    _add_latencies(table, first_token)
    table["good"] = _good(table, result.scenario)
    if not warmup:
        table = table[table["intended_start_s"] >= result.judged_from_s]
    return table.sort_values("intended_start_s", kind="stable", ignore_index=True)


def _attempt_groups(
    log: pd.DataFrame,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return each attempt's request code, and each request's first and decisive attempt."""
    codes, known = pd.factorize(log["request_id"])
    rows = np.arange(len(log))
    if len(known) == len(log):
        return codes, rows, rows
    attempt = log["attempt"].to_numpy(np.float64)
    order = np.lexsort((attempt, codes))
    first = order[np.flatnonzero(np.diff(codes[order], prepend=-1))]
    rank = np.where(outcome_is(log, "succeeded"), 0, np.where(outcome_is(log, "in_flight"), 1, 2))
    over = ~(outcome_is(log, "succeeded") | outcome_is(log, "in_flight"))
    last = np.where(over, -log["finish_s"].to_numpy(np.float64, na_value=np.nan), 0.0)
    by_rank = np.lexsort((np.where(rank == 0, attempt, -attempt), last, rank, codes))
    decisive = by_rank[np.flatnonzero(np.diff(codes[by_rank], prepend=-1))]
    return codes, first, decisive


def outcome_is(table: pd.DataFrame, outcome: str) -> npt.NDArray[np.bool_]:
    """Return which rows have an outcome."""
    return table["outcome"].eq(outcome).to_numpy(np.bool_)


def answered_by_gateway(log: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which attempts the gateway answered itself, from its response cache."""
    decided = log["outcome_layer"].eq("gateway").fillna(False).to_numpy(np.bool_)
    return outcome_is(log, "succeeded") & decided


def wasted_tokens(log: pd.DataFrame) -> Floats:
    """Return the tokens wasted by each attempt; 0 for one that never ran, NaN if unknown.

    An attempt without the moment of its first batch never ran, if any other attempt of the log has
    that moment.
    """
    wasted = log["wasted_tokens"].to_numpy(np.float64, na_value=np.nan)
    ran = log["batch_in_s"].notna().to_numpy()
    if not ran.any():
        return wasted
    return np.where(np.isnan(wasted) & ~ran, 0.0, wasted)


def _add_latencies(table: pd.DataFrame, first_token: Floats) -> None:
    succeeded, success = outcome_is(table, "succeeded"), table["success"].to_numpy(np.bool_)
    start = table["intended_start_s"].to_numpy(np.float64)
    tokens = table["output_tokens"].to_numpy(np.float64, na_value=np.nan)
    stream = streamed(table)
    ttft = np.where(succeeded & stream, first_token - start, np.nan)
    e2e = np.where(succeeded, table["finish_s"].to_numpy(np.float64) - start, np.nan)
    gaps = np.where(tokens > 1, tokens - 1, np.nan)
    table["ttft_s"], table["e2e_s"] = ttft, e2e
    table["tpot_s"] = (e2e - ttft) / gaps
    table["ttft_censored_s"] = np.where(success | ~stream, ttft, np.inf)
    table["e2e_censored_s"] = np.where(success, e2e, np.inf)


def streamed(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows are streamed; a row without the flag is."""
    return (table["streaming"].astype("object") != False).to_numpy(np.bool_)  # noqa: E712


def _successes(table: pd.DataFrame, scenario: Scenario) -> npt.NDArray[np.bool_]:
    """Return which requests succeeded as their class allows: whole, or degraded."""
    codes, names = pd.factorize(table["request_class"])
    allows = np.array([scenario.request_class(name).allows_degraded for name in names], np.bool_)
    allowed = allows[codes] if allows.size else np.empty(0, np.bool_)
    return outcome_is(table, "succeeded") & (allowed | ~_true(table["degraded"]))


def degraded_answers(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows are answers that a protective action degraded, allowed or not."""
    return outcome_is(table, "succeeded") & _true(table["degraded"])


def _good(table: pd.DataFrame, scenario: Scenario) -> Floats:
    """Return for each request whether every promise to it held: 1.0, 0.0, NaN if unknown.

    TTFT and TPOT promises apply to streamed answers; an undefined TPOT (one token) holds. The
    request's own deadline takes precedence over that of its class.
    """
    held = np.where(table["success"].to_numpy(np.bool_), 1.0, 0.0)
    stream = streamed(table)
    tokens = table["output_tokens"].to_numpy(np.float64, na_value=np.nan)
    limits = _limits(table, scenario)
    applies = {"ttft_s": stream, "tpot_s": stream & ~(tokens <= 1)}
    for (column, _), limit in limits.items():
        promised = applies.get(column, True) & ~np.isnan(limit)
        value = table[column].to_numpy(np.float64)
        checked = np.where(np.isnan(value), np.nan, value <= limit + SLACK_S)
        together = np.where(checked == 0, 0.0, held * checked)  # one broken promise is enough
        held = np.where(promised & (held != 0), together, held)
    return held


def _limits(table: pd.DataFrame, scenario: Scenario) -> dict[tuple[str, str], Floats]:
    """Return each row's limit by latency column and promise; NaN = no such promise."""
    found: dict[tuple[str, str], Floats] = {}
    fields = (("ttft_s", "ttft_s"), ("tpot_s", "tpot_s"), ("e2e_s", "e2e_s"))
    codes, names = pd.factorize(table["request_class"])
    promises = [scenario.request_class(name).promises for name in names]
    for column, field in (*fields, ("e2e_s", "deadline_s")):
        by_class = np.array([_or_nan(getattr(p, field)) for p in promises], dtype=np.float64)
        found[column, field] = by_class[codes] if by_class.size else np.empty(0)
    own = table["deadline_s"].to_numpy(np.float64, na_value=np.nan)
    found["e2e_s", "deadline_s"] = np.where(np.isnan(own), found["e2e_s", "deadline_s"], own)
    return found


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _true(column: pd.Series) -> npt.NDArray[np.bool_]:
    return (column.astype("object") == True).to_numpy(np.bool_)  # noqa: E712
