"""What charts are made of: checked frames, axes titled from columns, labelled rules, bands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from capplan.charts.theme import CATEGORIES, DASHES, SHAPES, VERMILLION
from capplan.schema import Column, DataError, names, require_columns

MOST_ROWS = 5000
"""Rows a chart may carry. Each is kept in the page twice, as a mark and as data, and Altair
refuses more; so frames are aggregated before they are drawn."""

TypeCode = Literal["Q", "N", "O", "T"]


def checked(frame: pd.DataFrame, columns: Iterable[Column], *, chart: str) -> pd.DataFrame:
    """Return the named columns of a frame that may be drawn.

    Raises :class:`DataError` if a column is missing, if there is no row, or if there are more
    than :data:`MOST_ROWS`.
    """
    wanted = names(columns)
    require_columns(frame, wanted, where=f"frame of {chart}")
    if frame.empty:
        raise DataError("at least one row", where=f"frame of {chart}", value=0)
    if len(frame) > MOST_ROWS:
        rule = f"at most {MOST_ROWS} rows: aggregate before drawing"
        raise DataError(rule, where=f"frame of {chart}", value=len(frame))
    return frame[wanted]


def need(frame: pd.DataFrame, *columns: str, chart: str) -> None:
    """Check a frame that the chart itself aggregates: its columns are there, and a row."""
    require_columns(frame, columns, where=f"frame of {chart}")
    if frame.empty:
        raise DataError("at least one row", where=f"frame of {chart}", value=0)


def x(column: Column, kind: TypeCode = "Q", **options: Any) -> alt.X:
    """Return a horizontal position titled from the column."""
    return alt.X(f"{column.name}:{kind}", **{"title": column.title, **options})


def y(column: Column, kind: TypeCode = "Q", **options: Any) -> alt.Y:
    """Return a vertical position titled from the column."""
    return alt.Y(f"{column.name}:{kind}", **{"title": column.title, **options})


def colour(column: Column, values: Sequence[str], **options: Any) -> alt.Color:
    """Return a colour per value, in the stated order."""
    scale = alt.Scale(domain=list(values), range=cycled(CATEGORIES, len(values)))
    return alt.Color(f"{column.name}:N", **{"title": column.title, "scale": scale, **options})


def dash(column: Column, values: Sequence[str], **options: Any) -> alt.StrokeDash:
    """Return a dash per value, so that lines stay apart in grey print."""
    scale = alt.Scale(domain=list(values), range=cycled(DASHES, len(values)))
    return alt.StrokeDash(f"{column.name}:N", **{"title": column.title, "scale": scale, **options})


def shape(column: Column, values: Sequence[str], **options: Any) -> alt.Shape:
    """Return a point shape per value, so that points stay apart in grey print."""
    scale = alt.Scale(domain=list(values), range=cycled(SHAPES, len(values)))
    return alt.Shape(f"{column.name}:N", **{"title": column.title, "scale": scale, **options})


def tooltip(columns: Iterable[Column]) -> list[alt.Tooltip]:
    """Return a tooltip of every column, numbers at three digits."""
    return [
        alt.Tooltip(f"{c.name}:Q", title=c.title, format=",.3~g")
        if c.kind in ("float", "int")
        else alt.Tooltip(f"{c.name}:N", title=c.title)
        for c in columns
    ]


def cycled(values: Sequence[Any], count: int) -> list[Any]:
    """Return ``count`` values, from the start again where they do not suffice.

    >>> cycled("ab", 3)
    ['a', 'b', 'a']
    """
    return [values[i % len(values)] for i in range(count)]


def rule_y(value: float, label: str, *, colour_of: str = VERMILLION) -> alt.LayerChart:
    """Return a labelled horizontal rule, as a promise is drawn."""
    base = alt.Chart(pd.DataFrame({"value": [value], "label": [label]}))
    rule = base.mark_rule(color=colour_of, strokeDash=[6, 3], strokeWidth=1.5).encode(y="value:Q")
    text = base.mark_text(
        align="left", baseline="bottom", dx=4, dy=-2, color=colour_of, fontSize=11
    ).encode(x=alt.value(0), y="value:Q", text="label:N")
    return layered(rule, text)


def rule_x(value: float, label: str, *, colour_of: str = VERMILLION) -> alt.LayerChart:
    """Return a labelled vertical rule."""
    base = alt.Chart(pd.DataFrame({"value": [value], "label": [label]}))
    rule = base.mark_rule(color=colour_of, strokeDash=[6, 3], strokeWidth=1.5).encode(x="value:Q")
    text = base.mark_text(
        align="left", baseline="top", dx=4, dy=2, color=colour_of, fontSize=11
    ).encode(x="value:Q", y=alt.value(0), text="label:N")
    return layered(rule, text)


def layered(*charts: Any) -> alt.LayerChart:
    """Return charts drawn over each other, the first lowest."""
    return alt.LayerChart(layer=list(charts))


def seconds(value_s: float) -> str:
    """Return a time as people say it.

    >>> seconds(0.0123), seconds(2.0), seconds(90), seconds(7200)
    ('12 ms', '2 s', '1.5 min', '2 h')
    """
    if value_s != value_s:  # noqa: PLR0124
        return "unknown"
    for factor, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if abs(value_s) >= factor:
            return f"{value_s / factor:.3g} {unit}"
    return f"{value_s * 1000:.3g} ms"
