"""Telling a format by content: magic bytes, the header of a table, the keys of a record."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from capplan.schema import DataError
from capplan.traffic.readers import columnar, delimited, files, jsonlines

Container = Literal["folder", "tar", "parquet", "json", "csv"]
FORMATS = (
    "auto", "azure", "burstgpt", "mooncake", "servegen", "bailian", "splitwise", "vidur",
    "openai-log", "vllm-bench", "otel", "csv", "parquet", "jsonl",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sniffed:
    """What the first bytes tell: the container, the column names, a first JSON record."""

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
    if head.lstrip()[:1] in (b"{", b"["):
        record = jsonlines.first_record(head)
        names = tuple(jsonlines.flat_names(record)) if record else ()
        return Sniffed(container="json", columns=names, record=record)
    columns, _ = delimited.header(head, path)
    return Sniffed(container="csv", columns=tuple(columns))


def _is_tar(path: Path) -> bool:
    if path.suffix not in (".tar", ".tgz") and ".tar." not in path.name:
        return False
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False
