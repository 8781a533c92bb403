"""Load shapes as planned rates over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.scenario.traffic import Replay, Shape, Spike, Steady, Step
from capplan.traffic.curve import RateCurve, curve, levels

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


def planned_rate(shape: Shape, *, duration_s: float, replicas: int = 1) -> RateCurve:
    """Return the planned rate of a shape from 0 to ``duration_s`` or to the end of its plan.

    ``replicas`` counts those of the primary pool, for a rate given per replica.

    Raises
    ------
    ValueError
        For a replay (its rate is the trace's own), or a duration or replicas that are not
        positive.

    Examples
    --------
    >>> planned_rate(Steady(rate_rps=5.0), duration_s=60.0).expected
    300.0
    """
    if duration_s <= 0 or replicas < 1:
        msg = f"duration_s and replicas must be positive, got {duration_s} and {replicas}"
        raise ValueError(msg)
    match shape:
        case Steady():
            rate = shape.rate_rps * (replicas if shape.per_replica else 1)
            return curve([0.0, duration_s], [rate, rate])
        case Step():
            return _steps(shape).until(duration_s)
        case Spike():
            return _bursts(shape, duration_s)
        case Replay():
            msg = "a replay has no planned rate: it has its trace's"
            raise ValueError(msg)


def rate_at(
    shape: Shape, time_s: ArrayLike, *, duration_s: float, replicas: int = 1
) -> NDArray[np.float64]:
    """Return the planned rate at each time, requests/s."""
    return planned_rate(shape, duration_s=duration_s, replicas=replicas).rate_at(time_s)


def _steps(shape: Step) -> RateCurve:
    """Return the levels with ramps between them; nothing arrives after the last level."""
    times, rates, now = [], [], 0.0
    for n in range(shape.steps):
        rate = shape.start_rps * shape.factor**n
        times += [now, now + shape.hold_s]
        rates += [rate, rate]
        now += shape.hold_s + shape.ramp_s
    return curve(times, rates)


def _bursts(shape: Spike, duration_s: float) -> RateCurve:
    edges, rates = [0.0], []
    start = shape.first_s
    while start < duration_s:
        end = min(start + shape.burst_s, duration_s)
        if start > edges[-1]:
            edges.append(start)
            rates.append(shape.base_rps)
        edges.append(end)
        rates.append(shape.peak_rps)
        start += shape.every_s
    if edges[-1] < duration_s:
        edges.append(duration_s)
        rates.append(shape.base_rps)
    return levels(edges, rates)
