"""Doubts of arrival times: another unit, durations, a clock that was set, a long silence."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capplan.formatting import format_value
from capplan.schema import DataError

UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
LEAST_SPAN_S = 10.0
SLOW_GAP_S = 60.0
"""Doubt of a unit, from :data:`DOUBTED_ROWS` on: a recording shorter than 10 s, or whole numbers
that are on average a minute apart, while another unit gives a recording of usual length and rate.
Judgements of the project: neither kind of traffic needs a capacity plan."""
DOUBTED_ROWS = 20
SERIAL_DAYS = (36_526.0, 73_051.0)
"""Days since 1900 of the years 2000 to 2099, as spreadsheets count them. Source: ECMA-376, Office
Open XML, part 1, section 18.17.4."""
TURNED_BACK_S = (1800.0, 7200.0)
"""Steps back of a local clock at the end of summer time: an hour, half an hour on Lord Howe Island,
two hours in Antarctica. Source: IANA time zone database, 2025b."""
CLOCK_CHANGES = ((3, -1), (10, -1), (3, 1), (11, 0))
"""Month, and which of its Sundays, on which clocks are set between 01:00 and 03:00 local time:
European Union (Directive 2000/84/EC), then United States (Energy Policy Act of 2005, section 110).
"""
LEAST_BACK_FRACTION, MOST_ORDER = 0.25, 0.5
"""Numbers in no order: steps back from the first share on, a rank correlation with the rows below
the second. Calls as they ended step back as often, but keep the order on the whole."""
IDLE_SPAN_FRACTION = 0.2
"""Share of the span from which on one silence is named; a judgement of the project."""
LONGEST_DEADLINE_S = 3600.0
"""Median deadline from which on its unit is doubted; a judgement of the project: an hour of waiting
for one answer."""
_NS = 1_000_000_000


def check_clock(wall_ns: npt.NDArray[np.int64], where: str) -> None:
    """Refuse times without an offset that step back as a clock does at the end of summer time.

    Rows out of order step back often, or by other spans.
    """
    steps = np.diff(wall_ns)
    back = np.flatnonzero(steps < 0)
    low, high = (span * _NS for span in TURNED_BACK_S)
    # The step is an hour less the gap between the two requests around it.
    if len(back) == 1 and low - SLOW_GAP_S * _NS <= -steps[back[0]] <= high:
        before, after = (
            datetime.fromtimestamp(wall_ns[i] / _NS, UTC).strftime("%Y-%m-%d %H:%M:%S")
            for i in (back[0], back[0] + 1)
        )
        rule = (
            "times with an offset, or in UTC: an hour of local time that comes twice is ambiguous"
        )
        raise DataError(rule, where=where, field="arrival_s", value=f"{before}, then {after}")


def clock_note(wall_ns: npt.NDArray[np.int64]) -> str:
    """Return what is assumed of times without an offset, with a change of clocks among them.

    >>> import numpy as np
    >>> clock_note(np.array(["2026-10-24T22:00", "2026-10-25T04:00"], "M8[ns]").astype(int))[44:]
    '; if they are local, clocks may change on 2026-10-25 within them.'
    """
    ends = (int(wall_ns.min()), int(wall_ns.max()))
    first, last = (datetime.fromtimestamp(end / _NS, UTC) for end in ends)
    text = "Wall times without an offset are read as UTC"
    for year in range(first.year, last.year + 1):
        for month, which in CLOCK_CHANGES:
            day = datetime.combine(_sundays(year, month)[which], datetime.min.time(), UTC)
            if first < day + timedelta(hours=3) and last > day + timedelta(hours=1):
                return (
                    f"{text}; if they are local, clocks may change on {day:%Y-%m-%d} within them."
                )
    return f"{text}."


def _sundays(year: int, month: int) -> list[date]:
    days = (date(year, month, 1) + timedelta(days=i) for i in range(31))
    return [day for day in days if day.month == month and day.isoweekday() == 7]  # noqa: PLR2004


def check_unit(
    values: npt.NDArray[Any], unit: str | None, where: str | Path, *, named_s: bool = False
) -> None:
    """Refuse a unit that the file does not state if another one fits better; name both.

    ``named_s``: the column's name states seconds, so that only numbers like ms are doubted.
    """
    if len(values) < DOUBTED_ROWS:
        return
    span = float(values.max()) - float(values.min())
    if (
        unit is None
        and not named_s
        and SERIAL_DAYS[0] <= values.min()
        and values.max() < SERIAL_DAYS[1] > span * 100
    ):
        rule = (
            "a stated unit, or wall times: numbers like days since 1900, as a spreadsheet has them"
        )
        raise DataError(rule, where=where, field="arrival_s", value=f"{values.min():,.10g}")
    other: str | None = None
    if unit == "ms" and span / 1e3 < LEAST_SPAN_S <= span:
        other = "s"
    elif unit is None and span / len(values) >= SLOW_GAP_S and span / 1e3 >= LEAST_SPAN_S:
        other = "ms" if (np.mod(values, 1) == 0).all() else None
    if other is None:
        return
    taken = unit or "s"
    rates = {u: len(values) * UNITS_PER_S[u] / span for u in (taken, other)}
    fits = " or ".join(f"{u} ({rate:.3g}/s)" for u, rate in rates.items())
    rule = f"a stated unit (traffic.units, --unit arrival_s=…), since two fit: {fits}"
    raise DataError(rule, where=where, field="arrival_s", value=f"numbers over {span:,.6g}")


def check_order(seconds: npt.NDArray[np.float64], where: str | Path) -> None:
    """Refuse numbers in an order that no arrivals have: durations in a column named like a time."""
    if len(seconds) < DOUBTED_ROWS:
        return
    back = float(np.mean(np.diff(seconds) < 0))
    ranks = np.argsort(np.argsort(seconds, kind="stable"), kind="stable")
    order = abs(float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1]))
    if back > LEAST_BACK_FRACTION and order < MOST_ORDER:
        rule = (
            "arrival times, not durations: name their column (traffic.columns, --column "
            "arrival_s=…), since these numbers are in no order"
        )
        value = f"{format_value(back, '_fraction')} of the rows step back"
        raise DataError(rule, where=where, field="arrival_s", value=value)


def check_deadlines(seconds: npt.NDArray[np.float64], where: str | Path) -> None:
    """Refuse deadlines of hours whose unit is not stated: milliseconds under a name of seconds."""
    known = seconds[~np.isnan(seconds)]
    if len(known) < DOUBTED_ROWS or np.median(known) <= LONGEST_DEADLINE_S:
        return
    rule = "deadlines in s, or a stated unit (traffic.units, --unit deadline_s=…)"
    raise DataError(rule, where=where, field="deadline_s", value=f"{np.median(known):,.6g}")


def silence(arrival_s: npt.NDArray[np.float64]) -> list[str]:
    """Return the one long stretch without arrivals inside a recording, in a sentence, or nothing.

    It is a fifth of the span and over ten minutes, and far longer than the other gaps. Rates over
    the whole span count it.
    """
    gaps = np.diff(arrival_s)
    if len(gaps) < DOUBTED_ROWS:
        return []
    span, at = float(gaps.sum()), int(gaps.argmax())
    gap = float(gaps[at])
    others = (span - gap) / len(gaps)
    if gap < max(IDLE_SPAN_FRACTION * span, 10 * SLOW_GAP_S) or gap < DOUBTED_ROWS * others:
        return []
    long, share = format_value(gap, "_s"), format_value(gap / span, "_fraction")
    return [f"Nothing arrives for {long} ({share} of the span), after {arrival_s[at]:,.0f} s."]
