"""The KV blocks of one replica: how many are free, who holds how many.

The engine asks for room and says how many tokens each job stores; what stands behind is a count
(:class:`KvBlocks`), blocks with names that can be found again (:mod:`capplan.replica.prefix`), or
an address space (:mod:`capplan.replica.contiguous`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from capplan.replica.job import Job


class KvCache(Protocol):
    """The memory in which an engine keeps the keys and values of its sequences."""

    grows: bool
    """Whether decoding takes memory as it goes; False = all was reserved at admission."""

    @property
    def free(self) -> int:
        """Return how many blocks can be taken."""

    @property
    def usage_fraction(self) -> float:
        """Return the share of the memory that is taken."""

    def pause_s(self) -> float:
        """Return for how long this step waits for the memory to be put in order, s."""

    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job that stores so many tokens fits if it is alone."""

    def found(self, job: Job, known_tokens: int) -> int:
        """Return how many of the tokens to prefill need not be computed."""

    def has_room(self, job: Job, found_tokens: int, tokens: int, *, spare_blocks: int) -> bool:
        """Return whether a new job that stores so many tokens leaves that many blocks free."""

    def admit(self, job: Job, found_tokens: int) -> None:
        """Give a new job what was found for it."""

    def needed(self, job: Job, tokens: int) -> int:
        """Return how many more blocks a prefilling job needs to store so many tokens."""

    def grow(self, job: Job, tokens: int) -> None:
        """Let a prefilling job store so many tokens in all."""

    def count(self, jobs: Collection[Job]) -> int:
        """Return how many blocks these jobs need if each needs one more."""

    def extend(self, jobs: Collection[Job]) -> None:
        """Give each of these jobs one more block."""

    def release(self, job: Job, tokens: int, computed_tokens: int) -> None:
        """Take back the blocks of a job that had room for ``tokens``."""

    def clear(self) -> None:
        """Lose everything, as in a crash."""


class PagedKv:
    """What every paged KV has in common.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", SOSP 2023, section 4.
    """

    grows = True

    def __init__(self, blocks: int, *, block_size: int) -> None:
        self.total = blocks
        self.block_size = block_size

    def pause_s(self) -> float:
        """Return 0: blocks lie where they are."""
        return 0.0

    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job that stores so many tokens fits if it is alone."""
        return -(-tokens // self.block_size) <= self.total

    def count(self, jobs: Collection[Job]) -> int:
        """Return how many blocks these jobs need if each needs one more."""
        return len(jobs)


class KvBlocks(PagedKv):
    """Paged KV as a count: every block is like every other.

    A job takes its blocks ``width`` times, once if it is greedy; with ``shared_prompt`` the full
    blocks of its prompt once for all its beams.
    """

    def __init__(
        self, blocks: int, *, block_size: int, width: int = 1, shared_prompt: bool = False
    ) -> None:
        super().__init__(blocks, block_size=block_size)
        self._width = width
        self._shared = shared_prompt
        self.free = self.total

    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job that stores so many tokens fits if it is alone."""
        return self._blocks(job, tokens) <= self.total

    @property
    def usage_fraction(self) -> float:
        """Return the share of the blocks that is taken: in whole widths, but for shared prompts."""
        if self._shared:
            return 1.0 - self.free / self.total
        return 1.0 - (self.free // self._width) / (self.total // self._width)

    def found(self, job: Job, known_tokens: int) -> int:
        """Return 0: a count knows no contents."""
        return 0

    def has_room(self, job: Job, found_tokens: int, tokens: int, *, spare_blocks: int) -> bool:
        """Return whether a new job that stores so many tokens leaves that many blocks free."""
        return self._blocks(job, tokens) + spare_blocks <= self.free

    def admit(self, job: Job, found_tokens: int) -> None:
        """Start to count a new job."""
        job.kv_tokens = 0
        self.grow(job, found_tokens)

    def needed(self, job: Job, tokens: int) -> int:
        """Return how many more blocks a prefilling job needs to store so many tokens."""
        if self._width > 1:
            return self._blocks(job, tokens) - self._blocks(job, job.kv_tokens)
        size = self.block_size
        return -(-tokens // size) + -job.kv_tokens // size

    def grow(self, job: Job, tokens: int) -> None:
        """Let a prefilling job store so many tokens in all."""
        self.free -= self.needed(job, tokens)
        job.kv_tokens = tokens

    def extend(self, jobs: Collection[Job]) -> None:
        """Give each of these jobs one more block."""
        self.free -= self.count(jobs)

    def release(self, job: Job, tokens: int, computed_tokens: int) -> None:
        """Take back the blocks of a job that had room for ``tokens``."""
        self.free += self._blocks(job, tokens)

    def count(self, jobs: Collection[Job]) -> int:
        """Return how many blocks these jobs need if each needs one more."""
        if self._width == 1:
            return len(jobs)
        return sum(1 if job.greedy else self._width for job in jobs)

    def clear(self) -> None:
        """Lose everything, as in a crash."""
        self.free = self.total

    def _blocks(self, job: Job, tokens: int) -> int:
        blocks = -(-tokens // self.block_size)
        if self._width == 1 or job.greedy:
            return blocks
        kept = min(blocks, job.prompt_tokens // self.block_size) if self._shared else 0
        return kept + (blocks - kept) * self._width
