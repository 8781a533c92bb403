"""Three named levels of metrics for a stage: callers, accelerators, queues and hosts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.results.headline import summary
from capplan.results.timelines import held_values

if TYPE_CHECKING:
    from capplan.stages.stage import Stage

LEVELS: dict[str, dict[str, str]] = {
    "1 callers": {},
    "2 accelerators": {
        "memory": "kv_usage_fraction",
        "fragmentation": "kv_fragmentation_fraction",
        "step_gap_s": "step_gap_s",
        "busy": "busy_fraction",
    },
    "3 queues and hosts": {
        "scheduler_queue": "length",
        "backlog": "in_flight",
        "host_pause_s": "host_pause_s",
    },
}
"""Figures of the timeline by level; one that no layer reports is unknown."""
OF_LAYER = {"scheduler_queue": "scheduler_queue", "backlog": "caller"}


def levels(stage: Stage) -> dict[str, dict[str, Any]]:
    """Return rate, latencies and errors; then mean and 95th percentile over time of each metric."""
    bad = stage.table["outcome"].isin(["rejected", "failed", "timed_out"])
    callers = {
        "rate_rps": stage.offered_rps,
        "e2e_censored_s": summary(stage.table["e2e_censored_s"]),
        "ttft_censored_s": summary(stage.table["ttft_censored_s"]),
        "error_fraction": float(bad.mean()) if len(bad) else math.nan,
    }
    found: dict[str, dict[str, Any]] = {"1 callers": callers}
    for name, metrics in LEVELS.items():
        if metrics:
            found[name] = {
                figure: _over_time(stage, metric, OF_LAYER.get(figure))
                for figure, metric in metrics.items()
            }
    return found


def _over_time(stage: Stage, metric: str, layer: str | None) -> dict[str, float] | None:
    rows = stage.run.timeline
    rows = rows if layer is None else rows[rows["layer"] == layer]
    values, spans = held_values(rows, metric, start_s=stage.start_s, end_s=stage.end_s)
    told = (spans > 0) & ~np.isnan(values)
    if not told.any():
        return None
    values, spans = values[told], spans[told]
    order = np.argsort(values, kind="stable")
    share = np.cumsum(spans[order]) / spans.sum()
    p95 = float(values[order][np.searchsorted(share, 0.95 - 1e-12)])
    return {"mean": float(values @ spans / spans.sum()), "p95": p95}
