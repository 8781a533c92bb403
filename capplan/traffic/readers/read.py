"""Reading a trace file of any format: :func:`read_trace`."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from capplan.schema import DataError
from capplan.traffic.readers import files, json_records, recordings, servegen, tabular
from capplan.traffic.readers.clean import Cleaner
from capplan.traffic.readers.json_formats import JSON_FORMATS, with_sessions
from capplan.traffic.readers.layouts import TABLE_LAYOUTS, Layout, plain_layout
from capplan.traffic.readers.values import RawBatch
from capplan.traffic.trace import Trace

FORMATS = ("auto", *TABLE_LAYOUTS, *JSON_FORMATS, "servegen", "csv", "parquet", "jsonl")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _File:
    """What the first bytes show: the container, the column names, an example of a JSON record."""

    path: Path
    container: Literal["folder", "tar", "parquet", "json", "csv"]
    columns: tuple[str, ...] = ()
    record: dict[str, Any] | None = None

    @property
    def plain_format(self) -> str:
        """The format of a file of no published one."""
        plain = {"folder": "servegen", "tar": "servegen", "json": "jsonl"}
        return plain.get(self.container, self.container)


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
        One of :data:`FORMATS`; ``auto`` finds it from the content.
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

    Raises ValueError for an unknown format; :class:`DataError` for a file that is absent, broken,
    of unknown form, or without one usable request.
    """
    if format not in FORMATS:
        raise ValueError(f"format: one of {', '.join(FORMATS)}, got {format!r}")
    path = Path(path)
    file = _sniffed(path)
    name = _detected(file, mapped=bool(mapping)) if format == "auto" else format
    if name == "servegen" and file.plain_format == name:
        layout = servegen.layout(span_s, seed)
        rows: Iterable[RawBatch] = servegen.batches(path, span_s=span_s, seed=seed, only=only)
    elif name == file.plain_format and (file.columns or file.container != "json"):
        layout = plain_layout(
            file.columns, format=name, where=str(path), mapping=mapping, units=units
        )
        rows = _rows(file, layout)
    else:
        layout, rows = _published(name, file)
    if units:
        stated = layout.unit_is_assumed and "arrival_s" not in units
        layout = replace(layout, units={**layout.units, **units}, unit_is_assumed=stated)
    if keep_zero_tokens:
        layout = replace(layout, zero_reason=None)
    cleaner = Cleaner(layout, path)
    for batch in rows:
        try:
            cleaner.add(batch)
        except DataError as err:
            raise DataError(err.rule, where=path, field=err.field, value=err.value) from err
    return cleaner.trace(seed=seed, spread=spread, sha256=files.checksum(path))


def _sniffed(path: Path) -> _File:
    """Return what kind of file this is; :class:`DataError` if it is absent or empty."""
    if path.is_dir():
        return _File(path=path, container="folder")
    head = files.head(path)
    if not head.strip():
        raise DataError("a file with rows", where=path, value="an empty file")
    if head.startswith(b"PAR1"):
        return _File(path=path, container="parquet", columns=tuple(tabular.parquet_names(path)))
    if head[257:262] == b"ustar" or _is_tar(path):
        return _File(path=path, container="tar")
    if head.lstrip()[:1] in (b"{", b"[") or json_records.is_by_line(head):
        record = json_records.example(path)
        columns = tuple(json_records.flat_names(record or {}))
        return _File(path=path, container="json", columns=columns, record=record)
    return _File(path=path, container="csv", columns=tuple(tabular.header(head, path)[0]))


def _is_tar(path: Path) -> bool:
    if path.suffix not in (".tar", ".tgz") and ".tar." not in path.name:
        return False
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False


def _detected(file: _File, *, mapped: bool) -> str:
    """Return the name of the format; a stated mapping asks for a plain one.

    Raises :class:`DataError` if several formats fit, or a JSON file has no object.
    """
    record = file.record
    if file.container == "json" and record is None:
        raise DataError("JSON objects", where=file.path, value="none that can be read")
    if mapped or file.plain_format == "servegen":
        return file.plain_format
    if record is not None:
        fitting = [name for name, form in JSON_FORMATS.items() if form.matches(record)]
    else:
        fitting = [name for name, layout in TABLE_LAYOUTS.items() if layout.among(file.columns)]
    if len(fitting) > 1:
        rule = "content of one format; name it"
        raise DataError(rule, where=file.path, field="format", value=", ".join(fitting))
    return fitting[0] if fitting else file.plain_format


def _published(name: str, file: _File) -> tuple[Layout, Iterable[RawBatch]]:
    """Return the layout and the rows of a file of a published format.

    Raises :class:`DataError` if the file cannot be of that format.
    """
    form = JSON_FORMATS.get(name)
    rows_of = None if form is None else form.rows
    if form is not None and rows_of is not None and file.container == "json":
        found, columns = json_records.values(file.path), tuple(form.layout.columns)
        found = recordings.single(found, file.path) if form.is_run else found
        return form.layout, json_records.batches(found, rows_of(file.path), columns)
    known = TABLE_LAYOUTS.get(name) if form is None else form.layout
    containers = ("csv", "parquet") if form is None else ("json",)
    layout = known.among(file.columns) if known and file.container in containers else None
    if layout is None:
        seen = f"{file.container} with {', '.join(file.columns[:8]) or 'no columns'}"
        raise DataError(f"a file of format {name}", where=file.path, value=seen)
    rows = _rows(file, layout)
    return layout, with_sessions(rows) if name == "bailian" else rows


def _rows(file: _File, layout: Layout) -> Iterable[RawBatch]:
    """Return the rows of the columns that the layout names."""
    columns = {**layout.columns, **layout.marks}
    if file.container == "json":
        return json_records.mapped_batches(file.path, columns, file.record or {})
    read = tabular.parquet_batches if file.container == "parquet" else tabular.batches
    return read(file.path, columns)
