"""Who calls, when, how long: charts of a trace and of what its profile says."""

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
    layered,
    lines,
    need,
    ordered,
    rows,
    rule_y,
    tooltip,
    x,
    y,
)
from capplan.charts.theme import HEIGHT, WIDTH
from capplan.schema import Column

LEAST_OF_A_WINDOW = 0.5
MOST_TENANTS = 20
_QUANTILE_STEPS = np.concatenate([np.linspace(0, 0.98, 99), np.linspace(0.981, 1, 20)])


def rate_over_time(trace: pd.DataFrame, *, window_s: float = 60.0) -> alt.LayerChart:
    """Return the arrival rate in windows, a stacked area per class, with the mean as a rule.

    ``trace`` has the columns ``arrival_s`` and ``request_class``.
    """
    need(trace, "arrival_s", "request_class", chart="rate_over_time")
    counted = _rates(trace, window_s)
    frame = checked(counted, (c.TIME, c.RATE, c.CLASS), chart="rate_over_time")
    classes = ordered(trace[c.CLASS.name])
    area = areas(
        frame,
        y(c.RATE, stack="zero"),
        c.CLASS,
        shown=(c.TIME, c.RATE, c.CLASS),
        order=classes,
        title=f"Arrival rate, windows of {window_s:g} s",
    )
    mean = len(trace) / max(_span(trace), window_s)
    return layered(area, rule_y(mean, f"mean {mean:.3g} requests/s"))


def dispersion_by_window(frame: pd.DataFrame) -> alt.LayerChart:
    """Return the index of dispersion over the counting window, one line per class.

    ``frame`` has the columns ``window_s``, ``index_of_dispersion``, ``request_class``. A Poisson
    process stays at the rule, whatever the window.
    """
    shown = (c.WINDOW, c.DISPERSION, c.CLASS)
    frame = checked(frame, shown, chart="dispersion_by_window")
    log = alt.Scale(type="log")
    up = y(c.DISPERSION, scale=alt.Scale(type="log", padding=12))
    title = "How bursty, and on which time scale"
    curves = lines(frame, x(c.WINDOW, scale=log), up, c.CLASS, shown=shown, title=title)
    return layered(curves, rule_y(1.0, "Poisson: 1", below=True))


def length_distributions(trace: pd.DataFrame) -> alt.FacetChart:
    """Return the cumulative distribution of prompt and output lengths, one line per class.

    ``trace`` has the columns ``prompt_tokens``, ``output_tokens``, ``request_class``. The quantiles
    0.5, 0.95 and 0.99 are drawn as points.
    """
    need(trace, "prompt_tokens", "output_tokens", "request_class", chart="length_distributions")
    shown = (c.TOKENS, c.SHARE, c.CLASS, c.LENGTH)
    frame = checked(_length_quantiles(trace), shown, chart="length_distributions")
    curves = lines(
        frame,
        x(c.TOKENS, scale=alt.Scale(type="log")),
        y(Column(c.SHARE.name, "", "share of requests not longer"), axis=alt.Axis(format="%")),
        c.CLASS,
        shown=shown,
        order=ordered(trace[c.CLASS.name]),
        step=True,
    )
    marked = alt.FieldOneOfPredicate(field=c.SHARE.name, oneOf=[0.5, 0.95, 0.99])
    points = curves.mark_point(size=45).transform_filter(marked)
    title = "Lengths, with the quantiles 0.5, 0.95 and 0.99 as points"
    return _side_by_side([curves, points], frame, c.LENGTH, title=title, header=_LENGTHS)


def lengths_together(trace: pd.DataFrame, *, bins: int = 24) -> alt.Chart:
    """Return how often each prompt length meets each output length, as a heat map of counts.

    ``trace`` has the columns ``prompt_tokens`` and ``output_tokens``. Bins are even in logarithms.
    """
    need(trace, "prompt_tokens", "output_tokens", chart="lengths_together")
    frame = checked(
        _joint_counts(trace, bins),
        (c.PROMPT, c.OUTPUT, c.REQUESTS, _END_X, _END_Y),
        chart="lengths_together",
    )
    log = alt.Scale(type="log", nice=False)
    chart: alt.Chart = (
        alt.Chart(frame, title="Prompt and output length of the same request")
        .mark_rect()
        .encode(
            x(c.PROMPT, scale=log),
            x2=f"{_END_X.name}:Q",
            y=y(c.OUTPUT, scale=log),
            y2=f"{_END_Y.name}:Q",
            color=alt.Color(
                f"{c.REQUESTS.name}:Q",
                title=c.REQUESTS.title,
                scale=alt.Scale(scheme="cividis", type="log", reverse=True),
            ),
            tooltip=tooltip((c.PROMPT, c.OUTPUT, c.REQUESTS)),
        )
    )
    return chart


def fits_beside_data(frame: pd.DataFrame) -> alt.FacetChart:
    """Return distributions of gaps and lengths beside the laws fitted to them.

    ``frame`` has the columns ``quantity``, ``source``, ``value``, ``share_fraction``; a row is a
    quantile.
    """
    shown = (_QUANTITY, _SOURCE, _VALUE, c.SHARE)
    frame = checked(frame, shown, chart="fits_beside_data")
    curves = lines(
        frame,
        x(
            _VALUE,
            title=None,
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(tickCount=4, labelOverlap="greedy", format="~g"),
        ),
        y(Column(c.SHARE.name, "", "share not above"), axis=alt.Axis(format="%")),
        _SOURCE,
        shown=shown,
    )
    title = "Data, and the law that comes closest"
    return _side_by_side([curves.mark_line()], frame, _QUANTITY, title=title)


def time_above(frame: pd.DataFrame) -> alt.Chart:
    """Return for each number in flight the share of time with more, one line per class.

    Numbers that are never exceeded have no place on the logarithmic axis and are left out.

    ``frame`` has the columns ``in_flight``, ``share_of_time_fraction``, ``request_class``.
    """
    shown = (_IN_FLIGHT, _TIME_ABOVE, c.CLASS)
    frame = checked(frame, shown, chart="time_above")
    frame = frame[frame[_TIME_ABOVE.name] > 0]
    up = y(_TIME_ABOVE, scale=alt.Scale(type="log"), axis=alt.Axis(format="~%"))
    title = "How rare a peak is"
    return lines(frame, x(_IN_FLIGHT), up, c.CLASS, shown=shown, step=True, title=title)


def requests_by_tenant(trace: pd.DataFrame) -> alt.Chart:
    """Return the number of requests of each tenant, a stacked bar of its classes.

    Beyond twenty tenants, the smaller ones stand together in the last bar. ``trace`` has the
    columns ``tenant`` and ``request_class``.
    """
    need(trace, "tenant", "request_class", chart="requests_by_tenant")
    largest = trace["tenant"].value_counts().index
    few = set(largest[:MOST_TENANTS])
    others = f"{len(largest) - len(few)} others"
    tenant = trace["tenant"].where(trace["tenant"].isin(few), others).rename("tenant")
    counted = trace.groupby([tenant, "request_class"], observed=True).size()
    frame = checked(
        counted.rename("requests").reset_index(),
        (c.TENANT, c.CLASS, c.REQUESTS),
        chart="requests_by_tenant",
    )
    chart: alt.Chart = (
        alt.Chart(frame, title="Requests by tenant", height=alt.Step(24))
        .mark_bar()
        .encode(
            x(c.REQUESTS, stack="zero"),
            rows(c.TENANT, sort=[*map(str, largest[:MOST_TENANTS]), others]),
            colour(c.CLASS, ordered(trace[c.CLASS.name])),
            tooltip=tooltip((c.TENANT, c.CLASS, c.REQUESTS)),
        )
    )
    return chart


_QUANTITY = Column("quantity", "", "quantity", "str")
_SOURCE = Column("source", "", "source", "str")
_VALUE = Column("value", "", "value")
_IN_FLIGHT = Column("in_flight", "", "requests in flight", "int")
_TIME_ABOVE = Column("share_of_time_fraction", "", "share of time with more in flight")
_END_X = Column("prompt_tokens_to", "tokens", "prompt length, upper end", "int")
_END_Y = Column("output_tokens_to", "tokens", "output length, upper end", "int")
_LENGTHS = alt.Header(labelExpr="datum.value + ' length'")


def _side_by_side(
    layers: list[alt.Chart], frame: pd.DataFrame, by: Column, *, title: str, **options: Any
) -> alt.FacetChart:
    """Return a small chart for each value of a column, beside each other, each with its scale."""
    values = list(ordered(frame[by.name]))
    width = WIDTH // len(values) - 25
    column = alt.Column(f"{by.name}:N", title=None, sort=values, **options)
    chart: alt.FacetChart = (
        alt.layer(*layers, data=frame)
        .properties(width=width, height=HEIGHT)
        .facet(column=column, title=title)
        .resolve_scale(x="independent")
    )
    return chart


def _span(trace: pd.DataFrame) -> float:
    return float(trace["arrival_s"].max() - trace["arrival_s"].min())


def _rates(trace: pd.DataFrame, window_s: float) -> pd.DataFrame:
    """Return requests/s by window; a last window that was watched for less than half is left out.

    A longer last one counts for the time it was watched.
    """
    bins = (trace["arrival_s"] // window_s).astype("int64")
    first, last = int(bins.min()), int(bins.max())
    watched = min(1.0, float(trace["arrival_s"].max()) / window_s - last)
    if watched < LEAST_OF_A_WINDOW and last > first:
        last -= 1
        watched = 1.0
    counts = pd.crosstab(bins, trace["request_class"])
    counts = counts.reindex(range(first, last + 1), fill_value=0)
    seconds = np.where(counts.index == last, max(watched, LEAST_OF_A_WINDOW), 1.0) * window_s
    counts.index.name = "bin"
    rates = counts.div(seconds, axis=0)
    rates.loc[last + seconds[-1] / window_s] = rates.iloc[-1]  # where the last step ends
    rates = rates.reset_index().melt("bin", var_name=c.CLASS.name, value_name="rate")
    return pd.DataFrame(
        {
            c.TIME.name: rates["bin"] * window_s,
            c.RATE.name: rates["rate"],
            c.CLASS.name: rates[c.CLASS.name].astype(str),
        }
    )


def _length_quantiles(trace: pd.DataFrame) -> pd.DataFrame:
    parts = [
        pd.DataFrame(
            {
                c.TOKENS.name: np.quantile(group[f"{length}_tokens"], _QUANTILE_STEPS),
                c.SHARE.name: _QUANTILE_STEPS.round(6),
                c.CLASS.name: str(name),
                c.LENGTH.name: length,
            }
        )
        for name, group in trace.groupby("request_class", sort=False, observed=True)
        for length in ("prompt", "output")
    ]
    frame = pd.concat(parts, ignore_index=True)
    return frame[frame[c.TOKENS.name] > 0]


def _joint_counts(trace: pd.DataFrame, bins: int) -> pd.DataFrame:
    edges = [_log_edges(trace[column], bins) for column in ("prompt_tokens", "output_tokens")]
    counts, *_ = np.histogram2d(trace["prompt_tokens"], trace["output_tokens"], bins=edges)
    i, j = np.nonzero(counts)
    return pd.DataFrame(
        {
            c.PROMPT.name: edges[0][i],
            _END_X.name: edges[0][i + 1],
            c.OUTPUT.name: edges[1][j],
            _END_Y.name: edges[1][j + 1],
            c.REQUESTS.name: counts[i, j].astype(int),
        }
    )


def _log_edges(values: pd.Series, bins: int) -> np.ndarray:
    low, high = max(1.0, float(values.min())), float(values.max()) + 1
    return np.geomspace(low, high, bins + 1)
