"""What one run leaves behind: its request log and its timelines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pandas as pd

from capplan.scenario import Scenario
from capplan.schema import REQUESTS, TIMELINE, names, require_columns


class DrawnTrace(Protocol):
    """The drawn trace a run was given; in practice a ``capplan.traffic.trace.Trace``."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per intended request, columns ``schema.TRACE``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunResult:
    """One run of a scenario on a drawn trace, simulated or live.

    ``requests`` has one row per attempt with the columns ``schema.REQUESTS``, ``timeline`` one
    row per observation with the columns ``schema.TIMELINE``; ``duration_s`` is the moment the run
    ended. Times count from the start of the run, a moment not reached is NaN. ``wall_s`` is the
    computing time, which is never part of what two equal runs must share.

    A metric of the timeline keeps its value until its next row. The names that figures are
    computed from: ``length`` (waiting in a queue layer), ``in_flight`` (requests a layer or
    replica holds), ``busy_fraction`` and ``kv_usage_fraction`` (of a replica), ``replicas`` (of a
    pool, in service).
    """

    scenario: Scenario
    trace: DrawnTrace
    requests: pd.DataFrame
    timeline: pd.DataFrame
    seed: int = 0
    replication: int = 0
    duration_s: float
    backend: str = "simulated"
    wall_s: float = math.nan
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of what produced the run: the package, and of a live server what it tells."""

    def __post_init__(self) -> None:
        require_columns(self.requests, names(REQUESTS), where="requests")
        require_columns(self.timeline, names(TIMELINE), where="timeline")

    @property
    def judged_from_s(self) -> float:
        """Return when the warm-up ends: requests that start earlier are not judged, s."""
        return self.scenario.warmup_s

    @property
    def judged(self) -> pd.DataFrame:
        """Return the attempts of the requests whose first intended start is past the warm-up."""
        if self.judged_from_s <= 0:
            return self.requests
        first = self.requests.groupby("request_id", sort=False, observed=True)["intended_start_s"]
        return self.requests[first.transform("min") >= self.judged_from_s]
