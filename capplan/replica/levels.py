"""A waiting line with priority levels, each with its own limits, as Triton's dynamic batcher has.

Source: NVIDIA, "Triton Inference Server", ``model_config.proto`` (``ModelQueuePolicy``,
``priority_levels``) and ``dynamic_batch_scheduler.cc``, 2025: timeouts are looked at when a batch
is formed; a delayed request comes after all of its level that are in time, and before the next
level.
"""

from __future__ import annotations

from collections.abc import Iterator

from capplan.replica.fair import waiting_line
from capplan.replica.job import Job
from capplan.replica.waiting import WaitingLine
from capplan.scenario.batching import QueuePolicy
from capplan.scenario.layers import Queue


class Level:
    """Who waits in one level: those in time, and those who are not and come after them."""

    def __init__(self, policy: QueuePolicy, scheduler: Queue) -> None:
        self.policy = policy
        self.in_time: WaitingLine[Job] = waiting_line(scheduler)
        self.delayed: WaitingLine[Job] = waiting_line(scheduler)

    def __len__(self) -> int:
        return len(self.in_time) + len(self.delayed)

    @property
    def full(self) -> bool:
        """Return whether nobody more may wait here."""
        most = self.policy.max_queue_size
        return most is not None and len(self) >= most

    def expire(self, now_s: float) -> list[Job]:
        """Let those go who have waited too long, or delay them; return who goes."""
        gone: list[Job] = []
        timeout_s = self.policy.timeout_s
        while timeout_s is not None and (oldest := self.in_time.oldest()):
            since_s, job = oldest
            if since_s + timeout_s > now_s:
                break
            self.in_time.remove(job)
            if self.policy.timeout_action == "delay":
                self.delayed.push(job, since_s)
            else:
                gone.append(job)
        return gone


class LevelLine:
    """Jobs that wait in levels, the lowest number first; same calls as a waiting line.

    ``levels`` 0 puts all into one. A priority outside 1 … ``levels`` counts as ``default``.
    """

    def __init__(
        self, policies: dict[int, QueuePolicy], *, levels: int, default: int, scheduler: Queue
    ) -> None:
        self._levels = {
            level: Level(policies.get(level, policies[0]), scheduler)
            for level in range(1, max(levels, 1) + 1)
        }
        self._default = default

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    def __contains__(self, job: object) -> bool:
        return any(job in line for line in self._lines())

    def __iter__(self) -> Iterator[Job]:
        for line in self._lines():
            yield from line

    def level_of(self, job: Job) -> Level:
        """Return the level that a job waits in."""
        level = job.priority if job.priority in self._levels else self._default
        return self._levels[level]

    def push(self, job: Job, now_s: float) -> None:
        """Let a job wait from now on."""
        self.level_of(job).in_time.push(job, now_s)

    def pop(self) -> Job:
        """Take out who is served next; IndexError if nobody waits."""
        for line in self._lines():
            if line:
                return line.pop()
        msg = "somebody waits, got an empty line"
        raise IndexError(msg)

    def remove(self, job: Job) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""
        return any(line.remove(job) for line in self._lines())

    def oldest(self) -> tuple[float, Job] | None:
        """Return since when the longest waiting job waits, and the job; None if nobody does."""
        found = [oldest for line in self._lines() if (oldest := line.oldest())]
        return min(found, key=lambda pair: pair[0], default=None)

    def expire(self, now_s: float) -> list[Job]:
        """Apply the timeouts; return the jobs that leave for them."""
        return [job for level in self._levels.values() for job in level.expire(now_s)]

    def clear(self) -> list[Job]:
        """Empty the line; return who waited, level by level."""
        return [job for line in self._lines() for job in line.clear()]

    def _lines(self) -> Iterator[WaitingLine[Job]]:
        for level in self._levels.values():
            yield level.in_time
            yield level.delayed
