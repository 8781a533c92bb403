"""Breakers in a run: every opening and closing, for how long, and the actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.formatting import format_value
from capplan.scenario.breaker_rules import placements

if TYPE_CHECKING:
    from capplan.results.run import RunResult

LAYER = "breakers"
"""Layer of the timeline's rows about breakers; their ``replica`` is ``rule@pool``."""
OPEN, VALUE = "breaker_open", "breaker_value"
"""Metrics: 1 while a rule is open, else 0; and the value that opened or closed it."""
EVENTS = ("time_s", "rule", "pool", "owner", "event", "value", "actions")


def rule_at(rule: str, pool: str) -> str:
    """Return the name of a rule in a pool in the timeline."""
    return f"{rule}@{pool}"


def transitions(result: RunResult) -> pd.DataFrame:
    """Return every opening and closing, in order: columns ``EVENTS``.

    ``event`` is ``open`` or ``close``, ``value`` the value that the rule had read, ``actions`` the
    kinds of its actions, in one text.
    """
    rows = result.timeline[result.timeline["layer"] == LAYER]
    values = rows[rows["metric"] == VALUE]
    states = rows[(rows["metric"] == OPEN) & (rows["time_s"] > 0)]
    known = {breaker.name: breaker for breaker in result.scenario.breakers}
    names = [name.rpartition("@") for name in states["replica"]]
    found = pd.DataFrame(
        {
            "time_s": states["time_s"].to_numpy(np.float64),
            "rule": [rule for rule, _, _ in names],
            "pool": [pool for _, _, pool in names],
            "owner": [known[rule].owner for rule, _, _ in names],
            "event": ["open" if value else "close" for value in states["value"]],
            "value": values["value"].to_numpy(np.float64),
            "actions": [", ".join(a.kind for a in known[rule].then) for rule, _, _ in names],
        }
    )
    return found.sort_values("time_s", kind="stable", ignore_index=True)[list(EVENTS)]


def open_spans(result: RunResult) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return the spans in which each rule was open, by rule and pool; the last may end the run."""
    rows = result.timeline
    rows = rows[(rows["layer"] == LAYER) & (rows["metric"] == OPEN)]
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, own in rows.groupby("replica", sort=False, observed=True):
        rule, _, pool = str(name).rpartition("@")
        times = [*own["time_s"], result.duration_s]
        spans[rule, pool] = [
            (start, end)
            for start, end, value in zip(times, times[1:], own["value"], strict=False)
            if value
        ]
    return spans


def breaker_figures(result: RunResult) -> list[dict[str, Any]]:
    """Return for each rule in each pool how often and for how long it was open.

    A rule that cannot act in any pool has one entry, without a pool and with the reason.
    """
    figures = [
        {
            "rule": rule,
            "pool": pool,
            "opened": len(spans),
            "open_s": sum((end - start for start, end in spans), 0.0),
            "first_open_s": spans[0][0] if spans else np.nan,
            "impossible": None,
        }
        for (rule, pool), spans in open_spans(result).items()
    ]
    placed = {figure["rule"] for figure in figures}
    nowhere = {
        breaker.name: why
        for breaker, _, why in placements(result.scenario.breakers, result.scenario.pools)
        if breaker.name not in placed
    }
    idle = {"pool": None, "opened": 0, "open_s": 0.0, "first_open_s": np.nan}
    return figures + [{"rule": name, **idle, "impossible": why} for name, why in nowhere.items()]


def breaker_table(result: RunResult) -> pd.DataFrame:
    """Return each rule in each pool: how often, for how long, and when first it was open."""
    rows = []
    for figure in breaker_figures(result):
        first = format_value(figure["first_open_s"], "_s") if figure["opened"] else "never"
        pool = f"none: {figure['impossible']}" if figure["impossible"] else figure["pool"]
        rows.append((figure["rule"], pool, figure["opened"], figure["open_s"], first))
    return pd.DataFrame(rows, columns=["breaker", "pool", "opened", "open_s", "first open"])
