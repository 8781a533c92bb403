"""Paths of the files that come with capplan: ``data/`` and ``notebooks/``.

In a checkout they are top-level folders beside the package; a wheel has copies inside it. No other
module distinguishes the two.
"""

from __future__ import annotations

import os
from pathlib import Path

from capplan.schema import DataError

_PACKAGE = Path(__file__).resolve().parent
_IN_WHEEL = _PACKAGE / "bundled_files"

SHARED_DATA_VARIABLE = "CAPPLAN_DATA"
"""Environment variable that names a folder of larger data sets, which are never bundled."""


def data_path(*parts: str) -> Path:
    """Return the path of a bundled data file or folder; raises DataError if there is none.

    >>> data_path("scenarios").name
    'scenarios'
    """
    return _bundled("data", *parts)


def notebooks_path(*parts: str) -> Path:
    """Return the path of a bundled notebook or folder; raises DataError if there is none.

    >>> notebooks_path().name
    'notebooks'
    """
    return _bundled("notebooks", *parts)


def shared_data_path(*parts: str) -> Path | None:
    """Return a path in the folder that ``CAPPLAN_DATA`` names; None if it is not set.

    Raises DataError if the variable is set and the file or folder does not exist.
    """
    folder = os.environ.get(SHARED_DATA_VARIABLE)
    if not folder:
        return None
    return _existing(Path(folder).expanduser(), parts, where=SHARED_DATA_VARIABLE)


def _bundled(kind: str, *parts: str) -> Path:
    root = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent
    return _existing(root / kind, parts, where=f"bundled {kind}")


def _existing(folder: Path, parts: tuple[str, ...], *, where: str) -> Path:
    path = folder.joinpath(*parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError("a path inside the folder", where=where, value="/".join(parts))
    if path.exists():
        return path
    raise DataError("a file or folder that exists", where=where, value=str(path))
