"""How latencies are distributed, failures kept in sight."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import (
    checked,
    colour,
    dash,
    layered,
    need,
    ordered,
    rule_x,
    seconds,
    tooltip,
    x,
    y,
)
from capplan.schema import Column

_COLUMNS = ["within_s", c.SHARE.name, c.BUCKET.name]
_STEPS = np.concatenate([np.linspace(0, 0.98, 50), np.linspace(0.981, 1, 20)])


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
    frame = checked(_steps(requests), shown, chart="latency_distribution")
    buckets = ordered(frame[c.BUCKET.name])
    lines = (
        alt.Chart(frame, title=f"{latency}, a failure never answered")
        .mark_line(interpolate="step-after")
        .encode(
            x(within, scale=alt.Scale(type="log")),
            y(share, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            colour(c.BUCKET, buckets, lines=True),
            dash(c.BUCKET, buckets),
            tooltip=tooltip(shown),
        )
    )
    layers: list[Any] = [lines]
    if promise_s is not None:
        layers.append(rule_x(promise_s, f"promised {seconds(promise_s)}"))
    return layered(*layers)


def _steps(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the distribution of each bucket at even shares, as far as there are answers."""
    parts = []
    for bucket, group in requests.groupby(c.BUCKET.name, sort=True, observed=True):
        known = np.sort(group["latency_s"].dropna().to_numpy())
        if not len(known):
            continue
        rank = np.unique(np.ceil(_STEPS * len(known)).astype(int).clip(1, len(known)))
        values = known[rank - 1]
        frame = pd.DataFrame({"within_s": values, c.SHARE.name: rank / len(known)})
        answered = np.isfinite(values) & (values > 0)
        parts.append(frame[answered].assign(**{c.BUCKET.name: str(bucket)}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_COLUMNS)
