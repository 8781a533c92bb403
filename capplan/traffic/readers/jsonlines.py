"""JSON lines: one object per line; a blank line is no row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import json as pa_json

from capplan.traffic.readers import files
from capplan.traffic.readers.raw import RawBatch, field_array

LINES_TO_TELL = 100


def parse(line: bytes) -> Any:
    """Return the JSON value of a line, or None when there is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def is_by_line(head: bytes) -> bool:
    r"""Tell whether a file holds one object a line: at least half of its first lines are objects.

    A broken line costs itself alone, and one line of a spread-out document proves nothing.

    >>> is_by_line(b'{"a": 1, "b\n{"a": 2}\n'), is_by_line(b'[\n{"a": 1},\n{"a": 2}\n]')
    (True, False)
    """
    lines = _whole_lines(head)[:LINES_TO_TELL]
    objects = sum(isinstance(parse(line), dict) for line in lines)
    return bool(lines) and 2 * objects >= len(lines)


def example(head: bytes) -> dict[str, Any] | None:
    """Return one record with every field of the first lines, each with its first value.

    None where fewer than half of the lines are objects.
    """
    if not is_by_line(head):
        return None
    found: dict[str, Any] = {}
    for record in map(parse, _whole_lines(head)[:LINES_TO_TELL]):
        if isinstance(record, dict):
            merge(found, record)
    return found


def merge(known: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Add to ``known`` the fields of a record that it lacks or has as null, nested ones too."""
    for key, value in record.items():
        if isinstance(known.get(key), dict) and isinstance(value, dict):
            merge(known[key], value)
        elif known.get(key) is None:
            known[key] = value


def _whole_lines(head: bytes) -> list[bytes]:
    """Return the lines that are not blank; a last one that the end of the head cut is left out."""
    lines = head.split(b"\n")
    cut = len(head) == files.HEAD_BYTES
    return [line for line in (lines[:-1] if cut else lines) if line.strip()]


def reach(record: Any, dotted: str) -> Any:
    """Return the value at a dotted name, the whole name first; None where there is none.

    >>> reach({"usage": {"prompt_tokens": 3}}, "usage.prompt_tokens")
    3
    """
    if not isinstance(record, dict):
        return None
    if dotted in record:
        return record[dotted]
    head, dot, rest = dotted.partition(".")
    return reach(record.get(head), rest) if dot else None


def flat_names(record: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the names of a record, those of nested objects dotted.

    >>> flat_names({"id": 1, "usage": {"prompt_tokens": 3}})
    ['id', 'usage.prompt_tokens']
    """
    found: list[str] = []
    for key, value in record.items():
        name = f"{prefix}{key}"
        deep = isinstance(value, dict) and prefix.count(".") < 3  # noqa: PLR2004
        found += flat_names(value, f"{name}.") if deep else [name]
    return found


def batches(
    path: Path, columns: Mapping[str, str], sample: Mapping[str, Any]
) -> Iterator[RawBatch]:
    """Yield the rows of a file; ``columns`` maps our columns to (dotted) names of a record.

    ``sample`` is one record of the file: its types steer the quick parser.
    """
    known: Any = None
    with files.opened(path) as stream:
        for block in files.blocks(stream):
            table = _fast(block, columns, sample, known)
            if table is None and known is not None:
                table = _fast(block, columns, sample, None)
            if table is None:
                yield _slow(block, columns)
                continue
            known = table.schema
            arrays = {o: table.column(theirs).combine_chunks() for o, theirs in columns.items()}
            yield RawBatch(columns=arrays, rows=table.num_rows)


def _fast(
    block: bytes, columns: Mapping[str, str], sample: Mapping[str, Any], known: Any
) -> Any | None:
    """Return the block as an Arrow table, or None when it has to be read line by line.

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
        table.validate(full=True)  # Arrow's JSON reader lets bytes pass that are not UTF-8
    except pa.ArrowInvalid:
        return None
    return table


def _slow(block: bytes, columns: Mapping[str, str]) -> RawBatch:
    lines = [line for line in block.split(b"\n") if line.strip()]
    records = [r for r in map(parse, lines) if isinstance(r, dict)]
    lost = len(lines) - len(records)
    arrays = {
        ours: field_array(ours, [reach(record, theirs) for record in records])
        for ours, theirs in columns.items()
    }
    return RawBatch(columns=arrays, rows=len(records), lost={"unparseable": lost} if lost else {})
