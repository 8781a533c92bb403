"""The trace of one replication: arrivals by the shape, requests by the base trace or the laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capplan.scenario import Scenario
from capplan.scenario.classes import RequestClass
from capplan.scenario.part import WITHOUT_TRACE
from capplan.scenario.shapes import ClosedLoop, Replay
from capplan.scenario.traffic import Modulated, RecordedGaps
from capplan.schema import DataError
from capplan.traffic import laws
from capplan.traffic.arrivals import arrival_times_s, modulated
from capplan.traffic.assign import classes_of, completed
from capplan.traffic.closed import closed_loop, without_users
from capplan.traffic.laws import drawn_classes, rows_by_class
from capplan.traffic.perturb import with_bursts, with_extra_requests, with_long_outputs
from capplan.traffic.replay import (
    cut_note,
    occurrence,
    recorded_gaps,
    replayed,
    taken,
    window_s,
)
from capplan.traffic.sample import base_trace
from capplan.traffic.shapes import planned_rate
from capplan.traffic.streams import Stream, stream
from capplan.traffic.trace import Trace, from_frame

LAWS_NOTE = "The requests are drawn from the laws of the scenario's classes, without a trace."


def draw(
    scenario: Scenario, *, seed: int = 0, replication: int = 0, base: Trace | None = None
) -> Trace:
    """Return the requests of one replication, every column of a trace filled.

    A replay repeats the base trace. A closed loop gives each user the requests that it may send
    (see :func:`capplan.traffic.closed.closed_loop`). Any other shape gives the arrivals, and each
    takes a whole row of the base trace (drawn with replacement, so the joint distribution of class,
    tenant, lengths and prefix is the trace's), or without a base trace a draw of the classes' laws.
    At most ``scenario.requests`` requests, all before ``traffic.lasts_s``. The same scenario,
    seed and replication give the same trace. Pools, layers and faults change nothing in it, except
    the replicas of the primary pool under a rate per replica.

    Parameters
    ----------
    scenario
        Its traffic, classes and tenants.
    seed, replication
        Keys of the random numbers, not negative.
    base
        The base trace; None: that of ``traffic.trace``.

    Raises :class:`DataError` if the base trace cannot be read, or no request arrives within the
    duration; ValueError for a replay without a base trace, or a negative seed or replication.
    """
    traffic = scenario.traffic
    base = base_trace(traffic) if base is None else base
    base = None if base is None else without_users(base)
    key = (seed, replication)
    if isinstance(traffic.shape, ClosedLoop):
        frame, end_s, notes = closed_loop(scenario, traffic.shape, base, key=key)
    elif isinstance(traffic.shape, Replay):
        frame, end_s, notes = _replay(scenario, traffic.shape, base, key)
    else:
        frame, end_s, notes = _shaped(scenario, base, key)
    source = scenario.name if base is None else base.source
    if frame.empty:
        rule = f"at least one request within {end_s:g} s"
        raise DataError(rule, where=source, field="traffic", value=0)
    capped = _is_cut(scenario, len(frame))
    frame, assumed = completed(frame.iloc[: scenario.requests], scenario, key=key)
    frame, changed = with_long_outputs(frame, scenario, key=key)
    last = float(frame["arrival_s"].iloc[-1])
    blocks = laws.PREFIX_BLOCK_TOKENS if base is None else base.prefix_block_tokens
    origin = (LAWS_NOTE,) if base is None else (*base.notes, *assumed, *_without_effect(scenario))
    return from_frame(
        frame,
        source=source,
        duration_s=last if capped else max(end_s, last),
        notes=(*origin, *notes, *changed),
        prefix_block_tokens=blocks,
    )


def recorded(scenario: Scenario, *, seed: int = 0) -> Trace:
    """Return the scenario's trace as recorded, or a draw of a scenario without one.

    Classes, tenants and deadlines that the trace lacks are filled as :func:`draw` does.
    """
    base = base_trace(scenario.traffic)
    if base is None:
        return draw(scenario, seed=seed)
    return filled(base, scenario, seed=seed)


def filled(base: Trace, scenario: Scenario, *, seed: int = 0) -> Trace:
    """Return a trace with the classes, tenants and deadlines that it lacks."""
    frame, notes = completed(base.frame, scenario, key=(seed, 0))
    kept = [name for name in base.frame if name not in frame]
    return replace(base, frame=frame.join(base.frame[kept]), notes=(*base.notes, *notes))


def _without_effect(scenario: Scenario) -> list[str]:
    """Return a note that names the stated fields which the rows of a trace take the place of."""
    traffic = scenario.traffic
    weighs_classes = bool(traffic.mix) or isinstance(traffic.shape, ClosedLoop)
    found = [
        f"classes.{name}"
        for name, field in RequestClass.model_fields.items()
        if WITHOUT_TRACE in field.metadata
        and not (name == "share" and weighs_classes)
        and any(name in c.model_fields_set for c in scenario.classes)
    ]
    if "arrivals" in traffic.model_fields_set and isinstance(traffic.shape, Replay | ClosedLoop):
        found.append("traffic.arrivals")
    return [f"Without effect, as the trace states it: {', '.join(found)}."] if found else []


def _is_cut(scenario: Scenario, rows: int) -> bool:
    """Return whether the cap on requests ends the trace; a closed loop runs to its full end."""
    if scenario.requests is None or isinstance(scenario.traffic.shape, ClosedLoop):
        return False
    return rows >= scenario.requests


def _replay(
    scenario: Scenario, shape: Replay, base: Trace | None, key: tuple[int, int]
) -> tuple[pd.DataFrame, float, list[str]]:
    if base is None:
        raise ValueError("shape replay needs a base trace")
    lasts_s = scenario.traffic.lasts_s
    whole = replayed(base, shape, key=key)
    times = whole["arrival_s"].to_numpy(np.float64)
    frame = whole.iloc[: int(np.searchsorted(times, lasts_s))]
    cuts = cut_note(times, len(frame), f"traffic.duration_s {lasts_s:,.6g} s")
    if scenario.requests is not None:
        count = min(scenario.requests, len(frame))
        cuts += cut_note(times[: len(frame)], count, f"requests {scenario.requests:,}")
    end_s = min(lasts_s, window_s(base) * shape.time_scale)
    if not scenario.traffic.perturbations or frame.empty:
        return frame, end_s, cuts
    copies = math.ceil(shape.rate_scale)
    frame, notes = with_extra_requests(frame, base.frame, scenario, end_s, key=key, copies=copies)
    return frame, end_s, [*cuts, *notes]


def _shaped(
    scenario: Scenario, base: Trace | None, key: tuple[int, int]
) -> tuple[pd.DataFrame, float, list[str]]:
    """Return requests at the times of the shape: rows of the base trace, or of the laws."""
    traffic = scenario.traffic
    plan = planned_rate(
        traffic.shape, duration_s=traffic.lasts_s, replicas=scenario.pool().replicas
    )
    plan = with_bursts(plan, scenario)
    if isinstance(traffic.arrivals, Modulated):
        plan = modulated(plan, traffic.arrivals, rng=stream(*key, Stream.MODULATION))
    rng, limit = stream(*key, Stream.ARRIVALS), scenario.requests
    if isinstance(traffic.arrivals, RecordedGaps):
        if base is None:
            raise ValueError("arrivals recorded need a base trace")
        times, rows = recorded_gaps(base, traffic.arrivals.requests, plan, rng=rng)
        times, rows = times[:limit], rows[:limit]
        frame = taken(base.frame, rows, occurrence(rows))
        return frame.assign(arrival_s=times), plan.end_s, []
    times = arrival_times_s(plan, traffic.arrivals, rng=rng, limit=limit)
    if base is None:
        index = drawn_classes(scenario, times, stream(*key, Stream.CLASSES))
        frame = laws.drawn_rows(scenario, index, key=key)
    else:
        rows = _rows(scenario, base, times, key)
        frame = taken(base.frame, rows, occurrence(rows))
    return frame.assign(arrival_s=times), plan.end_s, []


def _rows(
    scenario: Scenario, base: Trace, times: NDArray[np.float64], key: tuple[int, int]
) -> NDArray[np.int64]:
    """Return a row of the base trace for each arrival; its class first if the mix changes."""
    rng = stream(*key, Stream.ROWS)
    if not scenario.traffic.mix:
        return rng.integers(len(base), size=len(times))
    index = drawn_classes(scenario, times, stream(*key, Stream.CLASSES))
    classes, _ = classes_of(base.frame, scenario, [])
    names = [c.name for c in scenario.classes]
    return rows_by_class(names, index, classes, rng, source=base.source)
