"""A trace: one row per request, in order of arrival, with the ledger of its ingest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from capplan.formatting import counted
from capplan.schema import TRACE, Column, DataError, require_columns

REASONS: Mapping[str, str] = {
    "unparseable": "the line, its time or a token count cannot be read",
    "missing_time": "no arrival time",
    "missing_tokens": "no prompt or output length",
    "negative": "a negative time or token count",
    "other_time_unit": "a time in another unit than the rest of the file",
    "zero_tokens": "no prompt or no output tokens",
    "failed": "the source marks the request as failed",
    "retry": "a further try of a call, which callers make in the simulation",
    "duplicate_id": "its id was seen before",
    "other_span": "a span that is not one model call",
    "outer_span": "a span inside which another one of a model call lies",
}
"""Reasons to drop a row, in the order of the rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Rows read, kept, dropped by reason, and kept but changed.

    Raises ValueError if ``read != kept + sum(dropped)`` or a count is negative.

    >>> Ledger(read=3, kept=2, dropped={"negative": 1}).dropped
    {'negative': 1}
    """

    read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [self.read, self.kept, *self.dropped.values(), *self.changed.values()]
        if min(counts) < 0:
            raise ValueError(f"counts must not be negative, got {counts}")
        if self.read != self.kept + sum(self.dropped.values()):
            msg = (
                f"rows read must equal rows kept + dropped, got {self.read} read, "
                f"{self.kept} kept, {dict(self.dropped)} dropped"
            )
            raise ValueError(msg)

    def table(self) -> pd.DataFrame:
        """Return one row per entry: ``entry``, ``reason``, ``rows``."""
        rows = [("read", "", self.read), ("kept", "", self.kept)]
        rows += [("dropped", reason, n) for reason, n in self.dropped.items()]
        rows += [("changed", reason, n) for reason, n in self.changed.items()]
        return pd.DataFrame(rows, columns=["entry", "reason", "rows"])

    def sentence(self) -> str:
        """Return the ledger in one sentence.

        >>> Ledger(read=3, kept=2, dropped={"negative": 1}).sentence()
        '3 rows read: 2 kept, 1 dropped (negative 1).'
        """
        lost = self.read - self.kept
        parts = f"{counted(self.read, 'row')} read: {self.kept:,} kept, {lost:,} dropped"
        why = ", ".join(f"{reason} {n:,}" for reason, n in self.dropped.items())
        how = ", ".join(f"{reason} {n:,}" for reason, n in self.changed.items())
        return f"{parts}{f' ({why})' if why else ''}{f'; {how}' if how else ''}."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival."""

    frame: pd.DataFrame
    """Columns of :data:`capplan.schema.TRACE`, sorted by ``arrival_s``; a column that the source
    lacks is absent. ``prefix_blocks`` holds one int64 array per request."""
    ledger: Ledger
    """Rows read, kept, dropped and changed."""
    source: str
    """File name or another name of the origin."""
    format: str = "frame"
    """Format the trace was read from."""
    start: datetime | None = None
    """Wall time (UTC) of ``arrival_s == 0``, or None if unknown."""
    duration_s: float | None = None
    """Observation window, or None if only the arrivals are known."""
    notes: tuple[str, ...] = ()
    """The assumptions, in sentences."""
    sha256: str | None = None
    """Checksum of the file, or None for a trace without one."""
    prefix_block_tokens: int | None = None
    """Tokens in one prefix block, or None without blocks."""

    def __len__(self) -> int:
        return len(self.frame)


def from_frame(
    frame: pd.DataFrame,
    *,
    source: str = "frame",
    start: datetime | None = None,
    duration_s: float | None = None,
    notes: Iterable[str] = (),
    prefix_block_tokens: int | None = None,
) -> Trace:
    """Return a trace of the rows of ``frame``, checked, typed and sorted by arrival.

    Parameters
    ----------
    frame
        Columns of :data:`capplan.schema.TRACE`; the required ones must be present and finite.
    source, start, duration_s, notes, prefix_block_tokens
        See :class:`Trace`.

    Raises :class:`DataError` for a missing or unknown column, no row, or a value against its
    column's rule.
    """
    columns = {c.name: c for c in TRACE}
    require_columns(frame, (c.name for c in TRACE if c.required), where=source)
    unknown = [str(name) for name in frame.columns if name not in columns]
    if unknown:
        raise DataError("a column of a trace", where=source, field=", ".join(unknown))
    if frame.empty:
        raise DataError("at least one request", where=source, value=0)
    typed = frame.assign(**{c: typed_column(frame[c], columns[c], source) for c in frame.columns})
    arrival = typed["arrival_s"].to_numpy()
    if duration_s is not None and not arrival.max() <= duration_s:
        rule = f"arrivals inside the observation window of {duration_s:g} s"
        raise DataError(rule, where=source, field="arrival_s", value=float(arrival.max()))
    late = int(np.count_nonzero(arrival < np.maximum.accumulate(arrival)))
    if late:
        typed = typed.sort_values("arrival_s", kind="stable")
    changed = {"out_of_order_sorted": late} if late else {}
    return Trace(
        frame=typed.reset_index(drop=True),
        ledger=Ledger(read=len(frame), kept=len(frame), changed=changed),
        source=source,
        start=start,
        duration_s=duration_s,
        notes=tuple(notes),
        prefix_block_tokens=prefix_block_tokens,
    )


def typed_column(values: pd.Series[Any], column: Column, where: str) -> pd.Series[Any]:
    """Return the values in the column's type; :class:`DataError` for one against its rule."""
    if column.kind in ("float", "int"):
        return _numbers(values, column, where)
    if column.kind == "str":
        return values.astype("str")
    if column.kind == "bool":
        return values.astype("boolean" if values.isna().any() else "bool")
    return values


def _numbers(values: pd.Series[Any], column: Column, where: str) -> pd.Series[Any]:
    try:
        numbers = values.astype("float64")
    except (TypeError, ValueError) as err:
        raise DataError("numbers", where=where, field=column.name, value=str(err)) from err
    present = numbers.notna()
    bad = present & ~(np.isfinite(numbers) & ((numbers >= 0) | (column.name == "priority")))
    if column.required:
        bad |= ~present
    if bad.any():
        value = numbers[bad].iloc[0]
        rule = "finite numbers, not negative"
        raise DataError(rule, where=where, field=column.name, value=float(value))
    if column.kind == "float" or not present.all():
        return numbers
    whole = numbers.astype("int64")
    if (whole != numbers).any():
        value = float(numbers[whole != numbers].iloc[0])
        raise DataError("whole numbers", where=where, field=column.name, value=value)
    return whole
