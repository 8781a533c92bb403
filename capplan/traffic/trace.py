"""A trace: one row per request, in order of arrival, with the books of its ingest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.schema import TRACE, Column, DataError, require_columns
from capplan.traffic.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes
    ----------
    frame
        Columns of :data:`capplan.schema.TRACE`, sorted by ``arrival_s``; a column that the source
        lacks is absent. ``prefix_blocks`` holds one int64 array per request.
    ledger
        Rows read, kept, dropped and changed.
    source
        File name or another name of the origin.
    format
        Format the trace was read from.
    start
        Wall time (UTC) of ``arrival_s == 0``, or None where the source has none.
    duration_s
        Observation window, or None where only the arrivals are known.
    notes
        Sentences that say what was assumed.
    sha256
        Checksum of the file, or None for a trace that was not read from one.
    prefix_block_tokens
        Tokens in one prefix block, or None where there are no blocks.
    """

    frame: pd.DataFrame
    ledger: Ledger
    source: str
    format: str = "frame"
    start: datetime | None = None
    duration_s: float | None = None
    notes: tuple[str, ...] = ()
    sha256: str | None = None
    prefix_block_tokens: int | None = None

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

    Raises
    ------
    DataError
        For a missing or unknown column, no row, or a value that breaks its column's rule.
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
    """Return the values in the column's type; :class:`DataError` where one breaks its rule."""
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
