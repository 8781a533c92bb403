"""Forming a step: decoding, prefills in progress, admission, preemption.

The decisions are those of ``ContinuousEngine.begin``.
"""

# mypy: disable-error-code="no-any-return,unreachable"

from __future__ import annotations

import math

from capplan.replica.compiled.arrays import State, arrays
from capplan.replica.compiled.blocks import (
    blocks_for,
    found_blocks,
    give_back,
    grow,
    has_room,
    needed,
    take,
    take_found,
)
from capplan.replica.compiled.jit import compiled
from capplan.replica.compiled.queue import (
    first_waiting,
    pass_over,
    return_passed,
    stop_waiting,
    wait,
)

ALL, LATE, SEATS, BUDGET, BLOCKS = 0, 1, 2, 3, 4
"""Why admission ended: no job waits, the first came too late, or what there is too little of
(too many prefills in progress count as too few tokens)."""


@compiled
def ticks_of(s: State, steps: int, tick: int) -> int:
    """Return how many tokens each sequence makes in the step after so many."""
    return math.floor((steps + 1) * s.ticks_per_step) - tick


@compiled
def decode_blocks(address: int) -> None:
    """Allocate the blocks that decoding needs in this step; preempt while there are too few."""
    r = arrays(address)
    s = r.state[0]
    for ahead in range(s.ticks):
        phase = -(s.tick + ahead) % s.block_tokens
        while r.phases[phase] > s.free_blocks:
            _preempt(address, _victim(address), ahead)
        take(address, r.phases[phase])


@compiled
def continue_prefills(address: int) -> None:
    """Schedule the next chunk of each prefill in progress."""
    r = arrays(address)
    s = r.state[0]
    count = s.partials
    for row in range(count):
        r.aside[row, 0] = r.partials[row]
    for row in range(count):
        if r.jobs[r.aside[row, 0]].partial:
            _continue_prefill(address, r.aside[row, 0])


@compiled
def _continue_prefill(address: int, slot: int) -> None:
    """Schedule the next chunk of a prefill; preempt while there are too few blocks."""
    r = arrays(address)
    s = r.state[0]
    left = r.jobs[slot].known_tokens - r.jobs[slot].computed_tokens
    chunk = min(left, s.threshold, s.budget)
    tokens = _room(address, slot, chunk)
    while needed(address, slot, tokens) > s.free_blocks:
        victim = _victim(address)
        _preempt(address, victim, s.ticks)
        if victim == slot:
            return
    _schedule(address, slot, chunk)


@compiled
def admit(address: int, now_s: float, formed_s: float) -> int:
    """Admit while tokens, places and blocks last; return why admission ended.

    A job that came after ``formed_s`` is not known yet.
    """
    r = arrays(address)
    s = r.state[0]
    first_new = s.chunks
    why = _admit_each(address, formed_s)
    return_passed(address)
    size = s.branches + s.chunks
    for row in range(first_new, s.chunks):
        job = r.jobs[r.chunks[row, 0]]
        if math.isnan(job.batch_in_s):
            job.batch_in_s, job.cached_tokens = now_s, job.computed_tokens
            job.batch_id, job.batch_size = s.steps + 1, size
    return why


@compiled
def _admit_each(address: int, formed_s: float) -> int:
    r = arrays(address)
    s = r.state[0]
    slot = first_waiting(address)
    while slot >= 0:
        job = r.jobs[slot]
        if s.budget <= 0:
            return BUDGET
        if job.joined_s > formed_s:
            return LATE
        if s.seats + job.width > s.sequences_limit:
            return SEATS
        known = job.prompt_tokens + job.generated_tokens
        found, shared = found_blocks(address, slot, known) if s.caching else (0, 0)
        found *= s.block_tokens
        job.known_tokens, job.computed_tokens, job.kv_tokens = known, found, found
        left = known - found
        chunk = min(left, s.threshold)
        long = chunk > s.budget
        chunk = min(chunk, s.budget)
        if (long and not s.chunked) or (chunk < left and s.partials >= s.most_partial):
            return BUDGET
        spare = s.watermark if s.decoding or s.chunks else 0
        if left > s.threshold and _long_prefills(address) >= s.most_long:
            pass_over(address)
        elif not has_room(address, slot, _room(address, slot, chunk), shared, spare):
            return BLOCKS
        else:
            stop_waiting(address, slot)
            _run(address, slot)
            if s.caching:
                take_found(address, slot)
            take(address, job.width * job.beside)
            _schedule(address, slot, chunk)
        slot = first_waiting(address)
    return ALL


@compiled
def _long_prefills(address: int) -> int:
    r = arrays(address)
    s = r.state[0]
    count = 0
    for row in range(s.partials):
        job = r.jobs[r.partials[row]]
        count += job.known_tokens - job.computed_tokens > s.threshold
    return count


@compiled
def _run(address: int, slot: int) -> None:
    """Append a job to the running ones."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    s.admissions += 1
    job.admission = s.admissions
    job.running, job.older, job.newer = 1, s.newest, -1
    if s.newest >= 0:
        r.jobs[s.newest].newer = slot
    s.newest = slot
    s.running += 1
    s.seats += job.width


@compiled
def _room(address: int, slot: int, chunk: int) -> int:
    """Return the tokens that need room after a chunk; after the last, the draft needs it too."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    tokens = job.computed_tokens + chunk
    return tokens + s.drafted if tokens == job.known_tokens else tokens


@compiled
def _schedule(address: int, slot: int, chunk: int) -> None:
    """Give a prefill its chunk of this step."""
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    tokens = _room(address, slot, chunk)
    grow(address, slot, tokens)
    r.chunks[s.chunks, 0], r.chunks[s.chunks, 1] = slot, chunk
    s.chunks += 1
    s.budget -= chunk
    if job.computed_tokens + chunk >= job.known_tokens:
        _no_longer_partial(address, slot)
    elif not job.partial:
        job.partial = 1
        r.partials[s.partials] = slot
        s.partials += 1


@compiled
def _no_longer_partial(address: int, slot: int) -> None:
    """Remove a job from the prefills in progress."""
    r = arrays(address)
    s = r.state[0]
    if not r.jobs[slot].partial:
        return
    r.jobs[slot].partial = 0
    kept = 0
    for row in range(s.partials):
        if r.partials[row] != slot:
            r.partials[kept] = r.partials[row]
            kept += 1
    s.partials = kept


@compiled
def release(address: int, slot: int, ahead: int) -> None:
    """Take a sequence out of the running batch and free its blocks.

    ``ahead`` is the number of ticks of the step being formed for which it has room already.
    """
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    if job.older >= 0:
        r.jobs[job.older].newer = job.newer
    if job.newer >= 0:
        r.jobs[job.newer].older = job.older
    else:
        s.newest = job.older
    job.running = 0
    s.running -= 1
    s.seats -= job.width
    if job.finish_step == 0:
        give_back(address, slot, blocks_for(s, job.kv_tokens), job.computed_tokens)
        _no_longer_partial(address, slot)
        return
    job.generated_tokens = job.output_tokens - max(job.finish_step - s.tick, 0)
    context = job.prompt_tokens + job.output_tokens - (job.finish_step - s.tick)
    give_back(address, slot, blocks_for(s, context - 1 + s.drafted + ahead), context - 1)
    r.phases[job.phase] -= job.width
    s.decoding -= 1
    s.branches -= job.width
    s.context_tokens -= job.width * context
    job.finish_step = 0


@compiled
def _victim(address: int) -> int:
    """Return the last admitted job; by priority, the last admitted of the lowest."""
    r = arrays(address)
    s = r.state[0]
    worst = s.newest
    if s.by_priority:
        slot = r.jobs[worst].older
        while slot >= 0:
            if r.jobs[slot].priority > r.jobs[worst].priority:
                worst = slot
            slot = r.jobs[slot].older
    return worst


@compiled
def _preempt(address: int, slot: int, ahead: int) -> None:
    """Send a job back to the waiting line; ``ahead`` as in :func:`release`."""
    r = arrays(address)
    s = r.state[0]
    if r.jobs[slot].finish_step:
        s.budget += r.jobs[slot].width * (1 + s.drafted)
    else:
        s.budget += _unschedule(address, slot)
    release(address, slot, ahead)
    s.preemptions += 1
    s.tickets += 1
    wait(address, slot, -s.tickets)


@compiled
def _unschedule(address: int, slot: int) -> int:
    """Take a prefill out of this step; return the tokens of its chunk."""
    r = arrays(address)
    s = r.state[0]
    kept = found = 0
    for row in range(s.chunks):
        if r.chunks[row, 0] == slot:
            found = r.chunks[row, 1]
        else:
            r.chunks[kept, 0], r.chunks[kept, 1] = r.chunks[row, 0], r.chunks[row, 1]
            kept += 1
    s.chunks = kept
    return found
