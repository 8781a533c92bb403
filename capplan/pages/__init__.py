"""What the notebooks are thin pages of: opening a study, frames for its charts, words for figures.

Everything here returns values; only :meth:`Page.leave` writes, through :mod:`capplan.evidence`.
"""

from capplan.pages import (
    acceptance,
    batching,
    buckets,
    budget,
    conclusion,
    fidelity,
    fits,
    goals,
    pools,
    ramp,
    recomputed,
    sizing,
    traffic,
)
from capplan.pages.page import Page, open_page
from capplan.pages.reader import has_reader
from capplan.pages.telling import drawn, listed, show, table, told
from capplan.wording import counted, in_layer, rule_words

__all__ = [
    "Page",
    "acceptance",
    "batching",
    "buckets",
    "budget",
    "conclusion",
    "counted",
    "drawn",
    "fidelity",
    "fits",
    "goals",
    "has_reader",
    "in_layer",
    "listed",
    "open_page",
    "pools",
    "ramp",
    "recomputed",
    "rule_words",
    "show",
    "sizing",
    "table",
    "told",
    "traffic",
]
