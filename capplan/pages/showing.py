"""Showing parts of a page below its cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.schema import NoRowsError


def show(*parts: Any) -> None:
    """Show charts, tables and computed sentences (texts in Markdown) below the cell, in order."""
    from IPython.display import Markdown, display

    for part in parts:
        display(Markdown(part) if isinstance(part, str) else part)  # type: ignore[no-untyped-call]


def drawn(chart: Callable[..., Any], *frames: Any, **options: Any) -> Any:
    """Return the chart, or a sentence in its place if it has no row to draw."""
    try:
        return chart(*frames, **options)
    except NoRowsError:
        return "Nothing to draw here."
