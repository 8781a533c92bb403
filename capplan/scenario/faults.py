"""Faults: their kind, place, time and length.

A fault strikes once, at ``at_s``, or repeatedly: after an exponential time of operation with mean
``mtbf_s``, for an exponential time with mean ``mttr_s`` (or its fixed time), from a random stream
of its own. The unit that fails (a replica, a node, the router, the load generator) then works for
``mtbf_s / (mtbf_s + mttr_s)`` of the time.
Source: IEC 60050-192, "Dependability", 2015, 192-05-13 (mean operating time between failures);
Barlow, Proschan, "Mathematical Theory of Reliability", 1965, chapter 3 (availability of an
alternating renewal process). The exponential law is an assumption: constant hazard, no wear.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag

from capplan.scenario.ending import Ending
from capplan.scenario.part import (
    Count,
    CountOrZero,
    HostName,
    Part,
    PoolName,
    Positive,
    PositiveSeconds,
    Rate,
    Seconds,
    Version,
)

LEAST_MTBF_S = 1e-3
"""Shortest mean time between failures, s; below it, runs take too long."""


class Occurrence(Part):
    """When a fault strikes: once, or by a mean time between failures."""

    fixed: ClassVar[str | None] = None
    """Field that holds its fixed length; None = the kind has none."""
    changes_pace: ClassVar[bool] = False
    """Whether it changes the speed or the KV of running steps, which compiled steps cannot."""

    at_s: Seconds | None = None
    """Start, s; None = by ``mtbf_s``."""
    mtbf_s: Annotated[float, Field(ge=LEAST_MTBF_S, allow_inf_nan=False)] | None = None
    """Mean time of operation between two failures of a unit, s."""
    mttr_s: PositiveSeconds | None = None
    """Mean length, s; None = the kind's fixed length."""

    def _broken(self) -> Iterator[str]:
        if (self.at_s is None) == (self.mtbf_s is None):
            both = "neither" if self.at_s is None else "both"
            yield f"at_s (once) or mtbf_s (repeatedly), got {both}"
        if self.mttr_s is not None and self.mtbf_s is None:
            yield "mttr_s needs mtbf_s, got at_s"
        if self.mttr_s is not None and self.lasts_s is not None:
            yield f"mttr_s and {self.fixed} exclude each other"
        if self.mtbf_s is not None and self.mttr_s is None and not self._ends_of_itself:
            yield f"mtbf_s needs mttr_s{f' or {self.fixed}' if self.fixed else ''}"

    @property
    def lasts_s(self) -> float | None:
        """Return its fixed length, s; None = forever, or by ``mttr_s``."""
        found: float | None = None if self.fixed is None else getattr(self, self.fixed)
        return found

    @property
    def _ends_of_itself(self) -> bool:
        return self.lasts_s is not None

    @property
    def begins_s(self) -> float:
        """Return its earliest start, s."""
        return 0.0 if self.at_s is None else self.at_s

    @property
    def ends_s(self) -> float:
        """Return its end, s; inf = never, or not known beforehand."""
        if self.at_s is None or self.lasts_s is None:
            return math.inf
        return self.at_s + self.lasts_s

    @property
    def last_change_s(self) -> float:
        """Return its last start or end, s; 0 by ``mtbf_s``, which has none."""
        return self.begins_s if math.isinf(self.ends_s) else self.ends_s


class ReplicaFault(Occurrence):
    """A fault of the first ``count`` replicas in service; with ``mtbf_s``, of each by itself."""

    pool: PoolName | None = None
    """None = the primary pool."""
    count: Count = 1
    """Replicas that fail at once."""

    def _broken(self) -> Iterator[str]:
        yield from super()._broken()
        if self.mtbf_s is not None and self.count > 1:
            yield f"count: 1 with mtbf_s, by which each replica fails alone, got {self.count}"


class Crash(ReplicaFault):
    """Replicas stop, and their requests fail.

    They return empty ``down_s`` later, plus the time of ``pools[].model_load``; None = never.
    """

    fixed: ClassVar[str | None] = "down_s"
    ending: ClassVar = Ending("crash", 502)
    kind: Literal["crash"] = "crash"
    down_s: PositiveSeconds | None = None


class Hang(ReplicaFault):
    """Replicas accept requests but make no progress.

    After ``for_s`` (None = never) they continue. A health check takes them out of routing after
    ``detect_s`` (None = no check) and, with ``restart_s``, restarts them: their requests fail, and
    they return empty ``restart_s`` later, plus the time of ``pools[].model_load``.
    """

    fixed: ClassVar[str | None] = "for_s"
    changes_pace: ClassVar[bool] = True
    ending: ClassVar = Ending("restart", 502)
    kind: Literal["hang"] = "hang"
    for_s: PositiveSeconds | None = None
    detect_s: Seconds | None = None
    restart_s: PositiveSeconds | None = None

    def _broken(self) -> Iterator[str]:
        yield from super()._broken()
        if self.restart_s is not None and self.detect_s is None:
            yield "restart_s needs detect_s"

    @property
    def _ends_of_itself(self) -> bool:
        return self.for_s is not None or self.restart_s is not None

    @property
    def ends_s(self) -> float:
        """Return its end, s; inf = never, or not known beforehand."""
        alone_s = super().ends_s
        if self.at_s is None or self.restart_s is None or self.detect_s is None:
            return alone_s
        noticed_s = self.at_s + self.detect_s
        return alone_s if alone_s <= noticed_s else noticed_s + self.restart_s


class Slow(ReplicaFault):
    """Steps and batches of replicas take ``factor`` times as long, for ``for_s`` (None = forever).

    It applies to running steps midway. Factors of faults that overlap multiply.
    """

    fixed: ClassVar[str | None] = "for_s"
    changes_pace: ClassVar[bool] = True
    kind: Literal["slow"] = "slow"
    factor: Positive = 2.0
    for_s: PositiveSeconds | None = None


class Leak(ReplicaFault):
    """Replicas lose free KV tokens, ``kv_tokens_per_s``, for ``for_s`` (None = forever).

    What is lost counts as in use and comes back when a replica crashes or reloads; then it loses
    again. Needs paged KV, of one model.
    """

    fixed: ClassVar[str | None] = "for_s"
    changes_pace: ClassVar[bool] = True
    kind: Literal["leak"] = "leak"
    kv_tokens_per_s: Rate = 1.0
    for_s: PositiveSeconds | None = None


class NodeLoss(Occurrence):
    """A machine stops with all its replicas, which return as after a crash.

    The machine is a ``host``, or number ``node`` (from 0) of those that a ``pool`` fills with
    ``replicas_per_node`` replicas each, in order; new replicas of an autoscaler fill the next.
    With ``mtbf_s`` and no ``node``, each machine of the pool fails by itself.
    """

    fixed: ClassVar[str | None] = "down_s"
    kind: Literal["node_loss"] = "node_loss"
    host: HostName | None = None
    pool: PoolName | None = None
    node: CountOrZero | None = None
    """None = the first; with ``mtbf_s``, each."""
    down_s: PositiveSeconds | None = None

    def _broken(self) -> Iterator[str]:
        yield from super()._broken()
        if self.host is not None and (self.pool is not None or self.node is not None):
            yield "host excludes pool and node"


class ModelReload(Occurrence):
    """A rolling reload of a pool's model, at most ``max_unavailable`` replicas at a time.

    A replica leaves routing, has ``drain_s`` to finish its requests (the rest fails), and loads
    for ``load_s``; None = the time of ``pools[].model_load``.
    Source: Kubernetes, "Deployments", section "Rolling Update Deployment" (maxUnavailable), and
    "Pod Lifecycle", section "Termination of Pods" (30 s grace), 2025; here one
    at a time in place of 25 %.
    """

    ending: ClassVar = Ending("reload", 502)
    kind: Literal["model_reload"] = "model_reload"
    pool: PoolName | None = None
    count: Count | None = None
    """Replicas to reload; None = all."""
    max_unavailable: Count = 1
    drain_s: Seconds = 30.0
    load_s: PositiveSeconds | None = None
    version: Version = ""
    """What a reloaded replica reports, and one that joins later if all are reloaded; empty = as
    before."""

    def _broken(self) -> Iterator[str]:
        yield from super()._broken()
        if self.mttr_s is not None:
            yield "mttr_s: not allowed, state load_s"

    @property
    def _ends_of_itself(self) -> bool:
        return True


class RouterBlind(Occurrence):
    """The router of a pool gets no news of load or health for ``for_s``.

    It routes by its last view, also to replicas that have failed since; their requests fail.
    Source: Mitzenmacher, "How Useful Is Old Information?", IEEE Transactions on Parallel and
    Distributed Systems 11(1), 2000: least-loaded routing by an old view herds.
    """

    fixed: ClassVar[str | None] = "for_s"
    ending: ClassVar = Ending("unreachable", 502)
    kind: Literal["router_blind"] = "router_blind"
    pool: PoolName | None = None
    for_s: PositiveSeconds | None = None


class GeneratorLimit(Occurrence):
    """The load generator sends at most ``rate_rps``, over at most ``connections``.

    Requests wait in it in the order of their intended starts, from which latencies count; the
    delay is send lag. It limits the test, not the service. A connection is in use while its
    attempt lasts.
    """

    fixed: ClassVar[str | None] = "for_s"
    kind: Literal["generator_limit"] = "generator_limit"
    rate_rps: Rate | None = None
    connections: Count | None = None
    for_s: PositiveSeconds | None = None

    def _broken(self) -> Iterator[str]:
        yield from super()._broken()
        if self.rate_rps is None and self.connections is None:
            yield "rate_rps or connections: at least one of them"


def _kind(value: Any) -> Any:
    """Return the kind of a fault; without one it is a crash."""
    if isinstance(value, dict):
        return value.get("kind", "crash")
    return getattr(value, "kind", None)


_Kinds = (
    Annotated[Crash, Tag("crash")]
    | Annotated[Hang, Tag("hang")]
    | Annotated[Slow, Tag("slow")]
    | Annotated[Leak, Tag("leak")]
    | Annotated[NodeLoss, Tag("node_loss")]
    | Annotated[ModelReload, Tag("model_reload")]
    | Annotated[RouterBlind, Tag("router_blind")]
    | Annotated[GeneratorLimit, Tag("generator_limit")]
)
KINDS: dict[str, type[Occurrence]] = {
    tag.tag: kind for kind, tag in (get_args(one) for one in get_args(_Kinds))
}
"""The class of each kind of fault, by name."""

Fault = Annotated[
    _Kinds,
    Discriminator(
        _kind, custom_error_type="fault_kind", custom_error_message=f"a kind of {', '.join(KINDS)}"
    ),
]
