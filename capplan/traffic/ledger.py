"""The books of an ingest: every row read is either kept or dropped for a stated reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from capplan.formatting import counted

REASONS: Mapping[str, str] = {
    "unparseable": "the line, its time or a token count cannot be read",
    "missing_time": "no arrival time",
    "missing_tokens": "no prompt or output length",
    "negative": "a negative time or token count",
    "other_time_unit": "a time in another unit than the rest of the file",
    "zero_tokens": "no prompt or no output tokens",
    "failed": "the source marks the request as failed",
    "duplicate_id": "its id was seen before",
    "other_span": "a span that is not one model call",
}
"""Why a row is dropped, in the order in which the rules are applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Rows read, kept and dropped by reason, and rows kept but changed.

    Raises
    ------
    ValueError
        When ``read != kept + sum(dropped)`` or a count is negative.

    Examples
    --------
    >>> Ledger(read=3, kept=2, dropped={"negative": 1}).to_json()
    {'read': 3, 'kept': 2, 'dropped': {'negative': 1}, 'changed': {}}
    """

    read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [self.read, self.kept, *self.dropped.values(), *self.changed.values()]
        if min(counts) < 0:
            msg = f"counts must not be negative, got {counts}"
            raise ValueError(msg)
        if self.read != self.kept + sum(self.dropped.values()):
            msg = (
                f"rows read must equal rows kept + dropped, got {self.read} read, "
                f"{self.kept} kept, {dict(self.dropped)} dropped"
            )
            raise ValueError(msg)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "changed": dict(self.changed),
        }

    def table(self) -> pd.DataFrame:
        """Return one row per entry: ``entry``, ``reason``, ``rows``."""
        rows = [("read", "", self.read), ("kept", "", self.kept)]
        rows += [("dropped", reason, n) for reason, n in self.dropped.items()]
        rows += [("changed", reason, n) for reason, n in self.changed.items()]
        return pd.DataFrame(rows, columns=["entry", "reason", "rows"])

    def sentence(self) -> str:
        """Return the books in one sentence.

        >>> Ledger(read=3, kept=2, dropped={"negative": 1}).sentence()
        '3 rows read: 2 kept, 1 dropped (negative 1).'
        """
        lost = self.read - self.kept
        parts = f"{counted(self.read, 'row')} read: {self.kept:,} kept, {lost:,} dropped"
        why = ", ".join(f"{reason} {n:,}" for reason, n in self.dropped.items())
        how = ", ".join(f"{reason} {n:,}" for reason, n in self.changed.items())
        return f"{parts}{f' ({why})' if why else ''}{f'; {how}' if how else ''}."
