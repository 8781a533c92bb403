"""Requests, their attempts on the way through the layers, and how attempts fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from capplan.replica.job import Job
from capplan.scenario.ending import Ending, is_final

Place = Literal[
    "caller", "network", "gateway_queue", "gateway", "service_queue", "replica", "answer", "gone"
]
"""Where an attempt is. ``answer`` is the gateway's serialisation of the answer; ``gone`` is
beyond the gateway, on the way back or given up."""


Gauge = tuple[str, Callable[[], float], bool]
"""A metric that a part of the run shows on the timeline: name, reading, whether it is a total."""


@dataclass(slots=True, eq=False)
class Request:
    """One intended request: a row of the trace. Its fields come by position: it is made in bulk."""

    row: int
    request_id: str
    request_class: str
    tenant: str
    session: str
    priority: int
    streaming: bool
    deadline_s: float
    size: float
    prompt_tokens: int
    output_tokens: int
    first_start_s: float
    prefix_blocks: Sequence[int] = ()
    prefix_block_tokens: int = 0
    cached_fraction: float = 0.0
    user: str = ""
    """The user of a closed loop; empty = of none."""
    think_s: float = math.nan
    """Time between the user's previous answer and this request."""
    leaves_s: float = math.inf
    """When the caller leaves; inf without a deadline."""

    def begin_at(self, time_s: float) -> None:
        """Move the first start to another time, and when the caller leaves."""
        self.first_start_s = time_s
        self.leaves_s = math.inf if math.isnan(self.deadline_s) else time_s + self.deadline_s


@dataclass(slots=True, eq=False, init=False)
class Attempt(Job):
    """One attempt: a row of the request log, written as it moves."""

    request: Request = field(kw_only=True)
    attempt: int = field(kw_only=True)
    intended_start_s: float = field(kw_only=True)
    place: Place = "network"
    is_held: bool = False
    """Whether a replica holds it, even after its caller has left."""

    sent_s: float = math.nan
    handshake_s: float = 0.0
    """Time to open its connection, before it could go onto the network."""
    gateway_in_s: float = math.nan
    gateway_admitted_s: float = math.nan
    service_queue_in_s: float = math.nan
    finish_s: float = math.nan

    outcome: str = "in_flight"
    outcome_layer: str | None = None
    reason: str | None = None
    replica: str | None = None
    routed_to: str = ""
    """The pool that a breaker has passed it on to; "" = that of its class."""
    degraded: bool = False
    """Whether a breaker has cut, cheapened or rerouted its answer."""
    seen_tokens: int | None = None
    """Tokens made when its caller left, where the replica went on with it."""

    def __init__(
        self, request: Request, attempt: int, start_s: float, handshake_s: float = 0.0
    ) -> None:
        """Send a request for the ``attempt``-th time.

        (Not left to the dataclass: Python takes three times as long to fill in so many defaults.)
        """
        self.request, self.attempt = request, attempt
        self.intended_start_s = self.sent_s = start_s
        self.handshake_s = handshake_s
        self.prompt_tokens, self.output_tokens = request.prompt_tokens, request.output_tokens
        self.priority, self.size = request.priority, request.size
        self.prefix_blocks = request.prefix_blocks
        self.prefix_block_tokens = request.prefix_block_tokens
        self.cached_fraction = request.cached_fraction
        self.place = "network"
        self.outcome = "in_flight"
        self.routed_to = ""
        self.is_held = self.degraded = self.greedy = False
        self.streams = True
        self.gateway_in_s = self.gateway_admitted_s = self.service_queue_in_s = math.nan
        self.scheduler_queue_in_s = self.batch_in_s = self.batch_window_s = math.nan
        self.prefill_end_s = self.decode_end_s = self.finish_s = math.nan
        self.batch_id = self.batch_size = math.nan
        self.outcome_layer = self.reason = self.replica = self.seen_tokens = None
        self.block_names = None
        self.prefilled_tokens = self.generated_tokens = self.cached_tokens = 0
        self.known_tokens = self.computed_tokens = self.kv_tokens = 0
        self.finish_step = self.phase = self.admission = 0
        self.stream_interval = self.beam_width = 1

    @property
    def tenant(self) -> str:
        """Return the tenant of its request."""
        return self.request.tenant

    @property
    def request_class(self) -> str:
        """Return the class of its request."""
        return self.request.request_class

    @property
    def leaves_s(self) -> float:
        """Return when its caller leaves, s; inf without a deadline."""
        return self.request.leaves_s

    @property
    def layer(self) -> str:
        """Return the layer (``schema.LAYERS``) that the attempt is in."""
        if self.place == "replica":
            return self._replica_layer
        return _LAYER_OF.get(self.place, self.place)

    @property
    def _replica_layer(self) -> str:
        if math.isnan(self.batch_in_s):
            return "scheduler_queue"
        return "prefill" if math.isnan(self.prefill_end_s) else "decode"


_LAYER_OF: dict[str, str] = {"gateway_queue": "gateway", "answer": "gateway", "gone": "network"}


Outcome = Literal["rejected", "timed_out", "failed"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended without success, and the answer to its caller."""

    outcome: Outcome
    layer: str
    reason: str
    status: int | None = None
    """HTTP status of a refusal."""
    retry_after_s: float = 0.0

    @classmethod
    def of(
        cls,
        ending: Ending,
        layer: str = "gateway",
        *,
        outcome: Outcome = "rejected",
        name: str | None = None,
        retry_after_s: float = 0.0,
    ) -> Failure:
        """Return the failure that a part of the scenario declares, at a limit of that name."""
        reason = ending.named(name)
        return cls(outcome, ending.layer or layer, reason, ending.status, retry_after_s)

    @property
    def can_be_retried(self) -> bool:
        """Return whether the same request could succeed later."""
        return not is_final(self.reason)


class Downstream(Protocol):
    """Where a layer passes on the attempts that have ended behind it."""

    def answered(self, attempt: Attempt) -> None:
        """Take an attempt whose last token is made."""

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Take an attempt that ended without an answer."""

    @property
    def has_waiting(self) -> bool:
        """Return whether a request waits for room here or in a layer before."""
