"""Load shapes as planned rates over time."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from capplan.scenario.shapes import (
    HOUR_S,
    Calendar,
    ClosedLoop,
    Ramp,
    Replay,
    Sequence,
    Shape,
    Spike,
    Steady,
    Step,
    Sum,
    Wave,
)
from capplan.traffic.curve import RateCurve, curve, levels

Floats = NDArray[np.float64]

PIECES_OF_A_WAVE = 64


def planned_rate(  # noqa: PLR0911 (one case for each shape)
    shape: Shape, *, duration_s: float, replicas: int = 1
) -> RateCurve:
    """Return the planned rate of a shape from 0 to ``duration_s`` or to the end of its plan.

    ``replicas`` counts those of the primary pool, for a rate given per replica.
    Raises ValueError for a replay or a closed loop (no rate is planned), or a duration or replicas
    that are not positive.

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
        case Ramp():
            return _ramp(shape, duration_s)
        case Spike():
            return _bursts(shape, duration_s)
        case Wave():
            return _wave(shape, duration_s)
        case Calendar():
            return _calendar(shape, duration_s)
        case Sequence():
            return _one_after_the_other(shape, replicas).until(duration_s)
        case Sum():
            plans = [planned_rate(p, duration_s=duration_s, replicas=replicas) for p in shape.parts]
            return functools.reduce(RateCurve.plus, plans)
        case Replay():
            raise ValueError("a replay has no planned rate: it follows its trace")
        case ClosedLoop():
            raise ValueError("a closed loop has no planned rate: its users wait for each answer")


def _steps(shape: Step) -> RateCurve:
    """Return the levels with ramps between them, without requests after the last level."""
    times, rates, now = [], [], 0.0
    for n in range(shape.steps):
        rate = shape.start_rps * shape.factor**n
        times += [now, now + shape.hold_s]
        rates += [rate, rate]
        now += shape.hold_s + shape.ramp_s
    return curve(times, rates)


def _ramp(shape: Ramp, duration_s: float) -> RateCurve:
    top = shape.seconds()
    times = [0.0, top, max(top, duration_s)]
    return curve(times, [shape.start_rps, shape.target_rps, shape.target_rps]).until(duration_s)


def _wave(shape: Wave, duration_s: float) -> RateCurve:
    """Return the sine in straight pieces, 64 a period, which reach 99.9 % of its amplitude."""
    pieces = math.ceil(duration_s / shape.period_s * PIECES_OF_A_WAVE)
    time = np.minimum(np.arange(pieces + 1) * shape.period_s / PIECES_OF_A_WAVE, duration_s)
    swing = shape.amplitude_fraction * np.sin(2 * np.pi * time / shape.period_s)
    return curve(time, shape.rate_rps * (1 + swing))


def _calendar(shape: Calendar, duration_s: float) -> RateCurve:
    """Return the rate through the full hours, from the start's hour on."""
    first = math.floor(shape.start_hour)
    hour = first + np.arange(math.ceil(duration_s / HOUR_S) + 2.0)
    rate = shape.rate_rps * shape.factor_at(hour)
    at = (hour - shape.start_hour) * HOUR_S
    time = np.concatenate([[0.0], at[(at > 0) & (at < duration_s)], [duration_s]])
    return curve(time, np.interp(time, at, rate))


def _one_after_the_other(shape: Sequence, replicas: int) -> RateCurve:
    times: list[Floats] = []
    rates: list[Floats] = []
    start = 0.0
    for part in shape.parts:
        plan = planned_rate(part.shape, duration_s=part.duration_s, replicas=replicas)
        end = start + part.duration_s
        times += [start + plan.time_s, np.array([start + plan.end_s, end])]
        last = 0.0 if plan.end_s < part.duration_s else plan.rate_rps[-1]
        rates += [plan.rate_rps, np.array([last, last])]
        start = end
    return curve(np.concatenate(times), np.concatenate(rates))


def _bursts(shape: Spike, duration_s: float) -> RateCurve:
    windows = burst_windows(
        duration_s, burst_s=shape.burst_s, every_s=shape.every_s, first_s=shape.first_s
    )
    extra = windows.scaled(shape.peak_rps)
    return outside(windows).scaled(shape.base_rps).plus(extra)


def burst_windows(
    duration_s: float, *, burst_s: float, every_s: float, first_s: float
) -> RateCurve:
    """Return a plan that is 1 within the bursts and 0 between them.

    >>> burst_windows(100.0, burst_s=10.0, every_s=50.0, first_s=20.0).expected
    20.0
    """
    edges, rates = [0.0], []
    start = first_s
    while start < duration_s:
        end = min(start + burst_s, duration_s)
        if start > edges[-1]:
            edges.append(start)
            rates.append(0.0)
        edges.append(end)
        rates.append(1.0)
        start += every_s
    if edges[-1] < duration_s:
        edges.append(duration_s)
        rates.append(0.0)
    return levels(edges, rates)


def outside(windows: RateCurve) -> RateCurve:
    """Return the plan that is 1 where ``windows`` is 0, and 0 where it is 1."""
    return RateCurve(time_s=windows.time_s, rate_rps=1.0 - windows.rate_rps)
