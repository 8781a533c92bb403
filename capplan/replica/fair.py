"""Which line a queue has; and the line of flows that take turns by what they have had."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic

from capplan.replica.job import Job
from capplan.replica.waiting import Waiter, WaitingLine, rank_of
from capplan.scenario.layers import FairShare, Queue

Costs = dict[str, Callable[[Job], float]]
COSTS: Costs = {
    "requests": lambda job: 1.0,
    "prompt_tokens": lambda job: float(job.prompt_tokens),
    "tokens": lambda job: float(job.prompt_tokens + job.output_tokens),
}
"""What one job takes of the service, by the name of the unit."""


@dataclass(slots=True, eq=False)
class Flow(Generic[Waiter]):
    """Those who share one right to be served.

    Attributes
    ----------
    weight
        Its share of the service, against the weights of the others.
    start
        Start tag of its next job: where its last one finished in virtual time.
    since
        Order among flows of the same start tag: who stood there first.
    jobs
        Who waits, by arrival, each with the ticket it got.
    is_active
        Whether it has an entry in the heap of flows.
    """

    weight: float
    start: float = 0.0
    since: int = 0
    jobs: deque[tuple[int, Waiter]] = field(default_factory=deque)
    is_active: bool = False


class SharedLine(WaitingLine[Waiter]):
    """A waiting line of flows, each in order of arrival, served by start-time fair queueing.

    The next job of a flow starts at ``max(v, finish of its last)``, where the virtual time v is
    the start tag of the job served last; the earliest start is served next. The tag is given to
    the head of a flow, not to a job on arrival: without departures that is the same, and who
    leaves unserved costs its flow nothing. With equal weights and costs the flows take turns.
    Who was preempted has been paid for: it is served before all others.
    Source: Goyal, Vin and Cheng, "Start-time Fair Queueing: A Scheduling Algorithm for Integrated
    Services Packet Switching Networks", SIGCOMM 1996, section 2.
    """

    def __init__(
        self,
        *,
        flow_of: Callable[[Job], Hashable],
        weight_of: Callable[[Job], float],
        cost_of: Callable[[Job], float],
    ) -> None:
        super().__init__()
        self._flow_of = flow_of
        self._weight_of = weight_of
        self._cost_of = cost_of
        self._flows: dict[Hashable, Flow[Waiter]] = {}
        self._turns: list[tuple[float, int, Flow[Waiter]]] = []
        self._front: list[tuple[int, Waiter]] = []
        self._left_out: list[tuple[Flow[Waiter] | None, int, Waiter]] = []
        self._virtual = 0.0

    def push(self, job: Waiter, now_s: float) -> None:
        """Let a job wait from now on."""
        self._next_ticket += 1
        ticket = self._next_ticket
        self._entered(job, ticket)
        self._arrivals.append((now_s, ticket, job))
        flow = self._flow(job)
        if not flow.is_active:
            flow.start = max(flow.start, self._virtual)
            flow.since = ticket
            self._activate(flow)
        flow.jobs.append((ticket, job))

    def push_front(self, job: Waiter) -> None:
        """Put a job before all others; it is no longer the one that waits longest."""
        self._next_ticket += 1
        ticket = -self._next_ticket
        self._entered(job, ticket)
        self._front.append((ticket, job))

    def first(self) -> Waiter | None:
        """Return who is served next, None if nobody waits."""
        found = self._next()
        return None if found is None else found[2]

    def pop(self) -> Waiter:
        """Take out who is served next; IndexError if nobody waits."""
        flow, _, job = self._take()
        self._gone(job)
        if flow is not None:
            self._virtual = flow.start
            flow.start += self._cost_of(job) / flow.weight
            self._next_ticket += 1
            flow.since = self._next_ticket
            heappop(self._turns)
            self._activate(flow)
        return job

    def pass_over(self) -> None:
        """Leave out who is served next, until :meth:`return_passed`."""
        self._left_out.append(self._take())

    def return_passed(self) -> None:
        """Put all that were passed over back into their places."""
        while self._left_out:
            flow, ticket, job = self._left_out.pop()
            if flow is None:
                self._front.append((ticket, job))
                continue
            flow.jobs.appendleft((ticket, job))
            if not flow.is_active:
                self._activate(flow)

    def clear(self) -> list[Waiter]:
        """Empty the line and forget who has had what; return who waited, in order of arrival."""
        self._flows.clear()
        self._turns.clear()
        self._front.clear()
        self._virtual = 0.0
        return super().clear()

    def _flow(self, job: Waiter) -> Flow[Waiter]:
        name = self._flow_of(job)
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow(self._weight_of(job))
        return flow

    def _activate(self, flow: Flow[Waiter]) -> None:
        """Let a flow stand for its next job."""
        flow.is_active = True
        heappush(self._turns, (flow.start, flow.since, flow))

    def _take(self) -> tuple[Flow[Waiter] | None, int, Waiter]:
        found = self._next()
        if found is None:
            msg = "somebody waits, got an empty line"
            raise IndexError(msg)
        flow = found[0]
        if flow is None:
            self._front.pop()
        else:
            flow.jobs.popleft()
        return found

    def _next(self) -> tuple[Flow[Waiter] | None, int, Waiter] | None:
        """Return who is next, with its flow (None for one put in front) and ticket."""
        tickets, front, turns = self._tickets, self._front, self._turns
        while front:
            ticket, job = front[-1]
            if tickets.get(job) == ticket:
                return None, ticket, job
            front.pop()
        while turns:
            flow = turns[0][2]
            while flow.jobs:
                ticket, job = flow.jobs[0]
                if tickets.get(job) == ticket:
                    return flow, ticket, job
                flow.jobs.popleft()
            flow.is_active = False
            heappop(turns)
        return None


def takes_turns(rules: Queue) -> bool:
    """Return whether a queue's order is one of flows, and not of ranks of jobs."""
    buckets = rules.order == "length_buckets" and rules.buckets.turn == "round_robin"
    return buckets or rules.order == "weighted_fair"


def waiting_line(rules: Queue) -> WaitingLine[Waiter]:
    """Return the line of a queue: the one place where the name of an order becomes one."""
    if rules.order == "weighted_fair":
        return _fair(rules.fair)
    if rules.order == "length_buckets" and rules.buckets.turn == "round_robin":
        bounds = rules.buckets.bounds_tokens
        return SharedLine(
            flow_of=lambda job: bisect_left(bounds, job.prompt_tokens),
            weight_of=lambda job: 1.0,
            cost_of=COSTS["requests"],
        )
    return WaitingLine(rank_of(rules))


def _fair(share: FairShare) -> SharedLine[Waiter]:
    tenants, classes = share.tenants, share.classes
    of_tenant, of_class = share.by != "class", share.by != "tenant"

    def flow_of(job: Job) -> Hashable:
        return (job.tenant if of_tenant else "", job.request_class if of_class else "")

    def weight_of(job: Job) -> float:
        by_tenant = tenants.get(job.tenant, 1.0) if of_tenant else 1.0
        return by_tenant * (classes.get(job.request_class, 1.0) if of_class else 1.0)

    return SharedLine(flow_of=flow_of, weight_of=weight_of, cost_of=COSTS[share.cost])
