"""A base trace again: replayed as a whole, or row by row, copies apart from each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capplan.formatting import counted, format_value
from capplan.traffic.streams import Stream, stream

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario.shapes import Replay
    from capplan.traffic.trace import Trace


def window_s(base: Trace) -> float:
    """Return the length of the base trace's observation window, s.

    Where the trace does not state it, the last arrival and one mean gap; 0 for one instant.
    """
    last = float(base.frame["arrival_s"].iloc[-1])
    if base.duration_s is not None:
        return max(base.duration_s, last)
    n = len(base)
    return last * n / (n - 1) if n > 1 else last


BUSIEST_S = 3600.0


def replayed(base: Trace, shape: Replay, *, seed: int, replication: int) -> pd.DataFrame:
    """Return the rows of a replay of the whole trace, in order of arrival.

    Recorded times are multiplied by ``time_scale``. A ``rate_scale`` r below 1 keeps each request
    with probability r. Above 1, copies of the whole trace are added, each shifted round the end
    of the window by a uniform time, the last one thinned to the fraction of r. Each copy has the
    recorded burstiness and joint law of lengths; superposition makes the sum smoother than one
    trace played r times as fast. The requests kept at one r are kept at every larger one.

    Source: Lewis and Shedler, "Simulation of nonhomogeneous Poisson processes by thinning",
    Naval Research Logistics Quarterly 26(3), 1979 (thinning).
    """
    rng = stream(seed, replication, Stream.COPIES)
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
    """Return a sentence on what a cut leaves out of a replay; none if it leaves out nothing.

    ``whole_s`` are the arrivals of the whole replay in order, of which the first ``kept`` stay.

    >>> cut_note(np.array([0.0, 100.0, 9000.0, 9001.0, 9002.0]), 2, "traffic.duration_s 3,600 s")
    ['traffic.duration_s 3,600 s cuts the trace: 3 of 5 requests (60 %) and 100 % of those of its \
busiest hour are left out.']
    """
    if kept >= len(whole_s):
        return []
    ends = np.searchsorted(whole_s, whole_s + BUSIEST_S)
    counts = ends - np.arange(len(whole_s))
    first = int(counts.argmax())
    busiest = range(first, int(ends[first]))
    lost = sum(row >= kept for row in busiest) / len(busiest)
    gone = len(whole_s) - kept
    return [
        f"{cut_by} cuts the trace: {gone:,} of {counted(len(whole_s), 'request')} "
        f"({format_value(gone / len(whole_s), '_fraction')}) and {format_value(lost, '_fraction')} "
        "of those of its busiest hour are left out."
    ]


Ints = NDArray[np.int64]


def taken(base: pd.DataFrame, rows: Ints, copy: Ints, *, lap: Ints | None = None) -> pd.DataFrame:
    """Return the rows of the base trace, each as copy number ``copy`` (0 = the original).

    A copy is another caller of the same kind: its request and session have names of their own,
    and so have the prefix blocks that only one session of the base trace used; blocks that
    several sessions share (a tenant's system prompt) stay shared. Where the base trace knows no
    sessions, no block of a copy is shared with another copy. ``lap`` tells the two parts of a
    copy that was shifted round the end of the trace; their sessions are two.
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
    """Return how often each row number stood before it.

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
    """Return 1 for each block id that one session alone uses, 0 for a shared one."""
    if "session" not in base or base["session"].isna().all():
        return np.ones(n_ids, dtype=np.int64)
    session, names = pd.factorize(base["session"], use_na_sentinel=False)
    pairs = np.unique(which * len(names) + np.repeat(session, lengths))
    sessions = np.bincount(pairs // len(names), minlength=n_ids)
    return np.asarray(sessions == 1, dtype=np.int64)
