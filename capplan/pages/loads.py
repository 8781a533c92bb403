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
