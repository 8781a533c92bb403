"""What the actions of breakers do: to requests that reach a pool, to its batches, its standby.

:func:`effect_of` maps the actions of :mod:`capplan.scenario.breakers`. An effect begins and ends,
and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from capplan.replica.engine import NO_LIMITS, Limits
from capplan.replica.kv_layouts import ContiguousSpace, copy_s_per_token
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.breakers import (
    Action,
    Greedy,
    MaxTokens,
    PauseAndCompact,
    PerRequest,
    Refuse,
    Route,
    ShrinkBatch,
    StartStandby,
)
from capplan.scenario.classes import RequestClass
from capplan.scenario.pools import Pool
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Clock
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.pool import ServingPool

LIMIT_OF = {
    "max_num_seqs": "sequences",
    "max_batch_size": "sequences",
    "max_num_batched_tokens": "tokens",
    "max_queue_delay_s": "window_s",
}
"""The limit of a batch that each field of ``shrink_batch`` sets."""
Classes = Collection[str]


class BreakerEntrance:
    """Stands before a pool and applies the actions of open rules to each request.

    A request is refused, or passed on to the entrance of another pool (once), or its answer is cut
    and made greedy. Each action is stored under its effect, with the classes that it is for.
    """

    def __init__(
        self,
        pool: ServingPool,
        *,
        gateway: GatewayHost,
        entrances: Mapping[str, BreakerEntrance],
        clock: Clock,
        beam_width: int,
    ) -> None:
        self.refusing: dict[object, tuple[Classes, Failure]] = {}
        self.routing: dict[object, tuple[Classes, str]] = {}
        self.cutting: dict[object, tuple[Classes, int]] = {}
        self.greedy: dict[object, tuple[Classes, None]] = {}
        self._pool = pool
        self._gateway = gateway
        self._entrances = entrances
        self._clock = clock
        self._beam_width = beam_width

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the gateway."""
        if not (self.refusing or self.routing or self.cutting or self.greedy):
            self._pool.arrive(attempt)
            return
        name = attempt.request.request_class
        if not any(name in classes for classes, _ in self.refusing.values()):
            for classes, to in self.routing.values():
                if name in classes:
                    attempt.routed_to = to
                    attempt.degraded = True
                    self._entrances[to].take(attempt)
                    return
        self.take(attempt)

    def take(self, attempt: Attempt) -> None:
        """Take an attempt that is not passed on: refuse or degrade it."""
        name = attempt.request.request_class
        for classes, failure in self.refusing.values():
            if name in classes:
                self._pool.arrived += 1
                attempt.service_queue_in_s = self._clock.now
                self._gateway.failed(attempt, failure)
                return
        for classes, tokens in self.cutting.values():
            if name in classes and attempt.output_tokens > tokens:
                attempt.output_tokens = tokens
                attempt.degraded = True
        if self._beam_width > 1 and any(name in classes for classes, _ in self.greedy.values()):
            attempt.greedy = attempt.degraded = True
        self._pool.arrive(attempt)

    def withdraw(self, attempt: Attempt) -> None:
        """Cancel an attempt in the pool that serves it."""
        self.serving(attempt).withdraw(attempt)

    def serving(self, attempt: Attempt) -> ServingPool:
        """Return the pool that serves an attempt."""
        return self._entrances[attempt.routed_to]._pool if attempt.routed_to else self._pool


class Throttle:
    """The limits of a pool's batches: the tightest of those that open rules set."""

    def __init__(self, pool: ServingPool) -> None:
        self._pool = pool
        self._set: dict[object, Limits] = {}
        self._applied: dict[object, Limits] = {}

    def set(self, effect: object, limits: Limits) -> None:
        """Add the limits of an effect, until :meth:`clear`."""
        self._set[effect] = limits
        self.apply()

    def clear(self, effect: object) -> None:
        """Remove the limits of an effect."""
        del self._set[effect]
        self.apply()

    def apply(self) -> None:
        """Limit every replica that has other limits now."""
        limits = NO_LIMITS
        for one in self._set.values():
            limits &= one
        before = {r: self._applied.get(r, NO_LIMITS) for r in self._pool.replicas}
        self._applied = dict.fromkeys(before, limits)
        for replica, current in before.items():
            if current != limits:
                replica.limit(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A pool in which rules act; ``own`` are its classes, ``entrance`` None if no rule needs it."""

    pool: ServingPool
    rules: Pool
    gateway: GatewayHost
    entrance: BreakerEntrance | None
    throttle: Throttle
    classes: Collection[RequestClass]
    own: Classes


class ActionEffect:
    """What one action of one rule does in one pool."""

    def begin(self) -> None:
        """Act from now on."""

    def hold(self) -> None:
        """Act on what has come since."""

    def end(self) -> None:
        """Undo everything."""


class _OnRequests(ActionEffect):
    """An action on requests: it stands in a table while its rule is open."""

    def __init__(self, table: dict[object, Any], classes: Classes, value: object) -> None:
        self._table = table
        self._entry = classes, value

    def begin(self) -> None:
        self._table[self] = self._entry

    def end(self) -> None:
        del self._table[self]


class _OnBatches(ActionEffect):
    """An action on the limits of batches, which replicas that join get as well."""

    def __init__(self, throttle: Throttle, limits: Limits) -> None:
        self._throttle = throttle
        self._limits = limits

    def begin(self) -> None:
        self._throttle.set(self, self._limits)

    def hold(self) -> None:
        self._throttle.apply()

    def end(self) -> None:
        self._throttle.clear(self)


class _Compacting(_OnBatches):
    """Admit nothing, and move the KV together once, at the cost of the copy."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.throttle, Limits(sequences=0))
        self._pool = place.pool
        self._copy_s = _copy_s(place.rules)

    def begin(self) -> None:
        super().begin()
        for replica in self._pool.in_service:
            space = getattr(replica.engine, "kv", None)
            if isinstance(space, ContiguousSpace):
                space.compact(copy_s_per_token=self._copy_s)


class _StartingStandby(ActionEffect):
    """Put the warm standby replicas into service, and return them."""

    def __init__(self, pool: ServingPool) -> None:
        self._pool = pool

    def begin(self) -> None:
        if self._pool.fleet is not None:
            self._pool.fleet.start_standby()

    def end(self) -> None:
        if self._pool.fleet is not None:
            self._pool.fleet.stop_standby()


def effect_of(action: Action, *, rule: str, place: Place) -> ActionEffect:
    """Return what an action of a rule does in a pool."""
    match action:
        case PauseAndCompact():
            return _Compacting(place)
        case StartStandby():
            return _StartingStandby(place.pool)
        case ShrinkBatch():
            limits = {LIMIT_OF[name]: value for name, value in action.stated.items()}
            return _OnBatches(place.throttle, Limits(**limits))
        case _:
            return _effect_on_requests(action, rule=rule, place=place)


def _effect_on_requests(action: PerRequest, *, rule: str, place: Place) -> ActionEffect:
    if (entrance := place.entrance) is None:
        msg = f"breakers.{rule}.then: {action.kind} needs an entrance of pool {place.pool.name}"
        raise ValueError(msg)
    classes = _classes_of(action, place)
    match action:
        case Refuse():
            table = place.gateway.refusing if action.at == "gateway" else entrance.refusing
            reason, wait_s = Refuse.ending.named(rule), action.retry_after_s
            failure = Failure("rejected", action.at, reason, action.status, wait_s)
            return _OnRequests(table, classes, failure)
        case Route():
            return _OnRequests(entrance.routing, classes, action.to)
        case MaxTokens():
            return _OnRequests(entrance.cutting, classes, action.tokens)
        case Greedy():
            return _OnRequests(entrance.greedy, classes, None)


def _classes_of(action: PerRequest, place: Place) -> set[str]:
    """Return the names of the classes that an action is for."""
    named = {c.name for c in place.classes if not action.classes or c.name in action.classes}
    if not isinstance(action, Refuse):
        return named
    if action.only_sheddable:
        named &= {c.name for c in place.classes if c.sheddable}
    return named & set(place.own) if action.at == "gateway" else named


def _copy_s(rules: Pool) -> float:
    """Return the time to move one token's KV, s, also if the engine itself never moves any."""
    batching = rules.batching
    if not isinstance(batching, ContinuousBatching):
        return 0.0
    moving = batching.contiguous.model_copy(update={"compaction": True})
    moving_batching = batching.model_copy(update={"contiguous": moving})
    return copy_s_per_token(rules.model_copy(update={"batching": moving_batching}))
