"""What charts are made of: checked frames, axes titled from columns, labelled rules, bands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt
import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.theme import CATEGORIES, DASHES, HEIGHT, SHAPES, VERMILLION
from capplan.schema import Column, DataError, NoRowsError, names, require_columns

MOST_ROWS = 5000
"""Rows a chart may carry. Each is kept in the page twice, as a mark and as data, and Altair
refuses more; so frames are aggregated before they are drawn."""

IN_WORDS = "replace(datum.label, /_/g, ' ')"
"""Labels of :data:`CODED` columns in words: ``timed_out`` as "timed out"."""
CODED = ("layer", "outcome")
"""Columns whose values are this project's own names, not the user's."""

TypeCode = Literal["Q", "N", "O", "T"]
Floats = npt.NDArray[np.float64]


def checked(frame: pd.DataFrame, columns: Iterable[Column], *, chart: str) -> pd.DataFrame:
    """Return the named columns of a frame that may be drawn, those of kind ``str`` as texts.

    Colours and dashes go by text, so a name that is a number would have none. Raises
    :class:`DataError` if a column is missing, if there is no row, or if there are more than
    :data:`MOST_ROWS`.
    """
    columns = tuple(columns)
    wanted = names(columns)
    require_columns(frame, wanted, where=f"frame of {chart}")
    if frame.empty:
        raise NoRowsError("at least one row", where=f"frame of {chart}", value=0)
    if len(frame) > MOST_ROWS:
        rule = f"at most {MOST_ROWS} rows: aggregate before drawing"
        raise DataError(rule, where=f"frame of {chart}", value=len(frame))
    texts = [column.name for column in columns if column.kind == "str"]
    return frame[wanted].assign(**{n: frame[n].map(str, na_action="ignore") for n in texts})


def need(frame: pd.DataFrame, *columns: str, chart: str) -> None:
    """Check a frame that the chart itself aggregates: its columns are there, and a row."""
    require_columns(frame, columns, where=f"frame of {chart}")
    if frame.empty:
        raise NoRowsError("at least one row", where=f"frame of {chart}", value=0)


def x(column: Column, kind: TypeCode = "Q", **options: Any) -> alt.X:
    """Return a horizontal position titled from the column."""
    return alt.X(f"{column.name}:{kind}", **{"title": column.title, **options})


def y(column: Column, kind: TypeCode = "Q", **options: Any) -> alt.Y:
    """Return a vertical position titled from the column."""
    return alt.Y(f"{column.name}:{kind}", **{"title": column.title, **options})


def ordered(values: pd.Series[Any]) -> dict[str, int]:
    """Return the distinct values, each with its place among the colours.

    A categorical column keeps the places of its categories, so that a class has the same colour
    in a chart that lacks another; of any other column, places are in order of appearance.
    """
    present = [str(value) for value in values.drop_duplicates()]
    if isinstance(values.dtype, pd.CategoricalDtype):
        places = {str(value): i for i, value in enumerate(values.cat.categories)}
        return {name: i for name, i in places.items() if name in present}
    return {name: i for i, name in enumerate(present)}


def colour(column: Column, order: Mapping[str, int], *, lines: bool = False) -> alt.Color:
    """Return a colour per value, by its place; ``lines`` for the legend of a line chart."""
    _texts(column)
    scale = alt.Scale(
        domain=list(order), range=[CATEGORIES[i % len(CATEGORIES)] for i in order.values()]
    )
    return alt.Color(
        f"{column.name}:N", title=column.title, scale=scale, legend=legend(column, lines=lines)
    )


def dash(column: Column, order: Mapping[str, int]) -> alt.StrokeDash:
    """Return a dash per value, so that lines stay apart in grey print."""
    _texts(column)
    scale = _scale(order, DASHES)
    strokes = legend(column, lines=True)
    return alt.StrokeDash(f"{column.name}:N", title=column.title, scale=scale, legend=strokes)


def shape(column: Column, order: Mapping[str, int]) -> alt.Shape:
    """Return a point shape per value, so that points stay apart in grey print."""
    _texts(column)
    scale = _scale(order, SHAPES)
    return alt.Shape(f"{column.name}:N", title=column.title, scale=scale, legend=legend(column))


def _texts(column: Column) -> None:
    """Raise ValueError for a column that :func:`checked` does not turn into texts."""
    if column.kind != "str":
        msg = f"colours, dashes and shapes go by a column of kind str, got {column}"
        raise ValueError(msg)


def legend(column: Column, *, lines: bool = False) -> alt.Legend:
    """Return the legend of a column's values: strokes for lines, this project's names in words."""
    labels: dict[str, Any] = {"labelExpr": IN_WORDS} if column.name in CODED else {}
    if not lines:
        return alt.Legend(symbolOpacity=1, **labels)
    return alt.Legend(
        symbolType="stroke", symbolOpacity=1, symbolSize=500, symbolStrokeWidth=2, **labels
    )


def _scale(order: Mapping[str, int], values: Sequence[Any]) -> alt.Scale:
    return alt.Scale(domain=list(order), range=[values[i % len(values)] for i in order.values()])


def rows(column: Column, **options: Any) -> alt.Y:
    """Return one row per value of a column, in the frame's order, the title above the labels."""
    axis = alt.Axis(titleAngle=0, titleAlign="right", titleX=-4, titleY=-8)
    return y(column, "N", **{"sort": None, "axis": axis, **options})


def tooltip(columns: Iterable[Column]) -> list[alt.Tooltip]:
    """Return a tooltip of every column, numbers at three digits."""
    return [
        alt.Tooltip(f"{one.name}:Q", title=one.title, format=",.3~g")
        if one.kind in ("float", "int")
        else alt.Tooltip(f"{one.name}:N", title=one.title)
        for one in columns
    ]


def rule_y(
    value: float, label: str, *, colour_of: str = VERMILLION, below: bool = False
) -> alt.LayerChart:
    """Return a labelled horizontal rule, as a promise is drawn; ``below``: marks lie above it."""
    base, rule = _rule(value, label, colour_of)
    place = {"x": alt.value(0), "y": alt.Y("value:Q")}
    return layered(rule.encode(y="value:Q"), *_label(base, place, colour_of, below=below))


def rule_x(value: float, label: str, *, colour_of: str = VERMILLION) -> alt.LayerChart:
    """Return a labelled vertical rule; the label stands at its foot."""
    base, rule = _rule(value, label, colour_of)
    place = {"x": alt.X("value:Q"), "y": alt.value(HEIGHT)}
    return layered(rule.encode(x="value:Q"), *_label(base, place, colour_of))


def _rule(value: float, label: str, colour_of: str) -> tuple[alt.Chart, alt.Chart]:
    base = alt.Chart(pd.DataFrame({"value": [value], "label": [label]}))
    return base, base.mark_rule(color=colour_of, strokeDash=[6, 3], strokeWidth=1.5)


def _label(
    base: alt.Chart, place: dict[str, Any], colour_of: str, *, below: bool = False
) -> list[Any]:
    """Return a text and, under it, its white outline: readable over any mark."""
    mark: dict[str, Any] = {"align": "left", "fontSize": 11, "dx": 4}
    mark |= {"baseline": "top", "dy": 4} if below else {"baseline": "bottom", "dy": -4}
    outline = base.mark_text(stroke="white", strokeWidth=7, strokeJoin="round", **mark)
    texts = (outline, base.mark_text(color=colour_of, **mark))
    return [text.encode(text="label:N", **place) for text in texts]


def time_axis() -> alt.X:
    """Return the time from the start, from left to right."""
    return x(c.TIME, scale=alt.Scale(nice=False))


def lines(
    frame: pd.DataFrame,
    across: alt.X,
    up: alt.Y,
    by: Column,
    *,
    shown: Iterable[Column],
    order: Mapping[str, int] | None = None,
    step: bool = False,
    **options: Any,
) -> alt.Chart:
    """Return a line per value of a column, apart by colour and dash.

    ``shown`` stands in the tooltip; ``order`` gives the values their places among the colours, None
    = those of the frame. ``step`` keeps each value until the next. ``options`` are a chart's.
    """
    places = ordered(frame[by.name]) if order is None else order
    base = alt.Chart(frame, **options)
    marked = base.mark_line(interpolate="step-after") if step else base.mark_line(point=True)
    chart: alt.Chart = marked.encode(
        across, up, colour(by, places, lines=True), dash(by, places), tooltip=tooltip(shown)
    )
    return chart


def areas(
    frame: pd.DataFrame,
    up: alt.Y,
    by: Column,
    *,
    shown: Iterable[Column],
    order: Mapping[str, int] | None = None,
    title: str,
) -> alt.Chart:
    """Return a stacked area over time per value of a column, the first value lowest."""
    places = ordered(frame[by.name]) if order is None else order
    chart: alt.Chart = (
        alt.Chart(frame, title=title)
        .mark_area(interpolate="step-after", opacity=0.85)
        .encode(
            time_axis(),
            up,
            colour(by, places),
            order=alt.Order("place:Q"),
            tooltip=tooltip(shown),
        )
        .transform_calculate(place=f"indexof({list(places)}, datum.{by.name})")
    )
    return chart


def band(frame: pd.DataFrame, across: alt.X, by: Column) -> alt.Chart:
    """Return the 95 % intervals ``low`` to ``high`` as a band per value of a column."""
    chart: alt.Chart = (
        alt.Chart(frame)
        .mark_area(opacity=0.2)
        .encode(
            across,
            alt.Y(f"{c.LOW.name}:Q"),
            alt.Y2(c.HIGH.name),
            colour(by, ordered(frame[by.name]), lines=True),
        )
    )
    return chart


def own_colour(column: Column, frame: pd.DataFrame, colours: Mapping[str, str]) -> alt.Color:
    """Return the colours of a column whose values are this project's own names.

    DataError for any other value: it would have no colour.
    """
    if other := set(frame[column.name].dropna()) - set(colours):
        rule = f"one of {', '.join(colours)}"
        raise DataError(rule, field=column.name, value=sorted(map(str, other)))
    present = [name for name in colours if name in set(frame[column.name])]
    scale = alt.Scale(domain=present, range=[colours[name] for name in present])
    return alt.Color(f"{column.name}:N", title=column.title, scale=scale, legend=legend(column))


def held(times_s: Floats, values: Floats, grid_s: Floats) -> Floats:
    """Return the last value at each moment of a grid; 0 before the first, and where it is NaN."""
    index = np.searchsorted(times_s, grid_s, side="right") - 1
    found = np.where(index >= 0, values[np.maximum(index, 0)], 0.0)
    return np.where(np.isnan(found), 0.0, found)


def layered(*charts: Any) -> alt.LayerChart:
    """Return charts drawn over each other, the first lowest."""
    return alt.LayerChart(layer=list(charts))


def seconds(value_s: float) -> str:
    """Return a time in the unit that fits it.

    >>> seconds(0.0123), seconds(2.0), seconds(90), seconds(7200)
    ('12.3 ms', '2 s', '1.5 min', '2 h')
    """
    if value_s != value_s:  # noqa: PLR0124
        return "unknown"
    for factor, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if abs(value_s) >= factor:
            return f"{value_s / factor:.3g} {unit}"
    return f"{value_s * 1000:.3g} ms"
