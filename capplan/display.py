"""Tables as text and HTML, and results that show themselves."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.formatting import UNITS, format_value, in_words

if TYPE_CHECKING:
    import pandas as pd

UNIT_IN_CELLS = ("_fraction",)
LONG_NAME = re.compile(r"[\w.-]{25,}")
CODED = ("layer", "outcome_layer", "outcome", "reason", "rule")
"""Columns whose cells are names of this package, shown in words."""
RIGHT, LEFT = "text-align:right;white-space:nowrap", "text-align:left"


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is shown: headings, rows of texts, and which columns are figures."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: tuple[bool, ...]

    def _repr_html_(self) -> str:
        if not self.rows:
            return "<p>Nothing.</p>"
        styles = [RIGHT if figure else LEFT for figure in self.figures]
        head = _row("th", self.headings, [style.split(";")[0] for style in styles])
        body = "".join(_row("td", row, styles) for row in self.rows)
        return f'<table class="capplan"><thead>{head}</thead><tbody>{body}</tbody></table>'

    def __str__(self) -> str:
        """Return the table as aligned plain text, a row a line."""
        cells = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(
                text.rjust(width) if figure else text.ljust(width)
                for text, width, figure in zip(row, widths, self.figures, strict=True)
            )
            for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def table(frame: pd.DataFrame, *, rows: int = 40) -> Table:
    """Return a frame as it is shown: names in words, units once, ``unknown`` for NaN."""
    cells = {str(name): [_cell(v, str(name)) for v in frame[name].head(rows)] for name in frame}
    return Table(
        headings=tuple(map(_heading, cells)),
        rows=tuple(zip(*cells.values(), strict=True)),
        figures=tuple(_are_figures(frame[name]) for name in frame),
    )


def table_of(rows: Iterable[Sequence[Any]], headings: Sequence[str]) -> Table:
    """Return rows of values under their headings as a table; columns of numbers to the right.

    >>> print(table_of([("chat", 0.51234), ("batch", None)], ["class", "TTFT p99 (s)"]))
    class  TTFT p99 (s)
    chat          0.512
    batch       unknown
    """
    raw = [tuple(row) for row in rows]
    figures = [bool(raw) and not any(isinstance(v, str) for v in c) for c in zip(*raw, strict=True)]
    return Table(
        headings=tuple(headings),
        rows=tuple(tuple(map(format_value, row)) for row in raw),
        figures=tuple(figures or [False] * len(headings)),
    )


class Displayed:
    """A result that shows itself: its summary in sentences, then its main table.

    A subclass gives :meth:`summary` (Markdown: ``**bold**`` and `` `code` `` only) and
    :meth:`table`; the CLI prints both as text, a notebook shows them as HTML.
    """

    __slots__ = ()

    def summary(self) -> str:
        """Return what the result says, in sentences."""
        raise NotImplementedError

    def table(self) -> pd.DataFrame:
        """Return the main figures, one row for each thing they describe; units in column names."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        paragraphs = (f"<p>{html_text(part)}</p>" for part in self.summary().split("\n\n"))
        return f"{''.join(paragraphs)}{table(self.table())._repr_html_()}"

    def __str__(self) -> str:
        """Return the summary without marks."""
        return re.sub(r"\*\*|`", "", self.summary())

    def as_text(self) -> str:
        """Return summary and table as plain text."""
        return f"{self}\n\n{table(self.table())}\n"


def html_text(text: str) -> str:
    """Return a text as HTML: names in backticks as code, bold, long names with places to break.

    >>> html_text("`llm` < 2, **pass**")
    '<code>llm</code> &lt; 2, <strong>pass</strong>'
    >>> html_text("pools.llm.batching.scheduler")
    'pools.<wbr>llm.<wbr>batching.<wbr>scheduler'
    """
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    marked = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", marked)
    return LONG_NAME.sub(lambda name: re.sub(r"([._])", r"\1<wbr>", name[0]), marked)


def once(values: pd.Series) -> pd.Series:
    """Return a table's long texts, those that only repeat the row above as "as above"."""
    return values.mask((values == values.shift()) & (values != ""), "as above")


def _are_figures(column: pd.Series[Any]) -> bool:
    numbers = all(type(v) in (int, float) for v in column) if column.dtype == object else False
    return numbers or column.dtype.kind in "if"


def _row(tag: str, cells: Iterable[str], styles: Iterable[str]) -> str:
    pairs = zip(cells, styles, strict=True)
    return (
        "<tr>" + "".join(f'<{tag} style="{s}">{html_text(c)}</{tag}>' for c, s in pairs) + "</tr>"
    )


def _heading(name: str) -> str:
    """Return a column's name in words, with the unit if the cells do not carry it."""
    for suffix, _, unit in UNITS:
        if name.endswith(suffix):
            shown_here = "" if suffix in UNIT_IN_CELLS else f" ({unit.strip()})"
            return in_words(name.removesuffix(suffix)) + shown_here
    return in_words(name.removesuffix("_s"))


def _cell(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or isinstance(value, float) or hasattr(value, "dtype"):
        text = format_value(None if value is None else float(value), name)
        units = [unit for suffix, _, unit in UNITS if name.endswith(suffix)]
        return text if name.endswith(UNIT_IN_CELLS) or not units else text.removesuffix(units[0])
    return str(value).replace("_", " ") if name in CODED else str(value)
