"""The lives of replicas that come and go: when each was asked for, ready, and gone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.results.run import RunResult
from capplan.schema import PHASES

Floats = npt.NDArray[np.float64]

TIMES = ("asked", "provisioning", "ready", "draining", "gone")
COLUMNS = [
    "pool",
    "replica",
    "warm",
    *(f"{moment}_s" for moment in TIMES),
    "first_answer_s",
    "refused",
]


def lives(result: RunResult) -> pd.DataFrame:
    """Return one row per replica of the pools whose replicas come and go; empty without any.

    Columns: ``pool``, ``replica``, ``warm`` (came from standby), ``asked_s`` (for replicas that
    are there from the beginning NaN, as every moment that was not reached), ``provisioning_s``
    (when there was an accelerator), ``ready_s``, ``draining_s``, ``gone_s``, ``first_answer_s``
    (end of the first answer made there) and ``refused`` (no accelerator was left when it was
    asked for).
    """
    rows = result.timeline
    rows = rows[rows["metric"] == "phase"]
    first = _first_answers(result)
    told = [
        _life(str(name), own["time_s"].to_numpy(np.float64), own["value"].to_numpy(np.float64))
        for name, own in rows.groupby("replica", sort=False, observed=True)
    ]
    table = pd.DataFrame(told, columns=[c for c in COLUMNS if c != "first_answer_s"])
    table["first_answer_s"] = [first.get(str(name), math.nan) for name in table["replica"]]
    return table[COLUMNS]


def lead_times(result: RunResult, *, pool: str | None = None) -> pd.DataFrame:
    """Return how long it took to add each replica that became ready: one row each.

    Columns: ``pool``, ``replica``, ``warm``, ``ready_s`` (from asking to being in service) and
    ``first_answer_s`` (from asking to the end of its first answer; NaN if it made none).
    """
    table = lives(result)
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
    own = lives(result)
    own = own[own["pool"] == pool]
    for asked, draining, gone in own[["asked_s", "draining_s", "gone_s"]].to_numpy(np.float64):
        left = gone if math.isnan(draining) else draining
        for time_s, change in ((asked, 1), (left, -1)):
            if not math.isnan(time_s):
                changes[time_s] = changes.get(time_s, 0) + change
    return [(time_s, change) for time_s, change in sorted(changes.items()) if change]


def _first_answers(result: RunResult) -> Mapping[str, float]:
    log = result.requests
    ended = log.loc[log["outcome"] == "succeeded"].groupby("replica", observed=True)
    first = ended["finish_s"].min()
    return {str(name): float(value) for name, value in first.items()}


def _life(name: str, times: Floats, values: Floats) -> dict[str, Any]:
    """Return one replica's row from its phases."""
    phases = [PHASES[int(value)] for value in values]

    def when(phase: str, *, after: int = 0) -> float:
        found = [i for i, one in enumerate(phases) if one == phase and i >= after]
        return float(times[found[0]]) if found else math.nan

    warm = phases[0] == "standby"
    asked = when("loading") if warm else when("asked")
    given = asked if warm else when("provisioning")
    return {
        "pool": name.rpartition("-")[0],
        "replica": name,
        "warm": warm,
        "asked_s": asked,
        "provisioning_s": given,
        "ready_s": when("up"),
        "draining_s": when("draining"),
        "gone_s": when("gone"),
        "refused": bool(not warm and not math.isnan(asked) and given != asked),
    }
