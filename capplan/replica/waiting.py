"""A line of waiting jobs, and the orders in which it can be served."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from capplan.replica.job import Job
from capplan.scenario.layers import Queue

Waiter = TypeVar("Waiter", bound=Job)
Rank = Callable[[Job, float], float]
"""Rank of a job that waits since a moment: lower is served first, ties in order of arrival. It
never changes while the job waits: what grows with the wait grows alike for all."""


def first_come(job: Job, since_s: float) -> float:
    """Rank of a job that is served in order of arrival: all alike."""
    return 0


def by_priority(job: Job, since_s: float) -> float:
    """Rank of a job that is served by priority (lower first), then in order of arrival."""
    return job.priority


def by_deadline(job: Job, since_s: float) -> float:
    """Rank of a job whose caller leaves earliest; without a deadline, behind all others.

    If any order serves all in time, this one does, on one server without preemption as long as
    all are there. Source: Jackson, "Scheduling a Production Line to Minimize Maximum Tardiness",
    UCLA Management Science Research Project, 1955 (earliest due date).
    """
    return job.leaves_s


def by_prompt(job: Job, since_s: float) -> float:
    """Rank of a job by the length of its prompt, the part of its work that is known.

    The shortest first gives the least mean wait of all orders of the jobs that are there.
    Source: Smith, "Various optimizers for single-stage production", Naval Research Logistics
    Quarterly 3, 1956.
    """
    return job.prompt_tokens


def by_bucket(bounds_tokens: tuple[int, ...]) -> Rank:
    """Return the rank of a job by the bucket of its prompt's length."""
    return lambda job, since_s: bisect_left(bounds_tokens, job.prompt_tokens)


def ageing(rank: Rank, per_s: float) -> Rank:
    """Return a rank that falls by ``per_s`` with each second of waiting.

    ``rank - per_s · (now - since)`` orders as ``rank + per_s · since`` does at every moment, so
    the rank need not change. A job is passed only by those that came less than its rank's
    distance from the lowest, over ``per_s``, later. Source: Jackson, "Some problems in queueing
    with dynamic priorities", Naval Research Logistics Quarterly 7, 1960 (urgency numbers).
    """
    return lambda job, since_s: rank(job, since_s) + per_s * since_s


def rank_of(rules: Queue) -> Rank:
    """Return where a queue's order puts a job; of lines that take turns, no rank but arrival."""
    ranks: dict[str, Rank] = {
        "priority": by_priority,
        "earliest_deadline": by_deadline,
        "shortest_prompt": by_prompt,
    }
    rank = ranks.get(rules.order, first_come)
    if rules.order == "length_buckets" and rules.buckets.turn == "shortest_first":
        rank = by_bucket(rules.buckets.bounds_tokens)
    return ageing(rank, rules.ageing_per_s) if rules.ageing_per_s else rank


class WaitingLine(Generic[Waiter]):
    """Jobs that wait. Every operation takes O(log n), amortised.

    Removal is lazy: an entry counts only while its ticket is the job's current one.
    """

    def __init__(self, rank: Rank = first_come) -> None:
        self._rank = rank
        self._tickets: dict[Waiter, int] = {}
        self._heap: list[tuple[float, int, Waiter]] = []
        self._arrivals: deque[tuple[float, int, Waiter]] = deque()
        self._next_ticket = 0
        self._passed: list[tuple[float, int, Waiter]] = []
        self._counts: Callable[[Job], bool] | None = None
        self.counted = 0
        """Of those who wait, the jobs that :meth:`count` speaks of."""

    def count(self, which: Callable[[Job], bool]) -> None:
        """Know from now on, while nobody waits yet, how many of some kind wait."""
        self._counts = which

    def _entered(self, job: Waiter, ticket: int) -> None:
        self._tickets[job] = ticket
        if self._counts is not None and self._counts(job):
            self.counted += 1

    def _gone(self, job: Waiter) -> None:
        del self._tickets[job]
        if self._counts is not None and self._counts(job):
            self.counted -= 1

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, job: object) -> bool:
        return job in self._tickets

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._tickets)

    def push(self, job: Waiter, now_s: float) -> None:
        """Let a job wait from now on."""
        self._next_ticket += 1
        ticket = self._next_ticket
        self._entered(job, ticket)
        heappush(self._heap, (self._rank(job, now_s), ticket, job))
        self._arrivals.append((now_s, ticket, job))

    def push_front(self, job: Waiter) -> None:
        """Put a job before all others of its rank; it is no longer the one that waits longest.

        Where the rank depends on the arrival, that is when it came to the replica.
        """
        self._next_ticket += 1
        ticket = -self._next_ticket
        self._entered(job, ticket)
        heappush(self._heap, (self._rank(job, job.scheduler_queue_in_s), ticket, job))

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
                self._gone(job)
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
        if job not in self._tickets:
            return False
        self._gone(job)
        return True

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
        self.counted = 0
        self._heap.clear()
        self._arrivals.clear()
        return jobs
