"""Machine code for functions of arrays, kept for the next process where that is possible."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

Function = TypeVar("Function", bound=Callable[..., Any])


class FolderCache(FunctionCache):
    """numba's cache of a function on disk, valid until a module of its folder is edited.

    numba's own looks at the function's module alone, and keeps the code of callees that were
    edited in other modules. Source: numba 0.6x, manual, "Notes on Caching".
    """

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        stamp = (self._impl.locator.get_source_stamp(), sources(Path(inspect.getfile(function))))
        self._cache_file = IndexDataCacheFile(self.cache_path, self._impl.filename_base, stamp)

    @property
    def is_filled(self) -> bool:
        """Return whether code of these sources is on disk."""
        return bool(self._cache_file._load_index())


@cache
def sources(module: Path) -> str:
    """Return the hash of all modules in the folder of a module."""
    found = hashlib.sha256()
    for file in sorted(module.parent.glob("*.py")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def compiled(function: Function) -> Function:
    """Return the function compiled at its first call; the code is cached on disk.

    The cache is ``NUMBA_CACHE_DIR``, else beside the module, else in the user's cache folder;
    if none of them can be written, each process compiles anew. Functions that call each other, and
    the constants they use, must be in one folder.
    """
    dispatcher = numba.njit(function)
    with suppress(RuntimeError):  # numba: "no locator available"
        dispatcher._cache = FolderCache(function)
    return cast("Function", dispatcher)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Return whether the code of a :func:`compiled` function is here, or on disk."""
    dispatcher = cast("Any", function)
    cached = isinstance(dispatcher._cache, FolderCache) and dispatcher._cache.is_filled
    return bool(dispatcher.signatures) or cached
