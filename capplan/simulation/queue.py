"""Where attempts wait: bounded queues, and the slots of a gateway with the line for one."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from capplan.replica.waiting import waiting_line
from capplan.scenario.batching import QueuePolicy
from capplan.scenario.gateway import Gateway
from capplan.scenario.layers import Queue
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Alarm, Clock, Rank


class BoundedQueue:
    """A waiting line with the limits of a scenario's queue.

    The wait limit is the same for all of its attempts, so one alarm, for the one that has waited
    longest, is enough. ``expired(attempt, failure)`` is called for each that has waited too long,
    after it has left the line.
    """

    def __init__(
        self,
        rules: Queue,
        *,
        layer: str,
        clock: Clock,
        expired: Callable[[Attempt, Failure], None],
        line: Any = None,
    ) -> None:
        self.line: Any = waiting_line(rules) if line is None else line
        self.refused = 0
        self.is_limited = rules.length is not None
        self._length = rules.length
        self._limit_s = math.inf if rules.wait_limit_s is None else rules.wait_limit_s
        self._clock = clock
        self._expired = expired
        self._alarm: Alarm | None = None
        answer = rules.status, rules.retry_after_s
        self.full = Failure("rejected", layer, Queue.full.reason, *answer)
        self.overdue = Failure("rejected", layer, QueuePolicy.overdue.reason, *answer)
        self._late = Failure("timed_out", layer, Queue.waited.reason)

    def enter(self, attempt: Attempt, *, room: int = 0) -> bool:
        """Add an attempt; return False if the queue is full.

        ``room`` is how many of the waiting do not count, because places behind are free for them.
        """
        if self._length is not None and len(self.line) >= self._length + room:
            self.refused += 1
            return False
        now_s = self._clock.now
        self.line.push(attempt, now_s)
        if self._alarm is None and self._limit_s < math.inf:
            self._arm(now_s + self._limit_s)
        return True

    def clear(self) -> None:
        """Cancel the alarm of a line that was emptied."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _arm(self, time_s: float) -> None:
        self._alarm = self._clock.alarm(time_s, Rank.TIMER, self._ring)

    def _ring(self, _: None) -> None:
        """End the attempts that have waited too long; the alarm stays set until all have left.

        So attempts that enter in this instant because of them set no second one.
        """
        while oldest := self.line.oldest():
            since_s, attempt = oldest
            if since_s + self._limit_s > self._clock.now:
                self._arm(since_s + self._limit_s)
                return
            self.line.remove(attempt)
            self._expired(attempt, self._late)
        self._alarm = None


_LAST = (True, math.inf, math.inf)

Flow = tuple[str, int]
"""Requests of one tenant and one priority: the same rules hold for all of them."""


class Slots:
    """The slots of ``concurrency``, by tenant; see :class:`capplan.scenario.gateway.Gateway`.

    A request within its tenant's quota waits only for slots that others have borrowed: quotas and
    the largest reserve fit into the concurrency together, and borrowing leaves free what is
    withheld and reserved.
    """

    def __init__(self, rules: Gateway) -> None:
        self.used = 0
        self.open: dict[str, OrderedDict[Attempt, None]] = {}
        """With quotas, the attempts that hold a slot, of each tenant, the youngest last."""
        self.are_alike = not rules.quotas and not rules.reserves
        """Whether any request may have any slot."""
        self.most = math.inf if rules.concurrency is None else rules.concurrency
        self._quotas = {quota.tenant: quota for quota in rules.quotas}
        self._reserves = rules.reserves
        self._largest = max((r.concurrency for r in rules.reserves), default=0)

    def take(self, attempt: Attempt) -> None:
        """Give an attempt a slot."""
        self.used += 1
        if self._quotas:
            self.open.setdefault(attempt.request.tenant, OrderedDict())[attempt] = None

    def free(self, attempt: Attempt) -> None:
        """Take the slot back."""
        self.used -= 1
        if self._quotas:
            del self.open[attempt.request.tenant][attempt]

    def held(self, tenant: str) -> int:
        """Return how many slots a tenant holds."""
        return len(self.open.get(tenant, ()))

    def beyond(self, tenant: str, waiting: int = 0) -> int:
        """Return how many more slots a tenant holds (and waits for) than it owns."""
        quota = self._quotas.get(tenant)
        return self.held(tenant) + waiting - (0 if quota is None else quota.concurrency)

    @property
    def has_quotas(self) -> bool:
        """Return whether tenants have slots of their own."""
        return bool(self._quotas)

    def is_own(self, tenant: str) -> bool:
        """Return whether the tenant's next slot is within its quota; without quotas, it is."""
        return not self._quotas or self.beyond(tenant) < 0

    def admits(self, tenant: str, priority: int) -> bool:
        """Return whether the next of a tenant and priority may have a slot now."""
        free = self.most - self.used
        if free < 1 or self.are_alike:
            return free >= 1
        if not self._quotas:
            return free > self._reserved(priority)
        held, own, quota = self.held(tenant), self.is_own(tenant), self._quotas.get(tenant)
        if quota is not None:
            if held < quota.withheld:
                return True
            limit = quota.borrowing_limit
            if limit is not None and held >= quota.concurrency + limit:
                return False
        kept = self._reserved(priority) if own else self._largest
        return free - self._withheld_from(tenant) > kept

    def borrower(self) -> Attempt | None:
        """Return the youngest attempt of the tenant most beyond its quota; None without one."""
        tenants = [t for t, held in self.open.items() if held and self.beyond(t) > 0]
        return next(reversed(self.open[max(tenants, key=self.beyond)])) if tenants else None

    def _reserved(self, priority: int) -> int:
        """Return how many free slots stay for those more urgent than a priority."""
        kept = (r.concurrency for r in self._reserves if r.priority < priority)
        return max(kept, default=0)

    def _withheld_from(self, tenant: str) -> int:
        """Return how many slots stay free for tenants that have not lent them."""
        return sum(
            max(quota.withheld - self.held(name), 0)
            for name, quota in self._quotas.items()
            if name != tenant
        )


class FlowLine:
    """Attempts that wait for a slot; the next is not always the first, since tenants have quotas.

    The order is that of the gateway's queue, ``fifo`` or ``priority``; within a flow, by arrival.
    """

    def __init__(self, *, by_priority: bool) -> None:
        self.of_tenant: Counter[str] = Counter()
        """How many of each tenant wait."""
        self._by_priority = by_priority
        self.jobs: OrderedDict[Attempt, float] = OrderedDict()
        """Those that wait, by arrival, each since when."""
        self._flows: dict[Flow, OrderedDict[Attempt, int]] = {}
        self._ticket = 0

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self.jobs)

    def push(self, attempt: Attempt, now_s: float) -> None:
        """Add an attempt."""
        self.jobs[attempt] = now_s
        self.of_tenant[attempt.request.tenant] += 1
        self._ticket += 1
        self._flows.setdefault(flow_of(attempt), OrderedDict())[attempt] = self._ticket

    def remove(self, attempt: Attempt) -> bool:
        """Take an attempt out; False if it does not wait here."""
        if self.jobs.pop(attempt, None) is None:
            return False
        self.of_tenant[attempt.request.tenant] -= 1
        flow = self._flows[flow_of(attempt)]
        del flow[attempt]
        if not flow:
            del self._flows[flow_of(attempt)]
        return True

    def oldest(self) -> tuple[float, Attempt] | None:
        """Return the attempt that has waited longest, with the time since when; None if empty."""
        for attempt, since_s in self.jobs.items():
            return since_s, attempt
        return None

    def next_in(self, slots: Slots) -> Attempt | None:
        """Return the attempt that gets the next slot; None if no flow may have one."""
        found, best = None, _LAST
        for flow, line in self._flows.items():
            if slots.admits(*flow):
                attempt, ticket = next(iter(line.items()))
                urgency = flow[1] if self._by_priority else 0
                rank = (not slots.is_own(flow[0]), urgency, ticket)
                if rank < best:
                    found, best = attempt, rank
        return found

    def has_own(self, slots: Slots) -> bool:
        """Return whether an attempt waits for a slot within its tenant's quota."""
        return any(slots.is_own(tenant) for tenant, _ in self._flows)

    def last_further_beyond(self, attempt: Attempt, slots: Slots) -> Attempt | None:
        """Return the least urgent, then youngest, of the tenant most beyond its quota.

        None if that is not further beyond than the attempt's own tenant would be with it.
        Source: Suter, Lakshman, Stiliadis and Choudhury, "Buffer management schemes for supporting
        TCP in gigabit routers with per-flow queueing", 1999 (longest queue drop).
        """

        def beyond(tenant: str) -> int:
            return slots.beyond(tenant, self.of_tenant[tenant])

        most = max(sorted({tenant for tenant, _ in self._flows}), key=beyond, default=None)
        if most is None or beyond(most) <= max(beyond(attempt.request.tenant) + 1, 0):
            return None
        return self._last([flow for flow in self._flows if flow[0] == most])

    def last_of_less_urgent(self, attempt: Attempt, slots: Slots) -> Attempt | None:
        """Return the least urgent, then youngest, of those less urgent than an attempt.

        With quotas, only of its own tenant and of those beyond their quota.
        """
        tenant, priority = flow_of(attempt)
        return self._last(
            [
                (other, level)
                for other, level in self._flows
                if level > priority
                and (
                    not slots.has_quotas
                    or other == tenant
                    or slots.beyond(other, self.of_tenant[other]) > 0
                )
            ]
        )

    def _last(self, flows: list[Flow]) -> Attempt | None:
        if not flows:
            return None
        lasts = ((flow[1], next(reversed(self._flows[flow].items()))) for flow in flows)
        _, (attempt, _) = max(lasts, key=lambda last: (last[0], last[1][1]))
        return attempt


def flow_of(attempt: Attempt) -> Flow:
    """Return the flow that an attempt belongs to."""
    return attempt.request.tenant, attempt.priority
