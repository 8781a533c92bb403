"""Request logs and timelines from rows, with every column there and typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from capplan.schema import REQUESTS, TIMELINE, Column, DataError, names

MISSING: dict[str, Any] = {"float": np.nan, "int": np.nan, "str": None, "bool": None, "list": None}
"""The value of a missing entry, by kind of column."""


def requests_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a request log, columns ``schema.REQUESTS``; a column absent from a row is missing."""
    return _table(rows, REQUESTS, "requests")


def timeline_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a timeline, columns ``schema.TIMELINE``."""
    return _table(rows, TIMELINE, "timeline")


def _table(
    rows: Iterable[Mapping[str, Any]], columns: tuple[Column, ...], where: str
) -> pd.DataFrame:
    listed = list(rows)
    known = set(names(columns))
    for row in listed:
        if unknown := set(row) - known:
            raise DataError("a column of the table", where=where, field=sorted(unknown)[0])
    return pd.DataFrame({c.name: _column([row.get(c.name) for row in listed], c) for c in columns})


def _column(values: list[Any], column: Column) -> pd.Series:
    filled = [MISSING[column.kind] if value is None else value for value in values]
    if column.kind == "float" or (column.kind == "int" and None in values):
        return pd.Series(filled, dtype="float64")
    if column.kind == "int":
        return pd.Series(filled, dtype="int64")
    return pd.Series(filled, dtype="str" if column.kind == "str" else "object")
