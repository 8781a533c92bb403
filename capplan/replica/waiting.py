"""The line of waiting jobs, and the orders in which it is served."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

from capplan.replica.job import Job
from capplan.scenario.layers import FairShare, Queue

Waiter = TypeVar("Waiter", bound=Job)
Rank = Callable[[Job, float], float]
"""Rank of a job that waits since a moment: lower is served first, ties in order of arrival. It
never changes while the job waits: what grows with the wait grows alike for all."""


def first_come(job: Job, since_s: float) -> float:
    """Return the rank in order of arrival: the same for all."""
    return 0


def by_priority(job: Job, since_s: float) -> float:
    """Return the rank by priority (lower first), then in order of arrival."""
    return job.priority


def by_deadline(job: Job, since_s: float) -> float:
    """Return the rank by the caller's deadline; jobs without one come last.

    If any order serves all in time, this one does, on one server without preemption as long as
    all are there. Source: Jackson, "Scheduling a Production Line to Minimize Maximum Tardiness",
    UCLA Management Science Research Project, 1955 (earliest due date).
    """
    return job.leaves_s


def by_prompt(job: Job, since_s: float) -> float:
    """Return the rank by the length of the prompt, the known part of the work.

    The shortest first gives the least mean wait of all orders of the jobs that are there.
    Source: Smith, "Various optimizers for single-stage production", Naval Research Logistics
    Quarterly 3, 1956.
    """
    return job.prompt_tokens


def by_bucket(rules: Queue) -> Rank | None:
    """Return the rank by the bucket of the prompt's length; None if the buckets take turns."""
    if rules.buckets.turn == "round_robin":
        return None
    return lambda job, since_s: bisect_left(rules.buckets.bounds_tokens, job.prompt_tokens)


ORDERS: dict[str, Callable[[Queue], Rank | None]] = {
    "fifo": lambda rules: first_come,
    "priority": lambda rules: by_priority,
    "earliest_deadline": lambda rules: by_deadline,
    "shortest_prompt": lambda rules: by_prompt,
    "length_buckets": by_bucket,
    "weighted_fair": lambda rules: None,
}
"""The rank that each order gives a job; None if flows take turns (:class:`SharedLine`). The
compiled engine serves every rank; lines whose flows take turns have no compiled form."""


def ageing(rank: Rank, per_s: float) -> Rank:
    """Return a rank that falls by ``per_s`` with each second of waiting.

    ``rank - per_s · (now - since)`` orders as ``rank + per_s · since`` does at every moment, so
    the rank need not change. A job is passed only by jobs that came less than its rank's
    distance from the lowest, over ``per_s``, later. Source: Jackson, "Some problems in queueing
    with dynamic priorities", Naval Research Logistics Quarterly 7, 1960 (urgency numbers).
    """
    return lambda job, since_s: rank(job, since_s) + per_s * since_s


def rank_of(rules: Queue) -> Rank:
    """Return the rank of a queue's order; the order of arrival if its flows take turns."""
    rank = ORDERS[rules.order](rules) or first_come
    return ageing(rank, rules.ageing_per_s) if rules.ageing_per_s else rank


class WaitingLine(Generic[Waiter]):
    """Jobs that wait. Every operation takes O(log n), amortised.

    Removal is lazy: an entry counts only while its ticket is the job's current one.
    """

    not_compiled = ""
    """The field that asks for this line, if it has no compiled form."""

    def __init__(self, rank: Rank = first_come) -> None:
        self._rank = rank
        self.jobs: dict[Waiter, int] = {}
        """The waiting jobs in order of arrival, each with its ticket."""
        self._heap: list[tuple[float, int, Waiter]] = []
        self._arrivals: deque[tuple[float, int, Waiter]] = deque()
        self._next_ticket = 0
        self._passed: list[tuple[float, int, Waiter]] = []
        self._counts: Callable[[Job], bool] | None = None
        self.counted = 0
        """How many of the waiting jobs :meth:`count` selects."""

    def count(self, which: Callable[[Job], bool]) -> None:
        """Count the waiting jobs of some kind in ``counted``; call it on an empty line."""
        self._counts = which

    def _entered(self, job: Waiter, ticket: int) -> None:
        self.jobs[job] = ticket
        if self._counts is not None and self._counts(job):
            self.counted += 1

    def _gone(self, job: Waiter) -> None:
        del self.jobs[job]
        if self._counts is not None and self._counts(job):
            self.counted -= 1

    def __len__(self) -> int:
        return len(self.jobs)

    def __contains__(self, job: object) -> bool:
        return job in self.jobs

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self.jobs)

    def push(self, job: Waiter, now_s: float) -> None:
        """Add a job; it waits from now on."""
        self._next_ticket += 1
        ticket = self._next_ticket
        self._entered(job, ticket)
        heappush(self._heap, (self._rank(job, now_s), ticket, job))
        self._arrivals.append((now_s, ticket, job))

    def push_front(self, job: Waiter) -> None:
        """Put a job before all others of its rank; it is no longer the one that waits longest.

        A rank that depends on the arrival takes that at the replica.
        """
        self._next_ticket += 1
        ticket = -self._next_ticket
        self._entered(job, ticket)
        heappush(self._heap, (self._rank(job, job.scheduler_queue_in_s), ticket, job))

    def first(self) -> Waiter | None:
        """Return the job to serve next, None if none waits."""
        heap = self._heap
        while heap:
            _, ticket, job = heap[0]
            if self.jobs.get(job) == ticket:
                return job
            heappop(heap)
        return None

    def pop(self) -> Waiter:
        """Remove and return the job to serve next; IndexError if none waits."""
        heap = self._heap
        while True:
            _, ticket, job = heappop(heap)
            if self.jobs.get(job) == ticket:
                self._gone(job)
                return job

    def pass_over(self) -> None:
        """Put the job to serve next aside, until :meth:`return_passed`."""
        self._passed.append(heappop(self._heap))

    def return_passed(self) -> None:
        """Put all jobs that were set aside back into their places."""
        while self._passed:
            heappush(self._heap, self._passed.pop())

    def remove(self, job: Waiter) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""
        if job not in self.jobs:
            return False
        self._gone(job)
        return True

    def oldest(self) -> tuple[float, Waiter] | None:
        """Return since when the longest waiting job waits, and the job; None if none waits."""
        arrivals = self._arrivals
        while arrivals:
            since_s, ticket, job = arrivals[0]
            if self.jobs.get(job) == ticket:
                return since_s, job
            arrivals.popleft()
        return None

    def clear(self) -> list[Waiter]:
        """Empty the line; return its jobs in order of arrival."""
        jobs = list(self.jobs)
        self.jobs.clear()
        self.counted = 0
        self._heap.clear()
        self._arrivals.clear()
        return jobs


COSTS: dict[str, Callable[[Job], float]] = {
    "requests": lambda job: 1.0,
    "prompt_tokens": lambda job: float(job.prompt_tokens),
    "tokens": lambda job: float(job.prompt_tokens + job.output_tokens),
}
"""What one job takes of the service, by the name of the unit."""


@dataclass(slots=True, eq=False)
class Flow(Generic[Waiter]):
    """Jobs that share one right to be served.

    Attributes
    ----------
    weight
        Its share of the service, against the weights of the others.
    start
        Start tag of its next job: where its last one finished in virtual time.
    since
        Order among flows of the same start tag: the one that got it first.
    jobs
        Its waiting jobs, by arrival, each with its ticket.
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
    the head of a flow, not to a job on arrival: without departures that is the same, and a job
    that leaves unserved costs its flow nothing. With equal weights and costs the flows take turns.
    A preempted job has been paid for: it is served before all others.
    Source: Goyal, Vin and Cheng, "Start-time Fair Queueing: A Scheduling Algorithm for Integrated
    Services Packet Switching Networks", SIGCOMM 1996, section 2.
    """

    not_compiled = "scheduler.order"

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
        """Add a job; it waits from now on."""
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
        """Return the job to serve next, None if none waits."""
        found = self._next()
        return None if found is None else found[2]

    def pop(self) -> Waiter:
        """Remove and return the job to serve next; IndexError if none waits."""
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
        """Put the job to serve next aside, until :meth:`return_passed`."""
        self._left_out.append(self._take())

    def return_passed(self) -> None:
        """Put all jobs that were set aside back into their places."""
        while self._left_out:
            flow, ticket, job = self._left_out.pop()
            if flow is None:
                self._front.append((ticket, job))
                continue
            flow.jobs.appendleft((ticket, job))
            if not flow.is_active:
                self._activate(flow)

    def clear(self) -> list[Waiter]:
        """Empty the line and forget past service; return its jobs in order of arrival."""
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
        """Enter a flow with the start tag of its next job."""
        flow.is_active = True
        heappush(self._turns, (flow.start, flow.since, flow))

    def _take(self) -> tuple[Flow[Waiter] | None, int, Waiter]:
        found = self._next()
        if found is None:
            raise IndexError("no job waits in this line")
        flow = found[0]
        if flow is None:
            self._front.pop()
        else:
            flow.jobs.popleft()
        return found

    def _next(self) -> tuple[Flow[Waiter] | None, int, Waiter] | None:
        """Return the next job with its flow (None for one put in front) and ticket."""
        tickets, front, turns = self.jobs, self._front, self._turns
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


def waiting_line(rules: Queue) -> WaitingLine[Waiter]:
    """Return the line of a queue: ranked, or of flows that take turns."""
    if ORDERS[rules.order](rules) is not None:
        return WaitingLine(rank_of(rules))
    if rules.order == "weighted_fair":
        return _fair(rules.fair)
    return SharedLine(
        flow_of=lambda job: bisect_left(rules.buckets.bounds_tokens, job.prompt_tokens),
        weight_of=lambda job: 1.0,
        cost_of=COSTS["requests"],
    )


def _fair(share: FairShare) -> SharedLine[Waiter]:
    tenants, classes = share.tenants, share.classes
    of_tenant, of_class = share.by != "class", share.by != "tenant"

    def flow_of(job: Job) -> Hashable:
        return (job.tenant if of_tenant else "", job.request_class if of_class else "")

    def weight_of(job: Job) -> float:
        by_tenant = tenants.get(job.tenant, 1.0) if of_tenant else 1.0
        return by_tenant * (classes.get(job.request_class, 1.0) if of_class else 1.0)

    return SharedLine(flow_of=flow_of, weight_of=weight_of, cost_of=COSTS[share.cost])
