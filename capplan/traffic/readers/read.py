"""The one way in: :func:`read_trace`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from capplan.schema import DataError
from capplan.traffic.readers import (
    bailian,
    columnar,
    delimited,
    files,
    jsonlines,
    openai_log,
    otel,
    records,
    servegen,
    vllm_bench,
)
from capplan.traffic.readers.clean import Cleaner
from capplan.traffic.readers.detect import FORMATS, Sniffed, detect, sniff
from capplan.traffic.readers.layouts import MOONCAKE, Layout, known_layout, plain_layout
from capplan.traffic.readers.raw import RawBatch
from capplan.traffic.trace import Trace

Found = tuple[Layout, Iterable[RawBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What the caller asked for."""

    path: Path
    sniffed: Sniffed
    mapping: Mapping[str, str] | None
    units: Mapping[str, str] | None
    seed: int
    span_s: tuple[float, float]
    only: str | None


def read_trace(
    path: str | Path,
    *,
    format: str = "auto",
    mapping: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    seed: int = 0,
    spread: bool | float | None = None,
    keep_zero_tokens: bool = False,
    span_s: tuple[float, float] = servegen.SPAN_S,
    only: str | None = None,
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
    span_s, only
        ServeGen: the seconds of the profile to draw, and the folder to draw from.

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
    asked = _Request(
        path=path,
        sniffed=sniffed,
        mapping=mapping,
        units=units,
        seed=seed,
        span_s=span_s,
        only=only,
    )
    name = detect(path, sniffed, mapped=bool(mapping)) if format == "auto" else format
    layout, rows = _open(name, asked)
    if units:
        layout = replace(layout, units={**layout.units, **units})
    if keep_zero_tokens:
        layout = replace(layout, zero_reason=None)
    cleaner = Cleaner(layout, path)
    for batch in rows:
        cleaner.add(batch)
    return cleaner.trace(seed=seed, spread=spread, sha256=files.checksum(path))


def _open(name: str, asked: _Request) -> Found:
    """Return the layout and the batches of the file in the named format."""
    container = asked.sniffed.container
    if name == "servegen":
        _need(container in ("folder", "tar"), name, asked)
        rows = servegen.batches(asked.path, span_s=asked.span_s, seed=asked.seed, only=asked.only)
        return servegen.layout(asked.span_s, asked.seed), rows
    if name in ("openai-log", "otel", "vllm-bench"):
        _need(container == "json", name, asked)
        return _of_records(name, asked)
    if name in ("mooncake", "bailian", "jsonl"):
        _need(container == "json" and asked.sniffed.record is not None, name, asked)
        return _of_lines(name, asked, asked.sniffed.record or {})
    return _of_table(name, asked)


def _of_records(name: str, asked: _Request) -> Found:
    values = records.values(asked.path)
    if name == "vllm-bench":
        rows = partial(vllm_bench.rows, path=asked.path)
        return vllm_bench.LAYOUT, records.batches(values, rows, vllm_bench.COLUMNS)
    module: Any = otel if name == "otel" else openai_log
    return module.LAYOUT, records.batches(values, module.rows, module.COLUMNS)


def _of_lines(name: str, asked: _Request, record: dict[str, Any]) -> Found:
    columns = asked.sniffed.columns
    if name == "jsonl":
        layout = plain_layout(
            columns,
            format=name,
            where=str(asked.path),
            mapping=asked.mapping,
            units=asked.units,
        )
        return layout, _lines(asked.path, layout, record)
    layout = MOONCAKE if name == "mooncake" else bailian.LAYOUT
    needed = {layout.columns[c] for c in ("arrival_s", "prompt_tokens", "output_tokens")}
    needed |= {"chat_id"} if name == "bailian" else set()
    _need(needed <= set(columns), name, asked)
    present = {ours: theirs for ours, theirs in layout.columns.items() if theirs in columns}
    layout = replace(layout, columns=present)
    rows = _lines(asked.path, layout, record)
    return layout, bailian.with_sessions(rows) if name == "bailian" else rows


def _lines(path: Path, layout: Layout, record: dict[str, Any]) -> Iterator[RawBatch]:
    """Read records by lines, or, where the lines are no records, by values."""
    if jsonlines.is_by_line(files.head(path)):
        return jsonlines.batches(path, layout.columns, record)

    def row(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {ours: jsonlines.reach(value, theirs) for ours, theirs in layout.columns.items()}

    return records.batches(records.values(path), row, tuple(layout.columns))


def _of_table(name: str, asked: _Request) -> Found:
    container, columns = asked.sniffed.container, asked.sniffed.columns
    _need(container in ("csv", "parquet"), name, asked)
    if name in ("csv", "parquet"):
        _need(name == container, name, asked)
        layout = plain_layout(
            columns,
            format=name,
            where=str(asked.path),
            mapping=asked.mapping,
            units=asked.units,
        )
    else:
        known = known_layout(columns, name=name)
        _need(known is not None and known.format == name, name, asked)
        layout = known or plain_layout(columns, format=name, where=str(asked.path))
    reader = columnar if container == "parquet" else delimited
    return layout, reader.batches(asked.path, layout.columns)


def _need(fits: bool, name: str, asked: _Request) -> None:
    if not fits:
        columns = ", ".join(asked.sniffed.columns[:8]) or "no columns"
        seen = f"{asked.sniffed.container} with {columns}"
        raise DataError(f"a file of format {name}", where=asked.path, value=seen)
