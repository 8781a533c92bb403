"""One row a call: further tries, repeated ids and rows, and rows that count several calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import counted, format_value
from capplan.schema import DataError
from capplan.traffic.readers import values as v

Mask = npt.NDArray[np.bool_]
TRY, COUNT = "try:", "count:"
"""Begin the names under which a raw batch holds the columns that number tries or count calls."""
NAMES: Mapping[str, frozenset[str]] = {
    TRY: frozenset(("attempt", "attempt_number", "attempt_no", "attempt_num", "attempt_index",
                    "try", "try_number")),
    COUNT: frozenset(("requests", "request_count", "num_requests", "n_requests", "calls",
                      "number_of_requests", "call_count", "num_calls", "n_calls")),
}  # fmt: skip
"""Names, folded, of such columns. ``retries`` may count the tries of the one row of a call."""
MOST_REPEATED_FRACTION = 0.5
"""Share of repeated ids from which on a row is no request, but a part of one."""
MOST_TWICE_FRACTION, NAMED_FRACTION = 0.4, 0.01
"""Shares of rows that repeat another from which on the file is refused, or they are named."""
LEAST_REPEATS = 20
MOST_ALIKE = 0.05
"""Chance that two calls have the same lengths from which on equal rows are no sign of copies."""


def columns_of(folded: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the columns of tries and counts by their keys in a raw batch."""
    pairs = list(folded)
    return {
        f"{kind}{name}": name
        for kind, known in NAMES.items()
        for name, short in pairs
        if short in known
    }


def check_counts(columns: Mapping[str, Any], where: str | Path) -> None:
    """Raise :class:`DataError` if a column counts several calls in most rows."""
    for name in (n for n in columns if n.startswith(COUNT)):
        counts = v.numbers(columns[name])
        several = (counts.state == v.OK) & (counts.data > 1)
        if len(several) and several.mean() > MOST_REPEATED_FRACTION:
            value = f"{counts.data.sum():,.0f} in {counted(len(several), 'row')}"
            rule = "one row a call, not counts of an interval"
            raise DataError(rule, where=where, field=name.removeprefix(COUNT), value=value)


def tries(columns: Mapping[str, Any], rows: int) -> npt.NDArray[np.float64]:
    """Return the number of each row's try, NaN where no column numbers it."""
    found = np.full(rows, np.nan)
    for name in (n for n in columns if n.startswith(TRY)):
        number = v.numbers(columns[name])
        found = np.where(number.state == v.OK, number.data, found)
    return found


def further(number: npt.NDArray[np.float64]) -> Mask:
    """Return which rows are further tries: their number is above the least of the file."""
    return np.zeros(len(number), np.bool_) if np.isnan(number).all() else number > np.nanmin(number)


def of_first_ids(
    table: pd.DataFrame, lacks: Mapping[str, Mask], where: str | Path
) -> tuple[pd.DataFrame, dict[str, Mask], Mask]:
    """Return the table, what lacks, and which rows repeat an earlier id.

    The first row of an id begins when the earliest of its rows does, and takes the lengths that it
    lacks from a later one. Raises :class:`DataError` if most rows repeat an id.
    """
    lacking = dict(lacks)
    ids = table["request_id"] if "request_id" in table else pd.Series(dtype=str)
    again = np.asarray(ids.duplicated() & ids.notna(), np.bool_)
    if not again.any():
        return table, lacking, np.zeros(len(table), np.bool_)
    if again.mean() > MOST_REPEATED_FRACTION:
        value = f"{again.sum():,} of {counted(len(table), 'row')} repeat a request_id"
        raise DataError("one row a request", where=where, value=value)
    first = table["arrival_s"].groupby(ids).transform("min").fillna(table["arrival_s"])
    table = table.assign(arrival_s=first)
    for name, lack in lacks.items():
        known = table[~lack & ids.notna()].drop_duplicates("request_id").set_index("request_id")
        fill = lack & ~again & np.asarray(ids.isin(known.index))
        values = table[name].to_numpy(copy=True)
        values[fill] = ids[fill].map(known[name])
        table, lacking[name] = table.assign(**{name: values}), lack & ~fill
    return table, lacking, again


def copies(table: pd.DataFrame, where: str | Path) -> list[str]:
    """Return a sentence about rows without an id that have the time and lengths of another one.

    Raises :class:`DataError` if so many do that calls were logged twice. Lengths that few values
    share prove it; calls that are all alike do not.
    """
    if "request_id" in table:
        return []
    lengths = ["prompt_tokens", "output_tokens"]
    again = table.duplicated(["arrival_s", *lengths])
    if again.sum() < LEAST_REPEATS or again.mean() < NAMED_FRACTION:
        return []
    shares = table.loc[~again, lengths].value_counts(normalize=True)
    if float((shares**2).sum()) > MOST_ALIKE:
        return []
    share = format_value(again.mean(), "_fraction")
    value = f"{counted(int(again.sum()), 'row')} ({share})"
    if again.mean() > MOST_TWICE_FRACTION:
        rule = "each call once, or a request_id; rows have the time and the lengths of another one"
        raise DataError(rule, where=where, value=value)
    return [f"{value} have the time and the lengths of another one: each is taken as a call."]
