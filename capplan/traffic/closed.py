"""Users of a closed loop: the requests that each may send, drawn once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capplan.scenario import Scenario
from capplan.scenario.shapes import ClosedLoop
from capplan.scenario.times import ExponentialTime, FixedTime, LognormalTime, Time
from capplan.schema import DataError
from capplan.traffic import laws
from capplan.traffic.assign import classes_of
from capplan.traffic.laws import drawn_classes, rows_by_class
from capplan.traffic.replay import occurrence, taken
from capplan.traffic.streams import Stream, stream
from capplan.traffic.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHUNK = 64
"""Think times of a user drawn at once; a constant: a longer duration begins like a shorter."""
MOST_ROWS = 10_000_000
CLOSED_NOTE = (
    "A closed loop: arrival_s is the earliest that a request can start, if every answer came at "
    "once; it starts a think time after the user's previous answer, or never if that is too late."
)


def closed_loop(
    scenario: Scenario, shape: ClosedLoop, base: Trace | None, *, key: tuple[int, int]
) -> tuple[pd.DataFrame, float, list[str]]:
    """Return the requests that the users may send, the end of sending, and notes.

    Each user has one class and one tenant, and a sequence of requests (lengths from the class's
    laws, or rows of that class and tenant in the base trace) with the think time before each. The
    sequence is as long as answers without delay allow before the end of sending, so every compared
    scenario gets the same sequences. ``scenario.requests`` are dealt out to the users in turn.
    Raises :class:`DataError` for more than ten million requests: think times are too short for the
    duration.
    """
    end_s = scenario.traffic.lasts_s
    _check_rows(scenario, shape, end_s)
    frame = _sequences(scenario, shape, end_s, key)
    user = frame["user"].to_numpy()
    rows = (
        _from_laws(scenario, shape, user, key)
        if base is None
        else _from_base(scenario, shape, base, user, key)
    )
    names = frame["user"].map(lambda u: f"u{u}")
    sessions = names + "-" + frame["session"].astype(str)
    out = rows.assign(
        arrival_s=frame["arrival_s"], user=names, think_s=frame["think_s"], session=sessions
    )
    return out, end_s, [CLOSED_NOTE]


def is_closed(trace: Trace) -> bool:
    """Return whether requests of a trace wait for the previous answer to their user.

    Raises :class:`DataError` for a request of a user after its first without think time: its start
    is undefined.
    """
    frame = trace.frame
    if "user" not in frame or not frame["user"].notna().any():
        return False
    later = frame["user"].notna() & frame["user"].duplicated()
    if "think_s" not in frame or frame["think_s"][later].isna().any():
        rule = "a think time for each request of a user after its first"
        raise DataError(rule, where=trace.source, field="think_s", value="nothing")
    return True


def without_users(base: Trace) -> Trace:
    """Return the base trace without users, so that its rows can be drawn or replayed alone."""
    columns = [name for name in ("user", "think_s") if name in base.frame]
    return replace(base, frame=base.frame.drop(columns=columns)) if columns else base


def _check_rows(scenario: Scenario, shape: ClosedLoop, end_s: float) -> None:
    mean = shape.mean_think_s
    rows = shape.most_users * (1 + end_s / mean) if mean > 0 else math.inf
    if min(rows, scenario.requests or math.inf) > MOST_ROWS:
        rule = f"at most {MOST_ROWS:,} requests for the users; longer think times, or requests"
        raise DataError(rule, where=scenario.name, field="traffic.shape", value=f"{rows:,.0f}")


def _sequences(
    scenario: Scenario, shape: ClosedLoop, end_s: float, key: tuple[int, int]
) -> pd.DataFrame:
    """Return user, session, think time and earliest start of every request, by earliest start."""
    cap = scenario.requests
    users = shape.most_users
    most = math.inf if cap is None else math.ceil(cap / users)
    parts = []
    for user, rng in enumerate(stream(*key, Stream.ARRIVALS).spawn(users)):
        start_s = shape.there_s(user, shape.ramp_s * user / users)
        if start_s >= end_s:
            break
        think, session = _thinking(shape, end_s - start_s, most, rng)
        earliest = start_s + np.cumsum(np.nan_to_num(think))
        if shape.wave is not None:
            earliest = _while_there(shape, user, start_s, think)
            kept = earliest < end_s
            think, session, earliest = think[kept], session[kept], earliest[kept]
        turn = np.arange(len(think))
        parts.append((np.full(len(think), user), turn, session, think, earliest))
    columns = ("user", "turn", "session", "think_s", "arrival_s")
    table = dict(zip(columns, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    frame = pd.DataFrame(table)
    if cap is not None:
        frame = frame.sort_values(["turn", "arrival_s"], kind="stable").iloc[:cap]
    return frame.sort_values(["arrival_s", "turn"], kind="stable", ignore_index=True)


def _while_there(shape: ClosedLoop, user: int, start_s: float, think: Floats) -> Floats:
    """Return the earliest starts of a user's requests, s, each at a time when it is there."""
    found = [start_s]
    for pause in think[1:]:
        found.append(shape.there_s(user, found[-1] + float(pause)))
    return np.array(found)


def _thinking(
    shape: ClosedLoop, left_s: float, most: float, rng: np.random.Generator
) -> tuple[Floats, Ints]:
    """Return the think time before each of a user's requests (NaN = the first) and its session."""
    pauses: list[Floats] = []
    breaks: list[NDArray[np.bool_]] = []
    total = 0.0
    while total < left_s and len(pauses) * CHUNK < most:
        think = _pauses(shape.think, rng)
        ends = np.zeros(CHUNK, dtype=bool)
        if shape.session_requests is not None:
            ends = rng.random(CHUNK) < 1 / shape.session_requests
            between = _pauses(shape.between_sessions or shape.think, rng)
            think = np.where(ends, between, think)
        pauses.append(think)
        breaks.append(ends)
        total += float(think.sum())
    think, ends = np.concatenate(pauses), np.concatenate(breaks)
    n = 1 + int(np.count_nonzero(np.cumsum(think) < left_s))
    n = int(min(n, most))
    session = np.concatenate([[0], np.cumsum(ends)]).astype(np.int64)
    return np.concatenate([[np.nan], think])[:n], session[:n]


def _pauses(law: Time, rng: np.random.Generator) -> Floats:
    match law:
        case FixedTime(seconds=seconds):
            return np.full(CHUNK, seconds)
        case ExponentialTime(mean_s=mean_s):
            return rng.standard_exponential(CHUNK) * mean_s
        case LognormalTime(p50_s=p50, p95_s=p95):
            sigma = laws.lognormal_sigma(p50, p95)
            return np.asarray(p50 * np.exp(sigma * rng.standard_normal(CHUNK)))


def _from_laws(
    scenario: Scenario, shape: ClosedLoop, user: Ints, key: tuple[int, int]
) -> pd.DataFrame:
    """Return a row for each request: class and tenant of its user, lengths by the laws."""
    index = drawn_classes(scenario, np.zeros(shape.most_users), stream(*key, Stream.CLASSES))
    names = np.array([c.name for c in scenario.classes], dtype=object)[index]
    tenant = laws.tenants_of(scenario, names, stream(*key, Stream.TENANTS))
    return laws.drawn_rows(scenario, index[user], key=key, tenant=tenant[user])


def _from_base(
    scenario: Scenario, shape: ClosedLoop, base: Trace, user: Ints, key: tuple[int, int]
) -> pd.DataFrame:
    """Return a row of the base trace for each request, of the class and tenant of its user.

    A user's class and tenant are those of a row drawn for it; a tenant that the trace lacks is
    drawn by share, once a user.
    """
    rng = stream(*key, Stream.ROWS)
    classes, _ = classes_of(base.frame, scenario, [])
    kind = pd.Series(classes, index=base.frame.index).astype("str")
    if "tenant" in base.frame:
        kind = kind + "\n" + base.frame["tenant"].astype("object").fillna("").astype("str")
    code, names = pd.factorize(kind)
    of_user = rng.integers(len(base), size=shape.most_users)
    rows = rows_by_class(
        [*names], code[of_user][user], kind.to_numpy(dtype=object), rng, source=base.source
    )
    frame = taken(base.frame, rows, occurrence(rows))
    drawn = laws.tenants_of(scenario, classes[of_user], stream(*key, Stream.TENANTS))[user]
    if "tenant" not in frame:
        return frame.assign(tenant=drawn)
    stated = frame["tenant"].astype("object")
    return frame.assign(tenant=np.where(stated.isna(), drawn, stated))
