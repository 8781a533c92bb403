"""What more load or more replicas do: throughput and goodput, the tail, how requests end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import (
    band,
    checked,
    layered,
    lines,
    need,
    own_colour,
    rule_x,
    rule_y,
    seconds,
    tooltip,
    x,
    y,
)
from capplan.charts.theme import BLACK, GREY, OUTCOME_COLOURS, WIDTH
from capplan.schema import OUTCOMES, Column, DataError

STEPS = np.concatenate([np.linspace(0, 0.98, 50), np.linspace(0.981, 1, 20)])
"""Shares at which a distribution is drawn: closer in the tail."""


def flows_by_load(frame: pd.DataFrame, *, marked: float | None = None) -> alt.LayerChart:
    """Return throughput and goodput over the offered load, with interval bands.

    ``frame`` has the columns ``load_rps``, ``figure``, ``flow_rps``, ``low``, ``high`` (NaN = no
    interval). The grey diagonal is what was offered; ``marked`` is a load to point out.
    """
    shown = (c.LOAD, c.FIGURE, c.FLOW, c.LOW, c.HIGH)
    frame = checked(frame, shown, chart="flows_by_load")
    title = "What is offered, what is answered, what is worth it"
    up = y(c.FLOW, scale=alt.Scale(zero=True))
    curves = lines(frame, x(c.LOAD), up, c.FIGURE, shown=shown, title=title)
    ends = frame[c.LOAD.name].agg(["min", "max"]).to_numpy()
    diagonal = (
        alt.Chart(pd.DataFrame({c.LOAD.name: ends, c.FLOW.name: ends}))
        .mark_line(color="#A0A0A0", strokeWidth=1, strokeDash=[2, 3])
        .encode(x(c.LOAD), y(c.FLOW))
    )
    rules = [] if marked is None else [rule_x(marked, f"{marked:.3g} requests/s")]
    return layered(diagonal, band(frame, x(c.LOAD), c.FIGURE), curves, *rules)


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
    unbounded = frame[np.isinf(frame[c.LATENCY.name])]
    finite = frame.replace([np.inf, -np.inf], np.nan)
    bounded = finite.dropna(subset=[c.LATENCY.name, c.LOW.name, c.HIGH.name])
    up = y(c.LATENCY, scale=alt.Scale(type="log"), title=f"{latency} (s)")
    curves = lines(finite, x(c.LOAD), up, c.CLASS, shown=shown, title=latency)
    layers: list[Any] = [band(bounded, x(c.LOAD), c.CLASS), curves]
    if not unbounded.empty:
        edge = alt.Chart(unbounded).mark_point(shape="triangle-up", size=90)
        layers.append(edge.encode(x(c.LOAD), y=alt.value(4), color=curves.encoding.color))
    for name, bound_s in (promises or {}).items():
        layers.append(rule_y(bound_s, f"{name}: promised {seconds(bound_s)}"))
    return layered(*layers)


def outcomes_by_load(frame: pd.DataFrame) -> alt.Chart:
    """Return the share of each outcome over the offered load, as stacked bars.

    ``frame`` has the columns ``load_rps``, ``outcome``, ``share_fraction``; DataError if the shares
    of a load add up to more than 1.
    """
    shown = (c.LOAD, c.OUTCOME, c.SHARE)
    frame = checked(frame, shown, chart="outcomes_by_load")
    whole = frame.groupby(c.LOAD.name)[c.SHARE.name].sum().max()
    if whole > 1 + 1e-6:
        rule = "shares of each load that add up to at most 1"
        raise DataError(rule, where="frame of outcomes_by_load", field=c.SHARE.name, value=whole)
    frame = frame.assign(order=frame[c.OUTCOME.name].map(OUTCOMES.index))
    chart: alt.Chart = (
        alt.Chart(frame, title="How requests end", width=WIDTH)
        .mark_bar()
        .encode(
            x(c.LOAD, "O", axis=alt.Axis(format=".3~g", labelAngle=0)),
            y(c.SHARE, stack="zero", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            own_colour(c.OUTCOME, frame, OUTCOME_COLOURS),
            alt.Order("order:Q"),
            tooltip=tooltip(shown),
        )
    )
    return chart


def latency_distribution(
    requests: pd.DataFrame, *, latency: str, promise_s: float | None = None
) -> alt.LayerChart:
    """Return the share of requests answered within a time, one line per length bucket.

    ``requests`` has one row per request: ``latency_s`` (+inf for a failure) and
    ``length_bucket``. A line that ends below 100 % has lost the rest.
    """
    need(requests, "latency_s", "length_bucket", chart="latency_distribution")
    within = Column("within_s", "s", latency)
    share = Column(c.SHARE.name, "", "share of requests answered within")
    shown = (within, share, c.BUCKET)
    frame = checked(_answered(requests), shown, chart="latency_distribution")
    curves = lines(
        frame,
        x(within, scale=alt.Scale(type="log")),
        y(share, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        c.BUCKET,
        shown=shown,
        step=True,
        title=f"{latency}, a failure never answered",
    )
    if promise_s is None:
        return layered(curves)
    return layered(curves, rule_x(promise_s, f"promised {seconds(promise_s)}"))


def goodput_by_replicas(
    frame: pd.DataFrame,
    *,
    promise_fraction: float | None = None,
    rules: Mapping[str, float] | None = None,
    chosen: int | None = None,
) -> alt.LayerChart:
    """Return the share of requests with every promise kept over N, one line per number lost.

    ``frame`` has the columns ``replicas``, ``lost``, ``goodput_fraction``, ``low``, ``high``.
    ``rules`` are other answers to "how many" (Erlang C, peak × 1.2), ``chosen`` ours.
    """
    shown = (c.REPLICAS, c.LOST, c.GOOD_SHARE, c.LOW, c.HIGH)
    frame = checked(frame, shown, chart="goodput_by_replicas")
    whole = alt.Axis(format="d", tickMinStep=1)
    curves = lines(
        frame,
        x(c.REPLICAS, axis=whole, scale=alt.Scale(zero=False, padding=16)),
        y(c.GOOD_SHARE, axis=alt.Axis(format="~%"), scale=alt.Scale(zero=False, padding=12)),
        c.LOST,
        shown=shown,
        title="Requests with every promise kept, by replicas",
    )
    layers: list[Any] = [band(frame, x(c.REPLICAS, axis=whole), c.LOST), curves]
    if promise_fraction is not None:
        layers.append(rule_y(promise_fraction, f"promised {100 * promise_fraction:.4g} %"))
    labels: dict[float, list[str]] = {} if chosen is None else {chosen: ["simulated"]}
    for name, replicas in (rules or {}).items():
        labels.setdefault(replicas, []).append(name)
    for replicas, found in labels.items():
        colour_of = BLACK if replicas == chosen else GREY
        layers.append(rule_x(replicas, ", ".join(found), colour_of=colour_of))
    return layered(*layers)


def _answered(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the distribution of each bucket at even shares, as far as there are answers."""
    parts = [pd.DataFrame(columns=["within_s", c.SHARE.name, c.BUCKET.name])]
    for bucket, group in requests.groupby(c.BUCKET.name, sort=True, observed=True):
        known = np.sort(group["latency_s"].dropna().to_numpy())
        if not len(known):
            continue
        rank = np.unique(np.ceil(STEPS * len(known)).astype(int).clip(1, len(known)))
        values = known[rank - 1]
        frame = pd.DataFrame({"within_s": values, c.SHARE.name: rank / len(known)})
        answered = np.isfinite(values) & (values > 0)
        parts.append(frame[answered].assign(**{c.BUCKET.name: str(bucket)}))
    return pd.concat(parts[1:] or parts, ignore_index=True)
