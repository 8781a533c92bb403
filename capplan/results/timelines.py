"""Timelines and caches: time averages of a metric, which keeps its value until its next row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.results.requests import answered_by_gateway

if TYPE_CHECKING:
    from capplan.results.run import RunResult

Floats = npt.NDArray[np.float64]


def held_values(
    timeline: pd.DataFrame, metric: str, *, start_s: float, end_s: float
) -> tuple[Floats, Floats]:
    """Return the values of a metric between two moments and how long each was held, s.

    The values of all layers and replicas that report the metric, each with its own time.
    """
    rows = timeline[timeline["metric"] == metric]
    values: list[Floats] = []
    spans: list[Floats] = []
    for _, one in rows.groupby(["layer", "replica"], sort=False, observed=True):
        ordered = one.sort_values("time_s", kind="stable")
        time = ordered["time_s"].to_numpy(np.float64)
        ends = np.append(time[1:], end_s)
        spans.append(np.clip(ends, start_s, end_s) - np.clip(time, start_s, end_s))
        values.append(ordered["value"].to_numpy(np.float64))
    if not values:
        return np.empty(0), np.empty(0)
    return np.concatenate(values), np.concatenate(spans)


def over_time(values: Floats, spans: Floats) -> dict[str, float]:
    """Return mean, 95th percentile (by time) and maximum of held values; NaN where none is known.

    >>> over_time(np.array([3.0, 1.0, np.nan]), np.array([1.0, 3.0, 9.0]))
    {'mean': 1.5, 'p95': 3.0, 'max': 3.0}
    """
    known = (spans > 0) & ~np.isnan(values)
    if not known.any():
        return dict.fromkeys(("mean", "p95", "max"), math.nan)
    values, spans = values[known], spans[known]
    order = np.argsort(values, kind="stable")
    share = np.cumsum(spans[order]) / spans.sum()
    p95 = float(values[order][np.searchsorted(share, 0.95 - 1e-12)])
    mean = float(values @ spans / spans.sum())
    return {"mean": mean, "p95": p95, "max": float(values.max())}


def time_average(result: RunResult, metric: str, *, replicas: Iterable[str] | None = None) -> float:
    """Return the time average of a metric after the warm-up, over all that report it.

    ``replicas`` names those that count. Time without an observation is left out; NaN if there is
    no other.
    """
    values, spans = _judged(result, metric, replicas)
    return float(values @ spans / spans.sum()) if spans.sum() > 0 else math.nan


def time_summary(result: RunResult, metric: str) -> dict[str, float]:
    """Return mean, 95th percentile (by time) and maximum of a metric after the warm-up."""
    return over_time(*_judged(result, metric))


def _judged(
    result: RunResult, metric: str, replicas: Iterable[str] | None = None
) -> tuple[Floats, Floats]:
    timeline = result.timeline
    if replicas is not None:
        timeline = timeline[timeline["replica"].isin(list(replicas))]
    values, spans = held_values(
        timeline, metric, start_s=result.judged_from_s, end_s=result.duration_s
    )
    held = (spans > 0) & ~np.isnan(values)
    return values[held], spans[held]


def cache_hit_fraction(attempts: pd.DataFrame) -> float:
    """Return the share of prompt tokens found in the prefix cache, of attempts that state it.

    Answers of the gateway's own cache reach no replica and do not count.
    """
    asked = attempts[~answered_by_gateway(attempts)]
    columns = ["cached_tokens", "prompt_tokens"]
    both = asked[columns].to_numpy(np.float64, na_value=np.nan)
    cached, prompt = both[~np.isnan(both).any(axis=1)].sum(axis=0)
    return float(cached) / float(prompt) if prompt > 0 else math.nan


def cache_hits_by_replica(attempts: pd.DataFrame) -> dict[str, float]:
    """Return :func:`cache_hit_fraction` of the attempts that each replica served."""
    served = attempts[attempts["batch_in_s"].notna().to_numpy()]
    groups = served.groupby("replica", sort=True, observed=True)
    return {str(name): cache_hit_fraction(own) for name, own in groups}


def response_hit_fraction(attempts: pd.DataFrame, result: RunResult) -> float:
    """Return the share of the attempts admitted by the gateway that it answered from its cache.

    NaN without a cache, or without an admitted attempt.
    """
    admitted = int(attempts["gateway_admitted_s"].notna().sum())
    if result.scenario.gateway.response_cache is None or not admitted:
        return math.nan
    return int(answered_by_gateway(attempts).sum()) / admitted


def cache_figures(result: RunResult, attempts: pd.DataFrame) -> dict[str, Any]:
    """Return the hits of each cache, and the memory that it takes.

    Returns
    -------
    dict
        ``kv_cached``: the share of the KV blocks held only as prefix cache (mean, p95, max over
        time); ``cache_hit_fraction_by_replica``; ``response_cache``: its ``hit_fraction``,
        ``bytes`` and ``entries``. NaN without such a cache.
    """
    return {
        "kv_cached": time_summary(result, "kv_cached_fraction"),
        "cache_hit_fraction_by_replica": cache_hits_by_replica(attempts),
        "response_cache": {
            "hit_fraction": response_hit_fraction(attempts, result),
            "bytes": time_summary(result, "response_cache_bytes"),
            "entries": time_summary(result, "response_cache_entries"),
        },
    }
