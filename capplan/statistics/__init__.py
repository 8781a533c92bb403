"""Estimates with their uncertainty: intervals, paired differences, warm-up, stability.

Plain numbers and arrays in, small values out; nothing here knows of requests or scenarios.
"""

from capplan.statistics.estimates import (
    Estimate,
    batch_means,
    in_batches,
    paired_difference,
    quantile,
    quantile_interval,
    quantiles,
    replication_mean,
    share_interval,
    trend,
)
from capplan.statistics.rounding import round_to
from capplan.statistics.stability import Stability, stability
from capplan.statistics.warmup import mser5

__all__ = [
    "Estimate",
    "Stability",
    "batch_means",
    "in_batches",
    "mser5",
    "paired_difference",
    "quantile",
    "quantile_interval",
    "quantiles",
    "replication_mean",
    "round_to",
    "share_interval",
    "stability",
    "trend",
]
