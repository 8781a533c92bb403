"""The base trace of a scenario: the bundled sample, a public trace, or a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pyarrow import parquet

from capplan.bundled import data_path, shared_data_path
from capplan.catalog.tables import SAMPLE, trace_names
from capplan.scenario.traffic import Traffic
from capplan.schema import DataError
from capplan.traffic.public_traces import PublicTrace, fetch, list_traces
from capplan.traffic.readers import FORMATS, read_trace
from capplan.traffic.readers.servegen import SPAN_S
from capplan.traffic.trace import Trace

SAMPLE_DURATION_S = 3600.0


def sample_path() -> Path:
    """Return the file of the bundled trace."""
    return data_path("sample", "trace.parquet")


def base_trace(traffic: Traffic) -> Trace | None:
    """Return the base trace that a scenario names, read with the columns it states, or None.

    Raises :class:`DataError` if the trace cannot be read.
    """
    if traffic.trace is None:
        return None
    return read_base(traffic.trace, reading_of(traffic))


def reading_of(traffic: Traffic) -> Reading:
    """Return how to read the trace of a scenario."""
    return Reading(
        format=traffic.format,
        columns=tuple(traffic.columns.items()),
        units=tuple(traffic.units.items()),
        keep_zero_tokens=traffic.keep_zero_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read a file: its format, and pairs of our column and the file's column or unit.

    For ServeGen profiles ``span_s`` is the span to draw (None: the reader's default) and ``only``
    the folder to draw from.
    """

    format: str = "auto"
    columns: tuple[tuple[str, str], ...] = ()
    units: tuple[tuple[str, str], ...] = ()
    keep_zero_tokens: bool = False
    span_s: tuple[float, float] | None = None
    only: str | None = None

    def trace(self, path: Path) -> Trace:
        """Return the trace of a file."""
        if self.format not in FORMATS:
            rule = f"one of {', '.join(FORMATS)}"
            raise DataError(rule, where=path, field="format", value=self.format)
        return read_trace(
            path,
            format=self.format,
            mapping=dict(self.columns),
            units=dict(self.units),
            keep_zero_tokens=self.keep_zero_tokens,
            only=self.only,
            span_s=SPAN_S if self.span_s is None else self.span_s,
        )


AS_FOUND = Reading()


def read_base(name: str, reading: Reading = AS_FOUND) -> Trace:
    """Return the trace of that name: the bundled or a public one, or a file of any known format.

    The last few are kept in memory; a changed file is read again. Raises :class:`DataError` with
    the known names if there is no such file, and for the sample if columns or units are stated.
    """
    if name == SAMPLE and (reading.columns or reading.units or reading.format != "auto"):
        stated = [reading.format, *(f"{a}={b}" for a, b in (*reading.columns, *reading.units))]
        rule = "no format, columns or units, which the bundled sample has of its own"
        raise DataError(rule, where=SAMPLE, value=", ".join(stated))
    public = next((one for one in list_traces() if one.name == name), None)
    if public is not None:
        path = _fetched(public, shared_data_path())
        reading = replace(reading, format=public.format) if reading.format == "auto" else reading
    else:
        path = sample_path() if name == SAMPLE else Path(name)
    try:
        state = path.stat()
    except FileNotFoundError as err:
        rule = f"a file that exists, or one of {', '.join(trace_names())}"
        raise DataError(rule, where=path) from err
    except OSError:
        return reading.trace(path)
    return _read(name, path, reading, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _fetched(public: PublicTrace, shared: Path | None) -> Path:
    """Return the checked file of a public trace, once for each place that may hold it."""
    return fetch(public)


@lru_cache(maxsize=4)
def _read(name: str, path: Path, reading: Reading, mtime_ns: int, size: int) -> Trace:
    if name != SAMPLE:
        found = reading.trace(path)
        of = [f"{t.name}: {t.licence}; {t.attribution}" for t in list_traces() if t.name == name]
        return replace(found, notes=(*found.notes, *of))
    trace = read_trace(path)
    stated = parquet.read_schema(path).metadata[b"prefix_block_tokens"]
    notes = (*trace.notes, "The bundled sample is generated from published figures, not recorded.")
    return replace(
        trace,
        source=SAMPLE,
        duration_s=SAMPLE_DURATION_S,
        prefix_block_tokens=int(stated),
        notes=notes,
    )
