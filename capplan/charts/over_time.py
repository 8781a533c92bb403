"""What happens over time: outcomes, queues, requests in flight, replicas, breakers, a surge."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import (
    areas,
    checked,
    colour,
    dash,
    held,
    layered,
    lines,
    need,
    ordered,
    own_colour,
    rule_y,
    time_axis,
    tooltip,
    x,
    y,
)
from capplan.charts.theme import BLACK, BLUE, GREY, LIGHT_GREY, OUTCOME_COLOURS, VERMILLION
from capplan.schema import OUTCOMES, TIMELINE, Column

VALUE = {column.name: column for column in TIMELINE}["value"]
QUEUE = Column("queue", "", "queue", "str")
RULE = Column("rule", "", "rule, at its pool", "str")
OPENS = Column("start_s", "s", "opens")
CLOSES = Column("end_s", "s", "closes")
DEGRADED = Column("degraded_fraction", "", "share of answers degraded")
PHASE = Column("phase", "", "replicas that are", "str")
PHASES = {
    "replicas": "in service",
    "replicas_draining": "draining",
    "replicas_starting": "starting",
    "replicas_asked": "waiting for an accelerator",
    "replicas_standby": "on standby",
}
"""Metric of the timeline -> what is drawn, from the bottom up."""
WANTED = "replicas_desired"
OF_ALLOWED = Column("of_allowed", "", "broken ÷ allowed requests")
PROMISE_NAME = Column("promise", "", "promise", "str")
GREY_IS = "grey: as it is"
POINTS = 300
"""Even moments at which a timeline is read."""
WINDOWS = 60
"""Windows that requests are counted in, of whole seconds."""


def outcomes_over_time(requests: pd.DataFrame) -> alt.Chart:
    """Return how the requests of each window end, by the moment they were meant to start.

    ``requests`` has the columns ``intended_start_s`` and ``outcome``.
    """
    need(requests, "intended_start_s", "outcome", chart="outcomes_over_time")
    start, window_s = _windows(requests)
    counts = requests.groupby([start.rename(c.TIME.name), "outcome"], observed=True).size()
    rates = (counts / window_s).rename(c.FLOW.name).reset_index()
    shown = (c.TIME, c.OUTCOME, c.FLOW)
    frame = checked(rates, shown, chart="outcomes_over_time")
    frame = frame.assign(
        order=frame[c.OUTCOME.name].map(OUTCOMES.index), end=frame[c.TIME.name] + window_s
    )
    chart: alt.Chart = (
        alt.Chart(frame, title=f"How requests end, windows of {window_s:g} s")
        .mark_bar()
        .encode(
            x(c.TIME, bin="binned", scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=y(c.FLOW, stack="zero"),
            color=own_colour(c.OUTCOME, frame, OUTCOME_COLOURS),
            order=alt.Order("order:Q"),
            tooltip=tooltip(shown),
        )
    )
    return chart


def promises_over_time(frame: pd.DataFrame) -> alt.LayerChart:
    """Return how near each class comes to breaking a promise, window by window.

    ``frame`` has a row per window and class, for its worst promise: ``time_s`` (middle of the
    window), ``request_class``, ``promise``, ``of_allowed``, ``requests`` and ``outcome``. Above 1
    more requests break the promise than may; a dot marks the windows in which that is no chance.
    """
    shown = (c.TIME, c.CLASS, PROMISE_NAME, OF_ALLOWED, c.REQUESTS, c.OUTCOME)
    frame = checked(frame, shown, chart="promises_over_time")
    up = y(OF_ALLOWED, scale=alt.Scale(type="symlog", domainMin=0))
    base = alt.Chart(frame, title="The worst promise of each class, window by window")
    places = ordered(frame[c.CLASS.name])
    by = (colour(c.CLASS, places, lines=True), dash(c.CLASS, places))
    line = base.mark_line().encode(time_axis(), up, *by, tooltip=tooltip(shown))
    failed = frame[frame[c.OUTCOME.name] == "fail"]
    dots = alt.Chart(failed).mark_circle(color=VERMILLION, size=40, opacity=1)
    marked = dots.encode(time_axis(), up, tooltip=tooltip(shown))
    return layered(line, rule_y(1.0, "the promise"), *([] if failed.empty else [marked]))


def waiting_over_time(timeline: pd.DataFrame) -> alt.Chart:
    """Return how many requests wait in each queue over time, a step line per queue.

    ``timeline`` is a run's (``time_s, layer, replica, metric, value``); its metric ``length`` is
    summed over the replicas of a pool. A queue of several pools is a line for each.
    """
    need(timeline, "time_s", "layer", "replica", "metric", "value", chart="waiting_over_time")
    lengths = timeline[timeline["metric"] == "length"]
    grid_s = np.linspace(0, float(timeline["time_s"].max()), POINTS)
    shown = (c.TIME, QUEUE, VALUE)
    parts = [
        pd.DataFrame({"time_s": grid_s, "queue": str(queue), "value": _total(own, grid_s)})
        for queue, own in lengths.groupby(_queues(lengths), sort=False)
    ]
    frame = checked(_together(parts, shown), shown, chart="waiting_over_time")
    up = y(VALUE, title="requests waiting")
    title = "Waiting in each queue"
    return lines(frame, time_axis(), up, QUEUE, shown=shown, step=True, title=title)


def _queues(lengths: pd.DataFrame) -> pd.Series:
    """Return the queue of each row: its layer, and its pool if several pools have that layer."""
    layer = lengths["layer"].astype(str).str.replace("_", " ")
    name = lengths["replica"].astype(str)
    pool = name.where(layer != "scheduler queue", name.str.rpartition("-")[0])
    several = pool.groupby(layer).transform("nunique") > 1
    return layer.where(~several, layer + " of " + pool)


def in_flight_over_time(requests: pd.DataFrame, *, mean: float | None = None) -> alt.LayerChart:
    """Return the number of requests in flight over time, stacked by class.

    ``requests`` has the columns ``intended_start_s``, ``finish_s`` (NaN = never) and
    ``request_class``. ``mean`` is what Little's law says, drawn as a rule.
    """
    needed = ("intended_start_s", "finish_s", "request_class")
    need(requests, *needed, chart="in_flight_over_time")
    shown = (c.TIME, c.IN_FLIGHT, c.CLASS)
    frame = checked(_in_flight(requests), shown, chart="in_flight_over_time")
    area = areas(
        frame,
        y(c.IN_FLIGHT, stack="zero"),
        c.CLASS,
        shown=shown,
        order=ordered(requests[c.CLASS.name]),
        title="Requests in flight",
    )
    if mean is None:
        return layered(area)
    return layered(area, rule_y(mean, f"Little's law: {mean:.3g}", colour_of=BLACK))


def replicas_over_time(timeline: pd.DataFrame) -> alt.LayerChart:
    """Return how many replicas there are over time, stacked by phase, and how many are wanted.

    ``timeline`` is a run's (``time_s, layer, replica, metric, value``), or the part of it that
    belongs to one pool; several pools are added up. The wanted number is a black step line, if
    it can change.
    """
    need(timeline, "time_s", "layer", "replica", "metric", "value", chart="replicas_over_time")
    grid_s = np.linspace(0, float(timeline["time_s"].max()), POINTS)
    counts = {
        name: _total(timeline[timeline["metric"] == name], grid_s) for name in (*PHASES, WANTED)
    }
    shown = (c.TIME, PHASE, c.REPLICAS)
    parts = [
        pd.DataFrame({c.TIME.name: grid_s, PHASE.name: phase, c.REPLICAS.name: counts[name]})
        for name, phase in PHASES.items()
        if counts[name].any()
    ]
    frame = checked(_together(parts, shown), shown, chart="replicas_over_time")
    wanted = counts[WANTED].any()
    up = y(
        c.REPLICAS, stack="zero", title="replicas; dashed: wanted" if wanted else c.REPLICAS.title
    )
    area = areas(frame, up, PHASE, shown=shown, title="Replicas")
    if not wanted:
        return layered(area)
    line = (
        alt.Chart(pd.DataFrame({c.TIME.name: grid_s, c.REPLICAS.name: counts[WANTED]}))
        .mark_line(interpolate="step-after", color=BLACK, strokeDash=[4, 2])
        .encode(x(c.TIME), y(c.REPLICAS), tooltip=tooltip((c.TIME, c.REPLICAS)))
    )
    return layered(area, line)


def breakers_over_time(spans: pd.DataFrame, *, end_s: float | None = None) -> alt.Chart:
    """Return when each rule was open, a bar for each time.

    ``spans`` has the columns ``rule``, ``start_s`` and ``end_s``; a rule that never opened has one
    row whose ends are equal. ``end_s`` is the end of the run, up to which the axis goes.
    """
    shown = (RULE, OPENS, CLOSES)
    frame = checked(spans, shown, chart="breakers_over_time")
    last = float(frame[CLOSES.name].max()) if end_s is None else end_s
    chart: alt.Chart = (
        alt.Chart(frame, title="Open breakers", height=alt.Step(24))
        .mark_bar()
        .encode(
            x(OPENS, title=c.TIME.title, scale=alt.Scale(domain=[0.0, last], nice=False)),
            x2="end_s:Q",
            y=y(RULE, "N", sort=None),
            tooltip=tooltip(shown),
        )
    )
    return chart


def degraded_over_time(requests: pd.DataFrame) -> alt.Chart:
    """Return the share of the answers of each window that were degraded, by class.

    ``requests`` has the columns ``intended_start_s``, ``request_class``, ``outcome`` and
    ``degraded``; only requests that succeeded have an answer.
    """
    needed = ("intended_start_s", "request_class", "outcome", "degraded")
    need(requests, *needed, chart="degraded_over_time")
    start, window_s = _windows(requests)
    succeeded = requests["outcome"] == "succeeded"
    answered, start = requests[succeeded], start[succeeded].rename(c.TIME.name)
    marked = (answered["degraded"].astype("object") == True).astype(float)  # noqa: E712
    shares = marked.groupby([start, answered["request_class"]], observed=True).mean()
    shown = (c.TIME, c.CLASS, DEGRADED)
    frame = checked(shares.rename(DEGRADED.name).reset_index(), shown, chart="degraded_over_time")
    return lines(
        frame,
        time_axis(),
        y(DEGRADED, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        c.CLASS,
        shown=shown,
        order=ordered(requests[c.CLASS.name]),
        step=True,
        title=f"Degraded answers, windows of {window_s:g} s",
    )


def flows_in_overload(
    frame: pd.DataFrame, *, reference: pd.DataFrame, surge_s: tuple[float, float]
) -> alt.LayerChart:
    """Return what is offered, attempted and worth it over time, the reference in grey behind it.

    Both frames have the columns ``time_s`` (start of a window), ``figure`` and ``flow_rps``.
    ``surge_s`` is when the surge begins and ends, s. The scale is of square roots, so that the
    usual load is seen beside a storm of retries.
    """
    shown = (c.TIME, c.FIGURE, c.FLOW)
    frame = checked(frame, shown, chart="flows_in_overload")
    reference = checked(reference, shown, chart="flows_in_overload")
    up = y(c.FLOW, scale=alt.Scale(type="sqrt"), title="requests/s, square-root scale")
    title = f"Offered, attempted, worth it; {GREY_IS}"
    now = lines(frame, time_axis(), up, c.FIGURE, shown=shown, step=True, title=title)
    return layered(_band(surge_s), _before(reference, up, now.encoding.strokeDash), now)


def waiting_in_overload(
    frame: pd.DataFrame, *, reference: pd.DataFrame, queue: str, surge_s: tuple[float, float]
) -> alt.LayerChart:
    """Return how many requests wait in one queue over time, the reference in grey behind it.

    Both frames have the columns ``time_s`` and ``value``. ``surge_s`` as in
    :func:`flows_in_overload`.
    """
    shown = (c.TIME, VALUE)
    frame = checked(frame, shown, chart="waiting_in_overload")
    reference = checked(reference, shown, chart="waiting_in_overload")
    up = y(VALUE, title="requests waiting")
    line = (
        alt.Chart(frame, title=f"Waiting in the {queue}; {GREY_IS}")
        .mark_line(interpolate="step-after", color=BLUE)
        .encode(time_axis(), up, tooltip=tooltip(shown))
    )
    return layered(_band(surge_s), _before(reference, up), line)


def _before(reference: pd.DataFrame, up: alt.Y, *dashes: Any) -> Any:
    marked = alt.Chart(reference).mark_line(interpolate="step-after", color=GREY, strokeWidth=1.5)
    return marked.encode(time_axis(), up, *dashes)


def _band(surge_s: tuple[float, float]) -> Any:
    """Return the time of the surge as a band from top to bottom."""
    ends = pd.DataFrame({c.TIME.name: [surge_s[0]], "end": [surge_s[1]]})
    band = alt.Chart(ends).mark_rect(color=LIGHT_GREY, opacity=0.45)
    return band.encode(x(c.TIME), x2="end:Q")


def _together(parts: list[pd.DataFrame], shown: tuple[Column, ...]) -> pd.DataFrame:
    """Return the parts as one frame; without parts, a frame of the columns without a row."""
    return pd.concat(parts) if parts else pd.DataFrame(columns=[column.name for column in shown])


def _total(rows: pd.DataFrame, grid_s: np.ndarray) -> np.ndarray:
    """Return a metric added up over replicas or pools at each moment, each with its last value."""
    total = np.zeros(len(grid_s))
    for _, own in rows.groupby("replica", observed=True):
        kept = own.sort_values("time_s", kind="stable")
        total += held(kept["time_s"].to_numpy(), kept["value"].to_numpy(np.float64), grid_s)
    return total


def _in_flight(requests: pd.DataFrame) -> pd.DataFrame:
    ends = requests["finish_s"].fillna(np.inf)
    last = float(max(requests["intended_start_s"].max(), requests["finish_s"].max()))
    grid_s = np.linspace(0, last, POINTS)
    parts = []
    for name, group in requests.groupby("request_class", sort=False, observed=True):
        entered = np.searchsorted(np.sort(group["intended_start_s"]), grid_s, side="right")
        left = np.searchsorted(np.sort(ends.loc[group.index]), grid_s, side="right")
        counts = pd.DataFrame({c.TIME.name: grid_s, c.IN_FLIGHT.name: entered - left})
        parts.append(counts.assign(**{c.CLASS.name: str(name)}))
    return pd.concat(parts)


def _windows(requests: pd.DataFrame) -> tuple[pd.Series[float], float]:
    """Return when the window of each request starts, and how long a window is, s."""
    start = requests["intended_start_s"]
    window_s = max(1.0, round((start.max() - start.min()) / WINDOWS))
    return start // window_s * window_s, window_s
