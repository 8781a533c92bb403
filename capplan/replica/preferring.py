"""Continuous batching that prefers some: places kept for them, and others preempted for them."""

from __future__ import annotations

from typing import Any

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.scenario.batching import Reservation
from capplan.scenario.pools import ContinuousBatching


def covers(reservation: Reservation, job: Job) -> bool:
    """Return whether a job may take the places of a reservation."""
    if job.request_class in reservation.classes:
        return True
    limit = reservation.priority_at_most
    return limit is not None and job.priority <= limit


class PreferringEngine(ContinuousEngine):
    """The batching state of one replica that keeps places, or preempts by priority.

    *Kept places*: a job is admitted only if afterwards as many places are free as the reservations
    that do not cover it still have to get; whoever is covered counts against his reservation
    first. A job that may not take the free places is passed over, as long as somebody waits whom
    a reservation covers: that costs O(n log n) a step while n wait before him.
    Where nothing runs, anybody is admitted.

    *Preemption*: where the first in line finds no place or no blocks, the running job of the
    lowest priority, below its own, is sent back to be computed again; of equals the last admitted.
    Source: vLLM project, ``vllm/core/scheduler.py`` (V0), ``_schedule_priority_preemption``; there
    for the first in line only, once a step, and of equal priority who came later is preempted too.
    V1 (``vllm/v1/core/sched/scheduler.py``, version 0.11) does not do this: its waiting requests
    stop where places or blocks end, and the lowest priority is preempted only when a running
    request finds no block, which is what ``order: priority`` without this option does.
    """

    def __init__(self, batching: ContinuousBatching, **parts: Any) -> None:
        self._reserved = batching.reserved
        self._preempts = batching.priority_preemption
        self._counted = (-1, -1, -1)
        self._missing: list[int] = []
        super().__init__(batching, **parts)
        if self._reserved:
            self.waiting.count(lambda job: any(covers(r, job) for r in self._reserved))

    def _finds_place(self, job: Job, width: int) -> bool | None:
        while self._seats + width > self._limit_seqs:
            if not self._make_way(job):
                return False
        if not self._is_kept_from(job, width):
            return True
        return None if self.waiting.counted else False

    def _make_way(self, job: Job) -> bool:
        if not (self._preempts and self._running):
            return False
        victim = self._victim()
        if victim.priority <= job.priority:
            return False
        self._preempt(victim, ahead=self._ticks)
        return True

    def _is_kept_from(self, job: Job, width: int) -> bool:
        """Return whether the free places are kept for others than a job."""
        if not (self._reserved and self._running):
            return False
        pairs = zip(self._reserved, self._still_to_get(), strict=True)
        kept = sum(missing for r, missing in pairs if not covers(r, job))
        return self._limit_seqs - self._seats - width < kept

    def _still_to_get(self) -> list[int]:
        """Return how many of each reservation's places nobody of it has."""
        now = (self._admissions, len(self._running), self._limit_seqs)
        if now != self._counted:
            self._counted = now
            self._missing = [
                int(r.fraction * self._limit_seqs)
                - sum(job.beam_width for job in self._running if covers(r, job))
                for r in self._reserved
            ]
            self._missing = [max(missing, 0) for missing in self._missing]
        return self._missing


def continuous_engine(batching: ContinuousBatching, **parts: Any) -> ContinuousEngine:
    """Return the engine that does what a continuous batching asks for."""
    prefers = batching.reserved or batching.priority_preemption
    return (PreferringEngine if prefers else ContinuousEngine)(batching, **parts)
