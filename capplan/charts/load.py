"""What more load does: throughput and goodput, the tail, outcomes, queues over time."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import (
    checked,
    colour,
    dash,
    layered,
    legend,
    need,
    ordered,
    rule_x,
    rule_y,
    seconds,
    tooltip,
    x,
    y,
)
from capplan.charts.theme import BLACK, OUTCOME_COLOURS, WIDTH
from capplan.schema import OUTCOMES, TIMELINE

_VALUE = {column.name: column for column in TIMELINE}["value"]


def flows_by_load(frame: pd.DataFrame, *, marked: float | None = None) -> alt.LayerChart:
    """Return throughput and goodput over the offered load, with interval bands.

    ``frame`` has the columns ``load_rps``, ``figure``, ``flow_rps``, ``low``, ``high`` (NaN = no
    interval). The grey diagonal is what was offered; ``marked`` is a load to point out.
    """
    shown = (c.LOAD, c.FIGURE, c.FLOW, c.LOW, c.HIGH)
    frame = checked(frame, shown, chart="flows_by_load")
    figures = ordered(frame[c.FIGURE.name])
    coloured = colour(c.FIGURE, figures, lines=True)
    base = alt.Chart(frame, title="What is offered, what is answered, what is worth it")
    band = base.mark_area(opacity=0.2).encode(
        x(c.LOAD),
        alt.Y(f"{c.LOW.name}:Q"),
        alt.Y2(c.HIGH.name),
        coloured,
    )
    lines = base.mark_line(point=True).encode(
        x(c.LOAD),
        y(c.FLOW, scale=alt.Scale(zero=True)),
        coloured,
        dash(c.FIGURE, figures),
        tooltip=tooltip(shown),
    )
    ends = frame[c.LOAD.name].agg(["min", "max"]).to_numpy()
    diagonal = (
        alt.Chart(pd.DataFrame({c.LOAD.name: ends, c.FLOW.name: ends}))
        .mark_line(color="#A0A0A0", strokeWidth=1, strokeDash=[2, 3])
        .encode(x(c.LOAD), y(c.FLOW))
    )
    layers = [diagonal, band, lines]
    if marked is not None:
        layers.append(rule_x(marked, f"{marked:.3g} requests/s"))
    return layered(*layers)


def latency_by_load(
    frame: pd.DataFrame, *, latency: str, promises: dict[str, float] | None = None
) -> alt.LayerChart:
    """Return a latency over the offered load, one line per class, with interval bands.

    ``frame`` has the columns ``load_rps``, ``request_class``, ``latency_s``, ``low``, ``high``.
    An infinite latency (too many failures for the quantile to exist) is a triangle at the upper
    edge. ``promises`` maps a class to its bound, drawn as a labelled rule.
    """
    shown = (c.LOAD, c.CLASS, c.LATENCY, c.LOW, c.HIGH)
    frame = checked(frame, shown, chart="latency_by_load")
    classes = ordered(frame[c.CLASS.name])
    coloured = colour(c.CLASS, classes, lines=True)
    unbounded = frame[np.isinf(frame[c.LATENCY.name])]
    finite = frame.replace([np.inf, -np.inf], np.nan)
    base = alt.Chart(finite, title=latency)
    log = alt.Scale(type="log")
    bounded = alt.Chart(finite.dropna(subset=[c.LATENCY.name, c.LOW.name, c.HIGH.name]))
    band = bounded.mark_area(opacity=0.2).encode(
        x(c.LOAD),
        alt.Y(f"{c.LOW.name}:Q"),
        alt.Y2(c.HIGH.name),
        coloured,
    )
    lines = base.mark_line(point=True).encode(
        x(c.LOAD),
        y(c.LATENCY, scale=log, title=f"{latency} (s)"),
        coloured,
        dash(c.CLASS, classes),
        tooltip=tooltip(shown),
    )
    layers = [band, lines]
    if not unbounded.empty:
        edge = alt.Chart(unbounded).mark_point(shape="triangle-up", size=90)
        layers.append(edge.encode(x(c.LOAD), y=alt.value(4), color=coloured))
    for name, bound_s in (promises or {}).items():
        layers.append(rule_y(bound_s, f"{name}: promised {seconds(bound_s)}"))
    return layered(*layers)


def outcomes_by_load(frame: pd.DataFrame) -> alt.Chart:
    """Return the share of each outcome over the offered load, as stacked bars.

    ``frame`` has the columns ``load_rps``, ``outcome``, ``share_fraction``.
    """
    shown = (c.LOAD, c.OUTCOME, c.SHARE)
    frame = checked(frame, shown, chart="outcomes_by_load")
    chart: alt.Chart = (
        alt.Chart(frame.assign(order=frame[c.OUTCOME.name].map(OUTCOMES.index)))
        .mark_bar()
        .encode(
            x(c.LOAD, "O", axis=alt.Axis(format=".3~g", labelAngle=0)),
            y(c.SHARE, stack="zero", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            _outcome_colour(frame),
            alt.Order("order:Q"),
            tooltip=tooltip(shown),
        )
        .properties(title="How requests end", width=WIDTH)
    )
    return chart


def outcomes_over_time(requests: pd.DataFrame, *, window_s: float = 10.0) -> alt.Chart:
    """Return how the requests of each window end, by the moment they were meant to start.

    ``requests`` has the columns ``intended_start_s`` and ``outcome``.
    """
    need(requests, "intended_start_s", "outcome", chart="outcomes_over_time")
    start = requests["intended_start_s"] // window_s * window_s
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
            color=_outcome_colour(frame),
            order=alt.Order("order:Q"),
            tooltip=tooltip(shown),
        )
    )
    return chart


def waiting_over_time(timeline: pd.DataFrame, *, points: int = 300) -> alt.Chart:
    """Return how many wait in each queue over time, a step line per layer.

    ``timeline`` is a run's (``time_s, layer, replica, metric, value``); its metric ``length`` is
    summed over replicas and read at ``points`` even moments.
    """
    need(timeline, "time_s", "layer", "replica", "metric", "value", chart="waiting_over_time")
    shown = (c.TIME, c.LAYER, _VALUE)
    frame = checked(_lengths(timeline, points), shown, chart="waiting_over_time")
    layers = ordered(frame[c.LAYER.name])
    chart: alt.Chart = (
        alt.Chart(frame, title="Waiting in each queue")
        .mark_line(interpolate="step-after")
        .encode(
            x(c.TIME, scale=alt.Scale(nice=False)),
            y(_VALUE, title="requests waiting"),
            colour(c.LAYER, layers, lines=True),
            dash(c.LAYER, layers),
            tooltip=tooltip(shown),
        )
    )
    return chart


def in_flight_over_time(
    requests: pd.DataFrame, *, mean: float | None = None, points: int = 300
) -> alt.LayerChart:
    """Return the number of requests in flight over time, stacked by class.

    ``requests`` has the columns ``intended_start_s``, ``finish_s`` (NaN = never) and
    ``request_class``. ``mean`` is what Little's law says, drawn as a rule.
    """
    needed = ("intended_start_s", "finish_s", "request_class")
    need(requests, *needed, chart="in_flight_over_time")
    shown = (c.TIME, c.IN_FLIGHT, c.CLASS)
    frame = checked(_in_flight(requests, points), shown, chart="in_flight_over_time")
    classes = ordered(requests[c.CLASS.name])
    area = (
        alt.Chart(frame, title="Requests in flight")
        .mark_area(interpolate="step-after", opacity=0.85)
        .encode(
            x(c.TIME, scale=alt.Scale(nice=False)),
            y(c.IN_FLIGHT, stack="zero"),
            colour(c.CLASS, classes),
            tooltip=tooltip(shown),
        )
    )
    if mean is None:
        return layered(area)
    return layered(area, rule_y(mean, f"Little's law: {mean:.3g}", colour_of=BLACK))


def _outcome_colour(frame: pd.DataFrame) -> alt.Color:
    present = [name for name in OUTCOMES if name in set(frame[c.OUTCOME.name])]
    scale = alt.Scale(domain=present, range=[OUTCOME_COLOURS[name] for name in present])
    return alt.Color(
        f"{c.OUTCOME.name}:N", title=c.OUTCOME.title, scale=scale, legend=legend(c.OUTCOME)
    )


def _lengths(timeline: pd.DataFrame, points: int) -> pd.DataFrame:
    lengths = timeline[timeline["metric"] == "length"]
    grid = np.linspace(0, float(timeline["time_s"].max()), points)
    parts = []
    for layer, of_layer in lengths.groupby("layer", sort=False, observed=True):
        total = np.zeros(points)
        for _, one in of_layer.groupby("replica", observed=True):
            total += _held(one["time_s"].to_numpy(), one["value"].to_numpy(), grid)
        parts.append(pd.DataFrame({c.TIME.name: grid, c.LAYER.name: str(layer), "value": total}))
    return pd.concat(parts) if parts else pd.DataFrame(columns=[c.TIME.name, c.LAYER.name, "value"])


def _held(times: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the last value at each grid moment, 0 before the first and for who has left (NaN)."""
    index = np.searchsorted(times, grid, side="right") - 1
    held = np.where(index >= 0, values[np.maximum(index, 0)], 0.0)
    return np.where(np.isnan(held), 0.0, held)


def _in_flight(requests: pd.DataFrame, points: int) -> pd.DataFrame:
    ends = requests["finish_s"].fillna(np.inf)
    last = float(max(requests["intended_start_s"].max(), requests["finish_s"].max()))
    grid = np.linspace(0, last, points)
    parts = []
    for name, group in requests.groupby("request_class", sort=False, observed=True):
        entered = np.searchsorted(np.sort(group["intended_start_s"]), grid, side="right")
        left = np.searchsorted(np.sort(ends.loc[group.index]), grid, side="right")
        counts = pd.DataFrame({c.TIME.name: grid, c.IN_FLIGHT.name: entered - left})
        parts.append(counts.assign(**{c.CLASS.name: str(name)}))
    return pd.concat(parts)
