"""What drives an engine's steps: one at a time, or as many as are known ahead."""

from __future__ import annotations

import math
from typing import Protocol

from capplan.replica.engine import Batch, Engine
from capplan.replica.job import Job
from capplan.simulation.clock import Clock
from capplan.simulation.poison import Poison


class Steps(Protocol):
    """The steps of one replica, seen from the replica."""

    rank: int
    """Rank of the ends of its steps."""
    end_s: float
    """When :meth:`finish` is due; inf while the replica is free. Coming and going may change it."""

    @property
    def engine(self) -> Batch:
        """Return what the steps are of."""

    @property
    def begun_s(self) -> float:
        """Return the length of all steps begun, s."""

    @property
    def step_end_s(self) -> float:
        """Return when the running step ends, s; inf while the replica is free."""

    def start(self, now_s: float) -> None:
        """Form a step, if there is something to do."""

    def finish(self, *, stops: bool) -> list[Job]:
        """End what ends at ``end_s``; return the jobs that leave.

        It may begin the next step, but if there are any and it ``stops``, it must not: they can
        make room for others, who join that step.
        """

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves when the step ends."""

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were here."""

    def move_end(self, end_s: float) -> None:
        """Let the running step end at another time."""

    def write(self) -> None:
        """Write on the jobs that are here what has happened to them until now."""


class StepByStep:
    """An engine that knows one step at a time. It defines what is right; see :class:`Steps`.

    Attributes
    ----------
    poison
        What fails steps; None = nothing does.
    """

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self.engine = engine
        self.rank = clock.step_rank()
        self.end_s = math.inf
        self.begun_s = 0.0
        self.poison: Poison | None = None
        self._clock = clock

    @property
    def step_end_s(self) -> float:
        """Return when the running step ends, s; inf while the replica is free."""
        return self.end_s

    def start(self, now_s: float) -> None:
        """Form the next step."""
        seconds = self.engine.begin(now_s)
        if seconds is not None:
            self.begun_s += seconds
            self.end_s = now_s + seconds

    def finish(self, *, stops: bool) -> list[Job]:
        """End the step; return the jobs that leave."""
        now_s, self.end_s = self.end_s, math.inf
        if self.poison is not None:
            return self.poison.end(self.engine, now_s)
        return self.engine.end(now_s)

    def abort(self, job: Job) -> bool:
        """Give a job up."""
        return self.engine.abort(job)

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""
        return self.engine.made(job)

    def clear(self) -> list[Job]:
        """Lose everything; the running step ends now."""
        if self.end_s < math.inf:
            self.begun_s -= self.end_s - self._clock.now
        self.end_s = math.inf
        return self.engine.clear()

    def move_end(self, end_s: float) -> None:
        """Let the running step end at another time."""
        self.begun_s += end_s - self.end_s
        self.end_s = end_s

    def write(self) -> None:
        """Do nothing: every step was written when it ended."""
