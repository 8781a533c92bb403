"""Words and tables: computed sentences, rounded figures, "unknown" for what was not measured."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.wording import in_words

if TYPE_CHECKING:
    import pandas as pd

UNITS: tuple[tuple[str, float, str], ...] = (
    ("_fraction", 100.0, " %"),
    ("_rps", 1.0, " requests/s"),
    ("_tokens_per_s", 1.0, " tokens/s"),
    ("_tokens", 1.0, " tokens"),
    ("_usd_per_hour", 1.0, " USD/h"),
    ("_usd_per_success", 1.0, " USD"),
    ("_bytes", 2.0**-30, " GiB"),
)
IN_CELLS = ("_fraction",)
LONG_NAME = re.compile(r"[\w.-]{25,}")
CODED = ("layer", "outcome_layer", "outcome", "reason", "rule")
"""How a quantity is printed, by the suffix of its name: factor and unit. Times are in words.
Cells of :data:`CODED` columns hold names of this project, shown in words."""


def show(*parts: Any) -> None:
    """Show charts, tables and computed sentences (texts in Markdown) below the cell, in order."""
    from IPython.display import Markdown, display

    for part in parts:
        display(Markdown(part) if isinstance(part, str) else part)  # type: ignore[no-untyped-call]


def drawn(chart: Callable[..., Any], frame: pd.DataFrame, **options: Any) -> Any:
    """Return the chart of a frame, or a sentence in its place where the frame has no row."""
    return "Nothing to draw here." if frame.empty else chart(frame, **options)


def told(value: float | None, name: str = "") -> str:
    """Return a figure as people read it; ``name`` carries the unit as its suffix.

    >>> told(0.0123, "ttft_s"), told(0.995, "availability_fraction"), told(float("nan"))
    ('12.3 ms', '99.5 %', 'unknown')
    >>> told(float("inf"), "e2e_s"), told(12.345, "rate_rps"), told(1234567)
    ('no bound', '12.3 requests/s', '1,230,000')
    """
    if value is None or math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "no bound"
    for suffix, factor, unit in UNITS:
        if name.endswith(suffix):
            return f"{_digits(value * factor)}{unit}"
    if name.endswith("_s"):
        return _time(value)
    return _digits(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table as a page shows it: headings, rows of texts, and which columns are figures."""

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

    def __repr__(self) -> str:
        """Return the table as plain text, a row a line."""
        return "\n".join(" | ".join(row) for row in (self.headings, *self.rows))


def table(frame: pd.DataFrame, *, rows: int = 40) -> Table:
    """Return a frame as a page shows it: names in words, units once, ``unknown`` for no figure."""
    cells = {str(name): [_cell(v, str(name)) for v in frame[name].head(rows)] for name in frame}
    return Table(
        headings=tuple(map(_heading, cells)),
        rows=tuple(zip(*cells.values(), strict=True)),
        figures=tuple(_are_figures(frame[name]) for name in frame),
    )


def _are_figures(column: pd.Series[Any]) -> bool:
    numbers = all(type(v) in (int, float) for v in column) if column.dtype == object else False
    return numbers or column.dtype.kind in "if"


RIGHT, LEFT = "text-align:right;white-space:nowrap", "text-align:left"


def _row(tag: str, cells: Iterable[str], styles: Iterable[str]) -> str:
    pairs = zip(cells, styles, strict=True)
    return "<tr>" + "".join(f'<{tag} style="{s}">{_marked(c)}</{tag}>' for c, s in pairs) + "</tr>"


def _marked(text: str) -> str:
    """Return a text as HTML: names in backticks as code, long ones with places to break.

    >>> _marked("`llm` < 2")
    '<code>llm</code> &lt; 2'
    >>> _marked("pools.llm.batching.scheduler")
    'pools.<wbr>llm.<wbr>batching.<wbr>scheduler'
    """
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return LONG_NAME.sub(lambda name: re.sub(r"([._])", r"\1<wbr>", name[0]), marked)


def _heading(name: str) -> str:
    """Return a column's name in words, with the unit where the cells do not carry it."""
    for suffix, _, unit in UNITS:
        if name.endswith(suffix):
            told_here = "" if suffix in IN_CELLS else f" ({unit.strip()})"
            return in_words(name.removesuffix(suffix)) + told_here
    return in_words(name.removesuffix("_s"))


def once(values: pd.Series) -> pd.Series:
    """Return a table's long texts, those that only repeat the row above as "as above"."""
    return values.mask((values == values.shift()) & (values != ""), "as above")


def named(names: Iterable[str], *, none: str) -> str:
    """Return the models or accelerators of pools as a list; a pool may name none.

    >>> named(["Llama-3.1-8B", "unnamed"], none="no model")
    'Llama-3.1-8B and a pool that names none'
    """
    return listed(("a pool that names none" if n == "unnamed" else n for n in names), none=none)


def listed(words: Iterable[object], *, none: str = "none") -> str:
    """Return words as a list in a sentence.

    >>> listed(["chat", "assistant", "batch"]), listed([]), listed(["chat"])
    ('chat, assistant and batch', 'none', 'chat')
    """
    *first, last = [str(word) for word in words] or [none]
    return f"{', '.join(first)} and {last}" if first else last


def _cell(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or isinstance(value, float) or hasattr(value, "dtype"):
        text = told(None if value is None else float(value), name)
        units = [unit for suffix, _, unit in UNITS if name.endswith(suffix)]
        return text if name.endswith(IN_CELLS) or not units else text.removesuffix(units[0])
    return str(value).replace("_", " ") if name in CODED else str(value)


def _time(value_s: float) -> str:
    for factor, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if abs(value_s) >= factor:
            return f"{_digits(value_s / factor)} {unit}"
    return f"{_digits(1000 * value_s)} ms"


def _digits(value: float) -> str:
    """Return three significant digits without an exponent."""
    if value == 0:
        return "0"
    places = 2 - math.floor(math.log10(abs(value)))
    text = f"{round(value, places):,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if places > 0 else text
