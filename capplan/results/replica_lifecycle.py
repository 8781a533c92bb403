"""The lifecycle of replicas that an autoscaler adds and removes: asked for, ready, gone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.schema import PHASES

if TYPE_CHECKING:
    from capplan.results.run import RunResult

ALIVE = ("asked", "provisioning", "pulling", "loading", "up")
"""Phases of a replica that count towards the number wanted."""
TIMES = ("asked", "provisioning", "ready", "draining", "gone")
COLUMNS = [
    "pool",
    "replica",
    "warm",
    *(f"{moment}_s" for moment in TIMES),
    "first_answer_s",
    "refused",
]


def lifecycle_table(result: RunResult) -> pd.DataFrame:
    """Return one row per replica of the elastic pools; empty without any.

    Columns: ``pool``, ``replica``, ``warm`` (from standby), ``asked_s``, ``provisioning_s`` (it
    has an accelerator), ``ready_s``, ``draining_s``, ``gone_s``, ``first_answer_s`` (end of its
    first answer) and ``refused`` (no accelerator was free at ``asked_s``). A moment not reached is
    NaN, and so is ``asked_s`` of a replica that is up from the beginning.
    """
    first = _first_answers(result)
    rows = [_row(*one) for one in _phases(result)]
    table = pd.DataFrame(rows, columns=[c for c in COLUMNS if c != "first_answer_s"])
    table["first_answer_s"] = [first.get(str(name), math.nan) for name in table["replica"]]
    return table[COLUMNS]


def lead_times(result: RunResult, *, pool: str | None = None) -> pd.DataFrame:
    """Return the time to add each replica that became ready: one row each.

    Columns: ``pool``, ``replica``, ``warm``, ``ready_s`` (from the request to service) and
    ``first_answer_s`` (from the request to the end of its first answer; NaN without one).
    """
    table = lifecycle_table(result)
    came = table["asked_s"].notna() & table["ready_s"].notna()
    if pool is not None:
        came &= table["pool"] == pool
    leads = table.loc[came, ["pool", "replica", "warm"]].reset_index(drop=True)
    for column in ("ready_s", "first_answer_s"):
        leads[column] = (table[column] - table["asked_s"])[came].to_numpy(np.float64)
    return leads


def wanted_changes(result: RunResult, pool: str) -> list[tuple[float, int]]:
    """Return the changes of the wanted number of replicas of a pool, as (time, change)."""
    changes: dict[float, int] = {}
    for name, times, phases in _phases(result):
        if name.rpartition("-")[0] != pool:
            continue
        counted = phases[0] == "up"  # from the beginning
        for time_s, phase in zip(times, phases, strict=True):
            counts = phase in ALIVE
            if counts != counted:
                changes[time_s] = changes.get(time_s, 0) + (1 if counts else -1)
            counted = counts
    return [(time_s, change) for time_s, change in sorted(changes.items()) if change]


def _phases(result: RunResult) -> Iterator[tuple[str, list[float], list[str]]]:
    """Yield the name, the times and the phases of each replica of an elastic pool."""
    rows = result.timeline
    rows = rows[rows["metric"] == "phase"]
    for name, own in rows.groupby("replica", sort=False, observed=True):
        phases = [PHASES[int(value)] for value in own["value"]]
        yield str(name), own["time_s"].to_list(), phases


def _first_answers(result: RunResult) -> Mapping[str, float]:
    log = result.requests
    ended = log.loc[log["outcome"] == "succeeded"].groupby("replica", observed=True)
    first = ended["finish_s"].min()
    return {str(name): float(value) for name, value in first.items()}


def _row(name: str, times: Sequence[float], phases: Sequence[str]) -> dict[str, Any]:
    """Return one replica's row from its phases."""
    at = list(zip(times, phases, strict=True))

    def when(*wanted: str) -> float:
        return next((time_s for time_s, phase in at if phase in wanted), math.nan)

    ready = when("up")
    warm = phases[0] == "standby"
    asked, given = when("asked"), when("provisioning")
    if warm:  # its last load before it was ready
        started = [t for t, phase in at if phase == "loading" and not t > ready]
        asked = given = started[-1] if started else math.nan
    return {
        "pool": name.rpartition("-")[0],
        "replica": name,
        "warm": warm,
        "asked_s": asked,
        "provisioning_s": given,
        "ready_s": ready,
        "draining_s": when("draining"),
        "gone_s": when("gone"),
        "refused": not warm and not math.isnan(asked) and given != asked,
    }
