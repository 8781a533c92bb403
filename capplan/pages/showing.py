"""Showing parts of a page below its cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def show(*parts: Any) -> None:
    """Show charts, tables and computed sentences (texts in Markdown) below the cell, in order."""
    from IPython.display import Markdown, display

    for part in parts:
        display(Markdown(part) if isinstance(part, str) else part)  # type: ignore[no-untyped-call]


def drawn(chart: Callable[..., Any], frame: pd.DataFrame, **options: Any) -> Any:
    """Return the chart of a frame, or a sentence in its place if the frame has no row."""
    return "Nothing to draw here." if frame.empty else chart(frame, **options)
