"""How far predictions are from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import checked, colour, layered, lines, ordered, shape, tooltip, x, y
from capplan.charts.theme import BLACK, GREY, LIGHT_GREY, WIDTH

EDGE = 0.6
"""Errors beyond it are written at the edge, as numbers, not drawn."""
LINEAR = 0.05
"""Below it an error is drawn in proportion, above it by its logarithm."""
TICKS = (-0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5)
SIGNED = "datum.value == 0 ? '0' : format(datum.value, '+~%')"
ROW_HEIGHT, PANEL_HEIGHT = 26, 120
FLOOR, PEERS = "two servers of one kind differ by", "best published simulator"

Figures = Mapping[tuple[str, str], float]


def errors_by_run(
    frame: pd.DataFrame, *, noise: Figures | None = None, published: Figures | None = None
) -> alt.VConcatChart:
    """Return the error of each run and source of step times, a panel per metric and figure.

    ``frame`` has the columns ``run``, ``step_times``, ``metric``, ``figure``,
    ``error_fraction`` (NaN = not known, not drawn). ``noise`` and ``published`` map (metric,
    figure) to an error that is drawn on both sides of 0: as a grey band, and as dashed rules.
    """
    shown = (c.RUN, c.STEP_TIMES, c.METRIC, c.FIGURE, c.ERROR)
    frame = checked(frame, shown, chart="errors_by_run")
    metrics, figures = list(ordered(frame["metric"])), list(ordered(frame["figure"]))
    sources = ordered(frame[c.STEP_TIMES.name])
    lines = [
        alt.hconcat(
            *[
                _panel(
                    frame,
                    (metric, figure),
                    sources,
                    first=metric == metrics[0],
                    width=(WIDTH - 40) // len(metrics),
                    noise=(noise or {}).get((metric, figure)),
                    published=(published or {}).get((metric, figure)),
                )
                for metric in metrics
            ],
            spacing=12,
        )
        for figure in figures
    ]
    subtitle = f"Grey band: {FLOOR} as much. Dashed: {PEERS}, median of its runs."
    title = alt.Title("Predicted over measured, minus 1", subtitle=subtitle)
    chart: alt.VConcatChart = alt.vconcat(*lines, spacing=10, title=title)
    return chart


def _panel(
    frame: pd.DataFrame,
    which: tuple[str, str],
    sources: Mapping[str, int],
    *,
    first: bool,
    width: int,
    noise: float | None,
    published: float | None,
) -> alt.LayerChart:
    metric, figure = which
    runs = list(ordered(frame[c.RUN.name]))
    here = frame[(frame["metric"] == metric) & (frame["figure"] == figure)]
    here = here.dropna(subset=c.ERROR.name)
    across = x(
        c.ERROR,
        title=None,
        axis=alt.Axis(labelExpr=SIGNED, values=list(TICKS), labelOverlap="greedy"),
        scale=alt.Scale(type="symlog", constant=LINEAR, domain=[-EDGE, EDGE], nice=False),
    )
    axis: Any = alt.Axis(title=None, labelLimit=90) if first else None
    down = y(c.RUN, "N", axis=axis, scale=alt.Scale(domain=runs, paddingInner=0.3), sort=None)
    beside = alt.YOffset(f"{c.STEP_TIMES.name}:N", scale=alt.Scale(domain=list(sources)))
    place = {"y": down, "yOffset": beside, "color": colour(c.STEP_TIMES, sources)}
    drawn = here[here[c.ERROR.name].abs() <= EDGE]
    points = alt.Chart(drawn).mark_point(size=38, filled=True)
    shapes = shape(c.STEP_TIMES, sources)
    layers = [
        *_band(noise),
        *_rules([0.0], BLACK, []),
        *_rules([] if published is None else [-published, published], GREY, [5, 3]),
        points.encode(
            x=across, shape=shapes, tooltip=tooltip((c.RUN, c.STEP_TIMES, c.ERROR)), **place
        ),
        *_beyond(here[here[c.ERROR.name].abs() > EDGE], width, place),
    ]
    marks = [f"±{100 * v:.3g} % {name}" for v, name in ((noise, "noise"), (published, "published"))
            if v is not None]  # fmt: skip
    title = alt.Title(
        f"{metric}, {figure}", subtitle=", ".join(marks) or " ", anchor="start", subtitleFontSize=10
    )
    return layered(*layers).properties(title=title, width=width, height=ROW_HEIGHT * len(runs))


def _band(noise: float | None) -> list[Any]:
    if noise is None:
        return []
    frame = pd.DataFrame({"low": [-noise], "high": [noise]})
    return [
        alt.Chart(frame)
        .mark_rect(color=LIGHT_GREY, opacity=0.9)
        .encode(x=alt.X("low:Q"), x2="high")
    ]


def _rules(values: list[float], colour_of: str, strokes: list[int]) -> list[Any]:
    if not values:
        return []
    frame = pd.DataFrame({"value": values})
    rule = alt.Chart(frame).mark_rule(color=colour_of, strokeDash=strokes, strokeWidth=1.2)
    return [rule.encode(x="value:Q")]


def _beyond(frame: pd.DataFrame, width: int, place: Mapping[str, Any]) -> list[Any]:
    """Return errors outside the axis as numbers at the edge that they lie beyond."""
    made = []
    sides: tuple[tuple[int, int, Literal["left", "right"]], ...]
    sides = ((1, width - 2, "right"), (-1, 2, "left"))
    for sign, at, align in sides:
        beyond = frame[frame[c.ERROR.name] * sign > 0]
        if not beyond.empty:
            labels = beyond.assign(label=[f"{100 * v:+,.0f} %" for v in beyond[c.ERROR.name]])
            text = alt.Chart(labels).mark_text(align=align, fontSize=10, fontWeight=600)
            made.append(text.encode(x=alt.value(at), text="label:N", **place))
    return made


def measured_beside_predicted(frame: pd.DataFrame) -> alt.VConcatChart:
    """Return series over time, each as it was measured and as it was predicted.

    ``frame`` has the columns ``time_s``, ``series`` (a panel each), ``reading``, ``value``.
    """
    shown = (c.TIME, c.SERIES, c.READING, c.VALUE)
    frame = checked(frame, shown, chart="measured_beside_predicted")
    readings = ordered(frame[c.READING.name])
    size = {"width": WIDTH, "height": PANEL_HEIGHT}
    up = y(c.VALUE, title="requests", axis=alt.Axis(minExtent=40))
    panels = [
        lines(own, x(c.TIME), up, c.READING, shown=shown, order=readings, title=str(name))
        .mark_line(strokeWidth=1.5)
        .properties(**size)
        for name, own in frame.groupby(c.SERIES.name, sort=False)
    ]
    chart: alt.VConcatChart = alt.vconcat(*panels, spacing=8).resolve_scale(x="shared")
    return chart
