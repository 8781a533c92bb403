"""Breakers: rules that watch a metric and, beyond its limit, make work cheaper or less.

A rule is ``closed`` or ``open``; while it is open, its actions hold. Everything is decided at
check times, k · ``check_every_s`` for k = 1, 2, …, after all else that happens in that instant.
Source of the two states, the threshold that differs for closing and the pause between:
Nygard, "Release It!", 2nd ed., 2018, chapter 5 (circuit breaker); hysteresis: Schmitt, "A
thermionic trigger", Journal of Scientific Instruments 15, 1938.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from capplan.formatting import in_words
from capplan.scenario.ending import UNSET, Ending, Limit
from capplan.scenario.metric_names import LATENCIES, OF_GATEWAY, MetricName, check_samples
from capplan.scenario.part import (
    ClassName,
    Count,
    Name,
    Origins,
    Owner,
    Part,
    PoolName,
    Positive,
    PositiveSeconds,
    Quantile,
    Seconds,
    origin,
    together,
)

Threshold = Annotated[float, Field(allow_inf_nan=False)]


OF_LATENCIES = ("quantile", "request_class", "window_s", "min_samples")
"""Fields of a watch that say nothing of levels and rates."""


class Watch(Part):
    """What a rule reads, and its limit: the rule opens ``above`` it or ``below`` it.

    The fields from ``quantile`` on are of latencies, which are those of the attempts that ended
    in the last ``window_s``. A metric that is not measured is beyond no limit.
    """

    metric: MetricName
    of: Literal["pool", "gateway"] = "pool"
    above: Threshold | None = None
    below: Threshold | None = None
    quantile: Quantile = 0.99
    request_class: ClassName | None = None
    """Only attempts of this class; None = of all."""
    window_s: PositiveSeconds = 60.0
    min_samples: Count | None = None
    """Fewest attempts that a quantile needs; None = as many as leave one beyond it."""
    origins: Origins = Field(default_factory=dict)

    def _broken(self) -> Iterator[str]:
        if (self.above is None) == (self.below is None):
            yield "one of above and below must be set, and not both"
        if self.of == "gateway" and self.metric not in (*OF_GATEWAY, *LATENCIES):
            known = ", ".join((*OF_GATEWAY, *LATENCIES))
            yield f"metric: of the gateway one of {known}, got {self.metric}"
        stated = [name for name in OF_LATENCIES if name in self.model_fields_set]
        ignored = [name for name in stated if getattr(self, name) is not None]
        if ignored and self.metric not in LATENCIES:
            yield (
                f"{ignored[0]} is of {', '.join(LATENCIES)}, got {self.metric} (a level holds now, "
                "a rate since the last check; for_s says for how long)"
            )
        if self.metric in LATENCIES:
            check_samples(self.quantile, self.min_samples)

    @property
    def condition(self) -> str:
        """Return when the metric is beyond the limit, in words; a default is marked as one."""
        latency = self.metric in LATENCIES
        name = in_words(self.metric.removesuffix("_s") if latency else self.metric)
        what, unit = (f"{name} p{100 * self.quantile:g}", " s") if latency else (name, "")
        side, limit = ("above", self.above) if self.above is not None else ("below", self.below)
        mark = " (a default, not your promise)" if origin(self, side) == "default" else ""
        return f"{what} is {side} {limit:g}{unit}{mark}"

    def holds(self, value: float) -> bool:
        """Return whether a value is beyond the limit; NaN is not.

        >>> Watch(metric="queue_length", above=200).holds(201)
        True
        >>> Watch(metric="queue_length", above=200).holds(float("nan"))
        False
        """
        if self.above is not None:
            return value > self.above
        return self.below is not None and value < self.below


class Release(Part):
    """When an open rule closes: once the metric has been beyond *this* limit for ``for_s``.

    The limit lies on the other side of the rule's own (hysteresis): ``below`` for a rule that
    opens above its limit, ``above`` for one that opens below; or it is ``limit_factor`` times the
    rule's own limit. None = at the rule's own limit.
    A metric that is not measured closes no rule, so one that refuses every request may never see a
    good value: ``after_s`` closes it in any case, and it opens again if it must (half-open).
    """

    below: Threshold | None = None
    above: Threshold | None = None
    limit_factor: Positive | None = None
    for_s: Seconds = 0.0
    after_s: PositiveSeconds | None = None
    origins: Origins = Field(default_factory=dict)


class _OfClasses(Part):
    classes: tuple[ClassName, ...] = ()
    """The classes it acts on; empty = all."""


class Greedy(_OfClasses):
    """Answers that reach the pool are decoded greedily, not by beams."""

    does: ClassVar = "beams become greedy"
    kind: Literal["greedy"] = "greedy"


class MaxTokens(_OfClasses):
    """Answers that reach the pool are cut after ``tokens``."""

    does: ClassVar = "answers are cut after {0.tokens:,} tokens"
    kind: Literal["max_tokens"] = "max_tokens"
    tokens: Count
    origins: Origins = Field(default_factory=dict)


class Route(_OfClasses):
    """Requests that reach the pool are passed on to another one, of a smaller model.

    That pool's own rules then hold for them, except that no request is passed on twice.
    """

    does: ClassVar = "requests go to {0.to}"
    kind: Literal["route"] = "route"
    to: PoolName


class Refuse(_OfClasses):
    """Requests for the pool are refused before they wait: in its service queue or the gateway's.

    At the gateway it comes before every other limit, and holds for the classes of the pool.
    """

    ending: ClassVar = Ending("breaker")
    does: ClassVar = "{0.status} with Retry-After {0.retry_after_s:g} s"
    kind: Literal["refuse"] = "refuse"
    at: Literal["service_queue", "gateway"] = "service_queue"
    only_sheddable: bool = False
    """Only classes that are ``sheddable``."""
    status: Literal[429, 503] = 503
    retry_after_s: Seconds = 1.0
    origins: Origins = Field(default_factory=dict)


class PauseAndCompact(Part):
    """No request joins a running batch, and contiguous KV is moved together, once.

    The move costs what compaction costs (``contiguous.copy_s_per_token``), whether or not the
    engine compacts by itself. Requests wait meanwhile, with their queues' limits.
    """

    does: ClassVar = "admission pauses and KV is compacted"
    kind: Literal["pause_and_compact"] = "pause_and_compact"


class StartStandby(Part):
    """The pool's standby comes into service; it goes back when the rule closes.

    No more replicas than an autoscaler's ``max_replicas`` are in service.
    A standby that takes longer than ``ready_at_most_s`` (95th percentile) is left where it is.
    """

    does: ClassVar = "the standby comes into service"
    kind: Literal["start_standby"] = "start_standby"
    ready_at_most_s: PositiveSeconds | None = None
    origins: Origins = Field(default_factory=dict)


class ShrinkBatch(Part):
    """Batches hold less than configured, from the next step or batch on; the rest waits.

    ``max_num_seqs`` and ``max_num_batched_tokens`` are of continuous batching, ``max_batch_size``
    and ``max_queue_delay_s`` of the other kinds.
    """

    does: ClassVar = "batches shrink to {0.shrunk}"
    kind: Literal["shrink_batch"] = "shrink_batch"
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    max_batch_size: Count | None = None
    max_queue_delay_s: Seconds | None = None
    origins: Origins = Field(default_factory=dict)

    def _broken(self) -> Iterator[str]:
        if not self.stated:
            yield f"at least one of {', '.join(_LIMITS)} must be set"

    @property
    def stated(self) -> dict[str, float]:
        """Return the limits that are set."""
        values = {name: getattr(self, name) for name in _LIMITS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def shrunk(self) -> str:
        """Return the limits that are set, in words."""
        return ", ".join(f"{name} {value:g}" for name, value in self.stated.items())


_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_batch_size", "max_queue_delay_s")

Action = Annotated[
    Greedy | MaxTokens | Route | Refuse | PauseAndCompact | StartStandby | ShrinkBatch,
    Field(discriminator="kind"),
]
"""What a rule can do; each kind says so in ``does``, a text with its fields."""
PerRequest = Greedy | MaxTokens | Route | Refuse
"""Actions on requests as they reach a pool; the others are on the pool itself."""


class Breaker(Part):
    """One rule: when a metric of a pool is beyond its limit, its actions hold in that pool.

    With ``pool`` None there is one such rule in every pool where all its actions are possible,
    each with its own state. The rule opens when the metric has been beyond its limit at all checks
    of the last ``for_s``; after each opening or closing it keeps its state for ``cool_down_s``.

    ``tier`` is the order of degradation in a pool, lowest first: a rule opens only if one of the
    next lower tier is open already, from an earlier check, and a rule closes only after those of
    higher tiers have. Rules without a tier are bound to no other.

    Of the actions on a request, refusing comes first, then passing on, then cheapening.
    """

    name: Name
    owner: Owner = ""
    pool: PoolName | None = None
    tier: Count | None = None
    when: Watch
    for_s: Seconds = 0.0
    then: Annotated[tuple[Action, ...], Field(min_length=1)]
    release: Release = Release()
    cool_down_s: Seconds = 0.0
    check_every_s: PositiveSeconds = 1.0
    origins: Origins = Field(default_factory=dict)

    def _broken(self) -> Iterator[str]:
        yield from together(self._clashes())

    def _clashes(self) -> Iterator[str]:
        above, below, release = self.when.above, self.when.below, self.release
        if above is not None and release.above is not None:
            yield "release: a rule that opens above its limit is released below one"
        if below is not None and release.below is not None:
            yield "release: a rule that opens below its limit is released above one"
        if above is not None and release.below is not None and release.below > above:
            yield f"release.below: at most when.above {above}, got {release.below}"
        if below is not None and release.above is not None and release.above < below:
            yield f"release.above: at least when.below {below}, got {release.above}"
        if (factor := release.limit_factor) is None:
            return
        limit = above if above is not None else below
        if release.above is not None or release.below is not None:
            yield "release.limit_factor stands in place of below and above"
        if not limit or limit < 0:
            yield f"release.limit_factor needs a positive limit, got {limit}"
        if factor > 1 if above is not None else factor < 1:
            side, bound = ("above", "at most") if above is not None else ("below", "at least")
            yield f"release.limit_factor: {bound} 1 for a rule that opens {side}, got {factor:g}"

    def limit(self, *, acts: bool = True) -> Limit:
        """Return the rule as a limit; not set where it ``acts`` in no pool.

        >>> when = Watch(metric="queue_length", above=200)
        >>> Breaker(name="full", when=when, then=(Refuse(),)).limit().action
        '503 with Retry-After 1 s while queue length is above 200'
        """
        doing = " and ".join(action.does.format(action) for action in self.then)
        above, metric = self.when.above, self.when.metric
        why = (
            ""
            if above is None
            else f"the breaker {self.name} refuses them above {above:g} {metric}"
        )
        return Limit(
            field=self.name,
            reason=Refuse.ending.named(self.name),
            layer=next((a.at for a in self.then if isinstance(a, Refuse)), "service_queue"),
            action=f"{doing} while {self.when.condition}" if acts else UNSET,
            owner=self.owner,
            changes_pool=any(not isinstance(action, PerRequest) for action in self.then),
            value=above,
            moved_by=f"{self.name}.when.above",
            why=why,
        )

    @property
    def release_at(self) -> float | None:
        """Return the limit beyond which the rule closes; None = its own."""
        release = self.release
        stated = release.below if self.when.above is not None else release.above
        limit = self.when.above if self.when.above is not None else self.when.below
        if release.limit_factor is None or limit is None:
            return stated
        return limit * release.limit_factor

    def released(self, value: float) -> bool:
        """Return whether a value is beyond the limit at which the rule closes; NaN is not."""
        when, at = self.when, self.release_at
        if when.above is not None:
            return value <= when.above if at is None else value < at
        if when.below is None:
            return False
        return value >= when.below if at is None else value > at

    @property
    def acts_on(self) -> tuple[str, ...]:
        """Return the classes that its actions name."""
        return tuple(c for act in self.then if isinstance(act, _OfClasses) for c in act.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the classes that are named."""
        return (
            *self.acts_on,
            *([] if self.when.request_class is None else [self.when.request_class]),
        )
