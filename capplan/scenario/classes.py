"""Request classes with their promises and laws, and tenants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

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

LeastShare = Annotated[float, Field(ge=0.5, le=1)]
"""A share of requests that must be reached; below a half, it is a share of errors by mistake."""
MostShare = Annotated[float, Field(ge=0, le=0.5)]
"""A share of requests that must not be exceeded; above a half, it is one of successes by mistake.
Both bounds are judgements of the project: what half the requests may miss is no promise."""

SLOWEST_TOKEN_S = 5.0
"""Time of a token from which on its unit is doubted; a judgement of the project: the slowest server
of ``data/validation/``, in overload, takes 0.13 s."""
SLOWEST_FIRST_TOKEN_S = 600.0
LONGEST_STREAM_S = 3600.0
"""Times of a first token, and of a streamed answer, from which on their unit is doubted; judgements
of the project: nothing that waits so long needs its tokens one by one."""


class Promises(Part):
    """The promises of a class; None = no such promise.

    Latencies (``e2e_s``, ``ttft_s``, ``tpot_s``) hold at ``quantile`` over all requests of the
    class, a failure counting as +inf; fractions hold over all its requests. Both hold over the run,
    in its busiest hour, and in any ``window_s``; the cost over the run. A verdict needs
    ``min_samples`` requests; None = as many as :meth:`samples_needed`.
    """

    deadline_s: Annotated[PositiveSeconds | None, Affects.TRAFFIC] = None
    """The caller leaves this long after the first intended start, s; the promise is that the share
    ``quantile`` of the requests is answered by then."""
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
    window_s: PositiveSeconds = 300.0
    """Length of the windows in each of which the promises hold, s. Default: the short window of a
    paging alert, Beyer et al. (eds.), "The Site Reliability Workbook", 2018, table 5-8."""
    origins: Origins = Field(default_factory=dict)

    def _broken(self) -> Iterator[str]:
        """Yield latencies that nothing can exceed, as milliseconds under the name of seconds."""
        if self.tpot_s is not None and self.tpot_s > SLOWEST_TOKEN_S:
            yield f"tpot_s: at most {SLOWEST_TOKEN_S:g} s a token, in s, not ms"
        if self.ttft_s is not None and self.ttft_s > SLOWEST_FIRST_TOKEN_S:
            yield f"ttft_s: at most {SLOWEST_FIRST_TOKEN_S:g} s, in s, not ms"
        for name in ("tpot_s", "ttft_s", "e2e_s"):
            value = getattr(self, name)
            wholes = (self.deadline_s, None if name == "e2e_s" else self.e2e_s)
            whole_s = min((w for w in wholes if w is not None), default=math.inf)
            if value is not None and value > whole_s:
                yield (
                    f"{name}: at most {whole_s:g} s, which is promised for the whole answer, in s, "
                    f"not ms, got {value:g}"
                )

    def limits(self) -> Iterator[Limit]:
        """Yield the deadline, also if it is not set."""
        left = "" if self.deadline_s is None else f"the caller leaves after {self.deadline_s:g} s"
        yield Limit(field="deadline_s", reason="deadline", action=left or UNSET)

    def samples_needed(self) -> int:
        """Return how many requests a verdict needs: ten beyond the quantile, unless stated.

        With fewer, single requests decide an empirical tail quantile.
        Source: Law, "Simulation Modeling and Analysis", 5th ed., 2015, section 9.5.3.

        >>> Promises(quantile=0.99).samples_needed()
        1000
        """
        if self.min_samples is not None:
            return self.min_samples
        return math.ceil(round(10 / (1 - self.quantile), 6))


class FixedLength(Part):
    """A constant length; conclusions from it hold for no other."""

    kind: Literal["fixed"] = "fixed"
    tokens: Count


class LognormalLength(Part):
    """Log-normal length by its median and 95th percentile, rounded up.

    A draw beyond ``max_tokens`` is drawn again.
    """

    kind: Literal["lognormal"] = "lognormal"
    p50_tokens: Count
    p95_tokens: Count
    max_tokens: Count = 131_072

    def _broken(self) -> Iterator[str]:
        if not self.p50_tokens <= self.p95_tokens <= self.max_tokens:
            yield "p50_tokens <= p95_tokens <= max_tokens must hold"


Length = Annotated[FixedLength | LognormalLength, Field(discriminator="kind")]


class FixedSize(Part):
    """A constant size."""

    kind: Literal["fixed"] = "fixed"
    value: Positive


class LognormalSize(Part):
    """Log-normal size by its median and 95th percentile; a draw beyond ``max`` is drawn again."""

    kind: Literal["lognormal"] = "lognormal"
    p50: Positive
    p95: Positive
    max: Positive

    def _broken(self) -> Iterator[str]:
        if not self.p50 <= self.p95 <= self.max:
            yield "p50 <= p95 <= max must hold"


class ChoiceSize(Part):
    """One of a few sizes by weight, such as image resolutions."""

    kind: Literal["choice"] = "choice"
    values: Annotated[tuple[Positive, ...], Field(min_length=1)]
    weights: tuple[Positive, ...]

    def _broken(self) -> Iterator[str]:
        if len(self.values) != len(self.weights):
            yield f"one weight per value, got {len(self.values)} and {len(self.weights)}"


Size = Annotated[FixedSize | LognormalSize | ChoiceSize, Field(discriminator="kind")]


class RequestClass(Part):
    """Requests that share a purpose, promises and a pool."""

    poisoned: ClassVar = Ending("poisoned", 500)
    beside_poisoned: ClassVar = Ending("poisoned_batch", 500)

    name: Name
    owner: Owner = ""
    pool: Annotated[PoolName | None, Affects.SERVING] = None
    """Pool that serves the class; None = the first."""
    model: Annotated[Name | None, Affects.SERVING] = None
    """One of its pool's ``models``; None = the first."""
    priority: int = 0
    """Lower is served first, as in vLLM's priority scheduling."""
    streaming: bool = True
    sheddable: Annotated[bool, Affects.SERVING] = False
    """Whether it may be refused first under overload."""
    allows_degraded: Annotated[bool, Affects.JUDGING] = False
    """Whether an answer that a breaker cut, cheapened or rerouted is a success."""
    promises: Annotated[Promises, Affects.JUDGING] = Promises()
    retry: Annotated[Retry, Affects.SERVING] = Retry()
    hedge: Annotated[Hedge | None, Affects.SERVING] = None
    poisoned_fraction: Annotated[Fraction, Affects.SERVING] = 0.0
    """Share of its requests that an engine fails on (``pools[].batching.poison``), at each try."""
    share: Annotated[Positive, WITHOUT_TRACE] = 1.0
    """Weight among the classes: of drawn requests, of the users of a closed loop, of ``mix``."""
    prompt_tokens: Annotated[Length, WITHOUT_TRACE] = LognormalLength(
        p50_tokens=1020, p95_tokens=4083
    )
    output_tokens: Annotated[Length, WITHOUT_TRACE] = LognormalLength(
        p50_tokens=129, p95_tokens=451
    )
    """Laws of the lengths. Defaults: token quantiles of the Azure LLM inference trace
    2023, conversation hour (Patel et al., "Splitwise", ISCA 2024, artefact data)."""
    length_correlation: Annotated[float, Field(ge=-1, le=1), WITHOUT_TRACE] = 0.0
    """Correlation of the logarithms of prompt and output length."""
    prefix_tokens: Annotated[CountOrZero, WITHOUT_TRACE] = 0
    """Prefix that all requests of a tenant share, tokens."""
    cached_fraction: Annotated[Fraction, Affects.SERVING] = 0.0
    """Share of the prompt in a prefix cache, if the trace has no ids of prefix blocks; whole KV
    blocks, never the whole prompt."""
    response_cached_fraction: Annotated[Fraction, Affects.SERVING] = 0.0
    """Share of the requests that the response cache answers, if the trace has no such ids."""
    size: Size | None = None
    """Size of a request in the unit of its pool's service law (audio seconds, megapixels); None =
    its prompt tokens."""
    demand: Annotated[Demand, Affects.SERVING] = Demand()
    """Load on the host of its pool."""

    def _broken(self) -> Iterator[str]:
        after_s = None if self.hedge is None else self.hedge.after_s
        ends_s = self.retry.attempt_timeout_s
        if after_s is not None and ends_s is not None and after_s >= ends_s:
            yield (
                f"hedge.after_s: below retry.attempt_timeout_s {ends_s:g}, at which the attempt "
                f"ends, got {after_s:g}"
            )
        for name in ("deadline_s", "e2e_s"):
            stated = getattr(self.promises, name)
            if self.streaming and stated is not None and stated > LONGEST_STREAM_S:
                yield (
                    f"promises.{name}: at most {LONGEST_STREAM_S:g} s for a class that streams "
                    f"(streaming: false for longer work), in s, not ms, got {stated:g}"
                )
        yield from self._retries_begin()

    def _retries_begin(self) -> Iterator[str]:
        """Yield a backoff after which no retry can begin."""
        retry, deadline_s = self.retry, self.promises.deadline_s
        wait_s = min(retry.backoff_s, retry.max_backoff_s)
        never = deadline_s is not None and wait_s >= deadline_s
        if retry.max_attempts > 1 and never and not retry.jitter:
            yield (
                f"retry.backoff_s: below promises.deadline_s {deadline_s:g}, at which the caller "
                f"leaves, got {wait_s:g}"
            )


class Tenant(Part):
    """A customer or team."""

    name: Name
    share: Positive = 1.0
    """Weight among the tenants of each class."""
    sent_share: Positive | None = None
    """Weight by which its requests are drawn; None = its share. More makes a noisy tenant."""
    classes: tuple[ClassName, ...] = ()
    """Classes it uses; empty = all."""
