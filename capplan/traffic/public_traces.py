"""Public traces: where they are, under which licence, and the checksum of the whole file.

A trace in the folder that ``CAPPLAN_DATA`` names comes from there (a gzipped copy too), checked the
same way; any other is downloaded once into a cache.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from capplan.bundled import shared_data_path
from capplan.catalog.tables import rows
from capplan.schema import DataError
from capplan.traffic.readers import files


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTrace:
    """A trace of a public collection: one row of ``data/catalog/public_traces.csv``."""

    name: str
    what: str
    """Its name here, and what it contains, in a phrase."""
    format: str
    """Format of :func:`~capplan.traffic.readers.read_trace`."""
    url: str
    """Public address of one unaltered version."""
    sha256: str
    size_bytes: int
    """Checksum and size of the file's content, uncompressed."""
    licence: str
    attribution: str
    """Terms of use and the work to name."""
    local: str
    """Path below the folder that ``CAPPLAN_DATA`` names."""

    @property
    def file_name(self) -> str:
        """Name of the file at its public address."""
        return unquote(Path(urlsplit(self.url).path).name)


def list_traces() -> tuple[PublicTrace, ...]:
    """Return the known public traces.

    >>> [trace.name for trace in list_traces()][:2]
    ['azure-2023-conv', 'azure-2023-code']
    """
    found = []
    for row in rows("public_traces.csv"):
        fields: dict[str, Any] = {**row, "size_bytes": int(row["size_bytes"])}
        found.append(PublicTrace(**fields))
    return tuple(found)


def fetch(trace: PublicTrace, *, cache: Path | None = None) -> Path:
    """Return the path of a public trace, from ``CAPPLAN_DATA``, the cache or its public address.

    Parameters
    ----------
    trace
        One of :func:`list_traces`.
    cache
        Folder to keep it in; None: the user's cache folder.

    Raises :class:`DataError` if the file does not have its checksum; ConnectionError if it cannot
    be downloaded.
    """
    local = _local(trace)
    return local if local is not None else _download(trace, cache)


def _local(trace: PublicTrace) -> Path | None:
    root = shared_data_path()
    if root is None:
        return None
    for path in (root / trace.local, root / f"{trace.local}.gz"):
        if path.is_file():
            found = _content_sha256(path)
            if found != trace.sha256:
                raise DataError(f"a file with SHA-256 {trace.sha256}", where=path, value=found)
            return path
    return None


def _content_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with files.opened(path) as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _download(trace: PublicTrace, cache: Path | None) -> Path:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    folder = cache if cache is not None else Path(pooch.os_cache("capplan"))
    try:
        path = pooch.retrieve(
            trace.url, known_hash=f"sha256:{trace.sha256}", fname=trace.file_name, path=folder
        )
    except ValueError as err:
        rule = f"a file with SHA-256 {trace.sha256}"
        raise DataError(rule, where=trace.url, value="another one") from err
    except OSError as err:
        raise ConnectionError(f"{trace.url}: cannot be downloaded: {err}") from err
    return Path(path)
