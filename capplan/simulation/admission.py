"""A gateway with limits by tenant, class and priority, workers of its own, and a door."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from capplan.scenario.gateway import Gateway
from capplan.scenario.layers import Network
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.buckets import CONTENT_TOO_LARGE
from capplan.simulation.clock import Clock
from capplan.simulation.connections import Connections, Door
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.queue import BoundedQueue
from capplan.simulation.refusals import Refusals
from capplan.simulation.slots import FlowLine, Slots

UNAVAILABLE = 503
PLAIN = frozenset(
    {"owner", "rate_limit", "concurrency", "queue", "overhead_s", "overhead_fraction"}
    | {"response_cache"}
)
"""Fields of a gateway that :class:`~capplan.simulation.gateway.GatewayHost` knows alone."""

OWN = frozenset({"gateway", "network"})
REASONS = (
    *("rate_limit", "token_limit", "request_too_large", "quota_exhausted", "prompt_too_long"),
    *("final_retry", "retry_budget", "queue_full", "displaced", "reclaimed"),
    *("connection_refused", "connections_per_caller"),
)
"""Why a gateway refuses; in the log, the name of the limit stands behind a colon."""


def gateway_host(
    rules: Gateway,
    *,
    network: Network,
    connections: Connections,
    clock: Clock,
    returned: Callable[[Attempt, Failure | None], None],
) -> GatewayHost:
    """Return the gateway of a run: the plain one, if its rules ask for nothing more."""
    plain = Gateway()
    more = set(Gateway.model_fields) - PLAIN
    if all(getattr(rules, name) == getattr(plain, name) for name in more):
        network_s = network.one_way_s
        return GatewayHost(rules, clock=clock, network_s=network_s, returned=returned)
    return GuardedGateway(
        rules, network=network, connections=connections, clock=clock, returned=returned
    )


class GuardedGateway(GatewayHost):
    """The gateway with everything that :class:`capplan.scenario.Gateway` can ask for."""

    def __init__(
        self,
        rules: Gateway,
        *,
        network: Network,
        connections: Connections,
        clock: Clock,
        returned: Callable[[Attempt, Failure | None], None],
    ) -> None:
        super().__init__(rules, clock=clock, network_s=network.one_way_s, returned=returned)
        self.refused: Counter[str] = Counter()
        """Attempts that the gateway or its door ended, by reason."""
        self.slots = Slots(rules)
        self.busy_workers = 0
        self._flows = _flows(rules)
        if self._flows is not None:
            self.queue = BoundedQueue(
                rules.queue, layer="gateway", clock=clock, expired=self._expired, line=self._flows
            )
        self._rules = rules
        self._refusals = Refusals(rules) if Refusals.are_asked(rules) else None
        self._workers = rules.overhead_concurrency or math.inf
        self._door = None
        if rules.accept is not None:
            self._door = Door(
                rules.accept,
                network=network,
                connections=connections,
                clock=clock,
                enter=super().arrive,
                refuse=self._send_back,
            )
        told = rules.queue.status, rules.queue.retry_after_s
        self._displaced = Failure("rejected", "gateway", "displaced", *told)
        self._reclaimed = Failure(
            "rejected", "gateway", "reclaimed", UNAVAILABLE, rules.queue.retry_after_s
        )

    def gauges(self) -> Iterable[tuple[str, Callable[[], float], bool]]:
        """Return what the timeline shows of the limits that are set."""
        for quota in self._rules.quotas:
            name = quota.tenant
            yield f"in_flight_{name}", partial(self.slots.held, name), False
            yield f"length_{name}", partial(self._waiting, name), False
        if self._workers < math.inf:
            yield "busy_workers", lambda: self.busy_workers, False
        if (door := self._door) is not None:
            yield "connections_open", lambda: door.open, False
            yield "connections_waiting", lambda: door.waiting, False
        yield "status_413_rps", lambda: self.statuses[CONTENT_TOO_LARGE], True
        for reason in REASONS:
            yield f"refused_{reason}_rps", partial(self._refused_for, reason), True

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the network, at the door if there is one."""
        if self._door is None:
            super().arrive(attempt)
        elif attempt.place == "network":
            self._door.arrive(attempt)

    def withdraw(self, attempt: Attempt) -> None:
        """Know that the caller has left: free what the attempt holds, its connection too."""
        if self._door is not None:
            self._door.leave(attempt)
        super().withdraw(attempt)

    def _enter(self, attempt: Attempt) -> None:
        refusals = self._refusals
        if refusals is not None and (failure := refusals.refusal(attempt, attempt.gateway_in_s)):
            self._send_back(attempt, failure)
        elif self.busy_workers < self._workers and self.slots.admits(
            attempt.request.tenant, attempt.priority
        ):
            self._admit(attempt)
        else:
            self._wait(attempt)

    def _wait(self, attempt: Attempt) -> None:
        """Let an attempt wait, in the place of another if need be."""
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
        if self._overhead_s > 0:
            self.busy_workers += 1
        super()._admit(attempt)

    def _pass_on(self, attempt: Attempt) -> None:
        super()._pass_on(attempt)
        if self._overhead_s > 0:
            self.busy_workers -= 1
            self._let_in()

    def _release(self, attempt: Attempt) -> None:
        self.in_flight -= 1
        self.slots.free(attempt)
        self._let_in()

    def _send_back(self, attempt: Attempt, failure: Failure | None) -> None:
        refusals = self._refusals
        if failure is None:
            if refusals is not None and refusals.hears_answers:
                refusals.answered(attempt, self._clock.now)
        else:
            if refusals is not None:
                refusals.failed(attempt, failure)
            if failure.layer in OWN:
                self.refused[failure.reason.partition(":")[0]] += 1
        if self._door is not None:
            self._door.leave(attempt)
        super()._send_back(attempt, failure)

    def _let_in(self) -> None:
        """Admit whoever may be; who is refused further on leaves again at once."""
        if self._admitting or not self.queue.line:
            return
        self._admitting = True
        while self._admit_next() or self._reclaim():
            pass
        self._admitting = False

    def _admit_next(self) -> bool:
        if self.busy_workers >= self._workers or not self.queue.line:
            return False
        if self._flows is None:
            if not self.slots.has_free:
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
        """End a borrower for somebody who waits for a slot of its own."""
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

    def _refused_for(self, reason: str) -> int:
        return self.refused[reason]


def _flows(rules: Gateway) -> FlowLine | None:
    """Return the line of a gateway that chooses by tenant or priority; None = any line will do."""
    if rules.quotas or rules.reserves or rules.when_full == "displace_lowest":
        return FlowLine(by_priority=rules.queue.order == "priority")
    return None
