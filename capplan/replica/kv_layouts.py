"""How KV lies in memory: in blocks, or in one piece of the address space per sequence.

*Contiguous*: a piece is reserved at admission. Free space comes in holes between the pieces, and a
job takes the first hole that is large enough. Over time there may be room for it in all holes
together but in none alone (external fragmentation), beside what is reserved but not used (internal
fragmentation).
Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023, section 3.1; first fit: Knuth, "The Art of Computer Programming",
vol. 1, section 2.5.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from capplan.replica.job import Job
from capplan.replica.kv import KvBlocks, KvCache
from capplan.replica.kv_capacity import NO_ROOM, SequenceRoom
from capplan.replica.memory import accelerator_of, pool_kv_bytes_per_token
from capplan.replica.prefix_cache import PrefixCache
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool


def copy_s_per_token(pool: Pool) -> float:
    """Return the time to move one token's KV, s: as stated, else 2 · bytes ÷ bandwidth.

    Each byte is read once and written once. 0 without compaction.
    Raises :class:`capplan.schema.DataError` if the model or accelerator is unknown.
    """
    batching = pool.batching
    if batching.kind != "continuous" or batching.kv_layout == "paged":
        return 0.0
    if not batching.contiguous.compaction:
        return 0.0
    if batching.contiguous.copy_s_per_token is not None:
        return batching.contiguous.copy_s_per_token
    each, device = pool_kv_bytes_per_token(pool), accelerator_of(pool)
    return 2 * each / device.memory_bandwidth_bytes_per_s


class ContiguousSpace(KvCache):
    """An address space of tokens.

    ``stored(job)`` returns how many tokens of a job exist: a compaction copies only those.
    """

    not_compiled = "kv_layout"

    def __init__(
        self,
        batching: ContinuousBatching,
        *,
        blocks: int,
        copy_s_per_token: float,
        stored: Callable[[Job], int],
    ) -> None:
        self.total = blocks * batching.block_size
        self._rules = batching.contiguous
        self._max_model_len = batching.max_model_len
        self._width = batching.beam_width
        self._copy_s = copy_s_per_token
        self._stored = stored
        self.clear()

    def clear(self) -> None:
        """Lose everything, as in a crash."""
        self._holes = [(0, self.total)]
        self._pieces: dict[Job, tuple[int, int]] = {}
        self.reserved_tokens = 0
        self._pause_s = 0.0

    @property
    def free(self) -> int:
        """Return the tokens that are not reserved, over all holes."""
        return self.total - self.reserved_tokens

    @property
    def usage_fraction(self) -> float:
        """Return the share of the address space that is reserved."""
        return self.reserved_tokens / self.total

    @property
    def internal_fragmentation_fraction(self) -> float:
        """Return the share of the reserved tokens that hold nothing; NaN without any."""
        if not self.reserved_tokens:
            return float("nan")
        stored = sum(job.beam_width * self._stored(job) for job in self._pieces)
        return 1.0 - stored / self.reserved_tokens

    @property
    def external_fragmentation_fraction(self) -> float:
        """Return the share of the free tokens outside the largest hole; NaN without any."""
        if not self.free:
            return float("nan")
        return 1.0 - max(size for _, size in self._holes) / self.free

    def reserve(self, job: Job) -> int:
        """Return the tokens that a job reserves."""
        match self._rules.reserve:
            case "max":
                each = self._max_model_len
            case "pow2":
                each = job.prompt_tokens + (1 << (job.output_tokens - 1).bit_length())
                each = min(each, self._max_model_len)
            case "oracle":
                each = job.prompt_tokens + job.output_tokens
        return each * (1 if job.greedy else self._width)

    def pause_s(self) -> float:
        """Return how long the compactions since the last call took, s."""
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s

    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job fits into an empty replica."""
        return self.reserve(job) <= self.total

    def has_room(self, job: Job, found_tokens: int, tokens: int, *, spare_blocks: int) -> bool:
        """Return whether there is a hole for a new job, after compaction if that is allowed."""
        size = self.reserve(job)
        if self._hole(size) is not None:
            return True
        if not self._rules.compaction or self.free < size:
            return False
        self.compact()
        return True

    def admit(self, job: Job, found_tokens: int) -> None:
        """Reserve the first hole that is large enough; ValueError if there is none."""
        size = self.reserve(job)
        index = self._hole(size)
        if index is None:
            raise ValueError(f"a hole of {size} tokens, got none of {len(self._holes)}")
        start, room = self._holes[index]
        if room == size:
            del self._holes[index]
        else:
            self._holes[index] = (start + size, room - size)
        self._pieces[job] = (start, size)
        self.reserved_tokens += size

    def release(self, job: Job, tokens: int, computed_tokens: int) -> None:
        """Turn a job's piece into a hole, joined with the holes beside it."""
        start, size = self._pieces.pop(job)
        self.reserved_tokens -= size
        holes = self._holes
        index = bisect_left(holes, (start, 0))
        if index < len(holes) and holes[index][0] == start + size:
            size += holes.pop(index)[1]
        if index and sum(holes[index - 1]) == start:
            start, before = holes.pop(index - 1)
            size += before
        insort(holes, (start, size))

    def compact(self, *, copy_s_per_token: float | None = None) -> None:
        """Move every piece to the front; each that moves copies the tokens it stores.

        The next step waits for it, by default as long as the space's own copies take.
        """
        copy_s = self._copy_s if copy_s_per_token is None else copy_s_per_token
        moved, start = 0, 0
        for job, (old, size) in sorted(self._pieces.items(), key=lambda item: item[1]):
            if old != start:
                moved += job.beam_width * self._stored(job)
            self._pieces[job] = (start, size)
            start += size
        self._holes = [(start, self.total - start)]
        self._pause_s += moved * copy_s

    def _hole(self, size: int) -> int | None:
        return next((i for i, (_, room) in enumerate(self._holes) if room >= size), None)


def kv_cache(
    batching: ContinuousBatching,
    blocks: int,
    copy_s_per_token: float,
    *,
    stored: Callable[[Job], int],
    room: SequenceRoom = NO_ROOM,
) -> KvCache:
    """Return the memory of keys and values that a batching asks for.

    ``stored(job)`` returns the tokens of a running job whose KV exists; ``room`` is what each
    sequence holds beside.
    """
    if batching.kv_layout == "contiguous":
        return ContiguousSpace(
            batching, blocks=blocks, copy_s_per_token=copy_s_per_token, stored=stored
        )
    if batching.prefix_caching:
        return PrefixCache(blocks, block_size=batching.block_size, room=room)
    return KvBlocks(
        blocks,
        block_size=batching.block_size,
        width=batching.beam_width,
        shared_prompt=batching.beam_shares_prompt,
        room=room,
    )
