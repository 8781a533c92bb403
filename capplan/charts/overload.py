"""An overload over time: a choice of protective actions, and in grey the service as it is."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import checked, colour, dash, layered, ordered, tooltip, x, y
from capplan.charts.theme import BLUE, GREY, LIGHT_GREY
from capplan.schema import TIMELINE

_VALUE = {column.name: column for column in TIMELINE}["value"]
GREY_IS = "grey: as it is"


def flows_in_overload(
    frame: pd.DataFrame, *, reference: pd.DataFrame, surge_s: tuple[float, float]
) -> alt.LayerChart:
    """Return what is offered, attempted and worth it over time, the reference in grey behind it.

    Both frames have the columns ``time_s`` (start of a window), ``figure`` and ``flow_rps``.
    ``surge_s`` is when the surge begins and ends, s. The scale is of square roots, so that the
    usual load is seen beside a storm of retries.
    """
    shown = (c.TIME, c.FIGURE, c.FLOW)
    frame = checked(frame, shown, chart="flows_in_overload")
    reference = checked(reference, shown, chart="flows_in_overload")
    figures = ordered(frame[c.FIGURE.name])
    title = f"Offered, attempted, worth it; {GREY_IS}"
    rates = y(c.FLOW, scale=alt.Scale(type="sqrt"), title="requests/s, square-root scale")
    places = (x(c.TIME, scale=alt.Scale(nice=False)), rates)
    dashes = dash(c.FIGURE, figures)
    lines = (
        alt.Chart(frame, title=title)
        .mark_line(interpolate="step-after")
        .encode(*places, colour(c.FIGURE, figures, lines=True), dashes, tooltip=tooltip(shown))
    )
    before = alt.Chart(reference).mark_line(interpolate="step-after", color=GREY, strokeWidth=1.5)
    return layered(_band(surge_s), before.encode(*places, dashes), lines)


def waiting_in_overload(
    frame: pd.DataFrame, *, reference: pd.DataFrame, queue: str, surge_s: tuple[float, float]
) -> alt.LayerChart:
    """Return how many wait in one queue over time, the reference in grey behind it.

    Both frames have the columns ``time_s`` and ``value``. ``surge_s`` as in
    :func:`flows_in_overload`.
    """
    shown = (c.TIME, _VALUE)
    frame = checked(frame, shown, chart="waiting_in_overload")
    reference = checked(reference, shown, chart="waiting_in_overload")
    places = (x(c.TIME, scale=alt.Scale(nice=False)), y(_VALUE, title="requests waiting"))
    title = f"Waiting in the {queue}; {GREY_IS}"
    line = (
        alt.Chart(frame, title=title)
        .mark_line(interpolate="step-after", color=BLUE)
        .encode(*places, tooltip=tooltip(shown))
    )
    before = alt.Chart(reference).mark_line(interpolate="step-after", color=GREY, strokeWidth=1.5)
    return layered(_band(surge_s), before.encode(*places), line)


def _band(surge_s: tuple[float, float]) -> Any:
    """Return the time of the surge as a band from top to bottom."""
    ends = pd.DataFrame({c.TIME.name: [surge_s[0]], "end": [surge_s[1]]})
    band = alt.Chart(ends).mark_rect(color=LIGHT_GREY, opacity=0.45)
    return band.encode(x(c.TIME), x2="end:Q")
