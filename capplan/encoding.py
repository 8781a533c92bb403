"""JSON for scripts: NaN is ``null``, infinity is ``"inf"``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from datetime import date
from enum import Enum
from pathlib import PurePath
from typing import Any


def to_text(value: Any, *, indent: int | None = 2) -> str:
    r"""Return a value as JSON text, ended by a newline; TypeError for a value without JSON.

    >>> to_text({"p50": float("nan"), "p99": float("inf")}, indent=None)
    '{"p50": null, "p99": "inf"}\n'
    """
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return a value of plain JSON types: NaN as None, infinity as ``"inf"``.

    Accepts mappings, sequences, dataclasses, pydantic models, NumPy scalars and arrays, frames (as
    a list of rows), dates, paths, enums, and objects with ``to_json()``; TypeError for others.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(inner) for key, inner in value.items()}
    for convert in (_described, _tabular, _scalar):
        found = convert(value)
        if found is not ...:
            return found
    if isinstance(value, Iterable):
        return [plain(inner) for inner in value]
    msg = f"no JSON for {type(value).__name__}: {value!r}"
    raise TypeError(msg)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(value)


def _key(key: Any) -> str:
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    return key if isinstance(key, str) else str(plain(key))


def _described(value: Any) -> Any:
    """Return the fields of an object that has them, else ``...``."""
    if isinstance(value, type):
        return ...
    if hasattr(value, "to_json") and not hasattr(value, "to_numpy"):
        return plain(value.to_json())
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return ...


def _tabular(value: Any) -> Any:
    """Return a frame as rows, a series or an array as a list, a NumPy scalar as a number."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return [plain(row) for row in value.to_dict("records")]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return ...


def _scalar(value: Any) -> Any:
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if type(value).__name__ in {"NAType", "NaTType"}:
        return None
    if isinstance(value, date):
        return value.isoformat()
    return ...
