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
ALIKE = 0.4
"""Least ratio of equal characters (``difflib``) of a near match; a default of this project."""
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
    near = ", ".join(_near(name, table))
    where = f"near: {near}" if near else "`capplan catalog` lists them"
    raise DataError(f"{rule} ({where})", field=field, value=name)


@cache
def _aliases() -> Mapping[str, str]:
    named = [(row["alias"], row["name"]) for row in rows("aliases.csv")]
    short = {_key(alias.rpartition("/")[2]): name for alias, name in named}
    return short | {_key(alias): name for alias, name in named}


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Return up to four names that are alike, or begin alike, the nearest first."""
    from difflib import SequenceMatcher

    asked = _key(name.rpartition("/")[2])

    def likeness(one: str) -> tuple[float, float]:
        key = _key(one.rpartition("/")[2])
        whole, begins = (SequenceMatcher(None, asked, k).ratio() for k in (key, key[: len(asked)]))
        return max(whole, begins), whole

    scores = {one: likeness(one) for one in known}
    nearest = sorted(scores, key=lambda one: scores[one], reverse=True)
    return [one for one in nearest[:4] if scores[one][0] >= ALIKE and asked]


def _key(name: str) -> str:
    """Return a name without case, spaces and punctuation."""
    return "".join(c for c in name.lower() if c.isalnum() or c == "/")
