"""The layers in front of a pool, each with an owner, limits and a protective action."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.orders import FairShare, LengthBuckets, Order
from capplan.scenario.part import Count, Fraction, Part, PositiveSeconds, Seconds


class Network(Part):
    """Time between caller and gateway, one way, and what a new connection costs.

    ``handshake_s`` passes before a request can be sent on a new connection. Over TCP with TLS 1.3
    it is two round trips, 4 × ``one_way_s`` (one each: RFC 9293, "Transmission Control Protocol",
    2022, section 3.5; RFC 8446, "TLS 1.3", 2018, section 2); with QUIC one (RFC 9001, 2021).
    ``fresh`` connections are opened by every attempt. ``long_lived`` ones are opened once by each
    user of a closed loop, or for each session of a trace, and kept; requests of no session find
    them open.
    """

    owner: str = ""
    one_way_s: Seconds = 0.0
    handshake_s: Seconds = 0.0
    connections: Literal["long_lived", "fresh"] = "long_lived"


class Queue(Part):
    """One queue: how many may wait, how long, in which order, and what a refusal says.

    ``length`` None is an unlimited queue and ``wait_limit_s`` None an unlimited wait: both are
    findings of the budget. A request refused for length is *rejected* (``status``, Retry-After
    ``retry_after_s``); one that waited past the limit is *timed out*.
    """

    owner: str = ""
    length: Annotated[int, Field(ge=0)] | None = None
    wait_limit_s: PositiveSeconds | None = None
    order: Order = "fifo"
    """Who is served next, ties by arrival: ``fifo``; ``priority`` (lower first);
    ``weighted_fair`` (see ``fair``); ``earliest_deadline`` of the caller, those without one last;
    ``shortest_prompt``; ``length_buckets`` (see ``buckets``)."""
    fair: FairShare = FairShare()
    buckets: LengthBuckets = LengthBuckets()
    ageing_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How much is taken off the rank of who waits, per second: levels of priority, tokens of the
    shortest prompt, buckets served shortest first. Against starvation: who came a second later
    must be better by this much to go first. 0 = no ageing."""
    status: Literal[429, 503] = 503
    retry_after_s: Seconds = 1.0

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
    max_in_flight: Count | None = None
    prefix_threshold_fraction: Fraction = 0.3
    """Share of the prompt that must be found for ``prefix_aware`` to go by it; else the least
    loaded is taken. Default of SGLang's router (``cache_threshold``), as are those below."""
    balance_abs_threshold: Annotated[int, Field(ge=0)] = 64
    """Loads are too far apart when the busiest holds more than this above the idlest, …"""
    balance_rel_threshold: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    """… and more than this many times as many; then the least loaded is taken."""
