"""What arrives: a base trace or laws, and the shape of the load over time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.part import Count, Fraction, Name, Part, PositiveSeconds, Rate, Seconds


class Poisson(Part):
    """Independent arrivals: exponential gaps."""

    kind: Literal["poisson"] = "poisson"


class GammaGaps(Part):
    """Renewal arrivals whose gaps are gamma distributed with the given coefficient of variation."""

    kind: Literal["gamma"] = "gamma"
    cv: Annotated[float, Field(gt=0)]


class Even(Part):
    """Evenly spaced arrivals."""

    kind: Literal["even"] = "even"


Arrivals = Annotated[Poisson | GammaGaps | Even, Field(discriminator="kind")]


class Replay(Part):
    """The base trace as recorded, faster or slower (``time_scale``), thinned or superposed.

    ``rate_scale`` < 1 keeps each request with that probability, > 1 superposes shifted copies;
    both keep the joint distribution of lengths.
    """

    kind: Literal["replay"] = "replay"
    time_scale: Rate = 1.0
    rate_scale: Rate = 1.0


class Steady(Part):
    """A constant rate; with ``per_replica``, ``rate_rps`` for each replica of the primary pool."""

    kind: Literal["steady"] = "steady"
    rate_rps: Rate
    per_replica: bool = False


class Step(Part):
    """Rate ``start_rps`` times ``factor`` to the n: ``steps`` levels, each held ``hold_s``.

    Between levels the rate ramps linearly over ``ramp_s``.
    """

    kind: Literal["step"] = "step"
    start_rps: Rate
    factor: Rate = 1.2
    steps: Count = 5
    hold_s: PositiveSeconds = 300.0
    ramp_s: Seconds = 0.0


class Spike(Part):
    """A base rate with bursts to ``peak_rps``: ``burst_s`` long, one every ``every_s``."""

    kind: Literal["spike"] = "spike"
    base_rps: Rate
    peak_rps: Rate
    burst_s: PositiveSeconds = 30.0
    every_s: PositiveSeconds = 600.0
    first_s: Seconds = 60.0

    @model_validator(mode="after")
    def _burst_fits(self) -> Spike:
        if self.burst_s > self.every_s:
            msg = "burst_s must not exceed every_s"
            raise ValueError(msg)
        return self


Shape = Annotated[Replay | Steady | Step | Spike, Field(discriminator="kind")]


class ClassRule(Part):
    """Give requests of a trace without class a class, by their token counts.

    A request matches when each stated limit holds; the first matching rule wins.
    """

    request_class: Name
    tenant: Name | None = None
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    min_output_tokens: int | None = None
    max_output_tokens: int | None = None


class Traffic(Part):
    """The crowd: lengths from ``trace`` (a path, ``sample``, or None = the classes' laws)."""

    trace: str | None = None
    shape: Shape = Replay()
    arrivals: Arrivals = Poisson()
    duration_s: PositiveSeconds = 3600.0
    rules: tuple[ClassRule, ...] = ()
    streaming_fraction: Fraction | None = None
    """Share of requests of streaming classes that do stream; None = all of them."""

    @model_validator(mode="after")
    def _replay_needs_trace(self) -> Traffic:
        if self.trace is None and isinstance(self.shape, Replay):
            msg = "shape replay needs a trace; give traffic.trace or another traffic.shape.kind"
            raise ValueError(msg)
        return self
