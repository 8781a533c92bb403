"""Load as a page varies it: the busiest stretch of a trace, a scenario at a stated rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capplan.traffic.trace import Trace


def busiest(trace: Trace, requests: int) -> Trace:
    """Return the run of that many successive requests with the least time between its ends."""
    from dataclasses import replace

    frame = trace.frame
    if len(frame) <= requests:
        return trace
    arrival = frame["arrival_s"].to_numpy()
    first = int((arrival[requests - 1 :] - arrival[: len(arrival) - requests + 1]).argmin())
    part = frame.iloc[first : first + requests].reset_index(drop=True)
    start = float(part["arrival_s"].iloc[0])
    part = part.assign(arrival_s=part["arrival_s"] - start)
    return replace(trace, frame=part, duration_s=float(part["arrival_s"].iloc[-1]))


def at_load(trace: Trace, factor: float) -> Trace:
    """Return the same requests, arriving ``factor`` times as fast."""
    from dataclasses import replace

    if factor <= 0:
        msg = f"the load factor must be positive, got {factor}"
        raise ValueError(msg)
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
