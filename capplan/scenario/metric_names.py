"""The names of what a rule can read while a run goes on: levels, rates and latencies.

A rule is a breaker or an autoscaler. What each name means, and of what it can be read, is said in
:mod:`capplan.simulation.metrics`.
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
"""What holds at an instant."""

RateName = Literal[
    "busy_fraction",
    "output_tokens_per_s",
    "prefill_tokens_per_s",
    "arrivals_rps",
    "refused_rps",
    "preemptions_per_s",
]
"""What happened between two readings, per second."""

LatencyName = Literal["ttft_s", "e2e_s", "tpot_s"]
"""What the callers of the last seconds saw, at a quantile."""

MetricName = Literal[LevelName, RateName, LatencyName]
"""Anything that a rule can read."""

LEVELS: tuple[str, ...] = get_args(LevelName)
RATES: tuple[str, ...] = get_args(RateName)
LATENCIES: tuple[str, ...] = get_args(LatencyName)
OF_GATEWAY: tuple[str, ...] = ("queue_length", "in_flight", "refused_rps")
"""Those that can be read of the gateway too, not only of a pool."""

MOST_SAMPLES = 10_000
"""Attempts that a window of latencies remembers: a hundred beyond the 99th percentile, and cheap to
sort."""


def samples_needed(quantile: float, min_samples: int | None = None) -> int:
    """Return how many attempts a quantile needs: as told, or as many as leave one beyond it.

    >>> samples_needed(0.99), samples_needed(0.99, 20)
    (100, 20)
    """
    return min_samples or math.ceil(round(1 / (1 - quantile), 6))


def check_samples(quantile: float, min_samples: int | None = None) -> None:
    """Raise ValueError where a quantile would never be known: more than are remembered."""
    if (needed := samples_needed(quantile, min_samples)) > MOST_SAMPLES:
        field, value = ("min_samples", min_samples) if min_samples else ("quantile", quantile)
        msg = (
            f"{field}: {MOST_SAMPLES:,} attempts are remembered, and {needed:,} would be needed: "
            f"it would never be known, got {value}"
        )
        raise ValueError(msg)
