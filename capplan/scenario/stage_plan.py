"""The plan of a load acceptance: stages, loads, lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from capplan.scenario.part import Count, CountOrZero, Part, PoolName, PositiveSeconds, Rate, Seconds
from capplan.scenario.traffic import LongOutputs

StageKind = Literal[
    "baseline",
    "ramp",
    "burst",
    "long_outputs",
    "fall_back",
    "failure",
    "soak",
    "spike",
    "wave",
    "replay",
]
FailureKind = Literal["crash", "hang", "slow", "node_loss", "model_reload", "router_blind"]
FOUR_STAGES: tuple[StageKind, ...] = (
    "baseline",
    "ramp",
    "burst",
    "long_outputs",
    "fall_back",
    "failure",
)


class StagePlan(Part):
    """The plan of the stages; None = derived from the scenario.

    Step n of the ramp has ``start_rps × factor^n`` requests a second for ``step_s``, at least
    ``steady_s`` of it after the detected warm-up. A stage that lacks samples, or whose backlog may
    still grow, is made longer, up to ``longest_s``; a step that broke in its warm-up alone is
    repeated with a slower rise, up to ``repeats`` times.
    """

    run: tuple[StageKind, ...] = FOUR_STAGES
    planned_rps: Rate | None = None
    """Planned load; None = the mean of the scenario's traffic."""
    peak_rps: Rate | None = None
    """Planned peak; None = the highest minute of the scenario's traffic."""
    start_rps: Rate | None = None
    """First step and baseline; None = 20 % of the estimated capacity, else 10."""
    factor: Annotated[float, Field(gt=1, le=4)] = 1.2
    step_s: PositiveSeconds = 300.0
    steady_s: PositiveSeconds = 180.0
    longest_s: PositiveSeconds = 3600.0
    """Longest that a stage is made to have its samples, s."""
    ramp_s: Seconds = 30.0
    """Rise from the load of the step before, s."""
    most_steps: Count = 25
    beyond: CountOrZero = 1
    """Steps after the first broken one."""
    refine: Annotated[int, Field(ge=0, le=8)] = 1
    """Halvings of the gap between the last kept and the first broken load, and beside knees."""
    replications: Count = 1
    """Ramps over independently drawn requests; two or more give intervals."""
    repeats: Annotated[int, Field(ge=0, le=8)] = 2
    peak_fraction: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    """Load of a burst ÷ planned peak."""
    burst_s: PositiveSeconds = 30.0
    every_s: PositiveSeconds = 600.0
    bursts: Count = 2
    """Least number of bursts; more follow until each class has its samples."""
    long_outputs: LongOutputs = LongOutputs()
    """Long outputs of the stage of that name."""
    fall_back_s: PositiveSeconds = 300.0
    """Length of the baseline load after an overload or a failure, s."""
    failure: FailureKind = "crash"
    """Kind of the fault; the scenario's first fault of that kind gives its other fields."""
    failed_pool: PoolName | None = None
    """Pool of the fault; None = the primary."""
    down_s: PositiveSeconds | None = None
    """Length of the fault, s; None = the pool's cold start, else ``step_s``, or longer."""
    soak_s: PositiveSeconds = 3600.0
    wave_period_s: PositiveSeconds = 600.0

    def _broken(self) -> Iterator[str]:
        if self.steady_s + self.ramp_s > self.step_s:
            yield "ramp_s and steady_s must fit into step_s"
        if self.longest_s < self.step_s:
            yield "longest_s must not be shorter than step_s"
        if self.burst_s > self.every_s:
            yield "burst_s must not exceed every_s"
        if len(set(self.run)) != len(self.run):
            yield "run: each kind of stage at most once"
