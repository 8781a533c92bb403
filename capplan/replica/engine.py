"""What the two ways of batching have in common, seen from whoever drives a replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from capplan.replica.job import Job
from capplan.replica.limits import Limits


class Line(Protocol):
    """A line of jobs that wait."""

    def __len__(self) -> int: ...

    def __contains__(self, job: object) -> bool: ...

    def __iter__(self) -> Iterator[Job]: ...

    def push(self, job: Job, now_s: float) -> None:
        """Let a job wait from now on."""

    def remove(self, job: Job) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""

    def oldest(self) -> tuple[float, Job] | None:
        """Return since when the longest waiting job waits, and the job; None if nobody does."""


class Batch(Protocol):
    """A replica's batching, as it shows itself: limits, what it holds, totals."""

    joins_running: bool
    """Whether a new job joins those that run, at the next step."""
    has_kv: bool
    places: int
    """Most jobs that one step or batch holds."""

    @property
    def waiting(self) -> Line:
        """The scheduler queue."""

    @property
    def steps(self) -> int:
        """Steps or batches begun."""

    @property
    def sequences(self) -> int:
        """Jobs scheduled, over all steps."""

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens computed."""

    @property
    def output_tokens(self) -> int:
        """Tokens made."""

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
    def running(self) -> Iterable[Job]:
        """Jobs that the step or batch in service holds."""

    @property
    def kv_usage_fraction(self) -> float:
        """Share of KV blocks in use; NaN without KV blocks."""

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""

    def limit(self, limits: Limits) -> None:
        """Hold the batches from the next step on within limits, instead of those before."""


class Engine(Batch, Protocol):
    """A replica's batching: it forms steps (or batches) and says how long each takes."""

    def begin(self, now_s: float) -> float | None:
        """Form the next step; return how long it takes, None if none is due."""

    def end(self, now_s: float) -> list[Job]:
        """End the step; return the jobs that leave."""

    def abort(self, job: Job) -> bool:
        """Give a job up: True if it left at once, False if it leaves when the step ends."""

    def made(self, job: Job) -> int:
        """Return how many tokens of a job's answer exist by now."""

    def clear(self) -> list[Job]:
        """Lose everything, as in a crash; return the jobs that were here."""
