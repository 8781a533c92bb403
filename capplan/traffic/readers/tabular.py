"""Tables: text with comma, semicolon, tab or bar between fields, and Parquet.

One line of text is one row, unless a quote that opens in it closes on a later line (a prompt in a
log); a broken line loses only itself. Parquet is read in batches, only the needed columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as pa_csv
from pyarrow import parquet

from capplan.schema import DataError
from capplan.traffic.readers import files
from capplan.traffic.readers.values import RawBatch, is_text, plain, pointed, text_array

DELIMITERS = (",", ";", "\t", "|")
MOST_LINES_OF_A_ROW = 200
PARQUET_ROWS = 1 << 18


def header(head: bytes, path: Path) -> tuple[list[str], str]:
    """Return the column names and the delimiter of the first line.

    Raises :class:`DataError` if the line is not UTF-8 text, or lines end with a lone carriage
    return.
    """
    line = head.split(b"\n", 1)[0].rstrip(b"\r")
    if b"\0" in line:
        raise DataError("a text table", where=path, field="line 1", value="binary data")
    if b"\r" in line:
        raise DataError("lines that end with LF or CRLF", where=path, field="line 1", value="CR")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as err:
        raise DataError("UTF-8 text", where=path, field="line 1") from err
    delimiter = max(DELIMITERS, key=text.count)
    return [name.strip() for name in _fields(text, delimiter) or []], delimiter


def _fields(line: str, delimiter: str) -> list[str] | None:
    """Return the fields of one row's text, or None if it is not one whole row."""
    try:
        rows = list(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter, strict=True))
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
    """Return the rows of a block; between semicolons, the comma of a number is a decimal sign."""
    batch = _fields_of(block, names, delimiter, wanted)
    if delimiter != ";":
        return batch
    found = {ours: pointed(array) for ours, array in batch.columns.items()}
    columns = {ours: array for ours, (array, _) in found.items()}
    return replace(batch, columns=columns, decimal_commas=sum(n for _, n in found.values()))


def _fields_of(
    block: bytes, names: Sequence[str], delimiter: str, wanted: Mapping[str, int]
) -> RawBatch:
    table = _fast(block, len(names), delimiter, wanted)
    if table is None:
        return _slow(block, len(names), delimiter, wanted)
    columns = {ours: table.column(str(i)).combine_chunks() for ours, i in wanted.items()}
    return RawBatch(columns=columns, rows=table.num_rows)


def _fast(block: bytes, width: int, delimiter: str, wanted: Mapping[str, int]) -> Any | None:
    """Return the block as an Arrow table of text, or None if it is not one row a line."""
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
    """Read line by line, so that a broken line loses only itself."""
    rows: list[list[str]] = []
    lost = at = 0
    lines = [line.rstrip(b"\r") for line in block.split(b"\n")]
    while at < len(lines):
        end = at + 1
        fields = _row(lines[at:end], width, delimiter)
        if fields is None and lines[at].count(b'"') % 2:
            end = _closed(lines, at)
            fields = _row(lines[at:end], width, delimiter)
        if fields is not None:
            rows.append(fields)
            at = end
        else:
            lost += bool(lines[at])
            at += 1
    columns = {ours: text_array(row[i] for row in rows) for ours, i in wanted.items()}
    return RawBatch(columns=columns, rows=len(rows), lost={"unparseable": lost} if lost else {})


def _closed(lines: Sequence[bytes], at: int) -> int:
    """Return the end of the lines over which the quote that opens in line ``at`` closes again."""
    quotes = 0
    for end in range(at, min(at + MOST_LINES_OF_A_ROW, len(lines))):
        quotes += lines[end].count(b'"')
        if quotes % 2 == 0:
            return end + 1
    return at + 1


def _row(lines: Sequence[bytes], width: int, delimiter: str) -> list[str] | None:
    """Return the fields of a row that stands on these lines, or None if it is not one."""
    try:
        fields = _fields(b"\n".join(lines).decode("utf-8"), delimiter)
    except UnicodeDecodeError:
        return None
    return fields if fields is not None and len(fields) == width else None


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except DataError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
        raise DataError("a readable Parquet file", where=path, value=str(err)) from err


def _readable(array: Any) -> Any:
    """Return the array; bytes in its texts that are not UTF-8 are replaced."""
    array = plain(array)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        if not is_text(array.type):
            raise
        raw = array.cast(pa.binary()).to_pylist()
        return text_array(None if b is None else b.decode("utf-8", "replace") for b in raw)
    return array


def parquet_names(path: Path) -> list[str]:
    """Return the names of the top-level columns; :class:`DataError` for a broken file."""
    with _parquet(path) as file:
        return [str(name) for name in file.schema_arrow.names]


def parquet_batches(path: Path, columns: Mapping[str, str]) -> Iterator[RawBatch]:
    """Yield the rows of a Parquet file; ``columns`` maps our columns to the file's."""
    with _parquet(path) as file:
        needed = list(dict.fromkeys(columns.values()))
        for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=needed):
            arrays = {ours: _readable(batch.column(theirs)) for ours, theirs in columns.items()}
            yield RawBatch(columns=arrays, rows=batch.num_rows)
