"""Arrival times: numbers in some unit, or wall times with or without an offset.

Without a stated unit, the magnitude of a number decides: below 10⁸ they are seconds from the
start; 10⁸–10¹¹, –10¹⁴, –10¹⁷ and above are seconds, ms, µs and ns since 1970. Wall times are
ISO 8601 with up to nine fractional digits, or as web servers log them
(``10/Oct/2000:13:55:36 -0700``: Apache HTTP Server, "Log Files", section "Common Log Format").
A time without an offset is UTC; a file with both kinds is an error, and so is a clock without an
offset that steps back by an hour. A unit that the file does not prove is an error if another one
fits better: state it. Times that a source rounded down to a grid are spread inside the step of the
grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capplan.schema import DataError
from capplan.traffic.readers import doubts
from capplan.traffic.readers import values as v
from capplan.traffic.readers.doubts import SLOW_GAP_S, UNITS_PER_S

GONE, BROKEN, NUMBER, NAIVE, AWARE = 0, 1, 2, 3, 4
EPOCH_LIMITS = (1e8, 1e11, 1e14, 1e17)
FEW_FRACTION = 0.01
IDLE_GAPS = 10.0
"""Mean gaps from which on the time before the first request is no traffic, if over a minute."""
_NS = 1_000_000_000
_ISO = (
    r"^(1[7-9]\d\d|2[01]\d\d|22[0-5]\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([T ]([01]\d|2[0-3])(:?[0-5]\d(:?[0-5]\d([.]\d{1,9})?)?)?)?"
)
_LOGGED = r"^\[?(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d(?:\.\d+)?)(?: ([+-]\d{4}))?\]?$"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ZONE = r"(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)$"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """Per row a ``kind`` and a value: a number as found, or nanoseconds since 1970 (UTC)."""

    kind: npt.NDArray[np.uint8]
    values: npt.NDArray[Any]

    def negative(self) -> npt.NDArray[np.bool_]:
        """Return which rows have a number below zero."""
        return np.asarray((self.kind == NUMBER) & (self.values < 0), np.bool_)

    def keep(self, mask: npt.NDArray[np.bool_]) -> Times:
        """Return the rows where the mask is true."""
        return Times(kind=self.kind[mask], values=self.values[mask])


def joined(parts: list[Times]) -> Times:
    """Return the rows of all parts in order."""
    return Times(
        kind=np.concatenate([part.kind for part in parts]),
        values=np.concatenate([part.values for part in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrivalTimes:
    """Arrival seconds, rows to keep, the wall time of second 0, and the assumptions made."""

    seconds: npt.NDArray[np.float64]
    good: npt.NDArray[np.bool_]
    start: datetime | None
    notes: tuple[str, ...] = ()


def read_times(array: Any) -> Times:
    """Return the times of an Arrow array of any type; the wall time 1970-01-01 00:00 is none."""
    found = _read(v.plain(array))
    unset = (found.kind >= NAIVE) & (found.values == 0)
    return Times(kind=np.where(unset, GONE, found.kind).astype(np.uint8), values=found.values)


def _read(array: Any) -> Times:
    if v.is_text(array.type):
        return _text_times(array)
    if pa.types.is_timestamp(array.type):
        return _timestamps(array)
    if pa.types.is_duration(array.type):
        seconds = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
        scale = UNITS_PER_S[array.type.unit]
        array = pa.array(seconds / scale, from_pandas=True)
    return _number_times(v.numbers(array))


def _number_times(parsed: v.Parsed) -> Times:
    return Times(kind=_kind_of_numbers(parsed), values=parsed.data)


def _kind_of_numbers(parsed: v.Parsed) -> npt.NDArray[np.uint8]:
    """Return the kind of each; a number beyond the nanoseconds of the year 2262 is broken."""
    kind = np.array([NUMBER, GONE, BROKEN], np.uint8)[parsed.state]
    kind[(kind == NUMBER) & (np.abs(parsed.data) > float(np.iinfo(np.int64).max))] = BROKEN
    return kind


def _timestamps(array: Any) -> Times:
    scale = _NS // UNITS_PER_S[array.type.unit]
    absent = v.nulls(array)
    ticks = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    fits = np.abs(ticks) <= np.iinfo(np.int64).max // scale
    zone = NAIVE if array.type.tz is None else AWARE
    kind = np.where(absent, GONE, np.where(fits, zone, BROKEN)).astype(np.uint8)
    return Times(kind=kind, values=np.where(fits, ticks, 0) * scale)


def _text_times(array: Any) -> Times:
    if not array.null_count and len(array):
        for target, zone in ((pa.timestamp("ns"), NAIVE), (pa.timestamp("ns", "UTC"), AWARE)):
            stamps = v.casted(array, target)
            if stamps is not None:
                ticks = stamps.cast(pa.int64()).to_numpy()
                return Times(kind=np.full(len(ticks), zone, np.uint8), values=ticks)
    parsed = v.numbers(array)
    if not (parsed.state == v.BAD).any():
        return _number_times(parsed)
    text = _logged(pc.utf8_trim_whitespace(array))
    text = pc.replace_substring_regex(text, r"\s*(UTC|GMT|z)$", "Z")
    text = pc.replace_substring_regex(text, r"(\d),(\d+)", r"\1.\2")
    text = pc.replace_substring_regex(text, r"(\d)\s+([+-]\d)", r"\1\2")
    naive, naive_ns = _iso(text, _ISO + "$", pa.timestamp("ns"))
    aware, aware_ns = _iso(text, _ISO + _ZONE, pa.timestamp("ns", "UTC"))
    kind = _kind_of_numbers(parsed)
    kind[naive], kind[aware] = NAIVE, AWARE
    wall_ns = np.where(naive, naive_ns, aware_ns)
    return Times(kind=kind, values=np.where(naive | aware, wall_ns, parsed.data))


def _logged(text: Any) -> Any:
    """Return times of a web server's log as ISO 8601, and others as they are."""
    if not pc.any(pc.match_substring_regex(text, _LOGGED)).as_py():
        return text
    for number, month in enumerate(_MONTHS, 1):
        form = _LOGGED.replace("([A-Z][a-z]{2})", f"({month})")
        text = pc.replace_substring_regex(text, form, rf"\3-{number:02}-\1T\4\5")
    return text


def _iso(text: Any, form: str, target: Any) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    mask = pc.fill_null(pc.match_substring_regex(text, form), False)
    found = mask.to_numpy(zero_copy_only=False).copy()
    ticks = np.zeros(len(text), np.int64)
    if found.any():
        good, cast = _cast_some(text.filter(mask), target)
        where = np.flatnonzero(found)
        ticks[where] = cast
        found[where[~good]] = False
    return found, ticks


def _cast_some(text: Any, target: Any) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Return which values can be cast, and the results; halves around each that cannot."""
    try:
        ticks = text.cast(target).cast(pa.int64()).to_numpy()
        return np.ones(len(text), np.bool_), ticks
    except pa.ArrowInvalid:
        if len(text) == 1:
            return np.zeros(1, np.bool_), np.zeros(1, np.int64)
    middle = len(text) // 2
    halves = [_cast_some(text[:middle], target), _cast_some(text[middle:], target)]
    good, ticks = (np.concatenate(part) for part in zip(*halves, strict=True))
    return good, ticks


def arrivals(
    times: Times,
    *,
    unit: str | None,
    proven: bool = False,
    exact: bool,
    guessed: bool = False,
    where: str,
) -> ArrivalTimes:
    """Return seconds from the start of the trace for rows that all have a time.

    Parameters
    ----------
    times
        Rows of kind ``NUMBER``, ``NAIVE`` or ``AWARE``.
    unit
        Unit of numbers; None: by their magnitude.
    proven
        The unit is stated, by an option or the column's name.
    exact
        Keep numbers that count from a start as they are, whatever the first one is.
    guessed
        The column was taken for its name alone, so that its order must be one of arrivals.
    where
        Name of the file, for errors.

    Raises :class:`DataError` if numbers and wall times, or naive and aware wall times, or units,
    are mixed.
    """
    counts = {name: int((times.kind == kind).sum()) for name, kind in
              (("numbers", NUMBER), ("without offset", NAIVE), ("with offset", AWARE))}  # fmt: skip
    if sum(n > 0 for n in counts.values()) > 1:
        mix = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
        raise DataError("times of one kind", where=where, field="arrival_s", value=mix)
    if counts["numbers"]:
        found = _number_arrivals(times.values, unit, proven=proven, exact=exact, where=where)
        if guessed and found.start is None:
            doubts.check_order(found.seconds, where)
        return found
    notes: tuple[str, ...] = ()
    if counts["without offset"]:
        doubts.check_clock(times.values, where)
        notes = (doubts.clock_note(times.values),)
    return _since_first(times.values, _NS, np.ones(len(times.kind), np.bool_), notes)


def _since_first(
    values: npt.NDArray[Any], per_s: int, good: npt.NDArray[np.bool_], notes: tuple[str, ...]
) -> ArrivalTimes:
    first = values[good].min()
    if float(values.max()) - float(first) > np.iinfo(np.int64).max:
        values, first = values.astype(np.float64), float(first)
    seconds = (values - first).astype(np.float64) / per_s
    try:
        start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=float(first) / per_s)
    except OverflowError as err:
        rule = "times before the year 10000"
        raise DataError(rule, field="arrival_s", value=float(first) / per_s) from err
    return ArrivalTimes(seconds=seconds, good=good, start=start, notes=notes)


def _number_arrivals(
    values: npt.NDArray[Any], unit: str | None, *, proven: bool, exact: bool, where: str
) -> ArrivalTimes:
    scale = UNITS_PER_S[unit] if unit else 1
    bands = np.digitize(values / scale, EPOCH_LIMITS)
    if unit:
        bands = np.minimum(bands, 1)
    band, good = _one_band(bands, where)
    if band == 0:
        if not proven:
            doubts.check_unit(values[good], unit, where, named_s=exact)
        return _relative(values, scale, good, unit=unit, exact=exact)
    found = unit or tuple(UNITS_PER_S)[band - 1]
    per_s = UNITS_PER_S[found]
    note = f"Times are {found} since 1970{'' if unit else '; their magnitude shows the unit'}."
    return _since_first(values, per_s, good, (note,))


def _one_band(bands: npt.NDArray[np.intp], where: str) -> tuple[int, npt.NDArray[np.bool_]]:
    """Return the band of nearly all rows; the few others are not good."""
    sizes = np.bincount(bands, minlength=len(EPOCH_LIMITS) + 1)
    band = int(sizes.argmax())
    if len(bands) - sizes[band] > FEW_FRACTION * len(bands):
        names = ("s from the start", *(f"{u} since 1970" for u in UNITS_PER_S))
        mix = ", ".join(f"{n} in {names[i]}" for i, n in enumerate(sizes.tolist()) if n)
        raise DataError("times in one unit", where=where, field="arrival_s", value=mix)
    return band, bands == band


def _relative(
    values: npt.NDArray[Any],
    per_s: int,
    good: npt.NDArray[np.bool_],
    *,
    unit: str | None,
    exact: bool,
) -> ArrivalTimes:
    """Return seconds from the start; an idle stretch before the first request is no traffic."""
    seconds = values / per_s
    first, last = float(seconds[good].min()), float(seconds[good].max())
    stated = unit or "s (no unit is stated)"
    notes = () if exact else (f"Times are {stated} from the start.",)
    idle_s = max(IDLE_GAPS * (last - first) / max(len(values) - 1, 1), SLOW_GAP_S)
    if first <= idle_s:
        return ArrivalTimes(seconds=seconds, good=good, start=None, notes=notes)
    shift = f"Nothing arrives in the first {first:,.0f} s: the first request is the start."
    return ArrivalTimes(seconds=seconds - first, good=good, start=None, notes=(*notes, shift))
