"""How many replicas: goodput share by N, with some lost, beside the closed forms."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import (
    checked,
    colour,
    dash,
    layered,
    ordered,
    rule_x,
    rule_y,
    tooltip,
    x,
    y,
)
from capplan.charts.theme import BLACK, GREY


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
    frame = frame.assign(**{c.LOST.name: frame[c.LOST.name].astype(str)})
    lost = ordered(frame[c.LOST.name])
    base = alt.Chart(frame, title="Requests with every promise kept, by replicas")
    whole = alt.Axis(format="d", tickMinStep=1)
    band = base.mark_area(opacity=0.2).encode(
        x(c.REPLICAS, axis=whole),
        alt.Y(f"{c.LOW.name}:Q"),
        alt.Y2(c.HIGH.name),
        colour(c.LOST, lost, lines=True),
    )
    lines = base.mark_line(point=True).encode(
        x(c.REPLICAS, axis=whole, scale=alt.Scale(zero=False, padding=16)),
        y(c.GOOD_SHARE, axis=alt.Axis(format="~%"), scale=alt.Scale(zero=False, padding=12)),
        colour(c.LOST, lost, lines=True),
        dash(c.LOST, lost),
        tooltip=tooltip(shown),
    )
    layers = [band, lines]
    if promise_fraction is not None:
        layers.append(rule_y(promise_fraction, f"promised {100 * promise_fraction:.4g} %"))
    ours = {} if chosen is None else {"simulated": chosen}
    for replicas, label in _told_once({**ours, **(rules or {})}).items():
        layers.append(rule_x(replicas, label, colour_of=BLACK if replicas == chosen else GREY))
    return layered(*layers)


def _told_once(rules: Mapping[str, float]) -> dict[float, str]:
    """Return one label per number of replicas, however many rules arrive at it."""
    labels: dict[float, str] = {}
    for name, replicas in rules.items():
        labels[replicas] = f"{labels[replicas]}, {name}" if replicas in labels else name
    return labels
