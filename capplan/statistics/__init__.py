"""Estimates with their uncertainty: intervals, trends, warm-up, stability.

Plain numbers and arrays in, small values out; it does not know requests or scenarios.
"""

from capplan.statistics.estimates import (
    Estimate,
    batch_means,
    in_batches,
    quantile,
    quantile_interval,
    quantiles,
    replication_mean,
    round_to,
    share_interval,
    trend,
)
from capplan.statistics.stability import Stability, mser5, stability

__all__ = [
    "Estimate",
    "Stability",
    "batch_means",
    "in_batches",
    "mser5",
    "quantile",
    "quantile_interval",
    "quantiles",
    "replication_mean",
    "round_to",
    "share_interval",
    "stability",
    "trend",
]
