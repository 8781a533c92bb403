"""The trace of one replication: arrivals by the shape, requests by the base trace or the laws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.scenario.traffic import Replay
from capplan.schema import DataError
from capplan.traffic import laws
from capplan.traffic.arrivals import arrival_times_s
from capplan.traffic.assign import completed
from capplan.traffic.copies import occurrence, taken
from capplan.traffic.replay import replayed, window_s
from capplan.traffic.sample import read_base
from capplan.traffic.shapes import planned_rate
from capplan.traffic.streams import Stream, stream
from capplan.traffic.trace import Trace, from_frame

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario

LAWS_NOTE = (
    "The requests are drawn from the laws of the scenario's classes; no trace stands behind."
)


def draw(
    scenario: Scenario, *, seed: int = 0, replication: int = 0, base: Trace | None = None
) -> Trace:
    """Return the requests of one replication, every column of a trace filled.

    A replay repeats the base trace. Any other shape gives the arrivals, and each takes a whole
    row of the base trace (drawn with replacement, so the joint distribution of class, tenant,
    lengths and prefix is the trace's); without a base trace the classes' laws give the rows.
    At most ``scenario.requests`` requests, all before ``traffic.duration_s``. The same scenario,
    seed and replication give the same trace; what pools, layers and faults say changes nothing,
    except the replicas of the primary pool under a rate per replica.

    Parameters
    ----------
    scenario
        Who asks, and in which shape.
    seed, replication
        Name the random numbers, not negative.
    base
        The base trace; None = the one that ``traffic.trace`` names.

    Raises
    ------
    DataError
        When the base trace cannot be read, has a class that the scenario lacks, or nothing
        arrives within the duration.
    ValueError
        For a replay without a base trace, or a negative seed or replication.
    """
    traffic = scenario.traffic
    if base is None and traffic.trace is not None:
        base = read_base(traffic.trace)
    key = {"seed": seed, "replication": replication}
    if isinstance(traffic.shape, Replay):
        frame, end_s = _replay(base, traffic.shape, traffic.duration_s, **key)
    else:
        frame, end_s = _shaped(scenario, base, **key)
    source = scenario.name if base is None else base.source
    if frame.empty:
        rule = f"at least one request within {end_s:g} s"
        raise DataError(rule, where=source, field="traffic", value=0)
    capped = scenario.requests is not None and len(frame) >= scenario.requests
    frame, notes = completed(frame.iloc[: scenario.requests], scenario, source=source, **key)
    last = float(frame["arrival_s"].iloc[-1])
    blocks = laws.PREFIX_BLOCK_TOKENS if base is None else base.prefix_block_tokens
    return from_frame(
        frame,
        source=source,
        duration_s=last if capped else max(end_s, last),
        notes=(LAWS_NOTE,) if base is None else (*base.notes, *notes),
        prefix_block_tokens=blocks,
    )


def _replay(
    base: Trace | None, shape: Replay, duration_s: float, *, seed: int, replication: int
) -> tuple[pd.DataFrame, float]:
    if base is None:
        msg = "shape replay needs a base trace"
        raise ValueError(msg)
    frame = replayed(base, shape, duration_s=duration_s, seed=seed, replication=replication)
    return frame, min(duration_s, window_s(base) * shape.time_scale)


def _shaped(
    scenario: Scenario, base: Trace | None, *, seed: int, replication: int
) -> tuple[pd.DataFrame, float]:
    """Return requests at the times of the shape: rows of the base trace, or of the laws."""
    traffic = scenario.traffic
    plan = planned_rate(
        traffic.shape, duration_s=traffic.duration_s, replicas=scenario.pool().replicas
    )
    times = arrival_times_s(
        plan,
        traffic.arrivals,
        rng=stream(seed, replication, Stream.ARRIVALS),
        limit=scenario.requests,
    )
    if base is None:
        frame = laws.drawn_rows(scenario, len(times), seed=seed, replication=replication)
        return frame.assign(arrival_s=times), plan.end_s
    rng = stream(seed, replication, Stream.ROWS)
    rows = rng.integers(len(base), size=len(times))
    return taken(base.frame, rows, occurrence(rows)).assign(arrival_s=times), plan.end_s
