"""Jobs that a replica prefers: places and blocks kept for some, others preempted for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from capplan.replica.job import Job
from capplan.scenario.batching import ContinuousBatching, Reservation


def covers(reservation: Reservation, job: Job) -> bool:
    """Return whether a job may take the places of a reservation."""
    if job.request_class in reservation.classes:
        return True
    limit = reservation.priority_at_most
    return limit is not None and job.priority <= limit


class Preference:
    """The part of an engine that keeps places, or preempts by priority.

    *Kept places*: a job is admitted only if afterwards as many places (and blocks) are free as the
    reservations that do not cover it still lack; what covered jobs hold counts against their
    reservation first. A job that may not take what is free is passed over while a covered job
    waits: that costs O(n log n) a step while n jobs wait before it. An empty replica admits any
    job; running jobs grow into kept blocks as into others.

    *Preemption*: if the first in line finds no place or no blocks, the running job of the lowest
    priority, below its own, is sent back to be computed again; of equals the last admitted.
    Source: vLLM project, ``vllm/core/scheduler.py`` (V0), ``_schedule_priority_preemption``; there
    for the first in line only, once a step, and of equal priority the later one is preempted too.
    V1 (``vllm/v1/core/sched/scheduler.py``, version 0.11) does not do this: its waiting requests
    stop where places or blocks end, and the lowest priority is preempted only when a running
    request finds no block, which is what ``order: priority`` without this option does.
    """

    def __init__(
        self, batching: ContinuousBatching, *, kv_blocks: int, stored: Callable[[Job], int]
    ) -> None:
        self.preempts = batching.priority_preemption
        self._reserved = batching.reserved
        self._kv_blocks = kv_blocks
        self._block = batching.block_size
        self._stored = stored
        self._counted = (-1, -1, -1)
        self._missing: list[int] = []

    @staticmethod
    def asked_by(batching: ContinuousBatching) -> list[str]:
        """Return the fields by which a batching asks for this part; it has no compiled form."""
        return [name for name in ("reserved", "priority_preemption") if getattr(batching, name)]

    def covers(self, job: Job) -> bool:
        """Return whether any reservation covers a job."""
        return any(covers(reservation, job) for reservation in self._reserved)

    def kept_places(
        self, job: Job, running: Collection[Job], *, admissions: int, places: int
    ) -> int:
        """Return how many of the ``places`` are kept for others than a job.

        ``admissions`` is the number of jobs admitted so far; with the number of running jobs it
        tells whether they are the same as before.
        """
        now = (admissions, len(running), places)
        if now != self._counted:
            self._counted = now
            self._missing = [
                r.places(places) - sum(job.beam_width for job in running if covers(r, job))
                for r in self._reserved
            ]
        pairs = zip(self._reserved, self._missing, strict=True)
        return sum(max(missing, 0) for r, missing in pairs if not covers(r, job))

    def kept_blocks(self, job: Job, running: Collection[Job]) -> int:
        """Return how many free blocks are kept for others than a job."""
        return sum(
            max(r.blocks(self._kv_blocks) - self._held(r, running), 0)
            for r in self._reserved
            if r.kv_fraction and not covers(r, job)
        )

    def _held(self, reservation: Reservation, running: Collection[Job]) -> int:
        return sum(
            job.beam_width * math.ceil(max(job.kv_tokens, self._stored(job)) / self._block)
            for job in running
            if covers(reservation, job)
        )
