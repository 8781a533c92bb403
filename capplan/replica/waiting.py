"""A line of waiting jobs, and the orders in which it can be served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from capplan.replica.job import Job
from capplan.scenario.layers import Order

Waiter = TypeVar("Waiter", bound=Job)


def first_come(job: Job) -> int:
    """Rank of a job that is served in order of arrival: all alike."""
    return 0


def by_priority(job: Job) -> int:
    """Rank of a job that is served by priority (lower first), then in order of arrival."""
    return job.priority


ORDERS: dict[Order, Callable[[Job], int]] = {"fifo": first_come, "priority": by_priority}
"""Where the names of a scenario become functions: lower rank first, ties in order of arrival."""


class WaitingLine(Generic[Waiter]):
    """Jobs that wait. Every operation takes O(log n), amortised.

    Removal is lazy: an entry counts only while its ticket is the job's current one.
    """

    def __init__(self, order: Order = "fifo") -> None:
        self._rank = ORDERS[order]
        self._tickets: dict[Waiter, int] = {}
        self._heap: list[tuple[int, int, Waiter]] = []
        self._arrivals: deque[tuple[float, int, Waiter]] = deque()
        self._next_ticket = 0
        self._passed: list[tuple[int, int, Waiter]] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, job: object) -> bool:
        return job in self._tickets

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._tickets)

    def push(self, job: Waiter, now_s: float) -> None:
        """Let a job wait from now on."""
        self._next_ticket += 1
        ticket = self._tickets[job] = self._next_ticket
        heappush(self._heap, (self._rank(job), ticket, job))
        self._arrivals.append((now_s, ticket, job))

    def push_front(self, job: Waiter) -> None:
        """Put a job before all others of its rank; it is no longer the one that waits longest."""
        self._next_ticket += 1
        ticket = self._tickets[job] = -self._next_ticket
        heappush(self._heap, (self._rank(job), ticket, job))

    def first(self) -> Waiter | None:
        """Return who is served next, None if nobody waits."""
        heap = self._heap
        while heap:
            _, ticket, job = heap[0]
            if self._tickets.get(job) == ticket:
                return job
            heappop(heap)
        return None

    def pop(self) -> Waiter:
        """Take out who is served next; IndexError if nobody waits."""
        heap = self._heap
        while True:
            _, ticket, job = heappop(heap)
            if self._tickets.get(job) == ticket:
                del self._tickets[job]
                return job

    def pass_over(self) -> None:
        """Leave out who is served next, until :meth:`return_passed`."""
        self._passed.append(heappop(self._heap))

    def return_passed(self) -> None:
        """Put all that were passed over back into their places."""
        while self._passed:
            heappush(self._heap, self._passed.pop())

    def remove(self, job: Waiter) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""
        return self._tickets.pop(job, None) is not None

    def oldest(self) -> tuple[float, Waiter] | None:
        """Return since when the longest waiting job waits, and the job; None if nobody does."""
        arrivals = self._arrivals
        while arrivals:
            since_s, ticket, job = arrivals[0]
            if self._tickets.get(job) == ticket:
                return since_s, job
            arrivals.popleft()
        return None

    def clear(self) -> list[Waiter]:
        """Empty the line; return who waited, in order of arrival."""
        jobs = list(self._tickets)
        self._tickets.clear()
        self._heap.clear()
        self._arrivals.clear()
        return jobs
