"""A prefix cache: KV blocks that are found again by what they hold.

A block becomes known once it is full. The blocks of a job that left stay cached until they are
taken for something else, least recently used first, so cached blocks go before any job is
preempted. A job takes over the blocks of its longest known prefix, also those that others hold at
the same time; at least the last token of its prompt is computed.
Source: vLLM project, ``vllm/v1/core/kv_cache_manager.py`` (``get_computed_blocks``,
``allocate_slots``) and ``block_pool.py``, version 0.11: blocks become known when they are
scheduled, blocks of a job are freed last first, free blocks are taken from the head of one queue.
Two differences: what was scheduled but never computed is forgotten, and the answer is found again
only by its own job (after a preemption), unless the trace names its blocks.
For a job without ids a share of the prompt counts as found (``Job.cached_fraction``): those tokens
are not computed, but the job holds blocks for them like any other.

Blocks are handled in *runs*: neighbours within one prefix block of the trace, with the same
holders. A run is cut where a job takes a part of it, so the decisions are those of single blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from capplan.replica.job import Job
from capplan.replica.kv import KvCache, blocks_beside
from capplan.replica.kv_capacity import NO_ROOM, SequenceRoom


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


class Run:
    """Blocks ``begin`` to ``begin + blocks`` of those with one name (None = content unknown).

    ``before`` and ``after`` are its neighbours among the free, which are taken in that order, each
    from its end; ``rest`` is what was cut off its end.
    """

    __slots__ = ("after", "before", "begin", "blocks", "holders", "name", "rest")
    before: Run
    after: Run

    def __init__(self, name: Hashable, begin: int, blocks: int) -> None:
        self.name, self.begin, self.blocks, self.holders = name, begin, blocks, 0
        self.rest: Run | None = None


@dataclass(slots=True, eq=False)
class Held:
    """What a job holds: so many blocks, the first ``known`` of them as runs.

    Beside each run stand its blocks when it was taken: ``rest`` has what was cut off since.
    """

    blocks: int = 0
    known: int = 0
    runs: list[tuple[Run, int]] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Hold one more run."""
        run.holders += 1
        self.runs.append((run, run.blocks))
        self.known += run.blocks


class PrefixCache(KvCache):
    """Paged KV whose blocks have names; see the module.

    Attributes
    ----------
    free
        How many blocks no job holds, cached ones included.
    cached
        How many free blocks are known, so that a job may find them.
    """

    grows = True
    free = 0

    def __init__(self, blocks: int, *, block_size: int, room: SequenceRoom = NO_ROOM) -> None:
        self.total = blocks
        self.block_size = block_size
        self._room = room if room.taken else None
        self.clear()

    def clear(self) -> None:
        """Lose everything, as in a crash."""
        self.free = self.cached = 0
        self._end = end = Run(None, 0, 0)
        end.before = end.after = end
        self._put(Run(None, 0, self.total), self._end)
        self._known: dict[Hashable, list[Run]] = {}
        self._held: dict[Job, Held] = {}

    @property
    def usage_fraction(self) -> float:
        """Return the share of the blocks that a job holds."""
        return 1.0 - self.free / self.total

    @property
    def cached_fraction(self) -> float:
        """Return the share of the blocks that only the cache holds."""
        return self.cached / self.total

    def can_ever_hold(self, job: Job, tokens: int) -> bool:
        """Return whether a job that stores so many tokens fits into an empty replica."""
        return -(-tokens // self.block_size) + self.beside(job) <= self.total

    def beside(self, job: Job) -> int:
        """Return the blocks that a job holds beside those that grow."""
        return blocks_beside(self._room, job, self.block_size)

    def count(self, jobs: Collection[Job]) -> int:
        """Return how many blocks these jobs need if each needs one more."""
        return len(jobs)

    def found(self, job: Job, known_tokens: int) -> int:
        """Return how many of the tokens to prefill are in the cache: whole blocks, not all."""
        size = self.block_size
        most = (known_tokens - 1) // size
        if job.cached_fraction and not len(job.prefix_blocks) and not job.prefilled_tokens:
            return min(most, int(job.cached_fraction * job.prompt_tokens) // size) * size
        return size * sum(blocks for _, _, blocks in self._prefix(job, most))

    def known_tokens(self, job: Job) -> int:
        """Return how many tokens of a prompt are in the cache by their ids; 0 without ids."""
        if not len(job.prefix_blocks):
            return 0
        return self.found(job, job.prompt_tokens)

    def has_room(self, job: Job, found_tokens: int, tokens: int, *, spare_blocks: int) -> bool:
        """Return whether a new job that stores so many tokens leaves that many blocks free."""
        prefix = self._prefix(job, found_tokens // self.block_size)
        shared = sum(blocks for run, _, blocks in prefix if run.holders)
        blocks = -(-tokens // self.block_size) + self.beside(job)
        return blocks - shared + spare_blocks <= self.free

    def admit(self, job: Job, found_tokens: int) -> None:
        """Give a new job the blocks found for it."""
        held = self._held[job] = Held()
        found = found_tokens // self.block_size
        for run, skipped, blocks in self._prefix(job, found):
            taken = self._cut(run, skipped) if skipped else run
            if blocks < taken.blocks:
                self._cut(taken, blocks)
            if not taken.holders:
                self._unlink(taken)
            held.add(taken)
        held.blocks = found
        self._take(found - held.known + self.beside(job))

    def needed(self, job: Job, tokens: int) -> int:
        """Return how many more blocks a prefilling job needs to store so many tokens."""
        return -(-tokens // self.block_size) - self._held[job].blocks

    def grow(self, job: Job, tokens: int) -> None:
        """Give a prefilling job room for so many tokens in all; its full blocks become known."""
        more, held = self.needed(job, tokens), self._held[job]
        held.blocks += more
        self._take(more)
        full = min(tokens, job.known_tokens) // self.block_size
        self._learn(job, held, min(full, self._names_of(job)[2]))

    def extend(self, jobs: Collection[Job]) -> None:
        """Give each of these jobs one more block."""
        for job in jobs:
            self._held[job].blocks += 1
        self._take(len(jobs))

    def release(self, job: Job, tokens: int, computed_tokens: int) -> None:
        """Free the blocks of a job, the last one first; computed ones stay known."""
        held, full = self._held.pop(job), computed_tokens // self.block_size
        done = job.generated_tokens >= job.output_tokens
        self._learn(job, held, min(full, self._names_of(job)[2]) if done else full)
        if held.blocks > held.known:
            self._put(Run(None, 0, held.blocks - held.known), self._end)
        end = held.known
        for run, blocks in reversed(held.runs):
            self._let_go(run, end - blocks, end, full)
            end -= blocks
        if self._room:
            self._put(Run(None, 0, self.beside(job)), self._end)

    def lose(self, blocks: int) -> None:
        """Lose so many free blocks, or all there are, until :meth:`clear`."""
        self._take(min(blocks, self.free))

    def _let_go(self, run: Run | None, k: int, end: int, full: int) -> None:
        """Release a job's blocks ``k`` to ``end``; forget its own from ``full`` on."""
        freed = self._end
        while run and k < end:
            if run.holders == 1 and k < full < k + run.blocks:
                self._cut(run, full - k)
            run.holders -= 1
            if not run.holders:
                if k >= full:
                    self._forget(run)
                self._put(run, freed)
                freed = run
            k += run.blocks
            run = run.rest

    def _take(self, blocks: int) -> None:
        """Take the blocks that were used least recently; what they hold is forgotten."""
        self.free -= blocks
        while blocks:
            run = self._end.after
            taken = min(blocks, run.blocks)
            blocks -= taken
            run.blocks -= taken
            if run.name is not None:
                self.cached -= taken
            if not run.blocks:
                self._unlink(run)
                self._forget(run)

    def _prefix(self, job: Job, until: int) -> Iterator[tuple[Run, int, int]]:
        """Yield what is known of a job's blocks before one: runs, with what to skip and to take.

        Of several blocks with the same content the one that is known for longest counts.
        """
        k = 0
        while k < until:
            name, begin, end = self._name(job, k, until)
            for run in self._known.get(name, ()):
                if run.begin > begin:
                    end = min(end, run.begin)
                elif begin < run.begin + run.blocks:
                    break
            else:
                return
            end = min(end, run.begin + run.blocks)
            yield run, begin - run.begin, end - begin
            k += end - begin

    def _learn(self, job: Job, held: Held, until: int) -> None:
        """Make a job's blocks before one known."""
        while held.known < until:
            name, begin, end = self._name(job, held.known, until)
            run = Run(name, begin, end - begin)
            self._known.setdefault(name, []).append(run)
            held.add(run)

    def _forget(self, run: Run) -> None:
        if run.name is None:
            return
        same = self._known[run.name]
        same.remove(run)
        if not same:
            del self._known[run.name]
        run.name = None

    def _cut(self, run: Run, blocks: int) -> Run:
        """Cut a run so that it keeps its first blocks; return the others, to be used before."""
        rest = Run(run.name, run.begin + blocks, run.blocks - blocks)
        rest.holders, rest.rest, run.rest = run.holders, run.rest, rest
        same = self._known[run.name]
        same.insert(same.index(run) + 1, rest)
        if run.holders:
            run.blocks = blocks
            return rest
        self._unlink(run)
        run.blocks = blocks
        self._put(run, run.after)
        self._put(rest, run)
        return rest

    def _put(self, run: Run, before: Run) -> None:
        """Add a run to the free ones, to be taken before another."""
        run.before, run.after = before.before, before
        run.before.after = before.before = run
        self.free += run.blocks
        if run.name is not None:
            self.cached += run.blocks

    def _unlink(self, run: Run) -> None:
        """Take a run out of the free ones."""
        run.before.after, run.after.before = run.after, run.before
        self.free -= run.blocks
        if run.name is not None:
            self.cached -= run.blocks

    def _name(self, job: Job, k: int, until: int) -> tuple[Hashable, int, int]:
        """Return the name of a job's block, and which of that name this and the last one are.

        The name is of the ids of the trace, else the job itself; the last is before ``until``.
        """
        names, per_name, named = self._names_of(job)
        if k >= named:
            return job, k, until
        begin = k % per_name
        return names[k // per_name], begin, min(per_name, begin + min(until, named) - k)

    def _names_of(self, job: Job) -> tuple[Sequence[Hashable], int, int]:
        if job.block_names is None:
            job.block_names = block_names(job, self.block_size)
        names: tuple[Sequence[Hashable], int, int] = job.block_names
        return names


def block_names(job: Job, block_size: int) -> tuple[Sequence[Hashable], int, int]:
    """Return the names of a job's KV blocks, how many have one name, and how many are named.

    Named are the blocks that its ids of prefix blocks cover in full. The ids may go beyond the
    prompt: they then name the blocks of the answer. An id stands for a prefix block *and all before
    it*, as in the public traces (Qin et al., "Mooncake", FAST 2025, section 4: ``hash_ids``): it
    is the name if a prefix block holds whole KV blocks, else the ids over a KV block and its offset
    in them are.

    >>> job = Job(prompt_tokens=40, output_tokens=9, prefix_blocks=(7, 8), prefix_block_tokens=24)
    >>> block_names(job, 16), block_names(job, 12)
    (([(7, 0), (7, 8, 16), (8, 8)], 1, 3), ((7, 8), 2, 4))
    """
    ids, per_id = job.prefix_blocks, job.prefix_block_tokens
    if not len(ids):
        return (), 1, 0
    covered = min(len(ids) * per_id, job.prompt_tokens + job.output_tokens)
    if per_id % block_size == 0:
        per_name, named = per_id // block_size, covered // block_size
        return ids[: -(-named // per_name)], per_name, named
    names: list[Hashable] = []
    for start in count(0, block_size):
        end = start + block_size
        if end > covered:
            break
        over = ids[start // per_id : -(-end // per_id)]
        names.append((*map(int, over), start % per_id))
    return names, 1, len(names)
