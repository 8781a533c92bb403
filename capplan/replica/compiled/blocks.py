"""The KV blocks: a count, or with prefix caching runs of blocks that are found by their keys.

What each function decides stands in :mod:`capplan.replica.prefix_cache`. Keys are in a hash table
with linear probing, the runs of a key and the free runs in chained lists.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from capplan.replica.compiled.arrays import State, Whole, arrays
from capplan.replica.compiled.jit import compiled

OWN = 1 << 40
"""Where among the blocks of a key those begin whose key is the number of their job, not an id."""
SPREAD = 0x9E3779B97F4A7C1
"""An odd number of 60 bits. Source: Knuth, "The Art of Computer Programming" 3, 1998, section 6.4
(multiplicative hashing by the golden ratio)."""


@compiled
def blocks_for(s: State, tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    return (tokens + s.block_tokens - 1) // s.block_tokens


@compiled
def needed(address: int, slot: int, tokens: int) -> int:
    """Return how many more blocks a prefill needs for so many tokens."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    return job.width * (blocks_for(s, tokens) - blocks_for(s, job.kv_tokens))


@compiled
def has_room(address: int, slot: int, tokens: int, shared: int, spare: int) -> bool:
    """Return whether a new job of so many tokens, ``shared`` blocks held already, fits in."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    return job.width * (blocks_for(s, tokens) + job.beside) - shared + spare <= s.free_blocks


@compiled
def grow(address: int, slot: int, tokens: int) -> None:
    """Give a prefill room for so many tokens in all; its full named blocks become known."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    take(address, needed(address, slot, tokens))
    job.kv_tokens = tokens
    if s.caching:
        _learn(address, slot, min(min(tokens, job.known_tokens) // s.block_tokens, job.named))


@compiled
def take(address: int, count: int) -> None:
    """Take the blocks that have been free for longest, and forget what they hold."""
    r = arrays(address)
    s = r.state[0]
    if not s.caching:
        s.free_blocks -= count
        return
    while count > 0:
        run = r.runs[0].after
        mine = r.runs[run]
        taken = min(count, mine.blocks)
        count -= taken
        s.free_blocks -= taken
        s.cached -= taken * (mine.begin >= 0)
        mine.blocks -= taken
        if mine.blocks == 0:
            _unfree(address, run)
            _forget(address, run)
            mine.after, s.unused = s.unused, run


@compiled
def give_back(address: int, slot: int, blocks: int, computed_tokens: int) -> None:
    """Free the blocks of a job, the last one first; the keys of computed ones stay known."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    if not s.caching:
        s.free_blocks += job.width * (blocks + job.beside)
        return
    full = computed_tokens // s.block_tokens
    done = job.generated_tokens >= job.output_tokens
    _learn(address, slot, min(full, job.named) if done else full)
    if blocks > job.held:
        _free(address, _new(address, 0, -1, blocks - job.held), 0)
    for entry in range(2 * job.entries - 2, -2, -2):
        run, end, freed = r.held[job.row, entry + 1], job.held, 0
        k = job.held = end - r.held[job.row, entry]
        while k < end:
            mine = r.runs[run]
            if mine.holders == 1 and k < full < k + mine.blocks:
                _cut(address, run, full - k)
            mine.holders -= 1
            if mine.holders == 0:
                if k >= full:
                    _forget(address, run)
                _free(address, run, freed)
                freed = run
            k += mine.blocks
            run = mine.rest
    if job.beside:
        _free(address, _new(address, 0, -1, job.beside), 0)
    r.free_rows[s.free_rows] = job.row
    s.free_rows += 1


@compiled
def found_blocks(address: int, slot: int, known_tokens: int) -> tuple[int, int]:
    """Return how many blocks of a prefill are in the cache, and how many of them are held."""
    r = arrays(address)
    job = r.jobs[slot]
    most = (known_tokens - 1) // r.state[0].block_tokens
    if job.share and job.prefilled_tokens == 0:
        return min(most, job.share), 0
    k = shared = 0
    while k < most:
        run, _, count = _find(address, *_name(address, slot, k, most))
        if run == 0:
            break
        k += count
        shared += count * (r.runs[run].holders > 0)
    return k, shared


@compiled
def take_found(address: int, slot: int) -> None:
    """Give a new job the blocks found for it."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    s.free_rows -= 1
    job.row, job.held, job.entries = r.free_rows[s.free_rows], 0, 0
    found = job.computed_tokens // s.block_tokens
    while job.held < found:
        run, skipped, count = _find(address, *_name(address, slot, job.held, found))
        if run == 0:
            break
        if skipped:
            run = _cut(address, run, skipped)
        if count < r.runs[run].blocks:
            _cut(address, run, count)
        if r.runs[run].holders == 0:
            _unfree(address, run)
        _hold(address, slot, run)
    take(address, found - job.held)


@compiled
def count_known(address: int, keys: Whole, per_key: int, most: int) -> int:
    """Return how many of the first blocks, ``most`` at most, are known by these keys."""
    k = 0
    while k < most:
        begin = k % per_key
        run, _, count = _find(address, keys[k // per_key], begin, min(per_key, begin + most - k))
        if run == 0:
            break
        k += count
    return k


@compiled
def _name(address: int, slot: int, k: int, until: int) -> tuple[int, int, int]:
    """Return the key of a job's block, and where among its blocks this and the last one end.

    The key is of the ids of the trace, else one of its own; the last block is before ``until``.
    """
    r = arrays(address)
    job = r.jobs[slot]
    if k >= job.named:
        return job.serial, OWN + k, OWN + until
    begin = k % job.per_key
    key = r.keys[job.keys_at + k // job.per_key]
    return key, begin, min(job.per_key, begin + min(until, job.named) - k)


@compiled
def _find(address: int, key: int, begin: int, end: int) -> tuple[int, int, int]:
    """Return the run that has had a block of a key for longest, 0 if none has it.

    Also how many of its blocks come before, and how many, from this one on, no older run has.
    """
    r = arrays(address)
    run = r.known[_entry(address, key), 0]
    while run:
        mine = r.runs[run]
        if mine.begin > begin:
            end = min(end, mine.begin)
        elif begin < mine.begin + mine.blocks:
            return run, begin - mine.begin, min(end, mine.begin + mine.blocks) - begin
        run = mine.same_after
    return 0, 0, 0


@compiled
def _new(address: int, key: int, begin: int, blocks: int) -> int:
    """Return a new run of blocks that no list has."""
    r = arrays(address)
    s = r.state[0]
    run = s.unused
    if run:
        s.unused = r.runs[run].after
    else:
        s.runs += 1
        run = s.runs
    mine = r.runs[run]
    mine.key, mine.begin, mine.blocks, mine.holders, mine.rest = key, begin, blocks, 0, 0
    return run


@compiled
def _cut(address: int, run: int, blocks: int) -> int:
    """Cut a run so that it keeps its first blocks; return the run of the others.

    Those are used before the first ones: they come before them among the free.
    """
    r = arrays(address)
    mine = r.runs[run]
    if mine.holders == 0:
        _unfree(address, run)
    rest = _new(address, mine.key, mine.begin + blocks, mine.blocks - blocks)
    other = r.runs[rest]
    mine.blocks = blocks
    other.holders, other.rest, mine.rest = mine.holders, mine.rest, rest
    other.same_before, other.same_after, mine.same_after = run, mine.same_after, rest
    if other.same_after:
        r.runs[other.same_after].same_before = rest
    else:
        r.known[_entry(address, mine.key), 1] = rest
    if mine.holders == 0:
        _free(address, run, mine.after)
        _free(address, rest, run)
    return rest


@compiled
def _hold(address: int, slot: int, run: int) -> None:
    """Append a run to those that a job holds."""
    r = arrays(address)
    job, mine = r.jobs[slot], r.runs[run]
    r.held[job.row, 2 * job.entries], r.held[job.row, 2 * job.entries + 1] = mine.blocks, run
    job.entries += 1
    job.held += mine.blocks
    mine.holders += 1


@compiled
def _learn(address: int, slot: int, until: int) -> None:
    """Make the blocks of a job before one known by their keys."""
    r = arrays(address)
    job = r.jobs[slot]
    while job.held < until:
        key, begin, end = _name(address, slot, job.held, until)
        run, at = _new(address, key, begin, end - begin), _entry(address, key)
        mine = r.runs[run]
        mine.same_before = mine.same_after = 0
        if r.known[at, 0]:
            mine.same_before = r.known[at, 1]
            r.runs[mine.same_before].same_after = run
        else:
            r.known[at, 0], r.known[at, 2] = run, key
        r.known[at, 1] = run
        _hold(address, slot, run)


@compiled
def _free(address: int, run: int, before: int) -> None:
    """Add a run to the free ones, to be used before another."""
    r = arrays(address)
    s = r.state[0]
    mine = r.runs[run]
    mine.before, mine.after = r.runs[before].before, before
    r.runs[mine.before].after = r.runs[before].before = run
    s.free_blocks += mine.blocks
    s.cached += mine.blocks * (mine.begin >= 0)


@compiled
def _unfree(address: int, run: int) -> None:
    """Take a run out of the free ones."""
    r = arrays(address)
    s = r.state[0]
    mine = r.runs[run]
    r.runs[mine.before].after, r.runs[mine.after].before = mine.after, mine.before
    s.free_blocks -= mine.blocks
    s.cached -= mine.blocks * (mine.begin >= 0)


@compiled
def _home(address: int, key: int) -> int:
    """Return the entry where the search for a key begins."""
    s = arrays(address).state[0]
    spread = key * SPREAD
    return (spread ^ (spread >> 32)) & s.mask


@compiled
def _entry(address: int, key: int) -> int:
    """Return the entry of a key, or the empty one where it belongs."""
    r = arrays(address)
    s = r.state[0]
    at = _home(address, key)
    while r.known[at, 0] != 0 and r.known[at, 2] != key:
        at = (at + 1) & s.mask
    return at


@compiled
def _forget(address: int, run: int) -> None:
    """Remove the key of a run, if it has one."""
    r = arrays(address)
    mine = r.runs[run]
    if mine.begin < 0:
        return
    mine.begin = -1
    before, after = mine.same_before, mine.same_after
    if before and after:
        r.runs[before].same_after, r.runs[after].same_before = after, before
        return
    at = _entry(address, mine.key)
    if before:
        r.known[at, 1], r.runs[before].same_after = before, 0
    elif after:
        r.known[at, 0], r.runs[after].same_before = after, 0
    else:
        _remove(address, at)


@compiled
def _remove(address: int, at: int) -> None:
    """Empty an entry, and move up the entries behind it that a search would no longer reach.

    Source: Knuth, "The Art of Computer Programming" 3, 1998, section 6.4, algorithm R.
    """
    r = arrays(address)
    s = r.state[0]
    mask = s.mask
    r.known[at, 0] = 0
    behind = (at + 1) & mask
    while r.known[behind, 0] != 0:
        home = _home(address, r.known[behind, 2])
        if (behind - home) & mask >= (behind - at) & mask:
            for column in range(3):
                r.known[at, column] = r.known[behind, column]
            r.known[behind, 0] = 0
            at = behind
        behind = (behind + 1) & mask
