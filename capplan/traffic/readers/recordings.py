"""One recording a file: several runs in one file are refused, since together they are no load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import counted
from capplan.schema import DataError

PREFIX = "run:"
"""Begins the names under which a raw batch holds the columns that name a run."""
NAMES = frozenset(
    ("run", "run_id", "run_name", "experiment", "experiment_id", "experiment_name", "trial",
     "trial_id", "recording", "recording_id", "benchmark_id", "test_id", "test_run", "repetition",
     "replication")
)  # fmt: skip
"""Names, folded, of columns that name the run of a row."""
MOST_RUNS = 50
LEAST_ROWS = 20
"""Runs, and rows of each: a column with more values, or fewer rows each, names single calls."""
BEGINNING_FRACTION, STEP_FRACTION = 0.05, 0.2
"""Shares of the span: a time within the first is the beginning again, a step back by less than the
second is a row out of order."""


def columns_of(folded: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the columns that name a run by their keys in a raw batch; pairs of name and folded."""
    return {f"{PREFIX}{name}": name for name, short in folded if short in NAMES}


def single(records: Iterable[Any], where: str | Path) -> Iterator[Any]:
    """Yield the one record of a file in which each is a whole run; DataError for a second one."""
    for number, record in enumerate(records):
        if number:
            raise DataError("one run a file", where=where, value="several results")
        yield record


def check_column(name: str, values: Iterable[Any], where: str | Path) -> None:
    """Raise :class:`DataError` if a column names several runs of one file."""
    rows = pd.Series(list(values)).dropna().astype(str).value_counts()
    if 1 < len(rows) <= MOST_RUNS and rows.min() >= LEAST_ROWS:
        shown = ", ".join(rows.index[:3]) + (", …" if len(rows) > 3 else "")  # noqa: PLR2004
        rule = "one recording a file: keep the rows of one run"
        raise DataError(rule, where=where, field=name, value=f"{len(rows)} runs ({shown})")


def check_times(
    seconds: npt.NDArray[np.float64], where: str | Path, *, groups: Iterable[pd.Series[Any]] = ()
) -> None:
    """Raise :class:`DataError` if times from a start, in the order of the file, begin again.

    Rows in disorder step back to any time, those of runs one after another to the beginning alone.
    A file sorted by one of the ``groups`` (a session, a tenant) is one recording.
    """
    if len(seconds) < 2 * LEAST_ROWS:
        return
    start, span = float(np.min(seconds)), float(np.ptp(seconds))
    steps = np.diff(seconds)
    back = np.flatnonzero(steps < -STEP_FRACTION * span)
    again = back[seconds[back + 1] - start <= BEGINNING_FRACTION * span]
    parts = np.diff([0, *(again + 1), len(seconds)])
    if not len(again) or len(again) < len(back) or parts.min() < LEAST_ROWS:
        return
    part = np.repeat(np.arange(len(parts)), parts)
    if any(_is_sorted_by(column, part) for column in groups):
        return
    rule = "one recording a file; split it, or sort it by time if it is one"
    times = counted(len(again), "time")
    value = f"times that begin again {times}, first after row {again[0] + 1:,}"
    raise DataError(rule, where=where, field="times", value=value)


def _is_sorted_by(column: pd.Series[Any], part: npt.NDArray[np.intp]) -> bool:
    """Return whether each part has one value, and another than the part before."""
    first = column.groupby(part).agg(["first", "nunique"])
    one_each = bool((first["nunique"] == 1).all())
    return one_each and bool((first["first"] != first["first"].shift()).all())
