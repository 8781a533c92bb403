"""What the notebooks share: opening a study, drawing where there is data, words for figures.

Everything here returns values; only :meth:`Page.leave` writes, through :mod:`capplan.evidence`.
"""

from capplan.display import table
from capplan.formatting import counted, format_value, in_layer, listed, rule_words
from capplan.pages.conclusion import conclude
from capplan.pages.page import Page, acting_charts, drawn, has_reader, open_page, show

__all__ = [
    "Page",
    "acting_charts",
    "conclude",
    "counted",
    "drawn",
    "format_value",
    "has_reader",
    "in_layer",
    "listed",
    "open_page",
    "rule_words",
    "show",
    "table",
]
