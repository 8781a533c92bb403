"""How a chart becomes part of a page: an SVG that stands alone, its specification beside it.

The SVG is drawn at once by vl-convert, needs neither network nor scripts, and prints. A report
page finds the specification in the same ``<figure>`` and makes the chart interactive with the one
Vega bundle it carries. Altair's own renderers fetch Vega from the network, or repeat it per chart.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

NAME = "capplan"
"""Name of the renderer in ``altair.renderers``."""


def enable() -> None:
    """Make every chart of this process show itself as a figure with SVG and specification."""
    import altair as alt

    alt.renderers.register(NAME, render)
    alt.renderers.enable(NAME)


def render(spec: Mapping[str, Any], **_options: Any) -> dict[str, str]:
    """Return the MIME bundle of a Vega-Lite specification."""
    text = alternative(spec)
    return {"text/html": figure(spec, text), "text/plain": f"[chart: {text}]"}


def figure(spec: Mapping[str, Any], text: str) -> str:
    """Return a ``<figure class="chart">`` that holds the SVG and the specification."""
    data = json.dumps(spec, sort_keys=True, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<figure class="chart" role="img" aria-label="{html.escape(text)}">'
        f'<div class="drawing">{svg(spec)}</div>'
        f'<script type="application/json">{data}</script></figure>'
    )


def svg(spec: Mapping[str, Any]) -> str:
    """Return the chart as SVG whose ids are its own, so that several fit on one page."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    drawn: str = vl_convert.vegalite_to_svg(dict(spec), vl_version=version)
    key = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return _renamed(drawn, key)


def _renamed(drawn: str, key: str) -> str:
    """Return the SVG with its ids numbered from 0 under ``key``: vl-convert never starts again."""
    ids = dict.fromkeys(re.findall(r'\bid="([^"]+)"', drawn))
    number = {old: f"{key}-{n}" for n, old in enumerate(ids)}
    return re.sub(
        r'(\bid="|url\(#|href="#)([^")]+)', lambda m: m[1] + number.get(m[2], m[2]), drawn
    )


def alternative(spec: Mapping[str, Any]) -> str:
    """Return the text that stands for the chart: its description, or its titles.

    >>> alternative({"title": {"text": "Waiting", "subtitle": "p99"}})
    'Waiting; p99'
    """
    parts = list(_parts(spec))
    for words in (_description, _title, _axes):
        for part in parts:
            if text := words(part):
                return text
    return "chart"


def _parts(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the chart and the charts it is made of, outermost first."""
    yield spec
    for key in ("layer", "hconcat", "vconcat", "concat", "spec"):
        inner = spec.get(key, [])
        for part in inner if isinstance(inner, list) else [inner]:
            yield from _parts(part)


def _description(part: Mapping[str, Any]) -> str:
    return str(part.get("description", ""))


def _title(part: Mapping[str, Any]) -> str:
    title = part.get("title")
    lines = [title.get("text"), title.get("subtitle")] if isinstance(title, Mapping) else [title]
    return "; ".join(" ".join(map(str, t)) if isinstance(t, list) else str(t) for t in lines if t)


def _axes(part: Mapping[str, Any]) -> str:
    axes = [part.get("encoding", {}).get(channel, {}) for channel in ("y", "x")]
    return "; ".join(str(text) for axis in axes if (text := axis.get("title") or axis.get("field")))
