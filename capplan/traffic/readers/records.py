"""JSON values of a file, one by one: lines, an array, or documents one after another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from capplan.traffic.readers import files, jsonlines
from capplan.traffic.readers.jsonlines import parse
from capplan.traffic.readers.raw import RawBatch, field_array

BATCH_ROWS = 50_000
Row = dict[str, Any]
"""Our columns of one request; ``drop`` holds a ledger reason where the reader drops it."""


def values(path: Path) -> Iterator[Any]:
    """Yield the JSON values of a file; None for each piece that is not JSON.

    A file whose lines are objects is read line by line; any other file is read at once, as values
    one after another, with an array as its elements.
    """
    with files.opened(path) as stream:
        blocks = files.blocks(stream)
        first = next(blocks, b"")
        if jsonlines.is_by_line(first):
            yield from _of_lines(first)
            for block in blocks:
                yield from _of_lines(block)
        else:
            yield from _of_text(b"".join([first, *blocks]))


def _of_lines(block: bytes) -> Iterator[Any]:
    for line in block.split(b"\n"):
        if line.strip():
            yield parse(line)


def _of_text(data: bytes) -> Iterator[Any]:
    text = data.decode("utf-8", "replace")
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield from value if isinstance(value, list) else [value]


def batches(
    found: Iterator[Any], rows_of: Callable[[Any], Iterator[Row]], columns: tuple[str, ...]
) -> Iterator[RawBatch]:
    """Yield raw batches of the rows that ``rows_of`` makes of each JSON value.

    A value that is no object counts as one unparseable row.
    """
    lost = 0

    def rows() -> Iterator[Row]:
        nonlocal lost
        for value in found:
            if isinstance(value, dict):
                yield from rows_of(value)
            else:
                lost += 1

    stream = rows()
    while True:
        part = list(islice(stream, BATCH_ROWS))
        missed, lost = lost, 0
        if not part and not missed:
            return
        arrays = {name: field_array(name, [row.get(name) for row in part]) for name in columns}
        drops = np.array([row.get("drop", "") for row in part], dtype=object)
        yield RawBatch(
            columns=arrays,
            rows=len(part),
            lost={"unparseable": missed} if missed else {},
            drops=drops if any(drops) else None,
        )
