"""Which batch, which window: goodput over a grid, throughput against the tail, slowdown."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import (
    checked,
    colour,
    dash,
    layered,
    lines,
    ordered,
    rule_x,
    shape,
    tooltip,
    x,
    y,
)
from capplan.charts.theme import BLACK, GREEN, GREY, SKY_BLUE, VERMILLION, WIDTH
from capplan.schema import POINT_STATES, Column

STATES = tuple(POINT_STATES.values())
"""How a point of a grid is judged."""


def goodput_by_point(
    frame: pd.DataFrame,
    *,
    across: str,
    down: str,
    reference: tuple[float, float] | None = None,
    chosen: tuple[float, float] | None = None,
) -> alt.LayerChart:
    """Return the goodput of each point of a grid as a heat map, failed points crossed out.

    ``frame`` has the columns ``across``, ``down``, ``goodput_rps``, ``throughput_rps``,
    ``tail_of_promise``, ``state`` (one of :data:`STATES`). The arguments ``across`` and ``down``
    title the axes.
    ``reference`` is a point to compare with (dashed), ``chosen`` the one picked (solid).
    """
    shown = (c.ACROSS, c.DOWN, c.GOODPUT, c.THROUGHPUT, c.TAIL, c.STATE)
    frame = checked(frame, shown, chart="goodput_by_point")
    frame = frame.assign(good=frame[c.STATE.name].isin(STATES[:2]), label=_grid_labels(frame))
    base = (
        alt.Chart(frame, title="Goodput of each point")
        .properties(width=alt.Step(72), height=alt.Step(40))
        .encode(
            x(c.ACROSS, "O", title=across, axis=alt.Axis(labelAngle=0)),
            y(c.DOWN, "O", title=down, sort="descending"),
        )
    )
    cells = base.mark_rect(stroke="white", strokeWidth=2).encode(
        alt.Color(
            f"{c.GOODPUT.name}:Q",
            title=c.GOODPUT.title,
            scale=alt.Scale(domainMin=0, range=["#FFFFFF", SKY_BLUE], interpolate="rgb"),
        ),
        tooltip=tooltip(shown),
    )
    labels = base.mark_text(fontSize=11).encode(
        text="label:N",
        color=alt.when(alt.datum.good).then(alt.value(BLACK)).otherwise(alt.value("#A03800")),
    )
    layers = [cells, labels]
    for point, dashed in ((reference, True), (chosen, False)):
        if point is not None:
            layers.append(_outlined(base, point, dashed=dashed))
    return layered(*layers)


def throughput_against_tail(frame: pd.DataFrame, *, across: str, down: str) -> alt.LayerChart:
    """Return each point of a grid by its tail and its throughput, failed ones apart.

    ``frame`` has the columns ``tail_of_promise``, ``throughput_rps``, ``goodput_rps``, ``across``,
    ``down``, ``state``. Points whose tail does not exist (too many failures) stand at the right
    edge.
    """
    fields = Column(c.ACROSS.name, "", across), Column(c.DOWN.name, "", down)
    shown = (c.TAIL, c.THROUGHPUT, c.GOODPUT, *fields, c.STATE)
    frame = checked(frame, shown, chart="throughput_against_tail")
    encoded = {
        "y": y(c.THROUGHPUT, scale=alt.Scale(zero=True)),
        "color": _state_colour(),
        "shape": shape(c.STATE, {name: i for i, name in enumerate(STATES)}),
        "tooltip": tooltip(shown),
    }
    unbounded = np.isinf(frame[c.TAIL.name])
    log = alt.Scale(type="log")
    layers: list[Any] = []
    if not unbounded.all():
        finite = alt.Chart(frame[~unbounded]).mark_point(size=80)
        layers.append(finite.encode(x=x(c.TAIL, scale=log), **encoded))
    if unbounded.any():
        edge = alt.Chart(frame[unbounded]).mark_point(size=80)
        layers.append(edge.encode(x=alt.value(WIDTH - 6), **encoded))
    layers.append(rule_x(1.0, "promised"))
    chart: alt.LayerChart = layered(*layers).properties(
        title="More throughput is no success when the tail goes"
    )
    return chart


def figures_by_bucket(frame: pd.DataFrame) -> alt.ConcatChart:
    """Return several figures over the batch size, one small chart each, a line per bucket.

    ``frame`` has the columns ``across``, ``figure``, ``value``, ``length_bucket``. Each figure
    (its name holds the unit) has its own scale.
    """
    shown = (c.ACROSS, c.FIGURE, c.VALUE, c.BUCKET)
    frame = checked(frame, shown, chart="figures_by_bucket").replace([np.inf, -np.inf], np.nan)
    buckets = ordered(frame[c.BUCKET.name])
    figures = list(frame[c.FIGURE.name].drop_duplicates())
    each = [_small(frame[frame[c.FIGURE.name] == one], one, buckets) for one in figures]
    chart: alt.ConcatChart = alt.ConcatChart(
        concat=each, columns=4, bounds="flush", spacing=alt.RowColnumber(row=70, column=52)
    ).resolve_scale(color="shared", strokeDash="shared")
    return chart


def _small(frame: pd.DataFrame, figure: str, buckets: dict[str, int]) -> alt.Chart:
    shown = (c.ACROSS, c.VALUE, c.BUCKET)
    scale = alt.Scale(zero=True) if frame[c.VALUE.name].gt(0).any() else alt.Scale(domain=[0, 1])
    chart: alt.Chart = (
        alt.Chart(frame, title=alt.Title(figure, fontSize=11), width=WIDTH // 4 - 30, height=120)
        .mark_line(point=alt.OverlayMarkDef(size=25), strokeWidth=1.5)
        .encode(
            x(c.ACROSS, "O", axis=alt.Axis(labelAngle=0)),
            y(c.VALUE, title=None, scale=scale, axis=alt.Axis(tickCount=4)),
            colour(c.BUCKET, buckets, lines=True),
            dash(c.BUCKET, buckets),
            tooltip=tooltip(shown),
        )
    )
    return chart


def slowdown_by_batch(frame: pd.DataFrame, *, across: str) -> alt.LayerChart:
    """Return the short requests' slowdown over the batch size, with and without the long ones.

    ``frame`` has the columns ``across``, ``slowdown``, ``mix``, ``low``, ``high``.
    """
    shown = (c.ACROSS, c.SLOWDOWN, c.MIX, c.LOW, c.HIGH)
    frame = checked(frame, shown, chart="slowdown_by_batch")
    sizes = x(c.ACROSS, "O", title=across, axis=alt.Axis(labelAngle=0))
    title = "What the long requests cost the short ones"
    up = y(c.SLOWDOWN, scale=alt.Scale(zero=True))
    curves = lines(frame, sizes, up, c.MIX, shown=shown, title=title, width=WIDTH)
    bars = alt.Chart(frame).mark_rule(strokeWidth=2, opacity=0.5)
    ends = (alt.Y(f"{c.LOW.name}:Q"), alt.Y2(c.HIGH.name))
    return layered(bars.encode(sizes, *ends, curves.encoding.color), curves)


def _state_colour() -> alt.Color:
    scale = alt.Scale(domain=list(STATES), range=[GREEN, SKY_BLUE, VERMILLION, GREY])
    return alt.Color(f"{c.STATE.name}:N", title=c.STATE.title, scale=scale)


def _grid_labels(frame: pd.DataFrame) -> pd.Series:
    marks = frame[c.STATE.name].map(dict(zip(STATES, ("", " ~", " ✗", " ?"), strict=True)))
    goodput = frame[c.GOODPUT.name].map("{:.3g}".format).replace("nan", "")
    return goodput + marks.fillna("")


def _outlined(like: alt.Chart, point: tuple[float, float], *, dashed: bool) -> alt.LayerChart:
    label = Column("outlined", "", "point", "str")
    name = "reference" if dashed else "chosen"
    frame = pd.DataFrame({c.ACROSS.name: [point[0]], c.DOWN.name: [point[1]], label.name: [name]})
    base = like.properties(data=frame)
    outline = base.mark_rect(
        fillOpacity=0, stroke=BLACK, strokeWidth=2, strokeDash=[4, 3] if dashed else [1, 0]
    )
    text = base.mark_text(fontSize=9, dy=14 if dashed else -14)
    return layered(outline, text.encode(text=f"{label.name}:N"))
