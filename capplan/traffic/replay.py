"""A base trace again: its busiest stretch, at another load, replayed, or row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capplan.formatting import counted, format_value
from capplan.scenario.shapes import Replay
from capplan.schema import DataError
from capplan.traffic.curve import RateCurve
from capplan.traffic.streams import Stream, stream
from capplan.traffic.trace import Trace


def window_s(base: Trace) -> float:
    """Return the length of the base trace's observation window, s.

    Unless the trace states it, the last arrival and one mean gap; 0 for one instant.
    """
    last = float(base.frame["arrival_s"].iloc[-1])
    if base.duration_s is not None:
        return max(base.duration_s, last)
    n = len(base)
    return last * n / (n - 1) if n > 1 else last


BUSIEST_S = 3600.0


def replayed(base: Trace, shape: Replay, *, key: tuple[int, int]) -> pd.DataFrame:
    """Return the rows of a replay of the whole trace, in order of arrival.

    Recorded times are multiplied by ``time_scale``. A ``rate_scale`` r below 1 keeps each request
    with probability r. Above 1, copies of the whole trace are added, each shifted by a uniform
    time with wrap-around, the last one thinned to the fraction of r. Each copy has the recorded
    burstiness and joint law of lengths; their sum is smoother than one trace r times as fast. The
    requests kept at one r are kept at every larger one.

    Source: Lewis and Shedler, "Simulation of nonhomogeneous Poisson processes by thinning",
    Naval Research Logistics Quarterly 26(3), 1979 (thinning).
    """
    rng = stream(*key, Stream.COPIES)
    recorded = base.frame["arrival_s"].to_numpy(dtype=float)
    window = window_s(base)
    parts = []
    for copy in range(math.ceil(shape.rate_scale)):
        shift, chance = rng.random() * window * (copy > 0), rng.random(len(recorded))
        row = np.flatnonzero(chance < shape.rate_scale - copy)
        moved = recorded[row] + shift
        lap = (moved >= window).astype(np.int64) * (copy > 0)
        parts.append((row, (moved - window * lap) * shape.time_scale, np.full_like(row, copy), lap))
    row, time, copy_of, lap = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(time, kind="stable")
    frame = taken(base.frame, row[order], copy_of[order], lap=lap[order])
    return frame.assign(arrival_s=time[order])


def cut_note(whole_s: NDArray[np.float64], kept: int, cut_by: str) -> list[str]:
    """Return a sentence about the requests that a cut leaves out of a replay; none without any.

    ``whole_s`` are the arrivals of the whole replay in order, of which the first ``kept`` stay.

    >>> cut_note(np.array([0.0, 100.0, 9000.0, 9001.0, 9002.0]), 2, "traffic.duration_s 3,600 s")
    ['traffic.duration_s 3,600 s cuts the trace: 3 of 5 requests (60 %) and 100 % of those of its \
busiest hour are left out.']
    """
    if kept >= len(whole_s):
        return []
    busiest = busiest_hour(whole_s)
    lost = (busiest.stop - max(busiest.start, min(kept, busiest.stop))) / len(busiest)
    gone = len(whole_s) - kept
    return [
        f"{cut_by} cuts the trace: {gone:,} of {counted(len(whole_s), 'request')} "
        f"({format_value(gone / len(whole_s), '_fraction')}) and {format_value(lost, '_fraction')} "
        "of those of its busiest hour are left out."
    ]


def busiest_hour(arrival_s: NDArray[np.float64]) -> range:
    """Return which of the arrivals, in order, are in the hour that has most of them.

    >>> busiest_hour(np.array([0.0, 100.0, 9000.0, 9001.0, 9002.0]))
    range(2, 5)
    """
    ends = np.searchsorted(arrival_s, arrival_s + BUSIEST_S)
    first = int((ends - np.arange(len(arrival_s))).argmax())
    return range(first, int(ends[first]))


Ints = NDArray[np.int64]


def taken(base: pd.DataFrame, rows: Ints, copy: Ints, *, lap: Ints | None = None) -> pd.DataFrame:
    """Return the rows of the base trace, each as copy number ``copy`` (0 = the original).

    A copy is another caller of the same kind: its request, its session and the prefix blocks that
    only one session of the base trace uses get new names; blocks that several sessions share (a
    tenant's system prompt) stay shared. Without sessions in the base trace, copies share no block.
    ``lap`` separates the two parts of a copy that wraps around the end of the trace; they are two
    sessions.
    """
    frame = base.iloc[rows].reset_index(drop=True)
    again = copy > 0
    mark = _marks(copy, lap)
    ids = frame["request_id"] if "request_id" in frame else pd.Series(_numbered(rows))
    frame["request_id"] = ids.where(~again, ids + mark)
    if "session" in frame:
        moved = again if lap is None else again | (lap > 0)
        frame["session"] = frame["session"].where(~moved, frame["session"] + mark)
    if "prefix_blocks" in frame and again.any():
        frame["prefix_blocks"] = _blocks(base, rows, copy)
    return frame


def occurrence(rows: Ints) -> Ints:
    """Return how often each row number occurs before it.

    >>> import numpy as np
    >>> occurrence(np.array([4, 7, 4, 4])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))
    counts = np.empty(len(rows), dtype=np.int64)
    counts[order] = np.arange(len(rows)) - start
    return counts


def _numbered(rows: Ints) -> list[str]:
    return [f"r{row}" for row in rows.tolist()]


def _marks(copy: Ints, lap: Ints | None) -> NDArray[np.object_]:
    marks = np.array([f"~{c}" for c in range(int(copy.max(initial=0)) + 1)], dtype=object)[copy]
    return marks if lap is None else np.where(lap > 0, marks + "b", marks)


def _blocks(base: pd.DataFrame, rows: Ints, copy: Ints) -> NDArray[np.object_]:
    originals = base["prefix_blocks"].to_numpy()
    lengths = np.array([len(b) for b in originals])
    flat = np.concatenate([*originals, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    ids, which = np.unique(flat, return_inverse=True)
    private = _private(base, lengths, which, len(ids))[which]
    ends = np.cumsum(lengths)
    step = int(ids.max(initial=0)) + 1
    out = np.empty(len(rows), dtype=object)
    for i, (row, c) in enumerate(zip(rows.tolist(), copy.tolist(), strict=True)):
        if c == 0:
            out[i] = originals[row]
            continue
        part = slice(ends[row] - lengths[row], ends[row])
        out[i] = flat[part] + private[part] * (c * step)
    return out


def _private(
    base: pd.DataFrame, lengths: Ints, which: NDArray[np.intp], n_ids: int
) -> NDArray[np.int64]:
    """Return 1 for each block id that a single session uses, 0 for a shared one."""
    if "session" not in base or base["session"].isna().all():
        return np.ones(n_ids, dtype=np.int64)
    session, names = pd.factorize(base["session"], use_na_sentinel=False)
    pairs = np.unique(which * len(names) + np.repeat(session, lengths))
    sessions = np.bincount(pairs // len(names), minlength=n_ids)
    return np.asarray(sessions == 1, dtype=np.int64)


def busiest(trace: Trace, requests: int) -> Trace:
    """Return that many successive requests with the least time between first and last."""
    frame = trace.frame
    if len(frame) <= requests:
        return trace
    rows = _busiest(frame["arrival_s"].to_numpy(), requests)
    part = frame.iloc[rows].reset_index(drop=True)
    start = float(part["arrival_s"].iloc[0])
    part = part.assign(arrival_s=part["arrival_s"] - start)
    return replace(trace, frame=part, duration_s=float(part["arrival_s"].iloc[-1]))


def _busiest(arrival_s: NDArray[np.float64], requests: int) -> Ints:
    count = min(requests, len(arrival_s))
    first = int((arrival_s[count - 1 :] - arrival_s[: len(arrival_s) - count + 1]).argmin())
    return np.arange(first, first + count)


def recorded_gaps(
    base: Trace, requests: int, plan: RateCurve, *, rng: np.random.Generator
) -> tuple[NDArray[np.float64], Ints]:
    """Return arrival times, s, and rows of the busiest requests of a trace, again and again.

    They pass on a clock that runs with the planned rate, one request in the mean per unit, from a
    random place on; the last is followed by the first after a mean gap.
    Raises :class:`DataError` if all of them came at one instant.
    """
    recorded = base.frame["arrival_s"].to_numpy(np.float64)
    rows = _busiest(recorded, requests)
    own = recorded[rows] - recorded[rows[0]]
    if not own[-1] > 0:
        rule = "two requests or more, apart in time, whose gaps can be repeated"
        raise DataError(rule, where=base.source, field="arrival_s", value=len(own))
    begin = rng.random() * len(own)
    passes = math.ceil((begin + plan.expected) / len(own))
    clock = own * (len(own) - 1) / own[-1] + len(own) * np.arange(passes)[:, None] - begin
    inside = (clock.ravel() >= 0) & (clock.ravel() <= plan.expected)
    return plan.time_of(clock.ravel()[inside]), np.tile(rows, passes)[inside]


def at_load(trace: Trace, factor: float) -> Trace:
    """Return the same requests, arriving ``factor`` times as fast."""
    if factor <= 0:
        raise ValueError(f"the load factor must be positive, got {factor}")
    if factor == 1:
        return trace
    frame = trace.frame.assign(arrival_s=trace.frame["arrival_s"] / factor)
    duration = None if trace.duration_s is None else trace.duration_s / factor
    return replace(trace, frame=frame, duration_s=duration)


def rate_rps(trace: Trace) -> float:
    """Return the mean rate between the first and the last arrival; NaN for one request."""
    arrival = trace.frame["arrival_s"].to_numpy()
    span = float(arrival[-1] - arrival[0])
    return (len(arrival) - 1) / span if span > 0 else float("nan")
