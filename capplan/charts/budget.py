"""Where a class's time goes, planned and simulated, and readings of what is in flight."""

from __future__ import annotations

import altair as alt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import (
    IN_WORDS,
    checked,
    colour,
    ordered,
    own_colour,
    rows,
    shape,
    tooltip,
    x,
)
from capplan.charts.theme import BLACK, BLUE, LAYER_COLOURS, LIGHT_GREY, VERMILLION, WIDTH
from capplan.schema import Column

MEAN = Column("mean_s", "s", "mean time in the layer")


def budget_by_layer(frame: pd.DataFrame) -> alt.FacetChart:
    """Return a stacked bar per class of what each layer may take, against the deadline.

    ``frame`` has the columns ``request_class``, ``layer``, ``part_s``, ``deadline_s``, layers in
    the order a request passes them. What passes the deadline is the layer ``over``. Each class
    has its own time axis.
    """
    shown = (c.CLASS, c.LAYER, c.PART, c.DEADLINE)
    frame = checked(frame, shown, chart="budget_by_layer")
    frame = frame.assign(order=frame[c.LAYER.name].map(list(LAYER_COLOURS).index))
    bars = (
        alt.Chart()
        .mark_bar(height=30)
        .encode(
            x(c.PART, stack="zero", scale=alt.Scale(nice=False)),
            own_colour(c.LAYER, frame, LAYER_COLOURS),
            alt.Order("order:Q"),
            tooltip=tooltip(shown),
        )
    )
    end = alt.X(f"max({c.DEADLINE.name}):Q")
    tick = alt.Chart().mark_tick(color=BLACK, thickness=3, size=44).encode(end)
    return _by_class([bars, tick], frame, height=50)


def waits_against_shares(frame: pd.DataFrame) -> alt.FacetChart:
    """Return the tail of the wait in each layer against its share; what passes it is red.

    ``frame`` has the columns ``request_class``, ``layer``, ``share_s`` (what the layer may take),
    ``wait_s`` (what it took, at a quantile; NaN = not measured, no bar) and ``over``. The share
    is the wide grey bar. Each class has its own time axis.
    """
    shown = (c.CLASS, c.LAYER, c.SHARE_OF_WAIT, c.WAIT, c.OVER)
    frame = checked(frame, shown, chart="waits_against_shares")
    axis = alt.Axis(labelExpr=IN_WORDS)
    layers = alt.Y(f"{c.LAYER.name}:N", title=None, sort=None, axis=axis)
    both = f"{c.WAIT.title}, over its {c.SHARE_OF_WAIT.title}"
    shares = (
        alt.Chart()
        .mark_bar(color=LIGHT_GREY, height=18)
        .encode(x(c.SHARE_OF_WAIT, title=both), layers)
    )
    waits = (
        alt.Chart()
        .mark_bar(height=8)
        .encode(
            x(c.WAIT, title=both),
            layers,
            color=alt.when(alt.datum.over).then(alt.value(VERMILLION)).otherwise(alt.value(BLUE)),
            tooltip=tooltip(shown),
        )
    )
    return _by_class([shares, waits], frame, height=84)


def _by_class(layers: list[alt.Chart], frame: pd.DataFrame, *, height: int) -> alt.FacetChart:
    header = alt.Header(labelAngle=0, labelAlign="left", labelOrient="top", labelAnchor="start")
    classes = list(ordered(frame[c.CLASS.name]))
    each = alt.LayerChart(layer=layers, data=frame, height=height, width=WIDTH)
    chart: alt.FacetChart = each.facet(
        row=alt.Row(f"{c.CLASS.name}:N", title=None, sort=classes, header=header)
    ).resolve_scale(x="independent")
    return chart


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


def time_by_layer(frame: pd.DataFrame) -> alt.Chart:
    """Return the mean time in each layer, a stacked bar per class.

    ``frame`` has the columns ``request_class``, ``layer``, ``mean_s``.
    """
    shown = (c.CLASS, c.LAYER, MEAN)
    frame = checked(frame, shown, chart="time_by_layer")
    frame = frame.assign(order=frame[c.LAYER.name].map(list(LAYER_COLOURS).index))
    chart: alt.Chart = (
        alt.Chart(frame, title="Where the time goes", height=alt.Step(34))
        .mark_bar(height={"band": 0.72})
        .encode(
            x(MEAN, stack="zero"),
            rows(c.CLASS),
            own_colour(c.LAYER, frame, LAYER_COLOURS),
            alt.Order("order:Q"),
            tooltip=tooltip(shown),
        )
    )
    return chart
