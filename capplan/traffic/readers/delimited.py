"""CSV and its relatives: one line is one row; comma, semicolon, tab or bar between fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capplan.schema import DataError
from capplan.traffic.readers import files
from capplan.traffic.readers.raw import RawBatch, text_array

DELIMITERS = (",", ";", "\t", "|")


def header(head: bytes, path: Path) -> tuple[list[str], str]:
    """Return the column names and the delimiter of the first line.

    Raises
    ------
    DataError
        When the line is not UTF-8 text.
    """
    line = head.split(b"\n", 1)[0].rstrip(b"\r")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as err:
        raise DataError("UTF-8 text", where=path, field="line 1") from err
    delimiter = max(DELIMITERS, key=text.count)
    return [name.strip() for name in _fields(text, delimiter) or []], delimiter


def _fields(line: str, delimiter: str) -> list[str] | None:
    """Return the fields of one line, or None when it is not one whole row."""
    try:
        rows = list(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None


def batches(path: Path, columns: Mapping[str, str]) -> Iterator[RawBatch]:
    """Yield the rows of a delimited file; ``columns`` maps our columns to the header's."""
    names, delimiter = header(files.head(path), path)
    wanted = {ours: names.index(theirs) for ours, theirs in columns.items()}
    with files.opened(path) as stream:
        first = True
        for block in files.blocks(stream):
            body = block
            if first:
                body = block.partition(b"\n")[2]
                first = False
            if body:
                yield _batch(body, names, delimiter, wanted)


def _batch(
    block: bytes, names: Sequence[str], delimiter: str, wanted: Mapping[str, int]
) -> RawBatch:
    table = _fast(block, len(names), delimiter, wanted)
    if table is None:
        return _slow(block, len(names), delimiter, wanted)
    columns = {ours: table.column(str(i)).combine_chunks() for ours, i in wanted.items()}
    return RawBatch(columns=columns, rows=table.num_rows)


def _fast(block: bytes, width: int, delimiter: str, wanted: Mapping[str, int]) -> Any | None:
    """Return the block as an Arrow table of text, or None when it is not one row a line."""
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    needed = sorted({str(i) for i in wanted.values()}, key=int)
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(column_names=[str(i) for i in range(width)]),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(
                include_columns=needed, column_types=dict.fromkeys(needed, pa.string())
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return table if table.num_rows == files.line_count(block) else None


def _slow(block: bytes, width: int, delimiter: str, wanted: Mapping[str, int]) -> RawBatch:
    """Read line by line, so that a broken line costs only itself."""
    rows: list[list[str]] = []
    lost = 0
    for line in block.split(b"\n"):
        bare = line.rstrip(b"\r")
        if not bare:
            continue
        try:
            fields = _fields(bare.decode("utf-8"), delimiter)
        except UnicodeDecodeError:
            fields = None
        if fields is None or len(fields) != width:
            lost += 1
        else:
            rows.append(fields)
    columns = {ours: text_array(row[i] for row in rows) for ours, i in wanted.items()}
    return RawBatch(columns=columns, rows=len(rows), lost={"unparseable": lost} if lost else {})
