"""Parquet: row groups streamed in batches, only the columns that are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from capplan.schema import DataError
from capplan.traffic.readers.raw import RawBatch, text_array
from capplan.traffic.readers.values import is_text, plain

BATCH_ROWS = 1 << 18


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
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


def column_names(path: Path) -> list[str]:
    """Return the names of the top-level columns; :class:`DataError` for a broken file."""
    with _opened(path) as file:
        return [str(name) for name in file.schema_arrow.names]


def batches(path: Path, columns: Mapping[str, str]) -> Iterator[RawBatch]:
    """Yield the rows of a Parquet file; ``columns`` maps our columns to the file's."""
    with _opened(path) as file:
        needed = list(dict.fromkeys(columns.values()))
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=needed):
            arrays = {ours: _readable(batch.column(theirs)) for ours, theirs in columns.items()}
            yield RawBatch(columns=arrays, rows=batch.num_rows)
