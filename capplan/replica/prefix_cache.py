"""Paged KV whose blocks are found again by what they hold.

A block gets its key once it is full. The blocks of a job that left stay cached
until they are taken for something else, least recently used first, so cached blocks go before any
job is preempted. A job takes over the blocks of its longest known prefix, also those that others
hold at the same time; at least the last token of its prompt is computed.
Source: vLLM project, ``vllm/v1/core/kv_cache_manager.py`` (``get_computed_blocks``,
``allocate_slots``) and ``block_pool.py``, version 0.11: blocks become known when they are
scheduled, blocks of a job are freed last first, free blocks are taken from the head of one queue.
Two differences: what was scheduled but never computed is forgotten, and the answer is found again
only by its own job (after a preemption), unless the trace names its blocks.
For a job without ids a share of the prompt counts as found (``Job.cached_fraction``): those tokens
are not computed, but the job holds blocks for them like any other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable
from itertools import count
from typing import Protocol

from capplan.replica.job import Job
from capplan.replica.kv import KvCache, blocks_beside
from capplan.replica.kv_capacity import NO_ROOM, SequenceRoom

Key = Hashable


class PrefixCache(KvCache):
    """Paged KV whose blocks have keys; see the module.

    Attributes
    ----------
    cached
        How many free blocks have a key, so that a job may find them.
    """

    grows = True

    def __init__(self, blocks: int, *, block_size: int, room: SequenceRoom = NO_ROOM) -> None:
        self.total = blocks
        self.block_size = block_size
        self._room = room if room.taken else None
        self.not_compiled = "prefix_caching with windows or states" if room.taken else ""
        self.clear()

    def clear(self) -> None:
        """Lose everything, as in a crash."""
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.total))
        self._holders = [0] * self.total
        self._key_of: dict[int, Key] = {}
        self._known: dict[Key, dict[int, None]] = {}
        self._held: dict[Job, list[int]] = {}
        self._beside: dict[Job, list[int]] = {}
        self.cached = 0

    @property
    def free(self) -> int:
        """Return how many blocks no job holds, cached ones included."""
        return len(self._free)

    @property
    def usage_fraction(self) -> float:
        """Return the share of the blocks that a job holds."""
        return 1.0 - len(self._free) / self.total

    def beside(self, job: Job) -> int:
        """Return the blocks that a job holds beside those that grow."""
        return blocks_beside(self._room, job, self.block_size)

    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job that stores so many tokens fits into an empty replica."""
        return -(-tokens // self.block_size) + self.beside(job) <= self.total

    def count(self, jobs: Collection[Job]) -> int:
        """Return how many blocks these jobs need if each needs one more."""
        return len(jobs)

    def found(self, job: Job, known_tokens: int) -> int:
        """Return how many of the tokens to prefill are in the cache: whole blocks, not all."""
        size = self.block_size
        most = (known_tokens - 1) // size
        if job.cached_fraction and not len(job.prefix_blocks) and not job.prefilled_tokens:
            return min(most, int(job.cached_fraction * job.prompt_tokens) // size) * size
        keys, known = self._keys_of(job), self._known
        return size * next((k for k in range(most) if _key(job, keys, k) not in known), most)

    @property
    def cached_fraction(self) -> float:
        """Return the share of the blocks that only the cache holds."""
        return self.cached / self.total

    def known_tokens(self, job: Job) -> int:
        """Return how many tokens of a prompt are in the cache by their ids; 0 without ids."""
        if not len(job.prefix_blocks):
            return 0
        return self.found(job, job.prompt_tokens)

    def has_room(self, job: Job, found_tokens: int, tokens: int, *, spare_blocks: int) -> bool:
        """Return whether a new job that stores so many tokens leaves that many blocks free."""
        shared = sum(self._holders[block] > 0 for block in self._blocks_of(job, found_tokens))
        blocks = -(-tokens // self.block_size) + self.beside(job)
        return blocks - shared + spare_blocks <= len(self._free)

    def admit(self, job: Job, found_tokens: int) -> None:
        """Give a new job the blocks found for it."""
        blocks = self._blocks_of(job, found_tokens)
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
                self.cached -= 1
            self._holders[block] += 1
        self._held[job] = blocks
        self._take(job, found_tokens // self.block_size - len(blocks))
        if self._room:
            self._beside[job] = [self._first_free() for _ in range(self.beside(job))]

    def needed(self, job: Job, tokens: int) -> int:
        """Return how many more blocks a prefilling job needs to store so many tokens."""
        return -(-tokens // self.block_size) - len(self._held[job])

    def grow(self, job: Job, tokens: int) -> None:
        """Give a prefilling job room for so many tokens in all; its full blocks get their keys."""
        self._take(job, self.needed(job, tokens))
        keys, held = self._keys_of(job), self._held[job]
        full = min(tokens, job.known_tokens) // self.block_size
        for block, key in zip(held[:full], keys, strict=False):
            if block not in self._key_of:
                self._learn(block, key)

    def extend(self, jobs: Collection[Job]) -> None:
        """Give each of these jobs one more block."""
        for job in jobs:
            self._take(job, 1)

    def release(self, job: Job, tokens: int, computed_tokens: int) -> None:
        """Free the blocks of a job, the last one first; computed ones keep their keys."""
        held, keys = self._held.pop(job), self._keys_of(job)
        full = computed_tokens // self.block_size
        done = job.generated_tokens >= job.output_tokens
        names = min(full, len(keys)) if done else full
        for k, block in enumerate(held):
            if k >= full and self._holders[block] == 1:
                self._forget(block)
            elif k < names and block not in self._key_of:
                self._learn(block, _key(job, keys, k))
        for block in reversed(held):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                self.cached += block in self._key_of
        self._free.update(dict.fromkeys(self._beside.pop(job, ())))

    def lose(self, blocks: int) -> None:
        """Lose so many free blocks, or all there are, until :meth:`clear`."""
        for _ in range(min(blocks, len(self._free))):
            self._first_free()

    def _take(self, job: Job, blocks: int) -> None:
        held = self._held[job]
        for _ in range(blocks):
            block = self._first_free()
            self._holders[block] = 1
            held.append(block)

    def _first_free(self) -> int:
        """Take the free block that was used least recently; what it holds is forgotten."""
        block, _ = self._free.popitem(last=False)
        self.cached -= block in self._key_of
        self._forget(block)
        return block

    def _blocks_of(self, job: Job, found_tokens: int) -> list[int]:
        """Return the blocks of a found prefix; none for a job without ids."""
        keys = self._keys_of(job)
        blocks: list[int] = []
        for k in range(found_tokens // self.block_size):
            known = self._known.get(_key(job, keys, k))
            if known is None:
                break
            blocks.append(next(iter(known)))
        return blocks

    def _learn(self, block: int, key: Key) -> None:
        self._key_of[block] = key
        self._known.setdefault(key, {})[block] = None

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is None:
            return
        same = self._known[key]
        del same[block]
        if not same:
            del self._known[key]

    def _keys_of(self, job: Job) -> list[Key]:
        if job.block_keys is None:
            job.block_keys = block_keys(job, self.block_size)
        keys: list[Key] = job.block_keys
        return keys


class Cache(Protocol):
    """A prefix cache, as the router and the timeline see it."""

    @property
    def cached_fraction(self) -> float:
        """Return the share of the blocks that only the cache holds."""

    def known_tokens(self, job: Job) -> int:
        """Return how many tokens of a prompt are in the cache by their ids; 0 without ids."""


def cache_of(engine: object) -> Cache | None:
    """Return the prefix cache of an engine, None if it has none."""
    kv: Cache | None = getattr(engine, "kv", None)
    return kv if hasattr(kv, "known_tokens") else None


def _key(job: Job, keys: list[Key], k: int) -> Key:
    """Return the key of a job's block: from the ids of the trace, else one of its own."""
    return keys[k] if k < len(keys) else (job, k)


def block_keys(job: Job, block_size: int) -> list[Key]:
    """Return the keys of the KV blocks that a job's ids of prefix blocks cover in full.

    The ids may go beyond the prompt: they then name the blocks of the answer. An id stands for a
    prefix block *and all before it*, as in the public traces (Qin et al., "Mooncake", FAST 2025,
    section 4: ``hash_ids``), so the ids over a KV block and its offset in them are its key; one
    whole number if a prefix block holds whole KV blocks.

    >>> job = Job(prompt_tokens=40, output_tokens=9, prefix_blocks=(7, 8), prefix_block_tokens=24)
    >>> block_keys(job, 16), block_keys(job, 12)
    ([(7, 0), (7, 8, 16), (8, 8)], [14, 15, 16, 17])
    """
    ids, per_id = job.prefix_blocks, job.prefix_block_tokens
    covered = min(len(ids) * per_id, job.prompt_tokens + job.output_tokens)
    if per_id % block_size == 0:
        parts = range(per_id // block_size)
        whole = [int(name) * len(parts) + part for name in ids for part in parts]
        return list(whole[: covered // block_size])
    keys: list[Key] = []
    for start in count(0, block_size):
        end = start + block_size
        if end > covered:
            break
        over = ids[start // per_id : -(-end // per_id)]
        keys.append((*map(int, over), start % per_id))
    return keys
