"""What a command gives back: text for people, one JSON document for scripts, an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

DONE = 0
NOT_PASSED = 1
"""The verdict is anything but pass, and ``--check`` was given."""
BAD_INPUT = 2
FAILED = 3
"""Something failed while running: a disk, a worker, a notebook."""
INTERRUPTED = 130
"""As a shell reports a program ended by Ctrl-C (128 + SIGINT)."""
PIPE_CLOSED = 141
"""As a shell reports a program whose output was closed (128 + SIGPIPE)."""
TERMINATED = 143
"""As a shell reports a program ended by SIGTERM (128 + SIGTERM)."""


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


def checked(outcome: str | None, *, check: bool) -> int:
    """Return the exit code of a verdict: 0, or 1 if it counts and is not a pass.

    >>> checked("unknown", check=True), checked("fail", check=False)
    (1, 0)
    """
    return NOT_PASSED if check and outcome != "pass" else DONE
