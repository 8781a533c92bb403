"""Steps whose speed changes while they run, down to standing still."""

from __future__ import annotations

import math

from capplan.replica.engine import Engine
from capplan.simulation.clock import Clock
from capplan.simulation.steps import StepByStep


class PacedSteps(StepByStep):
    """Steps one at a time, each ``factor`` times as long as the engine says.

    Attributes
    ----------
    factor
        Of the steps begun from now on; for the running one see :meth:`halt` and :meth:`resume`.
    """

    def __init__(self, engine: Engine, *, clock: Clock, rank: int) -> None:
        super().__init__(engine, clock=clock)
        self.rank = rank
        self.factor = 1.0

    def start(self, now_s: float) -> None:
        """Form the next step."""
        seconds = self.engine.begin(now_s)
        if seconds is not None:
            self.begun_s += seconds * self.factor
            self.end_s = now_s + seconds * self.factor

    def halt(self) -> None:
        """Let the running step stand still: it has no end."""
        self.begun_s -= self.end_s - self._clock.now
        self.end_s = math.inf

    def resume(self, end_s: float) -> None:
        """Let the step that stands still go on, to another end."""
        self.begun_s += end_s - self._clock.now
        self.end_s = end_s
