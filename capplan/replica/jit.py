"""Machine code for functions of arrays, kept for the next process where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the function compiled at its first call; the code is cached on disk.

    The cache is ``NUMBA_CACHE_DIR``, else beside the module, else in the user's cache folder;
    where none of them can be written, each process compiles anew. numba looks at the age of one
    module only: functions that call each other, and the constants they use, live in one.
    Source: numba 0.6x, manual, "Notes on Caching".
    """
    try:
        return cast("Function", numba.njit(cache=True)(function))
    except RuntimeError:  # numba: "no locator available"
        return cast("Function", numba.njit(function))
