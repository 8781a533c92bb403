"""The tables of ``data/catalog/``, and finding a name in them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from capplan.bundled import data_path
from capplan.schema import DataError

T = TypeVar("T")
SAMPLE = "sample"
"""Name of the bundled trace."""


@cache
def rows(table: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of ``data/catalog/``, by its file name."""
    with data_path("catalog", table).open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def trace_names() -> tuple[str, ...]:
    """Return the names that stand for a trace wherever a file may: bundled, and public ones."""
    return (SAMPLE, *(row["name"] for row in rows("public_traces.csv")))


def placed_trace(trace: str | Path, folder: str | Path = "") -> str:
    """Return a trace's name as it is, or the absolute path of a file named from a folder.

    >>> placed_trace("sample"), placed_trace("log.csv", "/data")
    ('sample', '/data/log.csv')
    """
    return str(trace) if str(trace) in trace_names() else str(Path(folder, trace).resolve())


def look_up(name: str, table: Mapping[str, T], rule: str, *, field: str | None = None) -> T:
    """Return the entry of that name, in any spelling of case, spaces and punctuation.

    The part after a slash and the aliases of ``aliases.csv`` are names too. Raises
    :class:`DataError` listing near matches if there is none.
    """
    by_key = {_key(known.rpartition("/")[2]): value for known, value in table.items()}
    by_key |= {_key(known): value for known, value in table.items()}
    key = _key(name)
    if key not in by_key:
        key = _key(_aliases().get(key, name))
    if key in by_key:
        return by_key[key]
    near = _near(name, table)
    raise DataError(f"{rule} (near: {', '.join(near) or 'none'})", field=field, value=name)


@cache
def _aliases() -> Mapping[str, str]:
    return {_key(row["alias"]): row["name"] for row in rows("aliases.csv")}


def _near(name: str, known: Iterable[str]) -> list[str]:
    from difflib import get_close_matches

    by_key = {_key(k.rpartition("/")[2]): k for k in known}
    matches = get_close_matches(_key(name.rpartition("/")[2]), by_key, n=4, cutoff=0.4)
    return [by_key[match] for match in matches]


def _key(name: str) -> str:
    """Return a name without case, spaces and punctuation."""
    return "".join(c for c in name.lower() if c.isalnum() or c == "/")
