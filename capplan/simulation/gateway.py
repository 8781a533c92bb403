"""The gateway: refusals, concurrency with its own queue, overhead, and the way back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from capplan.scenario.gateway import Gateway
from capplan.scenario.layers import Network, Queue
from capplan.simulation.attempt import Attempt, Failure, Gauge
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.connections import Connections, Listener
from capplan.simulation.pool import ServingPool
from capplan.simulation.queue import BoundedQueue, FlowLine, Slots
from capplan.simulation.refusals import Refusals
from capplan.simulation.response_cache import CachedResponses

STATUSES = (400, 429, 502, 503)
"""HTTP statuses that the timeline always shows."""
OWN = frozenset({"gateway", "network"})
"""Layers at which the gateway itself ends attempts."""


class Entrance(Protocol):
    """A pool, seen from the gateway."""

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt."""

    def withdraw(self, attempt: Attempt) -> None:
        """Give an attempt up, wherever behind the gateway it is."""

    def serving(self, attempt: Attempt) -> ServingPool:
        """Return the pool that an attempt is in."""


class Upstream(Protocol):
    """The callers, seen from the gateway."""

    def returned(self, attempt: Attempt, failure: Failure | None) -> None:
        """Take what has passed the gateway on its way back; failure is None for an answer."""

    reacts: bool
    """Whether the end of an attempt can send or cancel another in the same instant."""


class GatewayHost:
    """The gateway in front of all pools, with the parts that its rules ask for.

    Attributes
    ----------
    pools
        The pool of each request class, or what stands before it.
    arrive
        ``arrive(attempt)`` takes an attempt from the network: refuses it, queues it, or admits it.
    refusing
        What open breakers refuse here, by action: for these classes.
    statuses, refused
        Refusals and failures by their HTTP status; attempts that the gateway itself ended, by
        reason.
    busy_workers
        Workers that are busy with overhead, where their number is limited.
    """

    def __init__(
        self,
        rules: Gateway,
        *,
        network: Network,
        connections: Connections,
        clock: Clock,
        callers: Upstream,
        cache: CachedResponses | None = None,
    ) -> None:
        self.pools: Mapping[str, Entrance] = {}
        self.refusing: dict[object, tuple[Collection[str], Failure]] = {}
        self.statuses: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self.busy_workers = 0
        self.slots = Slots(rules)
        self._flows = _flows(rules)
        self.queue = BoundedQueue(
            rules.queue, layer="gateway", clock=clock, expired=self._send_back, line=self._flows
        )
        self._rules = rules
        self._clock = clock
        self._network_s = network.one_way_s
        self._callers = callers
        self._cache = cache
        self._refusals = Refusals(rules) if any(x.is_set for x in rules.limits()) else None
        self._workers = rules.overhead_concurrency or math.inf
        self._work_s, self._work_per_in_flight_s = rules.overhead_s, rules.overhead_per_in_flight_s
        self._stretch = 1 / (1 - rules.overhead_fraction)
        self._admitting = False
        self._listener = None
        self.arrive: Callable[[Attempt], None] = self._enter
        if rules.accept is not None:
            self._listener = Listener(
                rules.accept,
                network=network,
                connections=connections,
                clock=clock,
                enter=self._enter,
                refuse=self._send_back,
            )
            self.arrive = self._listener.arrive
        answer = rules.queue.status, rules.queue.retry_after_s
        self._displaced = Failure("rejected", "gateway", Gateway.displaced.reason, *answer)
        self._reclaimed = Failure.of(Gateway.reclaimed, retry_after_s=answer[1])

    @property
    def in_flight(self) -> int:
        """Return how many attempts are admitted and not answered."""
        return self.slots.used

    @property
    def has_waiting(self) -> bool:
        """Return whether an attempt that ends can bring or take another in the same instant."""
        return bool(self.queue.line.jobs) or self._callers.reacts

    def gauges(self) -> Iterable[Gauge]:
        """Return what the timeline shows: name, reading, and whether it is a total."""
        limits = [limit for limit in self._rules.limits() if limit.is_set]
        yield "length", lambda: len(self.queue.line), False
        yield "in_flight", lambda: self.in_flight, False
        for status in sorted({*STATUSES, *(x.status for x in limits if x.status is not None)}):
            yield f"status_{status}_rps", partial(self.statuses.__getitem__, status), True
        for quota in self._rules.quotas:
            name = quota.tenant
            yield f"in_flight_{name}", partial(self.slots.held, name), False
            yield f"length_{name}", partial(self._waiting, name), False
        if self._workers < math.inf:
            yield "busy_workers", lambda: self.busy_workers, False
        if (listener := self._listener) is not None:
            yield "connections_open", lambda: listener.open, False
            yield "connections_waiting", lambda: listener.waiting, False
        if self._cache is not None:
            yield from self._cache.gauges()
        if _limits_more_than_load(self._rules):
            reasons = {limit.reason.partition(":")[0] for limit in limits}
            for reason in sorted(reasons | {Queue.full.reason}):
                yield f"refused_{reason}_rps", partial(self.refused.__getitem__, reason), True

    def pool_of(self, attempt: Attempt) -> ServingPool:
        """Return the pool that an attempt is served by, or would be."""
        return self.pools[attempt.request.request_class].serving(attempt)

    def _enter(self, attempt: Attempt) -> None:
        """Take an attempt whose connection is accepted."""
        if attempt.place != "network":
            return
        attempt.gateway_in_s = self._clock.now
        attempt.place = "gateway"
        slots = self.slots
        if (self.refusing or self._refusals) and (failure := self._refusal(attempt)):
            self._send_back(attempt, failure)
        elif (
            self.busy_workers < self._workers
            and slots.used < slots.most
            and (slots.are_alike or slots.admits(attempt.request.tenant, attempt.priority))
        ):
            self._admit(attempt)
        else:
            self._wait(attempt)

    def withdraw(self, attempt: Attempt) -> None:
        """Free what an attempt holds, its connection too, after its caller has left."""
        if self._listener is not None:
            self._listener.leave(attempt)
        place = attempt.place
        if place == "gateway_queue":
            self.queue.line.remove(attempt)
        elif place in {"service_queue", "replica"}:
            self.pools[attempt.request.request_class].withdraw(attempt)
        attempt.place = "gone"
        if place in {"gateway", "service_queue", "replica", "answer"}:
            self._release(attempt)

    def answered(self, attempt: Attempt) -> None:
        """Serialise an answer, then send it back."""
        if self._cache is not None:
            self._cache.keep(attempt)
        if self._stretch == 1.0:
            attempt.place = "gone"
            self._release(attempt)
            self._send_back(attempt, None)
            return
        attempt.place = "answer"
        done_s = self.leaves_s(attempt.intended_start_s, attempt.decode_end_s)
        if done_s > self._clock.now:
            self._clock.at(done_s, Rank.ARRIVE, self._serialised, attempt)
        else:
            self._serialised(attempt)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Send back what failed behind the gateway."""
        attempt.place = "gone"
        self._release(attempt)
        self._send_back(attempt, failure)

    def leaves_s(self, start_s: Any, made_s: Any) -> Any:
        """Return when a token made at ``made_s`` leaves the gateway for the caller, s.

        Serialisation takes a share of the whole time from the intended start to the caller: what
        would take x takes x / (1 - share). Times may be arrays.
        """
        if self._stretch == 1.0:
            return made_s
        back_s = self._network_s
        return start_s + (made_s - start_s + back_s) * self._stretch - back_s

    def _refusal(self, attempt: Attempt) -> Failure | None:
        """Return why a breaker or a limit refuses an attempt; None if it may pass."""
        if self.refusing:
            name = attempt.request.request_class
            for classes, failure in self.refusing.values():
                if name in classes:
                    return failure
        if self._refusals is None:
            return None
        return self._refusals.refusal(attempt, attempt.gateway_in_s)

    def _wait(self, attempt: Attempt) -> None:
        """Queue an attempt, in the place of another if need be."""
        attempt.place = "gateway_queue"
        flows, length = self._flows, self._rules.queue.length
        if flows is not None and length is not None and len(flows) >= length:
            victim = self._displaced_by(attempt, flows)
            if victim is not None:
                flows.remove(victim)
                self._send_back(victim, self._displaced)
        if not self.queue.enter(attempt):
            self._send_back(attempt, self.queue.full)
        elif self._rules.reclaim == "cancel":
            self._let_in()

    def _displaced_by(self, attempt: Attempt, flows: FlowLine) -> Attempt | None:
        victim = None
        if self.slots.has_quotas:
            victim = flows.last_further_beyond(attempt, self.slots)
        if victim is None and self._rules.when_full == "displace_lowest":
            victim = flows.last_of_less_urgent(attempt, self.slots)
        return victim

    def _admit(self, attempt: Attempt) -> None:
        self.slots.take(attempt)
        attempt.gateway_admitted_s = now_s = self._clock.now
        attempt.place = "gateway"
        work_s = self._work_s + self._work_per_in_flight_s * self.slots.used
        if work_s > 0:
            self.busy_workers += self._workers < math.inf
            self._clock.at(now_s + work_s, Rank.ARRIVE, self._worked, attempt)
        else:
            self._pass_on(attempt)

    def _worked(self, attempt: Attempt) -> None:
        """Pass on what the overhead was spent on; its worker takes the next."""
        self._pass_on(attempt)
        if self._workers < math.inf:
            self.busy_workers -= 1
            self._let_in()

    def _pass_on(self, attempt: Attempt) -> None:
        if self._cache is None:
            if attempt.place == "gateway":
                self.pools[attempt.request.request_class].arrive(attempt)
        elif self._cache.lookup_s > 0 and attempt.place == "gateway":
            known_s = self._clock.now + self._cache.lookup_s
            self._clock.at(known_s, Rank.ARRIVE, self._looked_up, attempt)
        else:
            self._looked_up(attempt)

    def _looked_up(self, attempt: Attempt) -> None:
        """Send back the kept answer, or pass the attempt on to its pool."""
        if attempt.place != "gateway":
            return
        if self._cache is None or not self._cache.finds(attempt):
            self.pools[attempt.request.request_class].arrive(attempt)
            return
        attempt.outcome_layer, attempt.place = "gateway", "answer"
        now_s = self._clock.now
        done_s = self.leaves_s(attempt.intended_start_s, now_s)
        self._clock.at(max(done_s, now_s), Rank.ARRIVE, self._serialised, attempt)

    def _serialised(self, attempt: Attempt) -> None:
        if attempt.place == "answer":
            attempt.place = "gone"
            self._release(attempt)
            self._send_back(attempt, None)

    def _send_back(self, attempt: Attempt, failure: Failure | None) -> None:
        if failure is not None:
            if failure.status is not None:
                self.statuses[failure.status] += 1
            if failure.layer in OWN:
                self.refused[failure.reason.partition(":")[0]] += 1
        if (refusals := self._refusals) is not None:
            if failure is None:
                refusals.answered(attempt, self._clock.now)
            else:
                refusals.failed(attempt, failure)
        if self._listener is not None:
            self._listener.leave(attempt)
        attempt.place = "gone"
        self._callers.returned(attempt, failure)

    def _release(self, attempt: Attempt) -> None:
        self.slots.free(attempt)
        if self.queue.line.jobs:
            self._let_in()

    def _let_in(self) -> None:
        """Admit the next, or several: one that is refused further on leaves again at once."""
        if self._admitting:
            return
        self._admitting = True
        while self._admit_next() or self._reclaim():
            pass
        self._admitting = False

    def _admit_next(self) -> bool:
        if self.busy_workers >= self._workers or not self.queue.line.jobs:
            return False
        if self._flows is None:
            if self.slots.used >= self.slots.most:
                return False
            self._admit(self.queue.line.pop())
            return True
        attempt = self._flows.next_in(self.slots)
        if attempt is None:
            return False
        self._flows.remove(attempt)
        self._admit(attempt)
        return True

    def _reclaim(self) -> bool:
        """End a borrower for an attempt that waits for a slot of its tenant's own."""
        flows = self._flows
        if self._rules.reclaim != "cancel" or flows is None or self.busy_workers >= self._workers:
            return False
        victim = self.slots.borrower()
        if victim is None or not flows.has_own(self.slots):
            return False
        self.withdraw(victim)
        self._send_back(victim, self._reclaimed)
        return True

    def _waiting(self, tenant: str) -> int:
        return 0 if self._flows is None else self._flows.of_tenant[tenant]


def _flows(rules: Gateway) -> FlowLine | None:
    """Return the line of a gateway that chooses by tenant or priority; None = any line will do."""
    if rules.quotas or rules.reserves or rules.when_full == "displace_lowest":
        return FlowLine(by_priority=rules.queue.order == "priority")
    return None


def _limits_more_than_load(rules: Gateway) -> bool:
    """Return whether a gateway limits more than the rate of all requests, concurrency and queue."""
    load = {"rate_limits", "concurrency", "queue", "overhead_s", "overhead_fraction",
            "overhead_per_in_flight_s"}  # fmt: skip
    others = set(Gateway.model_fields) - load - {"owner", "response_cache"}
    if any(getattr(rules, name) != getattr(Gateway(), name) for name in others):
        return True
    return any(r.name or r.tenant or r.request_class for r in rules.rate_limits)
