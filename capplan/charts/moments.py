"""The same requests on three time series, linked by brushing inside the chart."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from capplan.charts.parts import checked, own_colour, tooltip, x, y
from capplan.charts.theme import OUTCOME_COLOURS, WIDTH
from capplan.schema import Column

REQUEST = Column("request_id", "", "request", "str")
OUTCOME = Column("outcome", "", "outcome", "str")
MARKED = Column("marked", "", "breaks the promise", "bool")
ENTRY = Column("entry_s", "s", "time of entry")
QUEUED = Column("queued_s", "s", "time in the queues")
SERVED = Column("served_s", "s", "time on the accelerator")
PROMPT = Column("prompt_tokens", "tokens", "prompt length")
WAIT = Column("wait_s", "s", "waited in all queues")
WORK = Column("work_s", "s", "time on the accelerator")
SERIES = (
    ("entry", "Entry", ENTRY, PROMPT),
    ("queues", "Queues", QUEUED, WAIT),
    ("accelerator", "Accelerator", SERVED, WORK),
)
"""The three panels: name of the selection, title, when (across), how much (up)."""
COLUMNS = (REQUEST, OUTCOME, MARKED, ENTRY, QUEUED, SERVED, PROMPT, WAIT, WORK)
PANEL_HEIGHT = 110
FAINT = "#DDDDDD"
SMALL = 0.1
"""Below this a value is drawn in proportion, above it by its logarithm."""
TICKS = (0, *(10.0**power for power in range(-1, 7)))


def same_requests(frame: pd.DataFrame) -> alt.VConcatChart:
    """Return the same requests at their entry, in the queues and on the accelerator.

    ``frame`` has one row per request: ``request_id``, ``outcome``, ``marked`` (a ring around those
    that break a promise), when it entered, was queued and was served (NaN = never), and its prompt
    length, wait and time on the accelerator. Brushing over a stretch of one series leaves its
    requests in colour in all three; the brushes live in the chart, so an exported page needs
    neither kernel nor network.
    """
    frame = checked(frame, COLUMNS, chart="same_requests")
    base = alt.Chart(frame)
    brushes = [alt.selection_interval(name=name, encodings=["x"]) for name, *_ in SERIES]
    outcomes = own_colour(OUTCOME, frame, OUTCOME_COLOURS)
    chosen = brushes[0] & brushes[1] & brushes[2]
    panels = [
        _panel(base, title, across, up, chosen=chosen, brush=brush, outcomes=outcomes)
        for (_, title, across, up), brush in zip(SERIES, brushes, strict=True)
    ]
    chart: alt.VConcatChart = alt.vconcat(*panels, spacing=8).resolve_scale(x="shared")
    return chart


def _panel(
    base: alt.Chart,
    title: str,
    across: Column,
    up: Column,
    *,
    chosen: Any,
    brush: alt.Parameter,
    outcomes: alt.Color,
) -> alt.Chart:
    panel: alt.Chart = (
        base.mark_point(size=22, filled=True, strokeWidth=1.5)
        .encode(
            x(across, title="time from the start (s)", scale=alt.Scale(nice=False)),
            y(
                up,
                scale=alt.Scale(type="symlog", constant=SMALL),
                axis=alt.Axis(minExtent=50, values=TICKS),
            ),
            color=alt.condition(chosen, outcomes, alt.value(FAINT)),
            opacity=alt.condition(chosen, alt.value(0.9), alt.value(0.4)),
            stroke=alt.condition(f"datum.{MARKED.name}", alt.value("black"), alt.value(None)),
            tooltip=tooltip(COLUMNS),
        )
        .add_params(brush)
        .properties(
            title=alt.Title(title, anchor="start", frame="group"),
            width=WIDTH,
            height=PANEL_HEIGHT,
        )
    )
    return panel
