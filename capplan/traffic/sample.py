"""The base trace of a scenario: the bundled sample, or a file."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from capplan.bundled import data_path
from capplan.traffic.readers import read_trace
from capplan.traffic.trace import Trace

SAMPLE = "sample"
"""The name that stands for the bundled trace, in a scenario and on the command line."""

SAMPLE_DURATION_S = 3600.0


def sample_path() -> Path:
    """Return the file of the bundled trace."""
    return data_path("sample", "trace.parquet")


def read_base(name: str) -> Trace:
    """Return the trace of that name: ``sample``, or a file of any known format.

    The last few are kept in memory; a file that changed is read again.
    """
    path = sample_path() if name == SAMPLE else Path(name)
    try:
        state = path.stat()
    except OSError:
        return read_trace(path)
    return _read(name, path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read(name: str, path: Path, mtime_ns: int, size: int) -> Trace:
    trace = read_trace(path)
    if name != SAMPLE:
        return trace
    from pyarrow import parquet

    stated = parquet.read_schema(path).metadata[b"prefix_block_tokens"]
    notes = (*trace.notes, "The bundled sample is generated from published figures, not recorded.")
    return replace(
        trace,
        source=SAMPLE,
        duration_s=SAMPLE_DURATION_S,
        prefix_block_tokens=int(stated),
        notes=notes,
    )
