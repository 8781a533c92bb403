"""Continuous batching that prefers some: places kept for them, and others preempted for them."""

from __future__ import annotations

import math
from typing import Any

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.scenario.batching import ContinuousBatching, Reservation


def covers(reservation: Reservation, job: Job) -> bool:
    """Return whether a job may take the places of a reservation."""
    if job.request_class in reservation.classes:
        return True
    limit = reservation.priority_at_most
    return limit is not None and job.priority <= limit


class PreferringEngine(ContinuousEngine):
    """The batching state of one replica that keeps places, or preempts by priority.

    *Kept places*: a job is admitted only if afterwards as many places (and blocks) are free as the
    reservations that do not cover it still have to get; what those who are covered hold counts
    against their reservation first. A job that may not take what is free is passed over, as long
    as somebody waits whom a reservation covers: that costs O(n log n) a step while n wait before
    him. Where nothing runs, anybody is admitted; what runs grows into kept blocks as into others.

    *Preemption*: where the first in line finds no place or no blocks, the running job of the
    lowest priority, below its own, is sent back to be computed again; of equals the last admitted.
    Source: vLLM project, ``vllm/core/scheduler.py`` (V0), ``_schedule_priority_preemption``; there
    for the first in line only, once a step, and of equal priority who came later is preempted too.
    V1 (``vllm/v1/core/sched/scheduler.py``, version 0.11) does not do this: its waiting requests
    stop where places or blocks end, and the lowest priority is preempted only when a running
    request finds no block, which is what ``order: priority`` without this option does.
    """

    def __init__(self, batching: ContinuousBatching, *, kv_blocks: int, **parts: Any) -> None:
        self._kv_blocks = kv_blocks
        self._reserved = batching.reserved
        self._preempts = batching.priority_preemption
        self._counted = (-1, -1, -1)
        self._missing: list[int] = []
        super().__init__(batching, kv_blocks=kv_blocks, **parts)
        if self._reserved:
            self.waiting.count(lambda job: any(covers(r, job) for r in self._reserved))

    def _finds_place(self, job: Job, width: int) -> bool | None:
        while self._seats + width > self._limit_seqs:
            if not self._make_way(job):
                return False
        if not self._is_kept_from(job, width):
            return True
        return None if self.waiting.counted else False

    def _finds_room(self, job: Job, found: int, chunk: int, kept: int = 0) -> bool | None:
        while not super()._finds_room(job, found, chunk):
            if not self._make_way(job):
                return False
        kept = self._kept_blocks(job)
        if not kept or super()._finds_room(job, found, chunk, kept):
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

    def _kept_blocks(self, job: Job) -> int:
        """Return how many free blocks are kept for others than a job."""
        if not self._running:
            return 0
        return sum(
            max(r.blocks(self._kv_blocks) - self._blocks_of(r), 0)
            for r in self._reserved
            if r.kv_fraction and not covers(r, job)
        )

    def _blocks_of(self, reservation: Reservation) -> int:
        return sum(
            job.beam_width * math.ceil(max(job.kv_tokens, self._stored(job)) / self._block)
            for job in self._running
            if covers(reservation, job)
        )

    def _still_to_get(self) -> list[int]:
        """Return how many of each reservation's places nobody of it has."""
        now = (self._admissions, len(self._running), self._limit_seqs)
        if now != self._counted:
            self._counted = now
            self._missing = [
                r.places(self._limit_seqs)
                - sum(job.beam_width for job in self._running if covers(r, job))
                for r in self._reserved
            ]
            self._missing = [max(missing, 0) for missing in self._missing]
        return self._missing


def continuous_engine(batching: ContinuousBatching, **parts: Any) -> ContinuousEngine:
    """Return the engine that does what a continuous batching asks for."""
    prefers = batching.reserved or batching.priority_preemption
    return (PreferringEngine if prefers else ContinuousEngine)(batching, **parts)
