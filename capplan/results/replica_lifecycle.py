"""The lives of replicas that come and go: when each was asked for, ready, and gone."""

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
"""Phases of the replicas that count towards the number wanted."""
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
    """Return one row per replica of the pools whose replicas come and go; empty without any.

    Columns: ``pool``, ``replica``, ``warm`` (came from standby), ``asked_s`` (for replicas that
    are there from the beginning NaN, as every moment that was not reached), ``provisioning_s``
    (when there was an accelerator), ``ready_s``, ``draining_s``, ``gone_s``, ``first_answer_s``
    (end of the first answer made there) and ``refused`` (no accelerator was left when it was
    asked for).
    """
    first = _first_answers(result)
    told = [_life(*one) for one in _phases(result)]
    table = pd.DataFrame(told, columns=[c for c in COLUMNS if c != "first_answer_s"])
    table["first_answer_s"] = [first.get(str(name), math.nan) for name in table["replica"]]
    return table[COLUMNS]


def lead_times(result: RunResult, *, pool: str | None = None) -> pd.DataFrame:
    """Return how long it took to add each replica that became ready: one row each.

    Columns: ``pool``, ``replica``, ``warm``, ``ready_s`` (from asking to being in service) and
    ``first_answer_s`` (from asking to the end of its first answer; NaN if it made none).
    """
    table = lifecycle_table(result)
    came = table["asked_s"].notna() & table["ready_s"].notna()
    if pool is not None:
        came &= table["pool"] == pool
    told = table.loc[came, ["pool", "replica", "warm"]].reset_index(drop=True)
    for column in ("ready_s", "first_answer_s"):
        told[column] = (table[column] - table["asked_s"])[came].to_numpy(np.float64)
    return told


def wanted_changes(result: RunResult, pool: str) -> list[tuple[float, int]]:
    """Return when the number of replicas wanted of a pool changed, and by how much, in order."""
    changes: dict[float, int] = {}
    for name, times, phases in _phases(result):
        if name.rpartition("-")[0] != pool:
            continue
        counted = phases[0] == "up"  # there from the beginning
        for time_s, phase in zip(times, phases, strict=True):
            counts = phase in ALIVE
            if counts != counted:
                changes[time_s] = changes.get(time_s, 0) + (1 if counts else -1)
            counted = counts
    return [(time_s, change) for time_s, change in sorted(changes.items()) if change]


def _phases(result: RunResult) -> Iterator[tuple[str, list[float], list[str]]]:
    """Yield each replica that comes or goes: its name, and when it entered which phase."""
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


def _life(name: str, times: Sequence[float], phases: Sequence[str]) -> dict[str, Any]:
    """Return one replica's row from its phases."""
    at = list(zip(times, phases, strict=True))

    def when(*wanted: str) -> float:
        return next((time_s for time_s, phase in at if phase in wanted), math.nan)

    ready = when("up")
    warm = phases[0] == "standby"
    asked, given = when("asked"), when("provisioning")
    if warm:  # asked for the last time before it was ready
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
