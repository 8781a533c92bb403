"""The layers in front of a pool, each with an owner, limits and a protective action."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.orders import FairShare, LengthBuckets, Order
from capplan.scenario.part import Count, Fraction, Part, PositiveSeconds, Rate, Seconds


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


class GatewayQueue(Queue):
    """The gateway's own queue: a full one answers 429, unless the file says otherwise."""

    status: Literal[429, 503] = 429


class RateLimit(Part):
    """Token bucket: ``rate_rps`` tokens a second, at most ``burst`` saved; one request one token.

    A request that finds no token is rejected with 429.
    """

    rate_rps: Rate
    burst: Count = 1


class Gateway(Part):
    """The gateway: rate limit, then concurrency with its own queue, then overhead.

    ``concurrency`` limits the requests that the gateway holds open downstream at once.
    ``overhead_s`` is spent on every request before it is passed on (plug-ins: authentication,
    logging, rate limit); ``overhead_fraction`` is the share of TTFT and E2E that serialisation
    takes, so an answer that would take x takes x / (1 - fraction).
    """

    owner: str = ""
    rate_limit: RateLimit | None = None
    concurrency: Count | None = None
    queue: GatewayQueue = GatewayQueue()
    overhead_s: Seconds = 0.0
    overhead_fraction: Annotated[Fraction, Field(lt=1)] = 0.0


class Router(Part):
    """Which replica gets the next request, and how many one replica may hold.

    ``max_in_flight`` None passes every request on at once: all waiting then happens in the
    replicas' scheduler queues and the service queue protects nothing. ``model_resident`` takes
    the least loaded of the replicas that hold the request's model, else of all.
    """

    policy: Literal["round_robin", "least_in_flight", "random", "model_resident"] = (
        "least_in_flight"
    )
    max_in_flight: Count | None = None
