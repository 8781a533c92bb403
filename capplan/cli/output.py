"""What a command prints: short tables for people, one JSON document for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    from capplan.encoding import to_text

    sys.stdout.write(to_text(document))


def print_table(rows: Iterable[Sequence[Any]], heads: Sequence[str]) -> None:
    """Print rows in columns: text to the left, figures to the right."""
    from capplan.display import table_of

    sys.stdout.write(f"{table_of(rows, heads)}\n")


def print_frame(frame: pd.DataFrame) -> None:
    """Print a frame as a notebook shows it, and a blank line; nothing for a frame without rows."""
    from capplan.display import table

    if not frame.empty:
        sys.stdout.write(f"{table(frame, rows=len(frame))}\n\n")


def print_assumed(notes: Sequence[str]) -> None:
    """Print what a result rests on besides its inputs: what was assumed, cut, dropped or filled."""
    if notes:
        sys.stdout.write("\nrests on:\n")
        sys.stdout.writelines(f"- {note}\n" for note in dict.fromkeys(notes))


def print_stored(out: str | None) -> None:
    """Print the folder that holds the run, if one does."""
    if out is not None:
        sys.stdout.write(f"\nstored in {out}\n")
