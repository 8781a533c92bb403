"""Averages of the timelines: a metric keeps its value until its next observation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

if TYPE_CHECKING:
    from capplan.results.run import RunResult


Floats = npt.NDArray[np.float64]


def held_values(
    timeline: pd.DataFrame, metric: str, *, start_s: float, end_s: float
) -> tuple[Floats, Floats]:
    """Return the values of a metric between two moments and how long each was held, s.

    All layers and replicas that report the metric are put together, each for its own time.
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


def time_average(result: RunResult, metric: str, *, replicas: Iterable[str] | None = None) -> float:
    """Return the time average of a metric after the warm-up, over all that report it.

    ``replicas`` names those that count. Time for which nothing was observed is left out; NaN where
    there is no other.
    """
    values, spans = _judged(result, metric, replicas)
    return float(values @ spans / spans.sum()) if spans.sum() > 0 else math.nan


def time_summary(result: RunResult, metric: str) -> dict[str, float]:
    """Return mean, 95th percentile (by time) and maximum of a metric after the warm-up."""
    values, spans = _judged(result, metric)
    if not spans.sum() > 0:
        return {"mean": math.nan, "p95": math.nan, "max": math.nan}
    order = np.argsort(values, kind="stable")
    share = np.cumsum(spans[order]) / spans.sum()
    p95 = float(values[order][np.searchsorted(share, 0.95 - 1e-12)])
    mean = float(values @ spans / spans.sum())
    return {"mean": mean, "p95": p95, "max": float(values.max())}


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
