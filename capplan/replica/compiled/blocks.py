"""The KV blocks: a count, or with prefix caching blocks that are found by their keys.

What each function does stands in :mod:`capplan.replica.kv` and :mod:`capplan.replica.prefix_cache`.
Keys are in a hash table with linear probing, free blocks in a list chained by ``before`` and
``after``.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from capplan.replica.compiled.arrays import State, Whole, arrays
from capplan.replica.compiled.jit import compiled

SPREAD = 0x9E3779B97F4A7C1
"""An odd number of 60 bits. Source: Knuth, "The Art of Computer Programming" 3, 1998, section 6.4
(multiplicative hashing by the golden ratio)."""
MOST_KEYS = 1 << 24
"""More blocks than a job has."""


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
def has_room(address: int, slot: int, blocks: int, spare: int) -> bool:
    """Return whether a new job that takes so many blocks leaves ``spare`` free."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    shared = 0
    if s.caching:
        for k in range(job.computed_tokens // s.block_tokens):
            block = _first_of(address, _key(address, slot, k))
            if block < 0:
                break
            shared += r.blocks[block].holders > 0
    return job.width * (blocks + job.beside) - shared + spare <= s.free_blocks


@compiled
def grow(address: int, slot: int, tokens: int) -> None:
    """Give a prefill room for so many tokens in all; the keys of its full blocks become known."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    if not s.caching:
        s.free_blocks -= needed(address, slot, tokens)
        job.kv_tokens = tokens
        return
    for _ in range(needed(address, slot, tokens)):
        r.held[job.row, job.held] = _take(address)
        job.held += 1
    known = min(job.kv_tokens, job.known_tokens) // s.block_tokens
    job.kv_tokens = tokens
    for k in range(known, min(min(tokens, job.known_tokens) // s.block_tokens, job.keys)):
        block = r.held[job.row, k]
        if r.blocks[block].key == 0:
            _learn(address, block, _key(address, slot, k))


@compiled
def take_for_answers(address: int, count: int) -> None:
    """Take blocks for answers."""
    r = arrays(address)
    s = r.state[0]
    if not s.caching:
        s.free_blocks -= count
        return
    for _ in range(count):
        r.stacks[1, s.piled] = _take(address)
        s.piled += 1


@compiled
def give_back(address: int, slot: int, blocks: int, computed_tokens: int) -> None:
    """Free the blocks of a job, the last one first; the keys of computed ones stay known."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    if not s.caching:
        s.free_blocks += job.width * blocks
        return
    while job.held < blocks:
        s.piled -= 1
        r.held[job.row, job.held] = r.stacks[1, s.piled]
        job.held += 1
    full = computed_tokens // s.block_tokens
    named = min(full, job.keys) if job.generated_tokens >= job.output_tokens else full
    for k in range(blocks):
        block = r.held[job.row, k]
        if k >= full and r.blocks[block].holders == 1:
            _forget(address, block)
        elif k < named and r.blocks[block].key == 0:
            _learn(address, block, _key(address, slot, k))
    for k in range(blocks - 1, -1, -1):
        block = r.held[job.row, k]
        r.blocks[block].holders -= 1
        if r.blocks[block].holders == 0:
            _free(address, block)
    job.held = 0
    r.stacks[0, s.free_rows] = job.row
    s.free_rows += 1


@compiled
def found_tokens(address: int, slot: int, known_tokens: int) -> int:
    """Return how many of the tokens to prefill are in the cache: whole blocks, not all."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    most = (known_tokens - 1) // s.block_tokens
    if job.share >= 0 and job.prefilled_tokens == 0:
        return min(most, job.share) * s.block_tokens
    k = 0
    while k < most and _first_of(address, _key(address, slot, k)) >= 0:
        k += 1
    return k * s.block_tokens


@compiled
def take_found(address: int, slot: int) -> None:
    """Give a new job the blocks found for it."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    s.free_rows -= 1
    job.row, job.held = r.stacks[0, s.free_rows], 0
    count = job.computed_tokens // s.block_tokens
    while job.held < count:
        block = _first_of(address, _key(address, slot, job.held))
        if block < 0:
            break
        if r.blocks[block].holders == 0:
            _unfree(address, block)
            s.cached -= 1
        r.blocks[block].holders += 1
        r.held[job.row, job.held] = block
        job.held += 1
    while job.held < count:
        r.held[job.row, job.held] = _take(address)
        job.held += 1


@compiled
def count_known(address: int, keys: Whole, most: int) -> int:
    """Return how many blocks are known by the first keys, ``most`` at most."""
    k = 0
    while k < min(len(keys), most) and _first_of(address, keys[k]) >= 0:
        k += 1
    return k


@compiled
def free_all(address: int) -> None:
    """Free all blocks and forget all keys."""
    r = arrays(address)
    s = r.state[0]
    s.free_first = s.free_last = -1
    s.free_blocks = s.cached = s.piled = 0
    r.known[:, 0] = 0
    for block in range(s.kv_blocks):
        r.blocks[block].holders = r.blocks[block].key = 0
        _free(address, block)
    s.free_rows = len(r.held)
    for row in range(s.free_rows):
        r.stacks[0, row] = row


@compiled
def _key(address: int, slot: int, k: int) -> int:
    """Return the key of a job's block: from the ids of the trace, else one of its own."""
    r = arrays(address)
    job = r.jobs[slot]
    if k < job.keys:
        return r.keys[job.keys_at + k]
    return -(job.serial * MOST_KEYS + k + 1)


@compiled
def _take(address: int) -> int:
    """Take the block that has been free for longest, and forget its key."""
    r = arrays(address)
    s = r.state[0]
    block = s.free_first
    s.cached -= r.blocks[block].key != 0
    _unfree(address, block)
    _forget(address, block)
    r.blocks[block].holders = 1
    return block


@compiled
def _free(address: int, block: int) -> None:
    """Append a block to the free ones."""
    r = arrays(address)
    s = r.state[0]
    r.blocks[block].before, r.blocks[block].after = s.free_last, -1
    if s.free_last >= 0:
        r.blocks[s.free_last].after = block
    else:
        s.free_first = block
    s.free_last = block
    s.free_blocks += 1
    s.cached += r.blocks[block].key != 0


@compiled
def _unfree(address: int, block: int) -> None:
    """Take a block out of the free ones."""
    r = arrays(address)
    s = r.state[0]
    before, after = r.blocks[block].before, r.blocks[block].after
    if before >= 0:
        r.blocks[before].after = after
    else:
        s.free_first = after
    if after >= 0:
        r.blocks[after].before = before
    else:
        s.free_last = before
    s.free_blocks -= 1


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
    while r.known[at, 0] != 0 and r.known[at, 0] != key:
        at = (at + 1) & s.mask
    return at


@compiled
def _first_of(address: int, key: int) -> int:
    """Return the block that has had a key for longest, -1 if none has it."""
    r = arrays(address)
    at = _entry(address, key)
    return r.known[at, 1] if r.known[at, 0] != 0 else -1


@compiled
def _learn(address: int, block: int, key: int) -> None:
    """Give a block a key by which it is found."""
    r = arrays(address)
    at = _entry(address, key)
    mine = r.blocks[block]
    mine.key, mine.same_before, mine.same_after = key, -1, -1
    if r.known[at, 0] == 0:
        r.known[at, 0], r.known[at, 1] = key, block
    else:
        mine.same_before = r.known[at, 2]
        r.blocks[mine.same_before].same_after = block
    r.known[at, 2] = block


@compiled
def _forget(address: int, block: int) -> None:
    """Remove the key of a block, if it has one."""
    r = arrays(address)
    mine = r.blocks[block]
    if mine.key == 0:
        return
    at = _entry(address, mine.key)
    before, after = mine.same_before, mine.same_after
    mine.key = 0
    if before >= 0:
        r.blocks[before].same_after = after
    else:
        r.known[at, 1] = after
    if after >= 0:
        r.blocks[after].same_before = before
    else:
        r.known[at, 2] = before
    if before < 0 and after < 0:
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
        home = _home(address, r.known[behind, 0])
        if (behind - home) & mask >= (behind - at) & mask:
            for column in range(3):
                r.known[at, column] = r.known[behind, column]
            r.known[behind, 0] = 0
            at = behind
        behind = (behind + 1) & mask
