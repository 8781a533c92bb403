"""List prices of accelerators; what a team really pays is a field of the scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capplan.catalog.accelerators import accelerator
from capplan.catalog.tables import rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One price of one accelerator."""

    accelerator: str
    usd_per_hour: float
    kind: str
    """``list`` for a provider's published on-demand price."""
    source: str
    date: str


def prices(name: str) -> tuple[Price, ...]:
    """Return the known prices of an accelerator, the preferred one first; empty if unknown."""
    found = accelerator(name).name
    return tuple(
        Price(
            accelerator=found,
            usd_per_hour=float(row["usd_per_accelerator_hour"]),
            kind=row["kind"],
            source=row["source"],
            date=row["date"],
        )
        for row in rows("prices.csv")
        if row["accelerator"] == found
    )


def price(name: str) -> float:
    """Return the preferred price of an accelerator, USD per accelerator-hour; NaN if unknown.

    >>> price("H100-SXM-80GB") > 0
    True
    """
    known = prices(name)
    return known[0].usd_per_hour if known else math.nan
