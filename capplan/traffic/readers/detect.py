"""Telling a format by content: magic bytes, the header of a table, the keys of a record."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

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
    vllm_bench,
)
from capplan.traffic.readers.layouts import MOONCAKE, known_layout

Container = Literal["folder", "tar", "parquet", "json", "csv"]
FORMATS = (
    "auto", "azure", "burstgpt", "mooncake", "servegen", "bailian", "splitwise", "vidur",
    "openai-log", "vllm-bench", "otel", "csv", "parquet", "jsonl",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sniffed:
    """What the first bytes tell: the container, the column names, an example of a JSON record."""

    container: Container
    columns: tuple[str, ...] = ()
    record: dict[str, Any] | None = None


def sniff(path: Path) -> Sniffed:
    """Return what kind of file this is.

    Raises
    ------
    DataError
        When there is no such file, or it is empty.
    """
    if path.is_dir():
        return Sniffed(container="folder")
    head = files.head(path)
    if not head.strip():
        raise DataError("a file with rows", where=path, value="an empty file")
    if head.startswith(b"PAR1"):
        return Sniffed(container="parquet", columns=tuple(columnar.column_names(path)))
    if head[257:262] == b"ustar" or _is_tar(path):
        return Sniffed(container="tar")
    if head.lstrip()[:1] in (b"{", b"[") or jsonlines.is_by_line(head):
        record = jsonlines.example(head) or _first_value(path)
        names = tuple(jsonlines.flat_names(record)) if record else ()
        return Sniffed(container="json", columns=names, record=record)
    columns, _ = delimited.header(head, path)
    return Sniffed(container="csv", columns=tuple(columns))


def _first_value(path: Path) -> dict[str, Any] | None:
    """Return the fields of the first objects of a file whose lines are none."""
    found: dict[str, Any] = {}
    for value in islice(records.values(path), jsonlines.LINES_TO_TELL):
        if isinstance(value, dict):
            jsonlines.merge(found, value)
    return found or None


def detect(path: Path, sniffed: Sniffed, *, mapped: bool) -> str:
    """Return the name of the format; a stated mapping asks for a plain table.

    Raises
    ------
    DataError
        When no format fits.
    """
    if sniffed.container in ("folder", "tar"):
        return "servegen"
    if sniffed.container == "json":
        return _json_format(path, sniffed, mapped=mapped)
    known = None if mapped else known_layout(sniffed.columns)
    return known.format if known else sniffed.container


def _json_format(path: Path, sniffed: Sniffed, *, mapped: bool) -> str:
    record, columns = sniffed.record, sniffed.columns
    if record is None:
        raise DataError("JSON objects", where=path, value="none that can be read")
    if mapped:
        return "jsonl"
    tests = {
        "vllm-bench": vllm_bench.looks_like(record),
        "otel": otel.looks_like(record),
        "bailian": bailian.looks_like(columns),
        "mooncake": set(MOONCAKE.columns.values()) <= set(columns) and "chat_id" not in columns,
        "openai-log": openai_log.looks_like(record),
    }
    fitting = [name for name, fits in tests.items() if fits]
    if len(fitting) > 1:
        rule = "records of one format; name it"
        raise DataError(rule, where=path, field="format", value=", ".join(fitting))
    return fitting[0] if fitting else "jsonl"


def _is_tar(path: Path) -> bool:
    if path.suffix not in (".tar", ".tgz") and ".tar." not in path.name:
        return False
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False
