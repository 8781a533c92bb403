"""The layers in front of a pool: their owners, queue orders, limits, and shares of the budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

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
)

Order = Literal[
    "fifo", "priority", "weighted_fair", "earliest_deadline", "shortest_prompt", "length_buckets"
]


class FairShare(Part):
    """How ``order: weighted_fair`` shares the service, by start-time fair queueing.

    Each tenant, class, or tenant's class (``by``) is a flow. A flow's next request starts where
    its last one finished in virtual time, each ``cost / weight`` long; the earliest start is served
    next. Two flows that both have somebody waiting get service in the ratio of their weights,
    within one request of each (Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM
    1996, theorem 1). A request that leaves unserved costs its flow nothing.
    """

    by: Literal["tenant", "class", "tenant_and_class"] = "tenant"
    """``tenant_and_class``: each class of a tenant is a flow, with the product of both weights."""
    cost: Literal["requests", "prompt_tokens", "tokens"] = "tokens"
    """What is shared. ``tokens`` are those of the prompt and of the answer, as if its length were
    known on arrival; an engine that does not know it charges while it decodes (Sheng et al.,
    "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2)."""
    tenants: dict[TenantName, Positive] = Field(default_factory=dict)
    """Weights of tenants, by name; 1 where none is stated."""
    classes: dict[ClassName, Positive] = Field(default_factory=dict)
    """Weights of classes, by name; 1 where none is stated."""


class LengthBuckets(Part):
    """How ``order: length_buckets`` sorts prompts by length; in a bucket, by arrival.

    A bucket holds prompts of at most its bound, and more than that of the bucket before; one more
    holds those above all bounds.
    """

    bounds_tokens: tuple[Count, ...] = (256, 1024, 4096)
    turn: Literal["round_robin", "shortest_first"] = "round_robin"
    """One request of each bucket in turn, or all of the shorter buckets first."""

    @model_validator(mode="after")
    def _bounds_rise(self) -> LengthBuckets:
        bounds = self.bounds_tokens
        if not bounds or list(bounds) != sorted(set(bounds)):
            msg = f"bounds_tokens: at least one, rising, got {list(bounds)}"
            raise ValueError(msg)
        return self


class Network(Part):
    """Time between caller and gateway, one way, and what a new connection costs.

    ``handshake_s`` passes before a request can be sent on a new connection. Over TCP with TLS 1.3
    it is two round trips, 4 × ``one_way_s`` (one each: RFC 9293, "Transmission Control Protocol",
    2022, section 3.5; RFC 8446, "TLS 1.3", 2018, section 2); with QUIC one (RFC 9001, 2021).
    ``fresh`` connections are opened by every attempt. ``long_lived`` ones are opened once by each
    user of a closed loop, or for each session of a trace, and kept; requests of no session find
    them open.
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
    """Who is served next, ties by arrival: ``fifo``; ``priority`` (lower first);
    ``weighted_fair`` (see ``fair``); ``earliest_deadline`` of the caller, those without one last;
    ``shortest_prompt``; ``length_buckets`` (see ``buckets``)."""
    fair: FairShare = FairShare()
    buckets: LengthBuckets = LengthBuckets()
    ageing_per_s: NonNegative = 0.0
    """How much is taken off the rank of who waits, per second: levels of priority, tokens of the
    shortest prompt, buckets served shortest first. Against starvation: who came a second later
    must be better by this much to go first. 0 = no ageing."""
    status: Literal[429, 503] = 503
    retry_after_s: Derivable[Seconds] = 1.0

    def limits(self) -> Iterator[Limit]:
        """Yield the limits of the length and of the wait, also those that are not set."""
        length, wait_s = self.length, self.wait_limit_s
        refusal = f"{self.status} with Retry-After {_number(self.retry_after_s)} s"
        full = "" if length is None else f"{refusal} beyond {length} waiting"
        yield self.full.at("length", full, owner=self.owner)
        waited = "" if wait_s is None else f"ends a wait of {_number(wait_s)} s"
        yield self.waited.at("wait_limit_s", waited, owner=self.owner)

    @model_validator(mode="after")
    def _ageing_has_a_rank(self) -> Queue:
        ranked = self.order in {"priority", "shortest_prompt"} or (
            self.order == "length_buckets" and self.buckets.turn == "shortest_first"
        )
        if self.ageing_per_s and not ranked:
            msg = (
                "ageing_per_s is of order priority, shortest_prompt and length_buckets shortest "
                f"first, got {self.order}"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _what_is_stated_acts(self) -> Queue:
        for field, order in (("fair", "weighted_fair"), ("buckets", "length_buckets")):
            if field in self.model_fields_set and self.order != order:
                msg = f"{field} is of order {order}, got {self.order}"
                raise ValueError(msg)
        return self


def _number(value: float | str) -> str:
    """Return a number as text, the word ``derived`` as it is."""
    return value if isinstance(value, str) else f"{value:g}"


class Router(Part):
    """Which replica gets the next request, and how many one replica may hold.

    ``max_in_flight`` None passes every request on at once: all waiting then happens in the
    replicas' scheduler queues and the service queue protects nothing. ``model_resident`` takes
    the least loaded of the replicas that hold the request's model, else of all. ``prefix_aware``
    takes who holds the longest prefix of the prompt, unless the loads are too far apart.
    """

    policy: Literal[
        "round_robin", "least_in_flight", "random", "model_resident", "prefix_aware"
    ] = "least_in_flight"
    max_in_flight: Derivable[Count | None] = None
    prefix_threshold_fraction: Fraction = 0.3
    """Share of the prompt that must be found for ``prefix_aware`` to go by it; else the least
    loaded is taken. Default of SGLang's router (``cache_threshold``), as are those below."""
    balance_abs_threshold: CountOrZero = 64
    """Loads are too far apart when the busiest holds more than this above the idlest, …"""
    balance_rel_threshold: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    """… and more than this many times as many; then the least loaded is taken."""


class Weights(Part):
    """Relative shares of the queueing budget, one per waiting layer."""

    gateway_queue: NonNegative = 1.0
    service_queue: NonNegative = 1.0
    scheduler_queue: NonNegative = 1.0
    batch_window: NonNegative = 1.0

    @model_validator(mode="after")
    def _some_weight(self) -> Weights:
        if self.gateway_queue + self.service_queue + self.scheduler_queue + self.batch_window <= 0:
            msg = "at least one weight must be positive"
            raise ValueError(msg)
        return self


class BudgetRule(Part):
    """The stated rule: ``equal``, ``weights``, or ``proportional``.

    ``proportional`` gives the batch window what the batching needs (one step, or the queue delay)
    and divides the rest by ``weights``. Service times are taken at these quantiles of the class's
    lengths.
    """

    rule: Literal["equal", "proportional", "weights"] = "proportional"
    weights: Weights = Weights()
    prompt_quantile: Quantile = 0.95
    output_quantile: Quantile = 0.95
