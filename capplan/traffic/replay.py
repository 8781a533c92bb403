"""A base trace again: as recorded, slower or faster, thinned or superposed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from capplan.traffic.copies import taken
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


def replayed(
    base: Trace, shape: Replay, *, seed: int, replication: int, duration_s: float
) -> pd.DataFrame:
    """Return the rows of a replay that arrive before ``duration_s``, in order of arrival.

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
    order = order[time[order] < duration_s]
    frame = taken(base.frame, row[order], copy_of[order], lap=lap[order])
    return frame.assign(arrival_s=time[order])
