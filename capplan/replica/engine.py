"""What the two ways of batching have in common, seen from whoever drives a replica."""

from __future__ import annotations

from typing import Protocol

from capplan.replica.job import Job
from capplan.replica.waiting import WaitingLine


class Engine(Protocol):
    """A replica's batching: it forms steps (or batches) and says how long each takes."""

    waiting: WaitingLine[Job]
    """The scheduler queue."""
    joins_running: bool
    """Whether a new job joins those that run, at the next step."""
    has_kv: bool
    places: int
    """Most jobs that one step or batch holds."""
    steps: int
    sequences: int
    prefill_tokens: int
    output_tokens: int

    @property
    def wake_s(self) -> float:
        """When a free engine wants to be asked again, s."""

    @property
    def preemptions(self) -> int:
        """Sequences preempted so far."""

    @property
    def prefilling(self) -> int:
        """Jobs that run without a token yet."""

    @property
    def decoding(self) -> int:
        """Jobs that decode."""

    @property
    def kv_usage_fraction(self) -> float:
        """Share of KV blocks in use; NaN without KV blocks."""

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""

    def begin(self, now_s: float) -> float | None:
        """Form the next step; return how long it takes, None if none is due."""

    def end(self, now_s: float) -> list[Job]:
        """End the step; return the jobs that leave."""

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves when the step ends."""

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were here."""
