"""What a command prints: short tables for people, one JSON document for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capplan.formatting import counted, format_value

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


def spread(figures: Any, names: Sequence[str]) -> list[Any]:
    """Return the named figures of a mapping, None for what is not there."""
    found = figures if isinstance(figures, Mapping) else {}
    return [found.get(name) for name in names]


def print_verdict(verdict: Mapping[str, Any]) -> None:
    """Print the outcome, and in a table every reason that does not speak for a pass."""
    reasons = list(verdict.get("reasons") or [])
    open_reasons = [reason for reason in reasons if reason.get("outcome") != "pass"]
    kept = len(reasons) - len(open_reasons)
    held = f" ({counted(kept, 'rule')} held)" if kept else ""
    sys.stdout.write(f"\nverdict: {verdict.get('outcome')}{held}\n")
    if open_reasons:
        heads = ["", "rule", "of", "value", "limit", "next action"]
        print_table([_reason(reason) for reason in open_reasons], heads)


def _reason(reason: Mapping[str, Any]) -> list[str]:

    value, limit = (
        "" if reason.get(k) is None else format_value(reason[k]) for k in ("value", "limit")
    )
    where = reason.get("field") or reason.get("request_class") or ""
    action = reason.get("next_action") or ""
    return [reason.get("outcome") or "", reason.get("rule", ""), where, value, limit, action]
