"""Arrivals: a base trace or laws, their shape, gaps and perturbations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

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
from capplan.scenario.shapes import ClosedLoop, Repeated, Replay, Shape
from capplan.schema import TRACE, names

if TYPE_CHECKING:
    from capplan.scenario.shapes import Floats, Labels


class Poisson(Part):
    """Independent arrivals: exponential gaps."""

    kind: Literal["poisson"] = "poisson"


class GammaGaps(Part):
    """Gamma distributed gaps with a coefficient of variation."""

    kind: Literal["gamma"] = "gamma"
    cv: Positive


class WeibullGaps(Part):
    """Weibull distributed gaps; with cv > 1 their tail is heavier than that of gamma gaps."""

    kind: Literal["weibull"] = "weibull"
    cv: Annotated[float, Field(ge=0.05, le=20)]


class Even(Part):
    """Evenly spaced arrivals."""

    kind: Literal["even"] = "even"


class Modulated(Part):
    """Markov-modulated Poisson arrivals.

    Calm and busy times are exponential with means ``calm_s`` and ``busy_s``; the busy rate is
    ``ratio`` times the calm one. The mean rate is the planned one.
    """

    kind: Literal["modulated"] = "modulated"
    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    busy_s: PositiveSeconds
    calm_s: PositiveSeconds


class RecordedGaps(Part):
    """The busiest ``requests`` of the base trace, again and again, at the shape's rate.

    Their order, and each gap as a part of the mean gap, are as recorded.
    """

    kind: Literal["recorded"] = "recorded"
    requests: Annotated[int, Field(ge=2)] = 10_000


GapLaw = Poisson | GammaGaps | WeibullGaps | Even | Modulated
"""Laws that gaps are drawn from."""
Arrivals = Annotated[GapLaw | RecordedGaps, Field(discriminator="kind")]


class ClassRule(Part):
    """A class for requests of a trace without a known one; the first rule that matches wins.

    A request matches if all stated limits hold and, if stated, its class in the trace is
    ``trace_class``.
    """

    request_class: ClassName
    trace_class: str | None = None
    tenant: Name | None = None
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    min_output_tokens: int | None = None
    max_output_tokens: int | None = None


class MixChange(Part):
    """The weight of a class becomes ``share`` from ``at_s`` on, linearly over ``over_s``."""

    request_class: ClassName
    at_s: Seconds
    share: NonNegative
    over_s: Seconds = 0.0


class Bursts(Repeated):
    """Bursts to ``peak_fraction`` × planned peak.

    The planned peak is the highest rate of the shape; of a replay, its highest minute.
    """

    kind: Literal["bursts"] = "bursts"
    peak_fraction: Positive = 2.0
    first_s: Seconds = 600.0


class LongOutputs(Part):
    """A share of the requests with outputs uniform between ``above_tokens`` and ``max_tokens``.

    ``request_class`` None = requests of every class without a size.
    """

    kind: Literal["long_outputs"] = "long_outputs"
    fraction: Fraction = 0.05
    above_tokens: CountOrZero = 5000
    max_tokens: Annotated[int, Field(ge=1)] = 8000
    request_class: ClassName | None = None

    def _broken(self) -> Iterator[str]:
        if self.max_tokens <= self.above_tokens:
            yield "max_tokens must be above above_tokens"


Perturbation = Annotated[Bursts | LongOutputs, Field(discriminator="kind")]


DEFAULT_DURATION_S = 3600.0
"""Length of traffic drawn from laws that states none: an hour, the span of the public traces that
the project's examples rest on."""


class Traffic(Part):
    """The requests: rows of ``trace`` (a path or ``sample``), or None = the classes' laws."""

    trace: TracePath | None = None
    format: str = "auto"
    """Format of the file; ``auto`` = by its content."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of a trace → column of the file; a dotted name reads nested JSON."""
    units: dict[str, Literal["s", "ms", "us", "ns"]] = Field(default_factory=dict)
    """Column of times → its unit in the file; by name or magnitude if not stated."""
    keep_zero_tokens: bool = False
    """Keep rows without prompt or output tokens, such as embeddings."""
    shape: Shape = Replay()
    arrivals: Arrivals = Poisson()
    duration_s: PositiveSeconds | None = None
    """Length of the traffic, s; None = all of a replayed trace, of any other shape an hour."""
    rules: tuple[ClassRule, ...] = ()
    streaming_fraction: Fraction | None = None
    """Share of the requests of streaming classes that stream; None = all."""
    mix: tuple[MixChange, ...] = ()
    """Changes of the classes' weights, which start as their ``share``."""
    perturbations: tuple[Perturbation, ...] = ()

    @property
    def lasts_s(self) -> float:
        """Return when the traffic ends, s: as stated, else inf for a replay, an hour for laws."""
        if self.duration_s is not None:
            return self.duration_s
        return math.inf if isinstance(self.shape, Replay) else DEFAULT_DURATION_S

    def phases(self, time_s: Floats) -> Labels:
        """Return the phase of the planned load at each time, by which figures are grouped.

        It is that of the shape, and ``burst`` within a burst of ``perturbations``.

        >>> import numpy as np
        >>> from capplan.scenario.shapes import Spike
        >>> spike = Spike(base_rps=1.0, peak_rps=5.0, first_s=10.0, burst_s=5.0, every_s=50.0)
        >>> Traffic(shape=spike).phases(np.array([0.0, 10.0, 15.0])).tolist()
        ['base', 'burst', 'base']
        """
        labels = self.shape.phases(time_s)
        for burst in self.perturbations:
            if isinstance(burst, Bursts):
                labels[burst.inside(time_s)] = "burst"
        return labels

    @field_validator("columns", "units")
    @classmethod
    def _are_columns_of_a_trace(cls, value: dict[str, str]) -> dict[str, str]:
        if strange := sorted(set(value) - set(names(TRACE))):
            msg = f"columns of a trace ({', '.join(names(TRACE))}), got {', '.join(strange)}"
            raise ValueError(msg)
        return value

    def _broken(self) -> Iterator[str]:
        yield from self._replay_needs_trace()
        yield from self._closed_loop_has_no_plan()
        yield from self._changes_do_not_overlap()

    def _replay_needs_trace(self) -> Iterator[str]:
        if self.trace is None and isinstance(self.shape, Replay):
            yield "shape replay needs traffic.trace, or state another traffic.shape.kind"
        if self.mix and isinstance(self.shape, Replay):
            yield "mix: not with shape replay, which draws no classes"
        if isinstance(self.arrivals, RecordedGaps):
            if self.trace is None:
                yield "arrivals recorded needs traffic.trace"
            if self.mix:
                yield "mix: not with arrivals recorded, which draw no classes"

    def _closed_loop_has_no_plan(self) -> Iterator[str]:
        if not isinstance(self.shape, ClosedLoop):
            return
        if self.mix:
            yield "mix: not with shape closed, which has no planned times"
        if any(isinstance(p, Bursts) for p in self.perturbations):
            yield "bursts: not with shape closed, which has no planned rate"

    def _changes_do_not_overlap(self) -> Iterator[str]:
        ends: dict[str, float] = {}
        for change in sorted(self.mix, key=lambda c: c.at_s):
            if change.at_s < ends.get(change.request_class, 0.0):
                yield f"mix: changes of {change.request_class} overlap"
            ends[change.request_class] = change.at_s + change.over_s
