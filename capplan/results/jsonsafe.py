"""The one place where figures become JSON: NaN is null, +inf is the string "inf"."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """Return a value that ``json.dumps(…, allow_nan=False)`` takes; keys become strings.

    Dataclasses become objects, arrays lists. TypeError for anything that has no such form.

    >>> to_json({"p99": float("inf"), "mean": float("nan"), "n": np.int64(3)})
    {'p99': 'inf', 'mean': None, 'n': 3}
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float | np.generic):
        return _number(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [to_json(entry) for entry in value]
    if hasattr(value, "model_dump"):
        return to_json(value.model_dump(mode="json"))
    msg = f"no JSON form for {type(value).__name__}"
    raise TypeError(msg)


def _number(value: float | np.generic) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, float) or math.isfinite(plain):
        return plain
    if math.isnan(plain):
        return None
    return "inf" if plain > 0 else "-inf"
