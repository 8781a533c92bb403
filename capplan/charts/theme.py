"""One look for every chart: readable by the colour-blind, and in grey print.

Colours are those of Okabe and Ito, which stay apart for the common kinds of colour blindness.
Source: Okabe, Ito, "Color Universal Design", 2008; Wong, "Points of view: Color blindness",
Nature Methods 8, 2011, p. 441. Because grey print loses hues, lines also differ in dash and points
in shape (:data:`DASHES`, :data:`SHAPES`).
"""

from __future__ import annotations

import altair as alt

from capplan import chart_renderer

BLACK = "#000000"
ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#8C8C8C"
LIGHT_GREY = "#D9D9D9"

CATEGORIES = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, VERMILLION, BLACK, GREY)
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [10, 3], [1, 3], [12, 2, 2, 2, 2, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")

OUTCOME_COLOURS = {
    "succeeded": SKY_BLUE,
    "rejected": YELLOW,
    "timed_out": VERMILLION,
    "cancelled": PURPLE,
    "failed": BLACK,
    "in_flight": GREY,
}

LAYER_COLOURS = {
    "network": LIGHT_GREY,
    "gateway": GREY,
    "gateway_queue": ORANGE,
    "service_queue": VERMILLION,
    "scheduler_queue": PURPLE,
    "batch_window": YELLOW,
    "prefill": SKY_BLUE,
    "decode": BLUE,
    "over": BLACK,
}
"""Work is grey and blue, waiting is warm: a bar's warm part is what a budget can change."""

WIDTH, HEIGHT = 620, 240
"""Size of a chart's plot area, px: with axis and legend it fits a page of A4."""


@alt.theme.register("capplan", enable=False)
def capplan_theme() -> alt.theme.ThemeConfig:
    """Return the Vega-Lite configuration every chart is drawn with."""
    return {
        "config": {
            "background": "white",
            "font": "DejaVu Sans, Verdana, sans-serif",
            "view": {"continuousWidth": WIDTH, "continuousHeight": HEIGHT, "stroke": LIGHT_GREY},
            "title": {"anchor": "start", "fontSize": 13, "fontWeight": 600, "offset": 10},
            "axis": {
                "labelFontSize": 11,
                "titleFontSize": 11,
                "titleFontWeight": 400,
                "gridColor": "#EBEBEB",
                "domainColor": "#5A5A5A",
                "tickColor": "#5A5A5A",
                "labelSeparation": 6,
            },
            "legend": {
                "labelLimit": 260,
                "labelFontSize": 11,
                "titleFontSize": 11,
                "titleFontWeight": 400,
            },
            "header": {"labelFontSize": 11, "titleFontSize": 11, "labelFontWeight": 600},
            "line": {"strokeWidth": 2},
            "point": {"filled": True, "size": 55},
            "bar": {"stroke": "white", "strokeWidth": 0.6},
            "range": {"category": list(CATEGORIES), "symbol": list(SHAPES)},
        }
    }


def use_theme() -> None:
    """Draw every chart of this process with the theme, as SVG in the page itself.

    The renderer needs no network, in JupyterLab, in a report and in print.
    """
    alt.theme.enable("capplan")
    chart_renderer.enable()
