"""The names of what a rule can read while a run goes on: levels, rates and latencies.

A rule is a breaker or an autoscaler. What each name means, and of what it can be read, is said in
:mod:`capplan.simulation.metrics`.
"""

from __future__ import annotations

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

LEVELS: tuple[str, ...] = get_args(LevelName)
RATES: tuple[str, ...] = get_args(RateName)
LATENCIES: tuple[str, ...] = get_args(LatencyName)
OF_GATEWAY: tuple[str, ...] = ("queue_length", "in_flight", "refused_rps")
"""Those that can be read of the gateway too, not only of a pool."""
