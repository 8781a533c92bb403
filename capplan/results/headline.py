"""The figures of a run, as ``capplan simulate --json`` prints them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.results.breakers import breaker_figures
from capplan.results.cost import (
    accelerator_seconds,
    class_cost_usd_per_success,
    cost_usd_per_success,
)
from capplan.results.requests import (
    answered_by_gateway,
    degraded_answers,
    outcome_is,
    per_request,
    wasted_tokens,
)
from capplan.results.scaling import scaling_figures
from capplan.results.segments import QUEUES, double_queued, queue_waits, waited_twice
from capplan.results.timelines import (
    cache_figures,
    cache_hit_fraction,
    response_hit_fraction,
    time_average,
    time_summary,
)
from capplan.scenario import Scenario
from capplan.schema import OUTCOMES
from capplan.statistics import quantiles, stability
from capplan.statistics.stability import Stability

if TYPE_CHECKING:
    from capplan.results.run import RunResult

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "ttft_censored_s", "e2e_censored_s")


def headline(result: RunResult, *, table: pd.DataFrame | None = None) -> dict[str, Any]:
    """Return the figures of a run, over the requests that start after the warm-up.

    ``ttft_s``, ``tpot_s`` and ``e2e_s`` are of successes only; the ``*_censored_s`` beside them
    count every other request as +inf. ``send_lag_s`` is the delay of the client itself, by attempt;
    it is part of all latencies. ``degraded`` answers also count under their outcome, and are
    successes for a class that allows them. Rates divide by the time from the end of the warm-up to
    the end of the run. ``table`` is the run's :func:`per_request`, if already computed.

    Returns
    -------
    dict
        The keys of ``simulate --json`` except ``run_id`` and ``verdict``; NaN without a measurement
        (see :func:`capplan.encoding.plain`).
    """
    requests = per_request(result) if table is None else table
    attempts = _with_seconds(result)
    whole = _figures(result, requests, attempts)
    names = [c.name for c in result.scenario.classes]
    by_class = {
        name: (whole if len(names) == 1 else _class_figures(result, requests, attempts, name))
        | {"cost_usd_per_success": class_cost_usd_per_success(result, requests, name)}
        for name in names
    }
    return {
        **whole,
        "duration_s": result.duration_s,
        "accelerator_busy_fraction": time_average(result, "busy_fraction"),
        "kv_usage": time_summary(result, "kv_usage_fraction"),
        **cache_figures(result, attempts),
        "breakers": breaker_figures(result),
        "scaling": scaling_figures(result),
        "cost_usd_per_success": cost_usd_per_success(result, requests),
        "by_class": by_class,
        "wall_s": result.wall_s,
        "simulated_requests_per_wall_s": _offered(result) / result.wall_s
        if result.wall_s > 0
        else math.nan,
    }


def _with_seconds(result: RunResult) -> pd.DataFrame:
    """Return the judged attempts, each with the accelerator time spent on it."""
    attempts = result.judged
    seconds = pd.Series(accelerator_seconds(result), index=result.requests.index)
    # An assignment to a frame without rows would give it those of the series.
    return attempts.assign(accelerator_s=seconds.loc[attempts.index])


def _class_figures(
    result: RunResult, requests: pd.DataFrame, attempts: pd.DataFrame, name: str
) -> dict[str, Any]:
    return _figures(result, _of(requests, name), _of(attempts, name))


def _of(table: pd.DataFrame, name: str) -> pd.DataFrame:
    return table[table["request_class"] == name]


def _offered(result: RunResult) -> int:
    return int(result.requests["request_id"].nunique())


def system_stability(result: RunResult, *, table: pd.DataFrame | None = None) -> Stability:
    """Return whether the number of requests inside (retries included) stays bounded.

    A request is inside from its first intended start until its outcome. Judged from the end of the
    warm-up, or of the last fault.
    """
    requests = per_request(result, warmup=True) if table is None else table
    start = max(result.judged_from_s, _last_change_s(result.scenario)) or None
    return stability(requests["intended_start_s"], requests["finish_s"], start_s=start)


def _last_change_s(scenario: Scenario) -> float:
    """Return the moment of the last change by a fault, s."""
    return max((fault.last_change_s for fault in scenario.faults), default=0.0)


def _figures(result: RunResult, requests: pd.DataFrame, attempts: pd.DataFrame) -> dict[str, Any]:
    span = result.duration_s - result.judged_from_s
    counts = outcome_counts(requests)
    offered = len(requests)
    succeeded = outcome_is(requests, "succeeded")
    tokens = requests["output_tokens"].to_numpy(np.float64, na_value=np.nan)[succeeded]
    waits = queue_waits(attempts, end_s=result.duration_s)
    return {
        "offered": offered,
        "outcomes": counts,
        "degraded": int(degraded_answers(requests).sum()),
        "goodput_rps": _per(good_count(requests), span),
        "goodput_fraction": _per(good_count(requests), offered),
        "throughput_rps": _per(counts["succeeded"], span),
        "output_tokens_per_s": _per(float(tokens.sum()), span),
        "retry_amplification": _per(len(attempts), offered),
        **{column: summary(requests.loc[requests["success"], column]) for column in LATENCIES[:3]},
        **{column: summary(requests[column]) for column in LATENCIES[3:]},
        "send_lag_s": summary(attempts["sent_s"] - attempts["intended_start_s"]),
        "queue_wait_s": {layer: summary(waits[layer]) for layer in QUEUES},
        "error_rate_fraction": _per(counts["rejected"] + counts["failed"], offered),
        "timeout_fraction": _per(counts["timed_out"], offered),
        "wasted_token_fraction": wasted_token_fraction(attempts),
        **_waste(attempts),
        "cache_hit_fraction": cache_hit_fraction(attempts),
        "response_cache_hit_fraction": response_hit_fraction(attempts, result),
        "double_queued_fraction": _mean(double_queued(waits)),
        "double_queued": waited_twice(attempts, waits),
        "samples": samples(requests, attempts),
        "stable": system_stability(result, table=requests).stable,
    }


def outcome_counts(requests: pd.DataFrame) -> dict[str, int]:
    """Return the number of rows by outcome, with zeros."""
    found = requests["outcome"].value_counts()
    return {outcome: int(found.get(outcome, 0)) for outcome in OUTCOMES}


def good_count(requests: pd.DataFrame) -> float:
    """Return the number of good requests; NaN if that of one is unknown."""
    return float(requests["good"].to_numpy(np.float64).sum())


def samples(requests: pd.DataFrame, attempts: pd.DataFrame) -> dict[str, int]:
    """Return the numbers of requests, attempts and latencies behind the figures."""
    measured = {c: int(requests[c].notna().sum()) for c in ("ttft_s", "tpot_s", "e2e_s")}
    return {"requests": len(requests), "attempts": len(attempts), **measured}


def summary(values: pd.Series) -> dict[str, float]:
    """Return mean and quantiles of the values that are not NaN; +inf stays, NaN without any.

    >>> summary(pd.Series([1.0, 2.0, 3.0, np.nan]))
    {'mean': 2.0, 'p50': 2.0, 'p90': 2.8, 'p95': 2.9, 'p99': 2.98}
    """
    array = values.to_numpy(np.float64, na_value=np.nan)
    known = array[~np.isnan(array)]
    found = quantiles(known, list(QUANTILES.values()))
    return {"mean": _mean(known), **dict(zip(QUANTILES, found, strict=True))}


def wasted_token_fraction(attempts: pd.DataFrame) -> float:
    """Return the share of computed tokens that no success used; NaN if waste is unknown.

    Computed = prompt tokens not found in the cache + output tokens of successes, plus the wasted.
    """
    wasted = float(wasted_tokens(attempts).sum())
    done = attempts[outcome_is(attempts, "succeeded") & ~answered_by_gateway(attempts)]
    columns = ["prompt_tokens", "cached_tokens", "output_tokens"]
    prompt, cached, output = done[columns].to_numpy(np.float64, na_value=np.nan).sum(axis=0)
    return _per(wasted, wasted + prompt - cached + output)


def _waste(attempts: pd.DataFrame) -> dict[str, float]:
    """Return tokens and accelerator time spent on attempts that did not succeed."""
    seconds = attempts["accelerator_s"].to_numpy(np.float64)
    lost = float(seconds[~outcome_is(attempts, "succeeded")].sum())
    return {
        "wasted_tokens": float(wasted_tokens(attempts).sum()) if len(attempts) else math.nan,
        "wasted_accelerator_s": lost if len(attempts) else math.nan,
        "wasted_accelerator_fraction": _per(lost, float(seconds.sum())),
    }


def _per(amount: float, base: float) -> float:
    return float(amount) / float(base) if base > 0 else math.nan


def _mean(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan
