"""Showing parts of a page below its cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capplan.results import per_request
from capplan.schema import NoRowsError

if TYPE_CHECKING:
    from capplan.results import RunResult


def show(*parts: Any) -> None:
    """Show charts, tables and computed sentences (texts in Markdown) below the cell, in order."""
    from IPython.display import Markdown, display

    for part in parts:
        display(Markdown(part) if isinstance(part, str) else part)  # type: ignore[no-untyped-call]


def drawn(chart: Callable[..., Any], *frames: Any, **options: Any) -> Any:
    """Return the chart, or a sentence in its place if it has no row to draw."""
    try:
        return chart(*frames, **options)
    except NoRowsError:
        return "Nothing to draw here."


def acting_charts(run: RunResult) -> list[Any]:
    """Return the charts of what acts by itself in a run: breakers, degraded answers, replicas."""
    from capplan import charts

    parts: list[Any] = []
    spans, elastic = run.breaker_spans(), run.elastic_timeline()
    if not spans.empty:
        parts.append(charts.breakers_over_time(spans, end_s=run.duration_s))
    if (run.requests["degraded"] == True).any():  # noqa: E712
        window = max(1.0, round(run.duration_s / 60))
        parts.append(charts.degraded_over_time(per_request(run, warmup=True), window_s=window))
    if not elastic.empty:
        parts.append(charts.replicas_over_time(elastic))
    return parts
