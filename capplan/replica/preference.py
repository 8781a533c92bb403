"""Jobs that a replica prefers: places and blocks kept for some, others preempted for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from capplan.replica.job import Job
from capplan.scenario.batching import ContinuousBatching, Reservation

if TYPE_CHECKING:
    from capplan.replica.continuous import ContinuousEngine


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

    @staticmethod
    def asked_by(batching: ContinuousBatching) -> list[str]:
        """Return the fields by which a batching asks for this part; it has no compiled form."""
        return [name for name in ("reserved", "priority_preemption") if getattr(batching, name)]

    def __init__(
        self, engine: ContinuousEngine, batching: ContinuousBatching, kv_blocks: int
    ) -> None:
        self._engine = engine
        self._preempts = batching.priority_preemption
        self._reserved = batching.reserved
        self._kv_blocks = kv_blocks
        self._block = batching.block_size
        self._counted = (-1, -1, -1)
        self._missing: list[int] = []
        engine.waiting.count(lambda job: any(covers(r, job) for r in self._reserved))

    def finds_place(self, job: Job, width: int) -> bool | None:
        """Return whether a job finds its places; None: it does not, but one behind it may."""
        engine = self._engine
        while engine.free_places < width:
            if not (self._preempts and engine.make_way(job.priority)):
                return False
        if not engine.running or engine.free_places - width >= self._kept_places(job):
            return True
        return None if engine.waiting.counted else False

    def finds_room(self, job: Job, found: int, chunk: int) -> bool | None:
        """Return as :meth:`finds_place` whether a job finds its blocks."""
        engine = self._engine
        while not engine.has_room(job, found, chunk):
            if not (self._preempts and engine.make_way(job.priority)):
                return False
        kept = self._kept_blocks(job) if engine.running else 0
        if not kept or engine.has_room(job, found, chunk, kept=kept):
            return True
        return None if engine.waiting.counted else False

    def _kept_places(self, job: Job) -> int:
        """Return how many places are kept for others than a job."""
        engine = self._engine
        limit, running = engine.free_places + engine.seats, engine.running
        now = (engine.admissions, len(running), limit)
        if now != self._counted:
            self._counted = now
            self._missing = [
                r.places(limit) - sum(job.beam_width for job in running if covers(r, job))
                for r in self._reserved
            ]
        pairs = zip(self._reserved, self._missing, strict=True)
        return sum(max(missing, 0) for r, missing in pairs if not covers(r, job))

    def _kept_blocks(self, job: Job) -> int:
        """Return how many free blocks are kept for others than a job."""
        return sum(
            max(r.blocks(self._kv_blocks) - self._held(r), 0)
            for r in self._reserved
            if r.kv_fraction and not covers(r, job)
        )

    def _held(self, reservation: Reservation) -> int:
        engine, stored = self._engine, self._engine.stored
        return sum(
            job.beam_width
            * (math.ceil(max(job.kv_tokens, stored(job)) / self._block) + engine.kv.beside(job))
            for job in self._engine.running
            if covers(reservation, job)
        )
