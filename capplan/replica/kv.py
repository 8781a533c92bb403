"""The KV memory of one replica: a count of blocks, a prefix cache, or an address space.

The engine asks for room and says how many tokens each job stores. :class:`KvBlocks` counts blocks,
:class:`capplan.replica.prefix_cache.PrefixCache` keeps blocks that are found again,
and :class:`capplan.replica.kv_layouts.ContiguousSpace` has no blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from capplan.replica.job import Job
from capplan.replica.kv_capacity import NO_ROOM, SequenceRoom


class KvCache(ABC):
    """The memory in which an engine keeps the keys and values of its sequences.

    The methods of this class fit a memory that reserves all at admission.
    """

    grows: bool = False
    """Whether decoding takes memory as it goes."""
    not_compiled: str = ""
    """The field that asks for this memory, if it has no compiled form."""

    @property
    @abstractmethod
    def free(self) -> int:
        """Return how many blocks can be taken."""

    @property
    @abstractmethod
    def usage_fraction(self) -> float:
        """Return the share of the memory that is taken."""

    def pause_s(self) -> float:
        """Return how long this step waits while the memory is reordered, s."""
        return 0.0

    def beside(self, job: Job) -> int:
        """Return the blocks that a sequence of a job holds beside those that grow."""
        return 0

    @abstractmethod
    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job that stores so many tokens fits into an empty replica."""

    def found(self, job: Job, known_tokens: int) -> int:
        """Return how many of the tokens to prefill need not be computed."""
        return 0

    @abstractmethod
    def has_room(self, job: Job, found_tokens: int, tokens: int, *, spare_blocks: int) -> bool:
        """Return whether a new job that stores so many tokens leaves that many blocks free."""

    @abstractmethod
    def admit(self, job: Job, found_tokens: int) -> None:
        """Give a new job what was found for it."""

    def needed(self, job: Job, tokens: int) -> int:
        """Return how many more blocks a prefilling job needs to store so many tokens."""
        return 0

    def grow(self, job: Job, tokens: int) -> None:  # noqa: B027
        """Give a prefilling job room for so many tokens in all."""

    def count(self, jobs: Collection[Job]) -> int:
        """Return how many blocks these jobs need if each needs one more."""
        return 0

    def extend(self, jobs: Collection[Job]) -> None:  # noqa: B027
        """Give each of these jobs one more block."""

    @abstractmethod
    def release(self, job: Job, tokens: int, computed_tokens: int) -> None:
        """Take back the blocks of a job that had room for ``tokens``."""

    @abstractmethod
    def clear(self) -> None:
        """Lose everything, as in a crash."""

    def lose(self, blocks: int) -> None:
        """Lose so many free blocks, or all there are, until :meth:`clear`; only paged KV can."""
        raise NotImplementedError


class KvBlocks(KvCache):
    """Paged KV as a count: every block is like every other.

    A job takes its blocks ``width`` times, once if it is greedy; with ``shared_prompt`` the full
    blocks of its prompt once for all its beams.
    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", SOSP 2023, section 4.
    """

    grows = True
    free = 0

    def __init__(
        self,
        blocks: int,
        *,
        block_size: int,
        width: int = 1,
        shared_prompt: bool = False,
        room: SequenceRoom = NO_ROOM,
    ) -> None:
        self.total = blocks
        self.block_size = block_size
        self._room = room if room.taken else None
        self._width = width
        self._shared = shared_prompt
        self.not_compiled = "beam_shares_prompt" if shared_prompt else ""
        self.free = self.total

    def beside(self, job: Job) -> int:
        """Return the blocks that a sequence of a job holds beside those that grow."""
        return blocks_beside(self._room, job, self.block_size)

    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job that stores so many tokens fits into an empty replica."""
        return self._blocks(job, tokens) + self._wide(job) <= self.total

    @property
    def usage_fraction(self) -> float:
        """Return the share of the blocks that is taken: in whole widths, but for shared prompts."""
        if self._shared:
            return 1.0 - self.free / self.total
        return 1.0 - (self.free // self._width) / (self.total // self._width)

    def has_room(self, job: Job, found_tokens: int, tokens: int, *, spare_blocks: int) -> bool:
        """Return whether a new job that stores so many tokens leaves that many blocks free."""
        return self._blocks(job, tokens) + self._wide(job) + spare_blocks <= self.free

    def admit(self, job: Job, found_tokens: int) -> None:
        """Begin to count the blocks of a new job."""
        job.kv_tokens = 0
        self.free -= self._wide(job)
        self.grow(job, found_tokens)

    def needed(self, job: Job, tokens: int) -> int:
        """Return how many more blocks a prefilling job needs to store so many tokens."""
        if self._width > 1:
            return self._blocks(job, tokens) - self._blocks(job, job.kv_tokens)
        size = self.block_size
        return -(-tokens // size) + -job.kv_tokens // size

    def grow(self, job: Job, tokens: int) -> None:
        """Give a prefilling job room for so many tokens in all."""
        self.free -= self.needed(job, tokens)
        job.kv_tokens = tokens

    def extend(self, jobs: Collection[Job]) -> None:
        """Give each of these jobs one more block."""
        self.free -= self.count(jobs)

    def release(self, job: Job, tokens: int, computed_tokens: int) -> None:
        """Take back the blocks of a job that had room for ``tokens``."""
        self.free += self._blocks(job, tokens) + self._wide(job)

    def count(self, jobs: Collection[Job]) -> int:
        """Return how many blocks these jobs need if each needs one more."""
        if self._width == 1:
            return len(jobs)
        return sum(1 if job.greedy else self._width for job in jobs)

    def clear(self) -> None:
        """Lose everything, as in a crash."""
        self.free = self.total

    def lose(self, blocks: int) -> None:
        """Lose so many free blocks, or all there are, until :meth:`clear`."""
        self.free -= min(blocks, self.free)

    def _wide(self, job: Job) -> int:
        """Return the blocks beside those that grow, of all sequences of a job."""
        return self.beside(job) * (1 if job.greedy else self._width) if self._room else 0

    def _blocks(self, job: Job, tokens: int) -> int:
        blocks = -(-tokens // self.block_size)
        if self._width == 1 or job.greedy:
            return blocks
        kept = min(blocks, job.prompt_tokens // self.block_size) if self._shared else 0
        return kept + (blocks - kept) * self._width


def blocks_beside(room: SequenceRoom | None, job: Job, block_size: int) -> int:
    """Return the blocks that a sequence of a job holds beside its growing KV."""
    stored = job.prompt_tokens + job.output_tokens - 1
    return room.blocks(stored, block_size=block_size) if room else 0
