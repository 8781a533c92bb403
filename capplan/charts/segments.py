"""Where requests spend their time, layer by layer."""

from __future__ import annotations

import altair as alt
import pandas as pd

from capplan.charts import columns as c
from capplan.charts.parts import checked, legend, rows, tooltip, x
from capplan.charts.theme import LAYER_COLOURS
from capplan.schema import Column

_MEAN = Column("mean_s", "s", "mean time in the layer")


def time_by_layer(frame: pd.DataFrame) -> alt.Chart:
    """Return the mean time in each layer, a stacked bar per class.

    ``frame`` has the columns ``request_class``, ``layer``, ``mean_s``.
    """
    shown = (c.CLASS, c.LAYER, _MEAN)
    frame = checked(frame, shown, chart="time_by_layer")
    layers = [name for name in LAYER_COLOURS if name in set(frame[c.LAYER.name])]
    frame = frame.assign(order=frame[c.LAYER.name].map(list(LAYER_COLOURS).index))
    chart: alt.Chart = (
        alt.Chart(frame, title="Where the time goes", height=alt.Step(34))
        .mark_bar(height={"band": 0.72})
        .encode(
            x(_MEAN, stack="zero"),
            rows(c.CLASS),
            alt.Color(
                f"{c.LAYER.name}:N",
                title=c.LAYER.title,
                legend=legend(c.LAYER),
                scale=alt.Scale(domain=layers, range=[LAYER_COLOURS[name] for name in layers]),
            ),
            alt.Order("order:Q"),
            tooltip=tooltip(shown),
        )
    )
    return chart
