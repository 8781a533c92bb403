"""What arrives: a base trace or laws, the gaps between arrivals, and what perturbs them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from capplan.scenario.part import (
    ClassName,
    CountOrZero,
    Fraction,
    Name,
    NonNegative,
    Part,
    Positive,
    PositiveSeconds,
    Seconds,
    TracePath,
)
from capplan.scenario.shapes import ClosedLoop, Replay, Shape
from capplan.schema import TRACE, names


class Poisson(Part):
    """Independent arrivals: exponential gaps."""

    kind: Literal["poisson"] = "poisson"


class GammaGaps(Part):
    """Renewal arrivals whose gaps are gamma distributed with the given coefficient of variation."""

    kind: Literal["gamma"] = "gamma"
    cv: Positive


class WeibullGaps(Part):
    """Renewal arrivals whose gaps are Weibull distributed with the given coefficient of variation.

    With cv > 1 its tail is heavier than that of gamma gaps; the cv lies between 0.05 and 20.
    """

    kind: Literal["weibull"] = "weibull"
    cv: Annotated[float, Field(ge=0.05, le=20)]


class Even(Part):
    """Evenly spaced arrivals."""

    kind: Literal["even"] = "even"


class Modulated(Part):
    """Markov-modulated Poisson arrivals: calm and busy times that begin by chance.

    Both last exponential times of mean ``calm_s`` and ``busy_s``; in a busy time the rate is
    ``ratio`` times that of a calm one. Over all time the mean rate is the planned one.
    """

    kind: Literal["modulated"] = "modulated"
    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    busy_s: PositiveSeconds
    calm_s: PositiveSeconds


Arrivals = Annotated[
    Poisson | GammaGaps | WeibullGaps | Even | Modulated, Field(discriminator="kind")
]


class ClassRule(Part):
    """Give requests of a trace whose class the scenario lacks a class, by name or token counts.

    A request matches when each stated limit holds and, where stated, ``trace_class`` is its class
    in the trace; the first matching rule wins.
    """

    request_class: ClassName
    trace_class: str | None = None
    tenant: Name | None = None
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    min_output_tokens: int | None = None
    max_output_tokens: int | None = None


class MixChange(Part):
    """A class's weight becomes ``share`` at ``at_s``, in a straight line over ``over_s``.

    Classes that switch at different times are a staggered switch.
    """

    request_class: ClassName
    at_s: Seconds
    share: NonNegative
    over_s: Seconds = 0.0


class Bursts(Part):
    """Bursts to ``peak_fraction`` times the planned peak: ``burst_s`` long, one every ``every_s``.

    The planned peak is the highest rate of the shape, or of the base trace over 60 s in a replay.
    """

    kind: Literal["bursts"] = "bursts"
    peak_fraction: Positive = 2.0
    burst_s: PositiveSeconds = 30.0
    every_s: PositiveSeconds = 600.0
    first_s: Seconds = 600.0

    @model_validator(mode="after")
    def _burst_fits(self) -> Bursts:
        if self.burst_s > self.every_s:
            msg = "burst_s must not exceed every_s"
            raise ValueError(msg)
        return self


class LongOutputs(Part):
    """A share of the requests has an output above ``above_tokens``, uniform up to the most.

    ``request_class`` None = requests of every class without a size.
    """

    kind: Literal["long_outputs"] = "long_outputs"
    fraction: Fraction = 0.05
    above_tokens: CountOrZero = 5000
    max_tokens: Annotated[int, Field(ge=1)] = 8000
    request_class: ClassName | None = None

    @model_validator(mode="after")
    def _ordered(self) -> LongOutputs:
        if self.max_tokens <= self.above_tokens:
            msg = "max_tokens must be above above_tokens"
            raise ValueError(msg)
        return self


Perturbation = Annotated[Bursts | LongOutputs, Field(discriminator="kind")]


DEFAULT_DURATION_S = 3600.0
"""Length of traffic drawn from laws that states none: an hour, the span of the public traces that
the project's examples rest on."""


class Traffic(Part):
    """The crowd: lengths from ``trace`` (a path, ``sample``, or None = the classes' laws)."""

    trace: TracePath | None = None
    format: str = "auto"
    """Format of the trace's file; ``auto`` tells it from the content."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of a trace -> column of the file, for logs; a dotted one reaches into nested JSON."""
    units: dict[str, Literal["s", "ms", "us", "ns"]] = Field(default_factory=dict)
    """Column of times -> unit in the file; None stated: told by name or magnitude."""
    keep_zero_tokens: bool = False
    """Keep rows of the file without prompt or output tokens, such as embeddings."""
    shape: Shape = Replay()
    arrivals: Arrivals = Poisson()
    duration_s: PositiveSeconds | None = None
    """Length of the traffic, s; None = all of a replayed trace, of any other shape an hour."""
    rules: tuple[ClassRule, ...] = ()
    streaming_fraction: Fraction | None = None
    """Share of requests of streaming classes that do stream; None = all of them."""
    mix: tuple[MixChange, ...] = ()
    """How the weights of the classes change; they begin as the classes' ``share``."""
    perturbations: tuple[Perturbation, ...] = ()

    @property
    def lasts_s(self) -> float:
        """Return when the traffic ends, s: as stated, else inf for a replay, an hour for laws."""
        if self.duration_s is not None:
            return self.duration_s
        return math.inf if isinstance(self.shape, Replay) else DEFAULT_DURATION_S

    @field_validator("columns", "units")
    @classmethod
    def _are_columns_of_a_trace(cls, value: dict[str, str]) -> dict[str, str]:
        if strange := sorted(set(value) - set(names(TRACE))):
            msg = f"{', '.join(strange)}: none of the columns of a trace, {', '.join(names(TRACE))}"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _replay_needs_trace(self) -> Traffic:
        if self.trace is None and isinstance(self.shape, Replay):
            msg = "shape replay needs a trace; give traffic.trace or another traffic.shape.kind"
            raise ValueError(msg)
        if self.mix and isinstance(self.shape, Replay):
            msg = "mix changes what is drawn, and a replay draws no classes; give another shape"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _users_send_when_they_are_answered(self) -> Traffic:
        if not isinstance(self.shape, ClosedLoop):
            return self
        if self.mix:
            msg = "mix needs planned times, and a closed loop sends when it was answered"
            raise ValueError(msg)
        if any(isinstance(p, Bursts) for p in self.perturbations):
            msg = "bursts need a planned peak, and a closed loop has no planned rate"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _changes_of_a_class_follow_each_other(self) -> Traffic:
        ends: dict[str, float] = {}
        for change in sorted(self.mix, key=lambda c: c.at_s):
            if change.at_s < ends.get(change.request_class, 0.0):
                msg = f"mix: a change of {change.request_class} begins before the last one ended"
                raise ValueError(msg)
            ends[change.request_class] = change.at_s + change.over_s
        return self
