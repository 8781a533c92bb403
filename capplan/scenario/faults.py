"""Faults: what goes wrong, where, when and for how long.

Each strikes once, at ``at_s``, or again and again: after an exponential time of operation with
mean ``mtbf_s``, for an exponential time with mean ``mttr_s`` (or for its fixed time), drawn from a
random stream of its own. The unit that fails (each replica, each node, the router, the load
generator) is then in order for ``mtbf_s / (mtbf_s + mttr_s)`` of the time.
Source: IEC 60050-192, "Dependability", 2015, 192-05-13 (mean operating time between failures);
Barlow, Proschan, "Mathematical Theory of Reliability", 1965, chapter 3 (availability of an
alternating renewal process). The exponential law is an assumption: constant hazard, no wear.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

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
)

LEAST_MTBF_S = 1e-3
"""Below it a unit that others keep from working would be looked at too often to get anywhere."""


class Occurrence(Part):
    """When something goes wrong: once, or by a mean time between failures."""

    fixed: ClassVar[str | None] = None
    """The field that says for how long, where there is one."""
    changes_pace: ClassVar[bool] = False
    """Whether it changes the speed of running steps, which compiled steps cannot."""

    at_s: Seconds | None = None
    """When it strikes, s; None = by ``mtbf_s``."""
    mtbf_s: Annotated[float, Field(ge=LEAST_MTBF_S, allow_inf_nan=False)] | None = None
    """Mean time of operation between two failures of the same unit, s."""
    mttr_s: PositiveSeconds | None = None
    """Mean time until it is over, s; None = the kind's own fixed time."""

    @model_validator(mode="after")
    def _strikes_once_or_by_law(self) -> Occurrence:
        if (self.at_s is None) == (self.mtbf_s is None):
            both = "neither" if self.at_s is None else "both"
            msg = f"at_s (once) or mtbf_s (again and again), got {both}"
            raise ValueError(msg)
        if self.mttr_s is not None and self.mtbf_s is None:
            msg = "mttr_s belongs to mtbf_s, got at_s"
            raise ValueError(msg)
        if self.mttr_s is not None and self.lasts_s is not None:
            msg = f"mttr_s and {self.fixed} exclude each other"
            raise ValueError(msg)
        if self.mtbf_s is not None and self.mttr_s is None and not self._ends_of_itself:
            msg = f"mtbf_s needs mttr_s{f' or {self.fixed}' if self.fixed else ''}"
            raise ValueError(msg)
        return self

    @property
    def lasts_s(self) -> float | None:
        """Return the fixed time that it lasts, s; None = for good, or by ``mttr_s``."""
        found: float | None = None if self.fixed is None else getattr(self, self.fixed)
        return found

    @property
    def _ends_of_itself(self) -> bool:
        return self.lasts_s is not None

    @property
    def begins_s(self) -> float:
        """Return when it first can strike, s."""
        return 0.0 if self.at_s is None else self.at_s

    @property
    def ends_s(self) -> float:
        """Return when it is over, s; inf = never, or not known beforehand."""
        if self.at_s is None or self.lasts_s is None:
            return math.inf
        return self.at_s + self.lasts_s

    @property
    def last_change_s(self) -> float:
        """Return when it struck or ended for the last time, s; 0 by ``mtbf_s``: it always may."""
        return self.begins_s if math.isinf(self.ends_s) else self.ends_s


class ReplicaFault(Occurrence):
    """Something that strikes replicas of one pool: the first ``count`` in service, or by law any.

    With ``mtbf_s`` every replica has failures of its own, independent of the others'.
    """

    pool: PoolName | None = None
    """None = the primary pool."""
    count: Count = 1
    """How many it strikes at once."""

    @model_validator(mode="after")
    def _each_has_its_own_failures(self) -> ReplicaFault:
        if self.mtbf_s is not None and self.count > 1:
            msg = f"count belongs to at_s: by mtbf_s every replica fails alone, got {self.count}"
            raise ValueError(msg)
        return self


class Crash(ReplicaFault):
    """Replicas of a pool stop; what they ran fails.

    They return empty after ``down_s``, or later by what ``pools[].model_load`` takes; None = they
    stay away.
    """

    fixed: ClassVar[str | None] = "down_s"
    ending: ClassVar = Ending("crash", 502)
    kind: Literal["crash"] = "crash"
    down_s: PositiveSeconds | None = None


class Hang(ReplicaFault):
    """Replicas take requests and hold them, but nothing moves on.

    Until they go on by themselves after ``for_s`` (None = never), where they stopped. A health
    check that notices after ``detect_s`` takes them out of routing until then (None = there is
    none); with ``restart_s`` it restarts them: what they hold fails, and they return empty
    ``restart_s`` later (and after ``pools[].model_load``).
    """

    fixed: ClassVar[str | None] = "for_s"
    changes_pace: ClassVar[bool] = True
    ending: ClassVar = Ending("restart", 502)
    kind: Literal["hang"] = "hang"
    for_s: PositiveSeconds | None = None
    detect_s: Seconds | None = None
    restart_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _who_restarts_has_noticed(self) -> Hang:
        if self.restart_s is not None and self.detect_s is None:
            msg = "restart_s needs detect_s: nobody restarts what nobody notices"
            raise ValueError(msg)
        return self

    @property
    def _ends_of_itself(self) -> bool:
        return self.for_s is not None or self.restart_s is not None

    @property
    def ends_s(self) -> float:
        """Return when it is over, s; inf = never, or not known beforehand."""
        alone_s = super().ends_s
        if self.at_s is None or self.restart_s is None or self.detect_s is None:
            return alone_s
        noticed_s = self.at_s + self.detect_s
        return alone_s if alone_s <= noticed_s else noticed_s + self.restart_s


class Slow(ReplicaFault):
    """Every step or batch of some replicas takes ``factor`` times as long, for ``for_s``.

    None = for good. The running step slows down (or recovers) midway. Two at once multiply.
    """

    fixed: ClassVar[str | None] = "for_s"
    changes_pace: ClassVar[bool] = True
    kind: Literal["slow"] = "slow"
    factor: Positive = 2.0
    for_s: PositiveSeconds | None = None


class NodeLoss(Occurrence):
    """A machine stops, and all replicas on it, of whatever pool; they return as after a crash.

    The machine is a ``host`` that pools stand on; or number ``node`` (from 0) of those that a
    ``pool`` fills with ``replicas_per_node`` of its replicas, in order; those that an autoscaler
    brings fill the next. With ``mtbf_s`` and no ``node``, each of the pool's machines fails by
    itself.
    """

    fixed: ClassVar[str | None] = "down_s"
    kind: Literal["node_loss"] = "node_loss"
    host: HostName | None = None
    pool: PoolName | None = None
    node: CountOrZero | None = None
    """None = the first, with ``mtbf_s`` each."""
    down_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _one_kind_of_machine(self) -> NodeLoss:
        if self.host is not None and (self.pool is not None or self.node is not None):
            msg = "host excludes pool and node"
            raise ValueError(msg)
        return self


class ModelReload(Occurrence):
    """Replicas of a pool load their model anew, at most ``max_unavailable`` at a time.

    Each is taken out of routing, may finish what it holds for ``drain_s`` (what is left then
    fails), and loads for ``load_s``; None = for as long as ``pools[].model_load`` takes.
    Source: Kubernetes, "Deployments", section "Rolling Update Deployment" (maxUnavailable), and
    "Pod Lifecycle", section "Termination of Pods" (30 s grace), 2025; in place of its 25 % stands
    one at a time.
    """

    ending: ClassVar = Ending("reload", 502)
    kind: Literal["model_reload"] = "model_reload"
    pool: PoolName | None = None
    count: Count | None = None
    """How many; None = all."""
    max_unavailable: Count = 1
    drain_s: Seconds = 30.0
    load_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _ends_with_the_load(self) -> ModelReload:
        if self.mttr_s is not None:
            msg = "mttr_s: a reload lasts as long as its loads; state load_s"
            raise ValueError(msg)
        return self

    @property
    def _ends_of_itself(self) -> bool:
        return True


class RouterBlind(Occurrence):
    """The router of a pool sees neither load nor health for ``for_s``: its view stays as it was.

    It goes on by that view: to whoever was least loaded then, and to replicas that have died
    since, whose requests fail.
    Source: Mitzenmacher, "How Useful Is Old Information?", IEEE Transactions on Parallel and
    Distributed Systems 11(1), 2000: least-loaded routing by an old view herds.
    """

    fixed: ClassVar[str | None] = "for_s"
    ending: ClassVar = Ending("unreachable", 502)
    kind: Literal["router_blind"] = "router_blind"
    pool: PoolName | None = None
    for_s: PositiveSeconds | None = None


class GeneratorLimit(Occurrence):
    """The load generator sends no more than ``rate_rps``, or has no more ``connections``.

    What it cannot send waits in it, in the order of intended starts, from which all latencies
    count; the delay is send lag. It is a limit of the test, not of the service. Connections are
    those in use: attempts that were sent and are not over.
    """

    fixed: ClassVar[str | None] = "for_s"
    kind: Literal["generator_limit"] = "generator_limit"
    rate_rps: Rate | None = None
    connections: Count | None = None
    for_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> GeneratorLimit:
        if self.rate_rps is None and self.connections is None:
            msg = "rate_rps or connections, got neither"
            raise ValueError(msg)
        return self


def _kind(value: Any) -> Any:
    """Return the kind of a fault; without one it is a crash."""
    if isinstance(value, dict):
        return value.get("kind", "crash")
    return getattr(value, "kind", None)


_Kinds = (
    Annotated[Crash, Tag("crash")]
    | Annotated[Hang, Tag("hang")]
    | Annotated[Slow, Tag("slow")]
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
        _kind,
        custom_error_type="fault_kind",
        custom_error_message=f"a kind of {', '.join(KINDS)}",
    ),
]
