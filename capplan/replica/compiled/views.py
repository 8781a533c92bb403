"""The queue and the prefix cache of a compiled engine, as others see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from capplan.replica.job import Job
from capplan.replica.prefix_cache import block_keys
from capplan.replica.waiting import first_come, rank_of
from capplan.scenario.layers import Queue

if TYPE_CHECKING:
    from capplan.replica.compiled.engine import CompiledEngine

_NUMBER, _WHOLE = Struct("<d"), Struct("<q")
_LOWEST = -(2**63)
BEYOND = 2**61
"""Beyond it, keys made of the ids of prefix blocks would leave 63 bits."""


class CompiledLine:
    """The scheduler queue, with the methods of a WaitingLine.

    Attributes
    ----------
    push
        ``push(job, now_s)`` adds a job; it waits from now on.
    """

    def __init__(self, engine: CompiledEngine, *, remembers: bool) -> None:
        self._engine = engine
        self.push: Callable[[Job, float], None] = self._join if remembers else engine.join
        self._arrivals: deque[tuple[float, int, Job]] = deque()

    def __len__(self) -> int:
        return self._engine.waiting_count()

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and self._engine.ticket(job) != 0

    def __iter__(self) -> Iterator[Job]:
        return iter(self._engine.waiting_jobs())

    def _join(self, job: Job, now_s: float) -> None:
        """Add a job, and remember since when it waits."""
        self._engine.join(job, now_s)
        self._arrivals.append((now_s, self._engine.ticket(job), job))

    def remove(self, job: Job) -> bool:
        """Take a job out wherever it stands; False if it does not wait here."""
        return job in self and self._engine.abort(job)

    def oldest(self) -> tuple[float, Job] | None:
        """Return since when the longest waiting job waits, and the job; None if none waits."""
        arrivals = self._arrivals
        while arrivals:
            since_s, ticket, job = arrivals[0]
            if self._engine.ticket(job) == ticket:
                return since_s, job
            arrivals.popleft()
        return None

    def forget(self) -> None:
        """Forget since when each job waits."""
        self._arrivals.clear()


class CompiledCache:
    """The prefix cache: what it knows, and the keys of the jobs' blocks as whole numbers."""

    def __init__(self, engine: CompiledEngine) -> None:
        self._engine = engine
        self._numbers: dict[Hashable, int] = {}
        self._end = 0

    @property
    def cached_fraction(self) -> float:
        """Return the share of the blocks that only the cache holds."""
        return float(self._engine.cached_blocks / self._engine.kv_blocks)

    def known_tokens(self, job: Job) -> int:
        """Return how many tokens of a prompt are in the cache by their ids; 0 without ids."""
        if not len(job.prefix_blocks):
            return 0
        return self._engine.known_tokens(self._keys_of(job), job.prompt_tokens)

    def name_blocks(self, slot: int, job: Job) -> None:
        """Write on a slot the keys of its job's blocks, or the share of them that is found."""
        parts = self._engine.parts
        row = parts.jobs[slot]
        row["share"], row["keys"] = -1, 0
        if len(job.prefix_blocks):
            keys = self._keys_of(job)
            if self._end + len(keys) > len(parts.keys):
                self._make_room_for(len(keys))
                parts = self._engine.parts
                row = parts.jobs[slot]
            row["keys_at"], row["keys"] = self._end, len(keys)
            parts.keys[self._end : self._end + len(keys)] = keys
            self._end += len(keys)
        elif job.cached_fraction:
            row["share"] = int(job.cached_fraction * job.prompt_tokens) // self._engine.block_size

    def _make_room_for(self, count: int) -> None:
        """Drop the keys of jobs that left; lay a longer array out if half of it is in use then."""
        jobs, old, end = self._engine.parts.jobs, self._engine.parts.keys, 0
        here = sorted((jobs[slot] for slot in self._engine.slots), key=lambda row: row["keys_at"])
        needed = count + sum(int(row["keys"]) for row in here)
        keys = old if 2 * needed <= len(old) else np.zeros(4 * needed, np.int64)
        for row in here:  # in their order, so that none is overwritten before it has moved
            kept = old[row["keys_at"] : row["keys_at"] + row["keys"]]
            keys[end : end + len(kept)] = kept
            row["keys_at"] = end
            end += len(kept)
        self._end = end
        if keys is not old:
            self._engine.lay_out(keys=keys)

    def _keys_of(self, job: Job) -> NDArray[np.int64]:
        """Return the keys of a job's blocks as whole numbers above 0."""
        if job.block_keys is not None:
            return np.asarray(job.block_keys, np.int64)
        size, per_id = self._engine.block_size, job.prefix_block_tokens
        if per_id % size:
            return np.array([self._number(key, 1) for key in block_keys(job, size)], np.int64)
        each = per_id // size
        covered = min(
            len(job.prefix_blocks) * each, (job.prompt_tokens + job.output_tokens) // size
        )
        ids = np.asarray(job.prefix_blocks, np.int64)[: -(-covered // each)]
        limit = BEYOND // each
        if ids.size and not 0 <= ids.min() <= ids.max() < limit:  # hashes: numbered as they come
            numbers = [i if 0 <= i < limit else self._number(i, limit) for i in ids.tolist()]
            return _keys(np.array(numbers, np.int64), each, covered)
        keys = job.block_keys = _keys(ids, each, covered)
        return keys

    def _number(self, name: Hashable, first: int) -> int:
        return self._numbers.setdefault(name, first + len(self._numbers))


def _keys(ids: NDArray[np.int64], each: int, count: int) -> NDArray[np.int64]:
    """Return the first keys of blocks of which each prefix block holds ``each``."""
    return (ids[:, None] * each + np.arange(1, each + 1)).reshape(-1)[:count]


def whole_rank(rules: Queue) -> Callable[[Job, float], int] | None:
    """Return the rank of a job in a queue, as a whole number; None if all ranks are equal."""
    rank = rank_of(rules)
    if rank is first_come:
        return None
    if rules.order == "priority" and not rules.ageing_per_s:
        return lambda job, since_s: job.priority
    return lambda job, since_s: _ordered(rank(job, since_s))


def _ordered(rank: float) -> int:
    """Return a whole number that orders as a number does.

    Of two floats of one sign, the larger has the larger bits. Source: IEEE 754-2019, section 5.10.

    >>> _ordered(-2.0) < _ordered(-1.5) < _ordered(0) < _ordered(0.5) < _ordered(1) < _ordered(2.5)
    True
    """
    (bits,) = _WHOLE.unpack(_NUMBER.pack(rank + 0.0))
    return int(bits if bits >= 0 else _LOWEST - bits)
