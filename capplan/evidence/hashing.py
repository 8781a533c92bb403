"""Checksums of what goes in and of what comes out, the same on every machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capplan.encoding import plain


def content_hash(frame: pd.DataFrame) -> str:
    """Return the SHA-256 of a table's values: names, order, rows; not how they are stored.

    Numbers count as float64 and every missing value alike, so a table keeps its hash through
    Parquet and back.
    """
    digest = hashlib.sha256()
    for position, name in enumerate(frame.columns):
        digest.update(f"{name}\0{len(frame)}\0".encode())
        digest.update(_column_bytes(frame.iloc[:, position]))
    return digest.hexdigest()


def json_hash(value: Any) -> str:
    """Return the SHA-256 of a value's JSON with sorted keys.

    >>> json_hash({"a": 1, "b": 2}) == json_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hashes(folder: Path, *, leave_out: frozenset[str]) -> dict[str, str]:
    """Return the checksum of each file below a folder by its relative path, in order of path."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: file_hash(path)
        for name, path in sorted(files.items())
        if path.is_file() and name not in leave_out
    }


def _column_bytes(column: pd.Series[Any]) -> bytes:
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        numbers = column.to_numpy(dtype="float64", na_value=np.nan)
        return np.where(np.isnan(numbers), np.nan, numbers).astype("<f8").tobytes()
    codes, values = pd.factorize(_hashable(column))
    texts = json.dumps([str(value) for value in values], ensure_ascii=False)
    return codes.astype("<i8").tobytes() + texts.encode()


def _hashable(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return lists and arrays as their JSON text; anything else as it is."""
    nested = column.map(lambda value: hasattr(value, "__len__") and not isinstance(value, str))
    if not nested.any():
        return column
    return column.map(lambda value: json.dumps(plain(value)) if hasattr(value, "__len__") else None)
