"""Worker processes that do not run the caller's script again, so that it needs no main guard."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any


class _Worker(SpawnProcess):
    """A process that takes its tasks from modules, never from the script that starts it.

    A spawned process imports the file of ``__main__`` first (``multiprocessing.spawn``,
    ``get_preparation_data``), and a script without guard would start its study there once more.
    """

    def start(self) -> None:
        main: dict[str, Any] = vars(sys.modules["__main__"])
        kept: dict[str, Any] = {
            name: main[name] for name in ("__file__", "__spec__") if name in main
        }
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            super().start()
        finally:
            main.update(kept)


class _Context(SpawnContext):
    Process = _Worker


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of so many processes; tasks are functions and values of modules."""
    return ProcessPoolExecutor(workers, mp_context=_Context())
