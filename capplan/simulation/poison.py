"""Requests on which an engine fails, whoever runs beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.engine import Engine
from capplan.replica.job import Job
from capplan.replica.multi_model import ResidentEngine
from capplan.simulation.attempt import Attempt

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool

POISONED, BESIDE = "poisoned", "poisoned_batch"
"""Reasons of the request that an engine fails on, and of those that fail with it."""


def poisoned_rows(
    scenario: Scenario, frame: pd.DataFrame, rng: np.random.Generator
) -> frozenset[int]:
    """Return the rows of a trace that are poisoned: of each class its ``poisoned_fraction``."""
    shares = {c.name: c.poisoned_fraction for c in scenario.classes}
    if not any(shares.values()):
        return frozenset()
    default = scenario.request_class().name
    names = frame["request_class"].tolist() if "request_class" in frame else [default] * len(frame)
    drawn = rng.random(len(frame)).tolist()
    own = (shares.get(name, shares[default]) for name in names)  # a missing name is the default's
    return frozenset(row for row, share in enumerate(own) if drawn[row] < share)


def poison_of(pool: Pool, scenario: Scenario, rows: frozenset[int]) -> Poison | None:
    """Return what fails the steps of a pool; None where no poisoned request can come to it."""
    own = {c.name for c in scenario.classes if scenario.pool_of(c.name).name == pool.name}
    comes = [c for c in scenario.classes if c.name in own or scenario.breakers]
    if not any(c.poisoned_fraction for c in comes):
        return None
    return Poison(rows, together=pool.batching.poison == "batch")


class Poison:
    """Fails the step (or batch) in which a poisoned request is computed first.

    What the step made for those who fail is lost: it counts as wasted. ``together``: all that
    run then fail, and the replica goes on with those that wait.
    """

    def __init__(self, rows: frozenset[int], *, together: bool) -> None:
        self._rows = rows
        self._together = together

    def end(self, engine: Engine, now_s: float) -> list[Job]:
        """End the step of an engine; return the jobs that leave, those that failed included.

        Who failed has its ``reason`` and no ``decode_end_s``.
        """
        held = engine.in_step if isinstance(engine, ResidentEngine) else engine.running
        running = [job for job in held if isinstance(job, Attempt)]
        left = engine.end(now_s)
        struck = [a for a in running if a.request.row in self._rows]
        if not struck:
            return left
        gone = set(map(id, left))
        for attempt in running if self._together else struck:
            self._fail(attempt, now_s)
            if id(attempt) not in gone:
                left.append(attempt)
                engine.abort(attempt)
        if isinstance(engine, ContinuousEngine):
            engine.let_go()
        return left

    def _fail(self, attempt: Attempt, now_s: float) -> None:
        if attempt.outcome == "in_flight":
            attempt.reason = POISONED if attempt.request.row in self._rows else BESIDE
        attempt.decode_end_s = math.nan
        if attempt.prefill_end_s >= now_s:
            attempt.prefill_end_s = math.nan
