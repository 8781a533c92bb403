"""Figures as people read them in a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

DIGITS = 3


def shown(value: Any) -> str:
    """Return a value as people read it, figures at three digits.

    >>> [shown(v) for v in (1234567, 12.3456, 0.00012345, float("nan"), float("inf"), True, "x")]
    ['1,234,567', '12.3', '0.000123', 'unknown', 'never', 'yes', 'x']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value != "inf":
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return _rounded(math.nan if value is None else float(value))


def words(value: Any) -> str:
    """Return a value as words: nothing for None, lists and mappings in one line.

    >>> words({"model": "8B", "load_rps": [1, 2], "tokens": {"p50": 10, "max": 99}})
    'model: 8B; load_rps: 1, 2; tokens: (p50: 10; max: 99)'
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_nested(inner)}" for name, inner in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ", ".join(map(words, value))
    return shown(value)


def _nested(value: Any) -> str:
    return f"({words(value)})" if isinstance(value, Mapping) else words(value)


def _rounded(number: float) -> str:
    if not math.isfinite(number):
        return "unknown" if math.isnan(number) else "never"
    if number == 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(number)))
    return f"{round(number, decimals):,.{max(decimals, 0)}f}"
