"""What every engine of a replica offers: a line, batches within limits, totals, steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from capplan.replica.job import Job
from capplan.replica.waiting import WaitingLine
from capplan.scenario.batching import ContinuousBatching


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a batch may hold at most; inf = as configured.

    >>> (Limits(sequences=8) & Limits(sequences=4, tokens=512)).sequences
    4
    """

    sequences: float = math.inf
    """Sequences of a step, or requests of a dynamic batch; 0 = none is admitted."""
    tokens: float = math.inf
    """Tokens of a step of continuous batching."""
    window_s: float = math.inf
    """How long a dynamic batch waits to fill, s."""

    def __and__(self, other: Limits) -> Limits:
        """Return the tighter of each."""
        return Limits(
            sequences=min(self.sequences, other.sequences),
            tokens=min(self.tokens, other.tokens),
            window_s=min(self.window_s, other.window_s),
        )

    def of_continuous(self, batching: ContinuousBatching) -> tuple[int, int]:
        """Return the sequences and the tokens of a step, within what is configured."""
        sequences = min(self.sequences, batching.max_num_seqs)
        return int(sequences), int(min(self.tokens, batching.max_num_batched_tokens))


NO_LIMITS = Limits()
"""As configured."""


class Line(Protocol):
    """A line of jobs that wait."""

    def __len__(self) -> int: ...

    def __contains__(self, job: object) -> bool: ...

    def __iter__(self) -> Iterator[Job]: ...

    def push(self, job: Job, now_s: float) -> None:
        """Add a job; it waits from now on."""

    def remove(self, job: Job) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""

    def oldest(self) -> tuple[float, Job] | None:
        """Return since when the longest waiting job waits, and the job; None if none waits."""


class JoinedLines:
    """Several lines as one: ``line_of(job)`` is the one in which a job waits."""

    def __init__(
        self, lines: Sequence[WaitingLine[Job]], line_of: Callable[[Job], WaitingLine[Job]]
    ) -> None:
        self._lines = lines
        self._line_of = line_of

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def __contains__(self, job: object) -> bool:
        return any(job in line for line in self._lines)

    def __iter__(self) -> Iterator[Job]:
        return chain.from_iterable(self._lines)

    def push(self, job: Job, now_s: float) -> None:
        """Add a job; it waits from now on."""
        self._line_of(job).push(job, now_s)

    def remove(self, job: Job) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""
        return any(line.remove(job) for line in self._lines)

    def oldest(self) -> tuple[float, Job] | None:
        """Return since when the longest waiting job waits, and the job; None if none waits."""
        found = [oldest for line in self._lines if (oldest := line.oldest())]
        return min(found, key=lambda entry: entry[0], default=None)


class Batch(Protocol):
    """A replica's batching from outside: limits, what it holds, totals."""

    joins_running: bool
    """Whether a new job joins those that run, at the next step."""
    has_kv: bool
    places: int
    """Most jobs that one step or batch holds."""
    steps: int
    """Steps or batches begun."""
    sequences: int
    """Jobs scheduled, over all steps."""
    prefill_tokens: int
    """Prompt tokens computed."""
    output_tokens: int
    """Tokens made."""
    preemptions: int
    """Sequences preempted so far."""
    decoding: int
    """Jobs that decode."""

    @property
    def waiting(self) -> Line:
        """The scheduler queue."""

    @property
    def wake_s(self) -> float:
        """When a free engine wants to be asked again, s."""

    @property
    def prefilling(self) -> int:
        """Jobs that run without a token yet."""

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
    """A replica's batching: it forms steps (or batches) and returns how long each takes."""

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
