"""Where a class's time goes, against its deadline, and three readings of what is in flight."""

from __future__ import annotations

import altair as alt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import checked, colour, layered, ordered, rows, shape, tooltip, x
from capplan.charts.theme import BLACK, LAYER_COLOURS


def budget_by_layer(frame: pd.DataFrame, *, title: str = "Wait budget") -> alt.LayerChart:
    """Return a stacked bar per class of what each layer may take, against the deadline.

    ``frame`` has the columns ``request_class``, ``layer``, ``part_s``, ``deadline_s``, layers in
    the order a request passes them. What passes the deadline is the layer ``over``.
    """
    shown = (c.CLASS, c.LAYER, c.PART, c.DEADLINE)
    frame = checked(frame, shown, chart="budget_by_layer")
    layers = [name for name in LAYER_COLOURS if name in set(frame[c.LAYER.name])]
    frame = frame.assign(order=frame[c.LAYER.name].map(list(LAYER_COLOURS).index))
    base = alt.Chart(frame, title=title, height=alt.Step(34))
    bars = base.mark_bar(height={"band": 0.72}).encode(
        x(c.PART, stack="zero"),
        rows(c.CLASS),
        alt.Color(
            f"{c.LAYER.name}:N",
            title=c.LAYER.title,
            scale=alt.Scale(domain=layers, range=[LAYER_COLOURS[name] for name in layers]),
        ),
        alt.Order("order:Q"),
        tooltip=tooltip(shown),
    )
    ticks = base.mark_tick(color=BLACK, thickness=2.5, size=32).encode(
        alt.X(f"max({c.DEADLINE.name}):Q"), rows(c.CLASS)
    )
    labels = base.mark_text(align="left", dx=5, fontSize=11).encode(
        alt.X(f"max({c.DEADLINE.name}):Q"),
        rows(c.CLASS),
        text=alt.Text(f"max({c.DEADLINE.name}):Q", format=".3~g"),
    )
    return layered(bars, ticks, labels)


def in_flight_readings(frame: pd.DataFrame) -> alt.Chart:
    """Return the readings of the number in flight side by side, one row per class.

    ``frame`` has the columns ``request_class``, ``reading``, ``in_flight``.
    """
    shown = (c.CLASS, c.READING, c.IN_FLIGHT)
    frame = checked(frame, shown, chart="in_flight_readings")
    readings = ordered(frame[c.READING.name])
    chart: alt.Chart = (
        alt.Chart(frame, title="Requests in flight", height=alt.Step(34))
        .mark_point(size=110, opacity=0.9)
        .encode(
            x(c.IN_FLIGHT, scale=alt.Scale(zero=True)),
            rows(c.CLASS),
            colour(c.READING, readings),
            shape(c.READING, readings),
            tooltip=tooltip(shown),
        )
    )
    return chart
