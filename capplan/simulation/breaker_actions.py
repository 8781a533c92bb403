"""What breakers do: at the door of a pool, to its batches, to its standby.

Each action can be begun and ended again, and leaves nothing behind when it has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from capplan.replica.contiguous import ContiguousSpace, copy_s_per_token
from capplan.replica.limits import NO_LIMITS, Limits
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.breakers import (
    Action,
    Breaker,
    Greedy,
    MaxTokens,
    PauseAndCompact,
    PerRequest,
    Refuse,
    Route,
    ShrinkBatch,
    StartStandby,
)
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Clock

if TYPE_CHECKING:
    from capplan.scenario.classes import RequestClass
    from capplan.scenario.pools import Pool
    from capplan.simulation.gateway import GatewayHost
    from capplan.simulation.pool import ServingPool

BREAKER = "breaker"
"""Reason of a refusal, up to the colon behind which stands the rule's name."""


class Acting(Protocol):
    """One action of one rule in one pool."""

    def begin(self) -> None:
        """Act from now on."""

    def hold(self) -> None:
        """Go on, on what has come since."""

    def end(self) -> None:
        """Put everything back."""


class Door:
    """What stands before a pool and acts on each request that reaches it.

    Refusing comes first; who is passed on to another pool meets that pool's door, once; the rest
    is cheapened and enters.
    """

    def __init__(
        self,
        pool: ServingPool,
        *,
        gateway: GatewayHost,
        doors: Mapping[str, Door],
        clock: Clock,
        width: int,
    ) -> None:
        self.refusing: dict[object, tuple[Collection[str], Failure]] = {}
        self.passing: dict[object, tuple[Collection[str], str]] = {}
        self.cutting: dict[object, tuple[Collection[str], int]] = {}
        self.cheapening: dict[object, Collection[str]] = {}
        """What the actions of open rules do, by action: for these classes."""
        self._pool = pool
        self._gateway = gateway
        self._doors = doors
        self._clock = clock
        self._width = width
        self._passed: dict[Attempt, Door] = {}

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the gateway."""
        if not (self.refusing or self.passing or self.cutting or self.cheapening):
            self._pool.arrive(attempt)
            return
        name = attempt.request.request_class
        if failure := self._refusal(name):
            self._refuse(attempt, failure)
            return
        for classes, to in self.passing.values():
            if name in classes:
                attempt.routed_to = to
                attempt.degraded = True
                self._doors[to].take(attempt)
                return
        self._enter(attempt)

    def take(self, attempt: Attempt) -> None:
        """Take an attempt that another pool has passed on."""
        if failure := self._refusal(attempt.request.request_class):
            self._refuse(attempt, failure)
        else:
            self._enter(attempt)

    def refusing_at(self, layer: str) -> dict[object, tuple[Collection[str], Failure]]:
        """Return what refuses in a layer: here, or at the gateway."""
        return self._gateway.refusing if layer == "gateway" else self.refusing

    def withdraw(self, attempt: Attempt) -> None:
        """Give an attempt up, in the pool that it is in."""
        self.serving(attempt).withdraw(attempt)

    def serving(self, attempt: Attempt) -> ServingPool:
        """Return the pool that an attempt is in."""
        return self._doors[attempt.routed_to]._pool if attempt.routed_to else self._pool

    def _refusal(self, name: str) -> Failure | None:
        return next((told for classes, told in self.refusing.values() if name in classes), None)

    def _refuse(self, attempt: Attempt, failure: Failure) -> None:
        self._pool.arrived += 1
        attempt.service_queue_in_s = self._clock.now
        self._gateway.failed(attempt, failure)

    def _enter(self, attempt: Attempt) -> None:
        name = attempt.request.request_class
        for classes, tokens in self.cutting.values():
            if name in classes and attempt.output_tokens > tokens:
                attempt.output_tokens = tokens
                attempt.degraded = True
        if self._width > 1 and any(name in classes for classes in self.cheapening.values()):
            attempt.greedy = attempt.degraded = True
        self._pool.arrive(attempt)


class Throttle:
    """The limits of a pool's batches: the tightest of all that open rules ask for."""

    def __init__(self, pool: ServingPool) -> None:
        self._pool = pool
        self._asked: dict[object, Limits] = {}
        self._limited: dict[object, Limits] = {}

    def ask(self, who: object, limits: Limits) -> None:
        """Hold the batches within these limits, until :meth:`drop`."""
        self._asked[who] = limits
        self.hold()

    def drop(self, who: object) -> None:
        """Ask no longer."""
        del self._asked[who]
        self.hold()

    def hold(self) -> None:
        """Set the limits of every replica that has others."""
        limits = NO_LIMITS
        for asked in self._asked.values():
            limits &= asked
        here = {replica: self._limited.get(replica, NO_LIMITS) for replica in self._pool.replicas}
        self._limited = dict.fromkeys(here, limits)
        for replica, now in here.items():
            if now != limits:
                replica.limit(limits)


class _AtDoor:
    def __init__(
        self, action: PerRequest, *, breaker: Breaker, door: Door, classes: set[str]
    ) -> None:
        self._action = action
        self._rule = breaker.name
        self._door = door
        self._classes = classes

    def begin(self) -> None:
        door, classes = self._door, self._classes
        match self._action:
            case Refuse(at=layer, status=status, retry_after_s=wait_s):
                told = Failure("rejected", layer, f"{BREAKER}:{self._rule}", status, wait_s)
                door.refusing_at(layer)[self] = classes, told
            case Route(to=to):
                door.passing[self] = classes, to
            case MaxTokens(tokens=tokens):
                door.cutting[self] = classes, tokens
            case Greedy():
                door.cheapening[self] = classes

    def hold(self) -> None:
        pass

    def end(self) -> None:
        door = self._door
        match self._action:
            case Refuse(at=layer):
                del door.refusing_at(layer)[self]
            case Route():
                del door.passing[self]
            case MaxTokens():
                del door.cutting[self]
            case Greedy():
                del door.cheapening[self]


class _Throttled:
    def __init__(self, throttle: Throttle, limits: Limits) -> None:
        self._throttle = throttle
        self._limits = limits

    def begin(self) -> None:
        self._throttle.ask(self, self._limits)

    def hold(self) -> None:
        self._throttle.hold()

    def end(self) -> None:
        self._throttle.drop(self)


class _Compacting(_Throttled):
    """Nobody is admitted; what lies apart moves together once, at the cost of the copy."""

    def __init__(self, throttle: Throttle, pool: ServingPool, rules: Pool) -> None:
        super().__init__(throttle, Limits(sequences=0))
        self._pool = pool
        self._copy_s = _copy_s(rules)

    def begin(self) -> None:
        super().begin()
        for replica in self._pool.in_service:
            space = getattr(replica.engine, "kv", None)
            if isinstance(space, ContiguousSpace):
                space.compact(copy_s_per_token=self._copy_s)


class _Standby:
    def __init__(self, pool: ServingPool) -> None:
        self._pool = pool

    def begin(self) -> None:
        self._pool.start_standby()

    def hold(self) -> None:
        pass

    def end(self) -> None:
        self._pool.stop_standby()


def acting(
    action: Action,
    *,
    breaker: Breaker,
    pool: ServingPool,
    rules: Pool,
    door: Door | None,
    throttle: Throttle,
    classes: Collection[RequestClass],
    own: Collection[str],
) -> Acting:
    """Return what an action of a breaker does in a pool; ``own`` are the pool's classes."""
    match action:
        case PauseAndCompact():
            return _Compacting(throttle, pool, rules)
        case StartStandby():
            return _Standby(pool)
        case ShrinkBatch():
            return _Throttled(throttle, _limits(action, rules))
        case _:
            if door is None:
                msg = f"a pool with a door, for {action.kind} of breaker {breaker.name}"
                raise ValueError(msg)
            named = _named(action, classes, own)
            return _AtDoor(action, breaker=breaker, door=door, classes=named)


def _named(action: PerRequest, classes: Collection[RequestClass], own: Collection[str]) -> set[str]:
    """Return the names of the classes that an action is for."""
    named = {c.name for c in classes if not action.classes or c.name in action.classes}
    if not isinstance(action, Refuse):
        return named
    if action.only_sheddable:
        named &= {c.name for c in classes if c.sheddable}
    return named & set(own) if action.at == "gateway" else named


def _limits(action: ShrinkBatch, rules: Pool) -> Limits:
    stated = action.stated
    names = {
        "sequences": ("max_num_seqs", "max_batch_size"),
        "tokens": ("max_num_batched_tokens",),
        "window_s": ("max_queue_delay_s",),
    }
    found = {
        limit: stated[name] for limit, fields in names.items() for name in fields if name in stated
    }
    return Limits(**found)


def _copy_s(rules: Pool) -> float:
    """Return what it takes to move one token's KV, s, also where the engine never does."""
    batching = rules.batching
    if not isinstance(batching, ContinuousBatching):
        return 0.0
    moving = batching.contiguous.model_copy(update={"compaction": True})
    moving_batching = batching.model_copy(update={"contiguous": moving})
    return copy_s_per_token(rules.model_copy(update={"batching": moving_batching}))
