"""How a load acceptance is run: which stages, at which loads, for how long."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.part import (
    Count,
    CountOrZero,
    Fraction,
    Part,
    PoolName,
    PositiveSeconds,
    Rate,
    Seconds,
)

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
    """The plan of the stages; what is None is derived from the scenario.

    Step n of the ramp has ``start_rps × factor^n`` requests a second, for ``step_s``, of which at
    least ``steady_s`` follow a warm-up that is detected. A step that is too short for its
    percentiles is made longer, up to ``longest_s``; one that broke only while it warmed up is
    repeated, slower, up to ``repeats`` times.
    """

    run: tuple[StageKind, ...] = FOUR_STAGES
    planned_rps: Rate | None = None
    """The load that is planned for; None = the mean of the scenario's own traffic."""
    peak_rps: Rate | None = None
    """The planned peak; None = the highest of the scenario's own traffic, over 60 s."""
    start_rps: Rate | None = None
    """First step and baseline; None = 20 % of the estimated capacity, 10 without an estimate."""
    factor: Annotated[float, Field(gt=1, le=4)] = 1.2
    step_s: PositiveSeconds = 300.0
    steady_s: PositiveSeconds = 180.0
    longest_s: PositiveSeconds = 1200.0
    ramp_s: Seconds = 30.0
    """In which a step's load rises from that of the step before it, s."""
    most_steps: Count = 25
    beyond: CountOrZero = 1
    """Steps after the first broken one: the knee lies between two steps, not at the last."""
    refine: Annotated[int, Field(ge=0, le=8)] = 1
    """Times the gap between the last kept and the first broken load is halved."""
    replications: Count = 1
    """Ramps over independently drawn requests; from two on, the knee, the first degradation and the
    acceptable loads have intervals over them."""
    repeats: Annotated[int, Field(ge=0, le=8)] = 2
    peak_fraction: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    """Load of a burst, as a multiple of the planned peak."""
    burst_s: PositiveSeconds = 30.0
    every_s: PositiveSeconds = 600.0
    bursts: Count = 2
    long_fraction: Fraction = 0.05
    long_above_tokens: Count = 5000
    long_max_tokens: Count = 8000
    fall_back_s: PositiveSeconds = 300.0
    """How long the baseline load is held after an overload or a failure, s."""
    failure: FailureKind = "crash"
    """What goes wrong in the failure stage. Where the scenario has a fault of that kind, it is that
    one at another moment."""
    failed_pool: PoolName | None = None
    """The pool in which something goes wrong; None = the primary one."""
    down_s: PositiveSeconds | None = None
    """How long it lasts; None = the pool's cold start, or ``step_s``."""
    soak_s: PositiveSeconds = 3600.0
    wave_period_s: PositiveSeconds = 600.0
    wave_amplitude_fraction: Fraction = 0.5

    @model_validator(mode="after")
    def _times_fit(self) -> StagePlan:
        if self.steady_s + self.ramp_s > self.step_s:
            msg = "ramp_s and steady_s must fit into step_s"
            raise ValueError(msg)
        if self.longest_s < self.step_s:
            msg = "longest_s must not be shorter than step_s"
            raise ValueError(msg)
        if self.burst_s > self.every_s:
            msg = "burst_s must not exceed every_s"
            raise ValueError(msg)
        if self.long_max_tokens <= self.long_above_tokens:
            msg = "long_max_tokens must be above long_above_tokens"
            raise ValueError(msg)
        if len(set(self.run)) != len(self.run):
            msg = "run: each kind of stage at most once"
            raise ValueError(msg)
        return self
