"""Who asks and what they were promised: request classes, tenants, callers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from capplan.scenario.callers import Hedge, Retry
from capplan.scenario.ending import UNSET, Ending, Limit
from capplan.scenario.hosts import Demand
from capplan.scenario.part import (
    WITHOUT_TRACE,
    Affects,
    ClassName,
    Count,
    CountOrZero,
    Fraction,
    Name,
    Origins,
    Owner,
    Part,
    PoolName,
    Positive,
    PositiveSeconds,
    Quantile,
)

LeastShare = Annotated[float, Field(gt=0, le=1)]
"""A share of requests that must be reached; 0 is refused, since every run reaches it."""
MostShare = Annotated[float, Field(ge=0, lt=1)]
"""A share of requests that must not be exceeded; 1 is refused, since no run exceeds it."""


class Promises(Part):
    """What a class was promised. ``None`` is "no such promise", never "zero".

    Latency promises (``e2e_s``, ``ttft_s``, ``tpot_s``) hold at ``quantile`` over all requests of
    the class, a failure counting as +inf; the fractions hold over all its requests. A verdict on
    any of them needs at least ``min_samples`` requests; where that is not stated, it is the
    number that leaves ten samples beyond the quantile (see :meth:`samples_needed`).
    """

    deadline_s: Annotated[PositiveSeconds | None, Affects.TRAFFIC] = None
    """The caller leaves this long after the first intended start, s."""
    e2e_s: PositiveSeconds | None = None
    ttft_s: PositiveSeconds | None = None
    tpot_s: PositiveSeconds | None = None
    quantile: Quantile = 0.99
    availability_fraction: LeastShare | None = None
    """Least share of requests that succeed."""
    error_rate_fraction: MostShare | None = None
    """Largest share of requests that are rejected or fail."""
    timeout_rate_fraction: MostShare | None = None
    goodput_fraction: LeastShare | None = None
    """Least share of requests that succeed with every per-request promise held."""
    cost_usd_per_success: Positive | None = None
    min_samples: Count | None = None
    origins: Origins = Field(default_factory=dict)

    def limits(self) -> Iterator[Limit]:
        """Yield the deadline, also if it is not set."""
        left = "" if self.deadline_s is None else f"the caller leaves after {self.deadline_s:g} s"
        yield Limit(field="deadline_s", reason="deadline", action=left or UNSET)

    def samples_needed(self) -> int:
        """Return how many requests a verdict needs.

        Ten observations beyond the quantile, the usual floor under which an empirical tail
        quantile is decided by single requests.
        Source: Law, "Simulation Modeling and Analysis", 5th ed., 2015, section 9.5.3.

        >>> Promises(quantile=0.99).samples_needed()
        1000
        """
        if self.min_samples is not None:
            return self.min_samples
        return math.ceil(round(10 / (1 - self.quantile), 6))


class FixedLength(Part):
    """Every length the same. A conclusion drawn from it says nothing of other lengths."""

    kind: Literal["fixed"] = "fixed"
    tokens: Count


class LognormalLength(Part):
    """Log-normal length by its median and 95th percentile, rounded up, cut at ``max_tokens``.

    A draw beyond ``max_tokens`` is drawn again, so no mass piles up at the limit.
    """

    kind: Literal["lognormal"] = "lognormal"
    p50_tokens: Count
    p95_tokens: Count
    max_tokens: Count = 131_072

    @model_validator(mode="after")
    def _ordered(self) -> LognormalLength:
        if not self.p50_tokens <= self.p95_tokens <= self.max_tokens:
            msg = "p50_tokens <= p95_tokens <= max_tokens must hold"
            raise ValueError(msg)
        return self


Length = Annotated[FixedLength | LognormalLength, Field(discriminator="kind")]


class FixedSize(Part):
    """Every request of the same size."""

    kind: Literal["fixed"] = "fixed"
    value: Positive


class LognormalSize(Part):
    """Log-normal size by its median and 95th percentile; a draw beyond ``max`` is drawn again."""

    kind: Literal["lognormal"] = "lognormal"
    p50: Positive
    p95: Positive
    max: Positive

    @model_validator(mode="after")
    def _ordered(self) -> LognormalSize:
        if not self.p50 <= self.p95 <= self.max:
            msg = "p50 <= p95 <= max must hold"
            raise ValueError(msg)
        return self


class ChoiceSize(Part):
    """One of a few sizes, each with a weight: image resolutions, numbers of neighbours."""

    kind: Literal["choice"] = "choice"
    values: Annotated[tuple[Positive, ...], Field(min_length=1)]
    weights: tuple[Positive, ...]

    @model_validator(mode="after")
    def _a_weight_each(self) -> ChoiceSize:
        if len(self.values) != len(self.weights):
            msg = f"one weight per value, got {len(self.values)} and {len(self.weights)}"
            raise ValueError(msg)
        return self


Size = Annotated[FixedSize | LognormalSize | ChoiceSize, Field(discriminator="kind")]


class RequestClass(Part):
    """Requests that share a purpose, promises and a pool."""

    poisoned: ClassVar = Ending("poisoned", 500)
    beside_poisoned: ClassVar = Ending("poisoned_batch", 500)

    name: Name
    owner: Owner = ""
    pool: Annotated[PoolName | None, Affects.SERVING] = None
    """The pool that serves the class; None = the scenario's first."""
    model: Annotated[Name | None, Affects.SERVING] = None
    """Which of its pool's ``models`` it needs; None = the first."""
    priority: int = 0
    """Lower is served first, as in vLLM's priority scheduling."""
    streaming: bool = True
    sheddable: Annotated[bool, Affects.SERVING] = False
    """May be given up first when not everything can be served."""
    allows_degraded: Annotated[bool, Affects.JUDGING] = False
    """Whether an answer that was cut, cheapened or rerouted by a breaker is a success."""
    promises: Annotated[Promises, Affects.JUDGING] = Promises()
    retry: Annotated[Retry, Affects.SERVING] = Retry()
    hedge: Annotated[Hedge | None, Affects.SERVING] = None
    poisoned_fraction: Annotated[Fraction, Affects.SERVING] = 0.0
    """Share of its requests on which an engine fails, as often as they are tried; see
    ``pools[].batching.poison``."""
    share: Annotated[Positive, WITHOUT_TRACE] = 1.0
    """Weight among the classes: of drawn requests, of the users of a closed loop, of ``mix``."""
    prompt_tokens: Annotated[Length, WITHOUT_TRACE] = LognormalLength(
        p50_tokens=1020, p95_tokens=4083
    )
    output_tokens: Annotated[Length, WITHOUT_TRACE] = LognormalLength(
        p50_tokens=129, p95_tokens=451
    )
    """Length laws for drawn traffic. Defaults: token quantiles of the Azure LLM inference trace
    2023, conversation hour (Patel et al., "Splitwise", ISCA 2024, artefact data)."""
    length_correlation: Annotated[float, Field(ge=-1, le=1), WITHOUT_TRACE] = 0.0
    """Correlation of the logarithms of prompt and output length in drawn traffic."""
    prefix_tokens: Annotated[CountOrZero, WITHOUT_TRACE] = 0
    """Length of a prefix that all requests of one tenant share, tokens."""
    cached_fraction: Annotated[Fraction, Affects.SERVING] = 0.0
    """Share of the prompt that a prefix-caching pool finds, where the trace has no ids of prefix
    blocks; whole KV blocks, never the whole prompt."""
    response_cached_fraction: Annotated[Fraction, Affects.SERVING] = 0.0
    """Share of the requests that the gateway's response cache answers, where the trace has no ids
    of prefix blocks."""
    size: Size | None = None
    """Size of a request that is not made of tokens, in the unit of its pool's service law (audio
    seconds, megapixels, neighbours); None = its prompt tokens count."""
    demand: Annotated[Demand, Affects.SERVING] = Demand()
    """What it takes of the host that its pool shares with others."""

    @model_validator(mode="after")
    def _hedges_come_before_the_end(self) -> RequestClass:
        after_s = None if self.hedge is None else self.hedge.after_s
        ends_s = self.retry.attempt_timeout_s
        if after_s is not None and ends_s is not None and after_s >= ends_s:
            msg = (
                f"hedge.after_s: below retry.attempt_timeout_s {ends_s:g}, when the attempt is "
                f"over and no hedge is sent, got {after_s:g}"
            )
            raise ValueError(msg)
        return self


class Tenant(Part):
    """A customer or team: its share of each class's requests."""

    name: Name
    share: Positive = 1.0
    sent_share: Positive | None = None
    """What it really sends, in drawn traffic; None = its share. More of it makes a noisy tenant."""
    classes: tuple[ClassName, ...] = ()
    """The classes it uses; empty = all."""
