"""Three named levels of metrics for a stage: callers, accelerators, queues and hosts.

A figure that nobody tells is None, which is unknown and not zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.results.headline import summary
from capplan.results.timelines import held_values
from capplan.scenario.batching import ContinuousBatching
from capplan.stages.host_gaps import step_gaps

if TYPE_CHECKING:
    from capplan.stages.stage import Stage

Floats = npt.NDArray[np.float64]
Held = tuple[Floats, Floats]
"""Values, and how long each was held, s."""


def levels(stage: Stage) -> dict[str, dict[str, Any]]:
    """Return rate, latencies and errors; then mean and 95th percentile over time of each metric.

    ``fragmentation`` is the share of the free KV outside the largest hole; ``step_gap_s`` the time
    within a step in which the accelerator waits for the host, and ``step_gap_fraction`` that as a
    share of the step; ``host_pressure`` how much longer everything takes on the host that is
    pressed most; ``host_pause_s`` is not simulated.
    """
    return {
        "1 callers": _callers(stage),
        **{
            name: {figure: _over_time(read(stage)) for figure, read in figures.items()}
            for name, figures in LEVELS.items()
        },
    }


def _callers(stage: Stage) -> dict[str, Any]:
    bad = stage.table["outcome"].isin(["rejected", "failed", "timed_out"])
    return {
        "rate_rps": stage.offered_rps,
        "e2e_censored_s": summary(stage.table["e2e_censored_s"]),
        "ttft_censored_s": summary(stage.table["ttft_censored_s"]),
        "error_fraction": float(bad.mean()) if len(bad) else math.nan,
    }


def _told(stage: Stage, *, metric: str, layer: str | None = None) -> Held:
    rows = stage.run.timeline
    rows = rows if layer is None else rows[rows["layer"] == layer]
    return held_values(rows, metric, start_s=stage.start_s, end_s=stage.end_s)


def _fragmentation(stage: Stage) -> Held:
    """Return the free KV outside the largest hole; in blocks of which any one serves, none is."""
    told = _told(stage, metric="kv_external_fragmentation_fraction")
    if not _paged(stage):
        return told
    usage, spans = _told(stage, metric="kv_usage_fraction")
    return _together([told, (np.where(np.isnan(usage), np.nan, 0.0), spans)])


def _paged(stage: Stage) -> bool:
    """Return whether every pool that holds KV holds it in blocks."""
    held = [p.batching for p in stage.scenario.pools if isinstance(p.batching, ContinuousBatching)]
    return bool(held) and all(batching.kv_layout == "paged" for batching in held)


def _host_pressure(stage: Stage) -> Held:
    """Return the pressure of the worst resource of the worst host at each moment."""
    rows = stage.run.timeline
    rows = rows[rows["layer"] == "host"]
    worst = rows.groupby("time_s")["value"].max().reset_index()
    worst = worst.assign(layer="host", replica="", metric="pressure")
    return held_values(worst, "pressure", start_s=stage.start_s, end_s=stage.end_s)


def _scheduler_queue(stage: Stage) -> Held:
    """Return how many wait in the scheduler queues of all replicas together."""
    rows = stage.run.timeline
    rows = rows[(rows["layer"] == "scheduler_queue") & (rows["metric"] == "length")]
    total = rows.groupby("time_s")["value"].sum().reset_index()
    total = total.assign(layer="scheduler_queue", replica="", metric="length")
    return held_values(total, "length", start_s=stage.start_s, end_s=stage.end_s)


def _gaps(stage: Stage, *, column: str) -> Held:
    gaps: pd.DataFrame = step_gaps(stage)
    return gaps[column].to_numpy(np.float64), gaps["span_s"].to_numpy(np.float64)


def _together(parts: Iterable[Held]) -> Held:
    values, spans = zip(*parts, strict=True)
    return np.concatenate(values), np.concatenate(spans)


def _over_time(held: Held) -> dict[str, float] | None:
    values, spans = held
    told = (spans > 0) & ~np.isnan(values)
    if not told.any():
        return None
    values, spans = values[told], spans[told]
    order = np.argsort(values, kind="stable")
    share = np.cumsum(spans[order]) / spans.sum()
    p95 = float(values[order][np.searchsorted(share, 0.95 - 1e-12)])
    return {"mean": float(values @ spans / spans.sum()), "p95": p95}


LEVELS: Mapping[str, Mapping[str, Callable[[Stage], Held]]] = {
    "2 accelerators": {
        "memory": partial(_told, metric="kv_usage_fraction"),
        "fragmentation": _fragmentation,
        "step_gap_s": partial(_gaps, column="gap_s"),
        "step_gap_fraction": partial(_gaps, column="gap_fraction"),
        "busy": partial(_told, metric="busy_fraction"),
    },
    "3 queues and hosts": {
        "scheduler_queue": _scheduler_queue,
        "backlog": partial(_told, metric="in_flight", layer="caller"),
        "host_pressure": _host_pressure,
        "host_pause_s": partial(_told, metric="host_pause_s"),
    },
}
"""Figures over time by level, and how each is read."""
