"""Replicas that come and go: how many were there, starting or waiting, beside how many wanted."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import checked, colour, layered, need, ordered, tooltip, x, y
from capplan.charts.theme import BLACK
from capplan.schema import Column

PHASE = Column("phase", "", "replicas that are", "str")
PHASES = {
    "replicas": "in service",
    "replicas_draining": "draining",
    "replicas_starting": "starting",
    "replicas_asked": "waiting for an accelerator",
    "replicas_standby": "on standby",
}
"""Metric of the timeline -> what is drawn, from the bottom up."""
WANTED = "replicas_desired"


def replicas_over_time(timeline: pd.DataFrame, *, points: int = 300) -> alt.LayerChart:
    """Return how many replicas there are over time, stacked by phase, and how many are wanted.

    ``timeline`` is a run's (``time_s, layer, replica, metric, value``), or the part of it that
    belongs to one pool; several pools are added up. The wanted number is a black step line, where
    it can change.
    """
    need(timeline, "time_s", "layer", "replica", "metric", "value", chart="replicas_over_time")
    grid = np.linspace(0, float(timeline["time_s"].max()), points)
    counts = {name: _total(timeline, name, grid) for name in (*PHASES, WANTED)}
    parts = [
        pd.DataFrame({c.TIME.name: grid, PHASE.name: told, c.REPLICAS.name: counts[name]})
        for name, told in PHASES.items()
        if counts[name].any()
    ]
    shown = (c.TIME, PHASE, c.REPLICAS)
    empty = pd.DataFrame(columns=[column.name for column in shown])
    frame = checked(pd.concat(parts) if parts else empty, shown, chart="replicas_over_time")
    phases = ordered(frame[PHASE.name])
    title = "replicas; dashed: wanted" if counts[WANTED].any() else c.REPLICAS.title
    area = (
        alt.Chart(frame, title="Replicas")
        .mark_area(interpolate="step-after", opacity=0.85)
        .encode(
            x(c.TIME, scale=alt.Scale(nice=False)),
            y(c.REPLICAS, stack="zero", title=title),
            colour(PHASE, phases),
            order=alt.Order("place:Q"),
            tooltip=tooltip(shown),
        )
        .transform_calculate(place=f"indexof({list(phases)}, datum.{PHASE.name})")
    )
    if not counts[WANTED].any():
        return layered(area)
    wanted = pd.DataFrame({c.TIME.name: grid, c.REPLICAS.name: counts[WANTED]})
    line = (
        alt.Chart(wanted)
        .mark_line(interpolate="step-after", color=BLACK, strokeDash=[4, 2])
        .encode(
            x(c.TIME),
            y(c.REPLICAS, title=title),
            tooltip=tooltip((c.TIME, c.REPLICAS)),
        )
    )
    return layered(area, line)


def _total(timeline: pd.DataFrame, metric: str, grid: np.ndarray) -> np.ndarray:
    """Return a metric added up over pools at each moment, each with its last value."""
    total = np.zeros(len(grid))
    for _, one in timeline[timeline["metric"] == metric].groupby("replica", observed=True):
        own = one.sort_values("time_s", kind="stable")
        index = np.searchsorted(own["time_s"].to_numpy(), grid, side="right") - 1
        values = own["value"].to_numpy(np.float64)
        total += np.where(index >= 0, values[np.maximum(index, 0)], 0.0)
    return total
