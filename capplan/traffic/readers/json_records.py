"""JSON records of a file: lines, an array, or documents one after another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json as pa_json

from capplan.traffic.readers import files
from capplan.traffic.readers.values import RawBatch, field_array

EXAMPLE_RECORDS = 100
"""Records whose fields make up the example of a file."""

BATCH_ROWS = 50_000
MOST_NESTED = 3
ERROR_STATUS = 400
"""HTTP statuses from here on are errors. Source: RFC 9110, section 15."""
Record = dict[str, Any]
Row = dict[str, Any]
"""Our columns of one request; ``drop`` holds a ledger reason if the reader drops it."""


def values(path: Path) -> Iterator[Any]:
    """Yield the JSON values of a file; None for each piece that is not JSON.

    A file with one object a line is read line by line; any other file is read at once, as values
    one after another, with an array as its elements.
    """
    with files.opened(path) as stream:
        blocks = files.blocks(stream)
        first = next(blocks, b"")
        if is_by_line(first):
            yield from _line_values(first)
            for block in blocks:
                yield from _line_values(block)
        else:
            yield from _text_values(b"".join([first, *blocks]))


def is_by_line(head: bytes) -> bool:
    r"""Return whether a file has one object a line: at least half of its first lines are objects.

    >>> is_by_line(b'{"a": 1, "b\n{"a": 2}\n'), is_by_line(b'[\n{"a": 1},\n{"a": 2}\n]')
    (True, False)
    """
    lines = head.split(b"\n")
    if len(head) == files.HEAD_BYTES:  # the end of the head cuts the last line
        lines = lines[:-1]
    lines = [line for line in lines if line.strip()][:EXAMPLE_RECORDS]
    objects = sum(isinstance(_parsed(line), dict) for line in lines)
    return bool(lines) and 2 * objects >= len(lines)


def example(path: Path) -> Record | None:
    """Return one record with every field of the first records, each with its first value."""
    found: Record = {}
    for value in islice(values(path), EXAMPLE_RECORDS):
        if isinstance(value, dict):
            _merge(found, value)
    return found or None


def _merge(known: Record, record: Mapping[str, Any]) -> None:
    """Add to ``known`` the fields that it lacks or has as null, nested ones too."""
    for key, value in record.items():
        if isinstance(known.get(key), dict) and isinstance(value, dict):
            _merge(known[key], value)
        elif known.get(key) is None:
            known[key] = value


def reach(record: Any, dotted: str) -> Any:
    """Return the value at a dotted name, the whole name first; None if there is none.

    >>> reach({"usage": {"prompt_tokens": 3}}, "usage.prompt_tokens")
    3
    """
    if not isinstance(record, dict):
        return None
    if dotted in record:
        return record[dotted]
    head, dot, rest = dotted.partition(".")
    return reach(record.get(head), rest) if dot else None


def found(record: Record, places: tuple[str, ...], keys: tuple[str, ...]) -> Any:
    """Return the first value that is not null of the keys in the places."""
    values = (reach(record, f"{place}{key}") for place in places for key in keys)
    return next((value for value in values if value is not None), None)


def first(table: Record, keys: tuple[str, ...]) -> Any:
    """Return the first value that is not null of the keys of a table."""
    return next((table[key] for key in keys if table.get(key) is not None), None)


def flat_names(record: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the names of a record, those of nested objects dotted.

    >>> flat_names({"id": 1, "usage": {"prompt_tokens": 3}})
    ['id', 'usage.prompt_tokens']
    """
    found: list[str] = []
    for key, value in record.items():
        name = f"{prefix}{key}"
        deep = isinstance(value, dict) and prefix.count(".") < MOST_NESTED
        found += flat_names(value, f"{name}.") if deep else [name]
    return found


def mapped_batches(path: Path, columns: Mapping[str, str], sample: Record) -> Iterator[RawBatch]:
    """Yield one row per record; ``columns`` maps our columns to (dotted) names of a record.

    ``sample`` is an example of the records: its types steer the quick parser of files with one
    object a line.
    """
    if is_by_line(files.head(path)):
        yield from _line_batches(path, columns, sample)
    else:
        yield from batches(values(path), lambda record: [_mapped(record, columns)], tuple(columns))


def batches(
    found: Iterator[Any], rows_of: Callable[[Record], Any], columns: tuple[str, ...]
) -> Iterator[RawBatch]:
    """Yield raw batches of the rows that ``rows_of`` makes of each record.

    A value that is not an object counts as one unparseable row.
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
        yield _batch(part, columns, missed)


def _batch(rows: list[Row], columns: tuple[str, ...], lost: int) -> RawBatch:
    drops = np.array([row.get("drop", "") for row in rows], dtype=object)
    return RawBatch(
        columns={name: field_array(name, [row.get(name) for row in rows]) for name in columns},
        rows=len(rows),
        lost={"unparseable": lost} if lost else {},
        drops=drops if any(drops) else None,
    )


def _line_batches(path: Path, columns: Mapping[str, str], sample: Record) -> Iterator[RawBatch]:
    known: Any = None
    with files.opened(path) as stream:
        for block in files.blocks(stream):
            table = _fast(block, columns, sample, known)
            if table is None and known is not None:
                table = _fast(block, columns, sample, None)
            if table is None:
                found = list(_line_values(block))
                records = [value for value in found if isinstance(value, dict)]
                rows = [_mapped(record, columns) for record in records]
                yield _batch(rows, tuple(columns), len(found) - len(rows))
                continue
            known = table.schema
            arrays = {o: table.column(theirs).combine_chunks() for o, theirs in columns.items()}
            yield RawBatch(columns=arrays, rows=table.num_rows)


def _fast(block: bytes, columns: Mapping[str, str], sample: Record, known: Any) -> Any | None:
    """Return the block as an Arrow table, or None if it must be read line by line.

    ``known`` is the schema of an earlier block, which spares finding the types again, or None.
    """
    if any(theirs not in sample for theirs in columns.values()):
        return None
    texts = [t for t in columns.values() if isinstance(sample[t], str)]
    schema = pa.schema([(t, pa.string()) for t in texts]) if known is None else known
    try:
        table = pa_json.read_json(
            pa.BufferReader(block), parse_options=pa_json.ParseOptions(explicit_schema=schema)
        )
        found = set(table.column_names)
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    if table.num_rows != files.line_count(block) or not set(columns.values()) <= found:
        return None
    try:
        table.validate(full=True)  # Arrow's JSON reader accepts bytes that are not UTF-8
    except pa.ArrowInvalid:
        return None
    return table


def _mapped(record: Record, columns: Mapping[str, str]) -> Row:
    return {ours: reach(record, theirs) for ours, theirs in columns.items()}


def _line_values(block: bytes) -> Iterator[Any]:
    return (_parsed(line) for line in block.split(b"\n") if line.strip())


def _text_values(data: bytes) -> Iterator[Any]:
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


def _parsed(line: bytes) -> Any:
    """Return the JSON value of a line, or None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
