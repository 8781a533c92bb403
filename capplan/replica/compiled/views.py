"""The queue and the prefix cache of a compiled engine, as others see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from capplan.replica.job import Job
from capplan.replica.prefix_cache import block_names
from capplan.replica.waiting import first_come, rank_of
from capplan.scenario.layers import Queue

if TYPE_CHECKING:
    from capplan.replica.compiled.engine import CompiledEngine

_NUMBER, _WHOLE = Struct("<d"), Struct("<q")
_LOWEST = -(2**63)
NO_NAMES = (0, 0, 1, 0)
"""``keys_at``, ``named``, ``per_key`` and ``share`` of a job whose blocks have no names."""
Keys = tuple[NDArray[np.int64], int, int]
"""Keys of a job's KV blocks, how many blocks have one key, and how many have any."""


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
        return self._engine.known_tokens(*self._keys_of(job), job.prompt_tokens)

    def name_blocks(self, job: Job) -> tuple[int, int, int, int]:
        """Return ``keys_at``, ``named``, ``per_key`` and ``share`` (see ``JOB``) of a new job."""
        if not len(job.prefix_blocks):
            if not job.cached_fraction:
                return NO_NAMES
            found = int(job.cached_fraction * job.prompt_tokens)
            return 0, 0, 1, found // self._engine.block_size
        keys, per_key, named = self._keys_of(job)
        begin, end = self._end, self._end + len(keys)
        if end > len(self._engine.parts.keys):
            begin, end = self._make_room_for(len(keys))
        self._engine.parts.keys[begin:end] = keys
        self._end = end
        return begin, named, per_key, 0

    def _make_room_for(self, count: int) -> tuple[int, int]:
        """Drop the keys of jobs that left; lay a longer array out if half of it is in use then.

        Returns where so many new keys begin and end.
        """
        jobs, old, end = self._engine.parts.jobs, self._engine.parts.keys, 0
        here = sorted((jobs[slot] for slot in self._engine.slots), key=lambda row: row["keys_at"])
        kept = [old[row["keys_at"] :][: -(-row["named"] // row["per_key"])] for row in here]
        needed = count + sum(map(len, kept))
        keys = old if 2 * needed <= len(old) else np.zeros(4 * needed, np.int64)
        for row, own in zip(here, kept, strict=True):  # in order: none is overwritten unmoved
            keys[end : end + len(own)] = own
            row["keys_at"] = end
            end += len(own)
        if keys is not old:
            self._engine.lay_out(keys=keys)
        return end, end + count

    def _keys_of(self, job: Job) -> Keys:
        """Return the keys of a job's blocks: the ids, or numbers as the names come."""
        if job.block_names is not None:
            known: Keys = job.block_names
            return known
        names, per_key, named = block_names(job, self._engine.block_size)
        if job.prefix_block_tokens % self._engine.block_size:
            keys = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
            return np.array(keys, np.int64), per_key, named
        job.block_names = found = np.asarray(names, np.int64), per_key, named
        return found


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
