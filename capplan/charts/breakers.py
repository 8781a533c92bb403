"""Breakers over time: when each rule was open, and how many answers it made cheaper."""

from __future__ import annotations

import altair as alt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import checked, colour, need, ordered, tooltip, x, y
from capplan.schema import Column

RULE = Column("rule", "", "rule, at its pool", "str")
OPENS = Column("start_s", "s", "opens")
CLOSES = Column("end_s", "s", "closes")
DEGRADED = Column("degraded_fraction", "", "share of answers degraded")


def breakers_over_time(spans: pd.DataFrame, *, end_s: float | None = None) -> alt.Chart:
    """Return when each rule was open, a bar for each time.

    ``spans`` has the columns ``rule``, ``start_s`` and ``end_s``; a rule that never opened has one
    row whose ends are equal. ``end_s`` is the end of the run, up to which the axis goes.
    """
    shown = (RULE, OPENS, CLOSES)
    frame = checked(spans, shown, chart="breakers_over_time")
    last = float(frame[CLOSES.name].max()) if end_s is None else end_s
    chart: alt.Chart = (
        alt.Chart(frame, title="Open breakers", height=alt.Step(24))
        .mark_bar()
        .encode(
            x(
                OPENS,
                title=c.TIME.title,
                scale=alt.Scale(domain=[0.0, last], nice=False),
            ),
            x2="end_s:Q",
            y=y(RULE, "N", sort=None),
            tooltip=tooltip(shown),
        )
    )
    return chart


def degraded_over_time(requests: pd.DataFrame, *, window_s: float = 10.0) -> alt.Chart:
    """Return the share of the answers of each window that were degraded, by class.

    ``requests`` has the columns ``intended_start_s``, ``request_class``, ``outcome`` and
    ``degraded``; only those that succeeded have an answer.
    """
    needed = ("intended_start_s", "request_class", "outcome", "degraded")
    need(requests, *needed, chart="degraded_over_time")
    answered = requests[requests["outcome"] == "succeeded"]
    start = (answered["intended_start_s"] // window_s * window_s).rename(c.TIME.name)
    marked = (answered["degraded"].astype("object") == True).astype(float)  # noqa: E712
    shares = marked.groupby([start, answered["request_class"]], observed=True).mean()
    shown = (c.TIME, c.CLASS, DEGRADED)
    told = shares.rename(DEGRADED.name).reset_index()
    frame = checked(told, shown, chart="degraded_over_time")
    classes = ordered(requests[c.CLASS.name])
    chart: alt.Chart = (
        alt.Chart(frame, title=f"Degraded answers, windows of {window_s:g} s")
        .mark_line(interpolate="step-after")
        .encode(
            x(c.TIME, scale=alt.Scale(nice=False)),
            y(DEGRADED, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            colour(c.CLASS, classes, lines=True),
            tooltip=tooltip(shown),
        )
    )
    return chart
