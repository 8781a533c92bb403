"""Names of the metrics that breakers and autoscalers read.

:mod:`capplan.simulation.metrics` defines them.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

LevelName = Literal[
    "queue_length",
    "in_flight",
    "in_flight_per_replica",
    "running",
    "kv_usage_fraction",
    "fragmentation_fraction",
    "up",
]
"""Values at an instant."""

RateName = Literal[
    "busy_fraction",
    "output_tokens_per_s",
    "prefill_tokens_per_s",
    "arrivals_rps",
    "refused_rps",
    "preemptions_per_s",
]
"""Values per second, between two readings."""

LatencyName = Literal["ttft_s", "e2e_s", "tpot_s"]
"""Quantiles over the attempts of the last seconds."""

MetricName = Literal[LevelName, RateName, LatencyName]

LEVELS: tuple[str, ...] = get_args(LevelName)
RATES: tuple[str, ...] = get_args(RateName)
LATENCIES: tuple[str, ...] = get_args(LatencyName)
OF_GATEWAY: tuple[str, ...] = ("queue_length", "in_flight", "refused_rps")
"""Metrics of the gateway as well as of a pool."""

MOST_SAMPLES = 10_000
"""Attempts that a window of latencies keeps: a hundred beyond the 99th percentile."""


def samples_needed(quantile: float, min_samples: int | None = None) -> int:
    """Return how many attempts a quantile needs: one beyond it, unless stated.

    >>> samples_needed(0.99), samples_needed(0.99, 20)
    (100, 20)
    """
    return min_samples or math.ceil(round(1 / (1 - quantile), 6))


def check_samples(quantile: float, min_samples: int | None = None) -> None:
    """Raise ValueError if a quantile needs more attempts than a window keeps."""
    if (needed := samples_needed(quantile, min_samples)) > MOST_SAMPLES:
        field, value = ("min_samples", min_samples) if min_samples else ("quantile", quantile)
        msg = (
            f"{field}: needs at most the {MOST_SAMPLES:,} attempts that a window keeps, not "
            f"{needed:,}, got {value}"
        )
        raise ValueError(msg)
