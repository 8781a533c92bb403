"""The layers in front of a pool: owners, queue orders, limits, shares of the budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from capplan.scenario.ending import Ending, Limit
from capplan.scenario.part import (
    ClassName,
    Count,
    CountOrZero,
    Derivable,
    Fraction,
    NonNegative,
    Owner,
    Part,
    Positive,
    PositiveSeconds,
    Quantile,
    Seconds,
    TenantName,
    is_derived,
)

Order = Literal[
    "fifo", "priority", "weighted_fair", "earliest_deadline", "shortest_prompt", "length_buckets"
]


class FairShare(Part):
    """Start-time fair queueing, for ``order: weighted_fair``.

    Each tenant, class, or class of a tenant (``by``) is a flow. A request of a flow starts where
    the one before it finished in virtual time, each ``cost / weight`` long; the earliest start is
    served next. Two backlogged flows are served in the ratio of their weights, within one request
    of each (Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM
    1996, theorem 1). A request that leaves unserved costs nothing.
    """

    by: Literal["tenant", "class", "tenant_and_class"] = "tenant"
    """The flow; ``tenant_and_class`` has the product of both weights."""
    cost: Literal["requests", "prompt_tokens", "tokens"] = "tokens"
    """The shared quantity. ``tokens`` are those of prompt and answer, as if known on arrival; an
    engine charges while it decodes (Sheng et al., "Fairness in Serving Large Language Models",
    OSDI 2024, algorithm 2)."""
    tenants: dict[TenantName, Positive] = Field(default_factory=dict)
    """Weights of tenants, by name; 1 where none is stated."""
    classes: dict[ClassName, Positive] = Field(default_factory=dict)
    """Weights of classes, by name; 1 where none is stated."""


class LengthBuckets(Part):
    """Buckets of prompt lengths, for ``order: length_buckets``; in a bucket, by arrival.

    A bucket holds prompts up to its bound; one more holds those above all bounds.
    """

    bounds_tokens: tuple[Count, ...] = (256, 1024, 4096)
    turn: Literal["round_robin", "shortest_first"] = "round_robin"
    """One request of each bucket in turn, or shorter buckets first."""

    def _broken(self) -> Iterator[str]:
        bounds = self.bounds_tokens
        if not bounds or list(bounds) != sorted(set(bounds)):
            yield f"bounds_tokens: at least one, rising, got {list(bounds)}"


class Network(Part):
    """The network between callers and gateway.

    A new connection takes ``handshake_s`` before its first request: over TCP with TLS 1.3 two
    round trips, 4 × ``one_way_s`` (one each: RFC 9293, "Transmission Control Protocol",
    2022, section 3.5; RFC 8446, "TLS 1.3", 2018, section 2); with QUIC one (RFC 9001, 2021).
    Each attempt opens a ``fresh`` connection; each user of a closed loop or session of a trace
    opens one ``long_lived`` connection. Requests without a session find theirs open.
    """

    owner: Owner = ""
    one_way_s: Seconds = 0.0
    handshake_s: Seconds = 0.0
    connections: Literal["long_lived", "fresh"] = "long_lived"


class Queue(Part):
    """One queue: how many may wait, how long, in which order, and what a refusal says.

    ``length`` None is an unlimited queue and ``wait_limit_s`` None an unlimited wait: both are
    findings of the budget. A request refused for length is *rejected* (``status``, Retry-After
    ``retry_after_s``); one that waited past the limit is *timed out*.
    """

    full: ClassVar = Ending("queue_full")
    waited: ClassVar = Ending("wait_limit")

    owner: Owner = ""
    length: Derivable[CountOrZero | None] = None
    wait_limit_s: Derivable[PositiveSeconds | None] = None
    order: Order = "fifo"
    """``fifo``; ``priority`` (lower first); ``weighted_fair`` (see ``fair``); ``earliest_deadline``
    (none last); ``shortest_prompt``; ``length_buckets`` (see ``buckets``). Ties go by arrival."""
    fair: FairShare = FairShare()
    buckets: LengthBuckets = LengthBuckets()
    ageing_per_s: NonNegative = 0.0
    """Reduction of a waiting request's rank per second, against starvation: of its priority, its
    prompt tokens, or its bucket. 0 = no ageing."""
    status: Literal[429, 503] = 503
    retry_after_s: Derivable[Seconds] = 1.0

    def limits(self) -> Iterator[Limit]:
        """Yield the limits of the length and of the wait, also those that are not set."""
        length, wait_s = self.length, self.wait_limit_s
        refusal = f"{self.status} with Retry-After {_number(self.retry_after_s)} s"
        full = "" if length is None else f"{refusal} beyond {length} waiting"
        yield self.full.at("length", full, owner=self.owner)
        waited = "" if wait_s is None else f"ends a wait of {_number(wait_s)} s"
        most_s = None if is_derived(wait_s) else wait_s
        why = "their queue ends waits of requests that are not lost yet"
        yield self.waited.at("wait_limit_s", waited, owner=self.owner, value=most_s, why=why)

    def _broken(self) -> Iterator[str]:
        yield from self._ageing_has_a_rank()
        yield from self._what_is_stated_acts()

    def _ageing_has_a_rank(self) -> Iterator[str]:
        ranked = self.order in {"priority", "shortest_prompt"} or (
            self.order == "length_buckets" and self.buckets.turn == "shortest_first"
        )
        if self.ageing_per_s and not ranked:
            yield (
                "ageing_per_s: needs order priority, shortest_prompt or length_buckets shortest "
                f"first, got {self.order}"
            )

    def _what_is_stated_acts(self) -> Iterator[str]:
        for field, order in (("fair", "weighted_fair"), ("buckets", "length_buckets")):
            if field in self.model_fields_set and self.order != order:
                yield f"{field}: needs order {order}, got {self.order}"


def _number(value: float | str) -> str:
    """Return a number as text, the word ``derived`` as it is."""
    return value if isinstance(value, str) else f"{value:g}"


class Router(Part):
    """Which replica gets the next request, and how many a replica may hold.

    ``max_in_flight`` None passes all requests on at once, so that they wait in the replicas'
    scheduler queues alone. ``model_resident`` prefers replicas that hold the request's model,
    ``prefix_aware`` the replica with the longest prefix of the prompt, unless loads differ too
    much; ties go to the least loaded.
    """

    policy: Literal[
        "round_robin", "least_in_flight", "random", "model_resident", "prefix_aware"
    ] = "least_in_flight"
    max_in_flight: Derivable[Count | None] = None
    prefix_threshold_fraction: Fraction = 0.3
    """Least share of the prompt that ``prefix_aware`` follows. Defaults, here and below: SGLang's
    router (``cache_threshold``)."""
    balance_abs_threshold: CountOrZero = 64
    """Loads differ too much if the busiest replica holds this many more than the idlest, …"""
    balance_rel_threshold: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    """… and this many times as many."""


class Weights(Part):
    """Relative shares of the queueing budget, one per waiting layer."""

    gateway_queue: NonNegative = 1.0
    service_queue: NonNegative = 1.0
    scheduler_queue: NonNegative = 1.0
    batch_window: NonNegative = 1.0

    def _broken(self) -> Iterator[str]:
        if self.gateway_queue + self.service_queue + self.scheduler_queue + self.batch_window <= 0:
            yield "at least one weight must be positive"


class BudgetRule(Part):
    """How the time to wait is divided: ``equal``, by ``weights``, or ``proportional``.

    ``proportional`` gives the batch window its need (one step, or the queue delay) and divides the
    rest by ``weights``. Service times are those at these quantiles of the lengths.
    """

    rule: Literal["equal", "proportional", "weights"] = "proportional"
    weights: Weights = Weights()
    prompt_quantile: Quantile = 0.95
    output_quantile: Quantile = 0.95
    limits_from: Literal["deadline", "promise"] = "deadline"
    """What a request has missed for good when a derived limit ends its wait: ``deadline`` ends only
    what no caller waits for any more, so that no limit costs a replica; ``promise`` also ends what
    is late for TTFT or E2E, which keeps the rest in time in an overload."""
