"""The one way in: :func:`read_trace`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from capplan.schema import DataError
from capplan.traffic.readers import columnar, delimited, files, jsonlines
from capplan.traffic.readers.clean import Cleaner
from capplan.traffic.readers.detect import FORMATS, Sniffed, sniff
from capplan.traffic.readers.layouts import (
    CSV_LAYOUTS,
    MOONCAKE,
    Layout,
    known_layout,
    plain_layout,
)
from capplan.traffic.readers.raw import RawBatch
from capplan.traffic.trace import Trace


def read_trace(
    path: str | Path,
    *,
    format: str = "auto",
    mapping: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    seed: int = 0,
    spread: bool | float | None = None,
    keep_zero_tokens: bool = False,
) -> Trace:
    """Return the requests of a trace file, each row kept or dropped for a stated reason.

    Parameters
    ----------
    path
        A file, compressed (gzip, zstd, xz, bzip2) or not, or a ServeGen folder or archive.
    format
        One of :data:`FORMATS`; ``auto`` tells it from the content.
    mapping
        For plain tables and JSON lines: our column → column of the file (dotted = nested).
    units
        Our time column → ``s``, ``ms``, ``us`` or ``ns``.
    seed
        Seed of what a reader has to draw: times inside a coarse grid, requests of ServeGen.
    spread
        None: spread times that stand on a coarse grid; False: never; a number: the grid's step.
    keep_zero_tokens
        Keep rows whose prompt or output has no tokens (embeddings).

    Raises
    ------
    ValueError
        For an unknown format.
    DataError
        For a file that is absent, broken, of unknown form, or without one usable request.
    """
    if format not in FORMATS:
        msg = f"format: one of {', '.join(FORMATS)}, got {format!r}"
        raise ValueError(msg)
    path = Path(path)
    sniffed = sniff(path)
    layout, rows = _source(path, sniffed, format, mapping, units)
    if units:
        layout = replace(layout, units={**layout.units, **units})
    if keep_zero_tokens:
        layout = replace(layout, zero_reason=None)
    cleaner = Cleaner(layout, path)
    for batch in rows:
        cleaner.add(batch)
    return cleaner.trace(seed=seed, spread=spread, sha256=files.checksum(path))


def _source(
    path: Path,
    sniffed: Sniffed,
    format: str,
    mapping: Mapping[str, str] | None,
    units: Mapping[str, str] | None,
) -> tuple[Layout, Iterable[RawBatch]]:
    """Return the layout and the batches of the file in the format asked for, or found."""
    columns = sniffed.columns
    if sniffed.container == "json":
        record = sniffed.record
        if record is None:
            raise DataError("one JSON object per line", where=path)
        if format in ("auto", "mooncake") and not mapping and _has(MOONCAKE, columns):
            return MOONCAKE, jsonlines.batches(path, MOONCAKE.columns, record)
        _check(format, ("auto", "jsonl"), path, sniffed)
        layout = plain_layout(
            columns, format="jsonl", where=str(path), mapping=mapping, units=units
        )
        return layout, jsonlines.batches(path, layout.columns, record)
    known = None if mapping else known_layout(columns)
    if format in {layout.format for layout in CSV_LAYOUTS}:
        if known is None or known.format != format:
            _refuse(format, path, sniffed)
    elif format in ("csv", "parquet"):
        known = None
    else:
        _check(format, ("auto",), path, sniffed)
    tabular = "parquet" if sniffed.container == "parquet" else "csv"
    if format in ("csv", "parquet"):
        _check(format, (tabular,), path, sniffed)
    layout = known or plain_layout(
        columns, format=tabular, where=str(path), mapping=mapping, units=units
    )
    reader = columnar if tabular == "parquet" else delimited
    return layout, reader.batches(path, layout.columns)


def _has(layout: Layout, columns: Iterable[str]) -> bool:
    return set(layout.columns.values()) <= set(columns) and "chat_id" not in set(columns)


def _check(format: str, fitting: tuple[str, ...], path: Path, sniffed: Sniffed) -> None:
    if format not in fitting:
        _refuse(format, path, sniffed)


def _refuse(format: str, path: Path, sniffed: Sniffed) -> None:
    seen = f"{sniffed.container} with {', '.join(sniffed.columns[:8]) or 'no columns'}"
    raise DataError(f"a file of format {format}", where=path, value=seen)
