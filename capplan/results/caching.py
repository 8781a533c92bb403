"""What caches find, next to the memory they take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.results.requests import answered_by_gateway
from capplan.results.timelines import time_summary

if TYPE_CHECKING:
    from capplan.results.run import RunResult


def cache_hit_fraction(attempts: pd.DataFrame) -> float:
    """Return the share of prompt tokens found in the prefix cache, of attempts that tell it.

    What the gateway answered itself asked no replica, and does not count.
    """
    asked = attempts[~answered_by_gateway(attempts)]
    columns = ["cached_tokens", "prompt_tokens"]
    both = asked[columns].to_numpy(np.float64, na_value=np.nan)
    cached, prompt = both[~np.isnan(both).any(axis=1)].sum(axis=0)
    return float(cached) / float(prompt) if prompt > 0 else math.nan


def cache_hits_by_replica(attempts: pd.DataFrame) -> dict[str, float]:
    """Return the same of the attempts that each replica began to serve."""
    served = attempts[attempts["batch_in_s"].notna().to_numpy()]
    groups = served.groupby("replica", sort=True, observed=True)
    return {str(name): cache_hit_fraction(own) for name, own in groups}


def response_hit_fraction(attempts: pd.DataFrame, result: RunResult) -> float:
    """Return the share of the attempts admitted by the gateway that it answered from its cache.

    NaN where it has none, or nobody was admitted.
    """
    admitted = int(attempts["gateway_admitted_s"].notna().sum())
    if result.scenario.gateway.response_cache is None or not admitted:
        return math.nan
    return int(answered_by_gateway(attempts).sum()) / admitted


def cache_figures(result: RunResult, attempts: pd.DataFrame) -> dict[str, Any]:
    """Return what each cache found, and what it took.

    Returns
    -------
    dict
        ``kv_cached``: the share of the KV blocks that only prefix caches hold (mean, p95, max over
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
