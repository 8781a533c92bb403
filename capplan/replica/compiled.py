"""The step loop of a continuously batching replica, compiled: the same steps, many at a time.

What each function does and why is said in :mod:`capplan.replica.continuous`, whose every decision
is repeated here, on arrays: jobs are rows (*slots*), queues are heaps of rows of integers. What is
new is the *plan*: a step with prefills, followed by steps in which nobody joins, leaves or is
preempted, whose ends are therefore known ahead. Whoever owns the arrays is woken at the end of the
plan, or earlier if :func:`join` or :func:`withdraw` cut it short.

numba does not see that a function in another module was edited, so everything that is compiled,
and every constant it uses, is in this module.
"""

# mypy: disable-error-code="no-any-return,attr-defined,call-arg,unreachable"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from capplan.replica.jit import compiled

State = Any
"""One record of ``STATE``."""
Whole = NDArray[np.int64]
Numbers = NDArray[np.float64]

PLAN_STEPS = 128
"""Most steps of a plan."""

LINEAR, ROOFLINE, KERNELS, MIX, SCALED = 0.0, 1.0, 2.0, 3.0, 4.0
"""Kinds of step laws, the first number of a law (:mod:`capplan.replica.steplaw`)."""

THIRD = 1.0 / 3.0

STATE = np.dtype(
    [
        (name, np.int64)
        for name in [
            *("sequences_limit", "tokens_limit", "block_tokens", "kv_blocks", "chunked"),
            *("by_priority", "watermark", "threshold", "most_partial", "most_long", "ahead"),
            *("caching", "free_first", "free_last", "cached", "piled", "free_rows", "mask"),
            *("drafted", "tick", "ticks", "decode_steps", "free_blocks", "budget", "running"),
            *("decoding", "branches", "seats", "context_tokens", "newest", "admissions"),
            *("tickets", "waiting", "waiting_rows", "aside", "ends_rows", "chunks", "partials"),
            *("aborted", "planned", "passed"),
            *("steps", "sequences", "prefill_tokens", "output_tokens", "preemptions"),
        ]
    ]
    + [
        (name, np.float64)
        for name in ("ticks_per_step", "draft_steps", "began_s", "ended_s", "begun_s")
    ]
)
"""One replica: its limits, what runs, and the uncompiled engine's totals.

``newest`` is a slot, -1 = none; ``planned`` steps are in the plan, of which ``passed`` are over;
``*_rows`` are the sizes of heaps, with rows of jobs that left, ``aside``, ``chunks`` and
``partials`` those of lists, ``piled`` and ``free_rows`` those of stacks. ``free_first`` and
``free_last`` are the blocks next and last to be taken, ``cached`` how many of the free are known.
``began_s`` is when the last step did, ``begun_s`` the length of all.
"""

JOB = np.dtype(
    [
        (name, np.int64)
        for name in [
            *("prompt_tokens", "output_tokens", "priority", "rank", "width", "known_tokens"),
            *("computed_tokens", "kv_tokens", "prefilled_tokens", "generated_tokens"),
            *("finish_step", "phase", "admission", "ticket", "partial", "running", "aborted"),
            *("older", "newer", "batch_id", "batch_size", "cached_tokens"),
            *("keys_at", "keys", "share", "serial", "row", "held"),
        ]
    ]
    + [(name, np.float64) for name in ("joined_s", "batch_in_s", "prefill_end_s")]
)
"""One slot. ``ticket`` is 0 when it does not wait; ``older`` and ``newer`` chain the running;
``aborted`` numbers those that were given up since the step began.

With a prefix cache: ``keys`` names of blocks are at the address ``keys_at``, or ``share`` blocks
are found without names, -1 = by names only; ``serial`` names those without. ``held`` blocks are in
``row`` of what is held.
"""

BLOCK = np.dtype(
    [
        (name, np.int64)
        for name in ("holders", "before", "after", "key", "same_before", "same_after")
    ]
)
"""One KV block of a prefix cache: how many hold it, its neighbours among the free, and what it
holds: its key, 0 = nothing known, and its neighbours of the same key, older first; -1 = none."""

LEFT = (
    "slot",
    "done",
    "batch_in_s",
    "prefill_end_s",
    "batch_id",
    "batch_size",
    "prefilled_tokens",
    "generated_tokens",
    "cached_tokens",
)
"""Columns of what is said of a job that leaves; ``done``: its last token was made."""

END_S, SECONDS = 0, 1
"""Columns of the plan: when a step ends, and how long it takes."""


class Arrays(NamedTuple):
    """Everything about one replica."""

    state: Any
    """One ``STATE``."""
    jobs: Any
    """Slots (``JOB``)."""
    waiting: Whole
    """Rank, ticket, slot of those that wait."""
    ends: Whole
    """Last step, admission, slot of those that decode."""
    chunks: Whole
    """Slot and tokens of the prefills of the running step."""
    phases: Whole
    """How many blocks are needed at each phase."""
    aside: Whole
    """Rows of ``waiting`` that are passed over, or slots that are gone through."""
    partials: Whole
    """Slots whose prefill is in progress."""
    blocks: Any
    """KV blocks (``BLOCK``); this and the next three are of a prefix cache."""
    known: Whole
    """Keys, each with its oldest and its newest block, where their hash puts them."""
    held: Whole
    """Blocks of the prompt of each that runs, in rows."""
    stacks: Whole
    """Free rows, and blocks of answers, which are all alike until they are given back."""
    plan: Numbers
    """Ends and lengths of the planned steps."""
    left: Numbers
    """What is said of those that left (``LEFT``)."""
    law: Numbers
    """The step time."""


# --- step time -----------------------------------------------------------------------------------


@compiled
def step_seconds(
    law: Numbers, tokens: float, pairs: float, sequences: float, context: float
) -> float:
    """Return the duration of a step, s; the arguments are those of ``StepTime.seconds``."""
    if law[0] != SCALED:
        return _seconds(law, tokens, pairs, sequences, context)
    base, seconds, decode = law[5:], law[1], 0.0
    if sequences != 0.0:
        decode = _seconds(base, 0.0, 0.0, sequences, context)
        bare = _seconds(base, 0.0, 0.0, sequences, 0.0)
        seconds += law[2] * bare + law[3] * (decode - bare)
    if tokens != 0.0:
        whole = _seconds(base, tokens, pairs, sequences, context)
        scale = law[4] if sequences != 0.0 else law[2]
        seconds += scale * (whole - decode)
    return seconds


@compiled
def _seconds(law: Numbers, tokens: float, pairs: float, sequences: float, context: float) -> float:
    if law[0] == LINEAR:
        return float(law[1] + law[2] * tokens + law[3] * sequences + law[4] * context)
    if law[0] == ROOFLINE:
        return _roofline_seconds(law, tokens, pairs, sequences, context)
    busy = (
        _kernel_seconds(law, tokens, pairs, sequences, context)
        if law[0] == KERNELS
        else _mixed_seconds(law, tokens, pairs, sequences, context)
    )
    host = law[1] + law[2] * sequences
    if law[3] != 0.0:
        return max(busy, host)
    return busy + host


@compiled
def _mixed_seconds(
    law: Numbers, tokens: float, pairs: float, sequences: float, context: float
) -> float:
    """Return the sum of ``SiliconStepTime.seconds`` without the host's work."""
    before = mean = 0.0
    if tokens != 0.0:
        before = max(pairs / tokens - tokens / 2, 0.0)
    if sequences != 0.0:
        mean = context / sequences
    return _of_mix(law[4:], tokens, before, sequences, mean)


@compiled
def _kernel_seconds(
    law: Numbers, tokens: float, pairs: float, sequences: float, context: float
) -> float:
    """Return the sum of ``KernelStepTime.seconds`` without the host's work."""
    dense, head = int(law[5]), int(law[6])
    curves = law[7:]
    done = sequences + (1.0 if tokens != 0.0 else 0.0)
    seconds = _of_curve(curves, dense, tokens + sequences)
    seconds += _of_curve(curves[2 * dense :], head, done)
    rest = curves[2 * (dense + head) :]
    if law[4] == 0.0:
        return seconds + (
            rest[0] * tokens + rest[1] * pairs + rest[2] * sequences + rest[3] * context
        )
    before = pairs / tokens - tokens / 2 if tokens != 0.0 else 0.0
    mean = context / sequences if sequences != 0.0 else 0.0
    return seconds + _of_mix(rest, tokens, before, sequences, mean)


@compiled
def _place(axis: Numbers, value: float) -> tuple[int, float]:
    """Do what ``capplan.replica.grid.place`` does."""
    low, high = 0, len(axis)
    while low < high:
        middle = (low + high) // 2
        if value < axis[middle]:
            high = middle
        else:
            low = middle + 1
    low -= 1
    if low < 0:
        return 0, 0.0
    low = min(low, len(axis) - 2)
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


@compiled
def _of_curve(points: Numbers, size: int, x: float) -> float:
    """Return the value of a ``Curve``: its axis, then its levels."""
    low, part = _place(points[:size], x)
    left = points[size + low]
    return left + part * (points[size + low + 1] - left)


@compiled
def _between(rows: Numbers, width: int, i: int, along: float, j: int, across: float) -> float:
    """Do what ``Plane.between`` does; rows follow each other."""
    here = i * width + j
    there = here + width
    left = rows[here] + across * (rows[here + 1] - rows[here])
    right = rows[there] + across * (rows[there + 1] - rows[there])
    return left + along * (right - left)


@compiled
def _of_mix(mix: Numbers, chunk: float, before: float, sequences: float, context: float) -> float:
    """Return what ``MixTable.seconds`` does; ``capplan.replica.steplaw`` says what is where."""
    chunks, befores, batches, contexts = int(mix[1]), int(mix[2]), int(mix[3]), int(mix[4])
    at = 5
    sizes, at = mix[at : at + chunks], at + chunks
    levels, at = mix[at : at + befores], at + befores
    numbers, at = mix[at : at + batches], at + batches
    lengths, at = mix[at : at + contexts], at + contexts
    decode, at = mix[at : at + batches * contexts], at + batches * contexts
    alone, at = mix[at : at + chunks * befores], at + chunks * befores
    beside = mix[at:]
    if chunk <= 0.0:
        if sequences == 0.0:
            return 0.0
        n, up = _place(numbers, sequences)
        k, on = _place(lengths, context)
        return _between(decode, contexts, n, up, k, on)
    prompts = 1.0
    if before < 0.0:
        if mix[0] != 0.0:
            prompts = chunk / (chunk + 2 * before)
        chunk, before = chunk / prompts, 0.0
    i, along = _place(sizes, chunk)
    j, across = _place(levels, before)
    total = prompts * _between(alone, befores, i, along, j, across)
    if sequences == 0.0:
        return total
    n, up = _place(numbers, sequences)
    k, on = _place(lengths, context)
    along, across = min(along, 1.0), min(across, 1.0)
    size = batches * contexts
    here = beside[(i * befores + j) * size :]
    there = beside[((i + 1) * befores + j) * size :]
    left = _between(here, contexts, n, up, k, on)
    left += across * (_between(here[size:], contexts, n, up, k, on) - left)
    right = _between(there, contexts, n, up, k, on)
    right += across * (_between(there[size:], contexts, n, up, k, on) - right)
    return total + left + along * (right - left)


@compiled
def _roofline_seconds(
    law: Numbers, prompt: float, pairs: float, decoding: float, context: float
) -> float:
    """Return the sum of ``RooflineStepTime.seconds``, in its order."""
    sequences = decoding
    if law[19] > 1.0:
        prompts = prompt * prompt / (2.0 * pairs) if pairs > 0.0 else 1.0
        prompts = min(max(prompts, 1.0), law[19])
        prompt, pairs = prompt / prompts, pairs / prompts
        sequences, context = sequences / law[19], context / law[19]
    tokens = prompt + sequences
    moved = law[5]
    if law[17] != 0.0:
        moved += law[17] * (1.0 - law[18] ** tokens)
    computed = law[6] * sequences + law[7] * prompt
    head, read = law[9] * sequences, law[8]
    busy = (
        law[4]
        + (moved * moved * moved + computed * computed * computed) ** THIRD
        + (read * read * read + head * head * head) ** THIRD
        + law[10] * tokens
        + law[11] * prompt
        + law[12] * pairs
        + law[13] * sequences
        + law[14] * context
    )
    if law[16] != 0.0:
        busy += law[16] * min(context, law[15] * sequences)
    host = law[1] + law[2] * decoding
    if law[3] != 0.0:
        return max(host, busy)
    return busy + host


# --- heaps of rows of integers, ordered by their first two ---------------------------------------


@compiled
def _copy_row(heap: Whole, to: int, row: int) -> None:
    heap[to, 0], heap[to, 1], heap[to, 2] = heap[row, 0], heap[row, 1], heap[row, 2]


@compiled
def _heap_push(heap: Whole, size: int, first: int, second: int, slot: int) -> None:
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent, 0] < first or (heap[parent, 0] == first and heap[parent, 1] <= second):
            break
        _copy_row(heap, at, parent)
        at = parent
    heap[at, 0], heap[at, 1], heap[at, 2] = first, second, slot


@compiled
def _heap_pop(heap: Whole, size: int) -> None:
    """Take the first row out of a heap of that size."""
    last = size - 1
    first, second, slot = heap[last, 0], heap[last, 1], heap[last, 2]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (
            heap[other, 0] < heap[child, 0]
            or (heap[other, 0] == heap[child, 0] and heap[other, 1] < heap[child, 1])
        ):
            child = other
        if heap[child, 0] > first or (heap[child, 0] == first and heap[child, 1] >= second):
            break
        _copy_row(heap, at, child)
        at = child
    heap[at, 0], heap[at, 1], heap[at, 2] = first, second, slot


# --- where the arrays are ------------------------------------------------------------------------

LISTS = 6
"""Lists of whole numbers: who waits, when sequences end, this step's chunks, blocks by phase, who
is passed over, whose prefill is in progress."""
TABLES = 2
"""Tables of numbers: the plan, and what is said of those that leave."""
ADDRESSES = (
    *("state", "jobs", "lists", "tables", "law", "blocks", "known", "held", "stacks"),
    *("slots", "rows", "size", "numbers", "block_count", "entries", "held_rows", "held_width"),
    "stack_size",
)
"""Where the arrays are: the addresses of nine, then their lengths."""


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """Return an address as a pointer, as ``numba.carray`` takes it."""

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), lower


@compiled
def _arrays(address: int) -> Arrays:
    """Return the arrays whose addresses (``ADDRESSES``) are at an address.

    One number is handed from function to function, because numba unpacks each array that Python
    hands over, and copies all of them at every call that is not inlined.
    Whoever calls keeps them alive: they are seen from here without being counted.
    """
    where = carray(_pointer(address), 18, np.int64)
    lists = carray(_pointer(where[2]), (LISTS, where[10], 3), np.int64)
    tables = carray(_pointer(where[3]), (TABLES, where[11], len(LEFT)), np.float64)
    return Arrays(
        carray(_pointer(where[0]), 1, STATE),
        carray(_pointer(where[1]), where[9], JOB),
        lists[0],
        lists[1],
        lists[2],
        lists[3, :, 0],
        lists[4],
        lists[5],
        carray(_pointer(where[5]), where[13], BLOCK),
        carray(_pointer(where[6]), (where[14], 3), np.int64),
        carray(_pointer(where[7]), (where[15], where[16]), np.int64),
        carray(_pointer(where[8]), (2, where[17]), np.int64),
        tables[0],
        tables[1],
        carray(_pointer(where[4]), where[12], np.float64),
    )


# --- the waiting line ----------------------------------------------------------------------------


@compiled
def _wait(address: int, slot: int, ticket: int) -> None:
    """Let a job wait; rows of jobs that left are dropped when the heap is full."""
    r = _arrays(address)
    s = r.state[0]
    if s.waiting_rows == len(r.waiting):
        rows = 0
        for row in range(s.waiting_rows):
            first, second, who = r.waiting[row, 0], r.waiting[row, 1], r.waiting[row, 2]
            if r.jobs[who].ticket == second:
                _heap_push(r.waiting, rows, first, second, who)
                rows += 1
        s.waiting_rows = rows
    r.jobs[slot].ticket = ticket
    _heap_push(r.waiting, s.waiting_rows, r.jobs[slot].rank, ticket, slot)
    s.waiting_rows += 1
    s.waiting += 1


@compiled
def _first_waiting(address: int) -> int:
    """Return the slot that is served next, -1 if nobody waits."""
    r = _arrays(address)
    s = r.state[0]
    while s.waiting_rows:
        slot = r.waiting[0, 2]
        if r.jobs[slot].ticket == r.waiting[0, 1]:
            return slot
        _heap_pop(r.waiting, s.waiting_rows)
        s.waiting_rows -= 1
    return -1


@compiled
def _stop_waiting(address: int, slot: int) -> None:
    r = _arrays(address)
    r.jobs[slot].ticket = 0
    r.state[0].waiting -= 1


# --- passing over ---------------------------------------------------------------------------------


@compiled
def _pass_over(address: int) -> None:
    """Leave out who is served next, until :func:`_return_passed`."""
    r = _arrays(address)
    s = r.state[0]
    for column in range(3):
        r.aside[s.aside, column] = r.waiting[0, column]
    s.aside += 1
    _heap_pop(r.waiting, s.waiting_rows)
    s.waiting_rows -= 1


@compiled
def _return_passed(address: int) -> None:
    r = _arrays(address)
    s = r.state[0]
    for row in range(s.aside):
        rank, ticket, slot = r.aside[row, 0], r.aside[row, 1], r.aside[row, 2]
        _heap_push(r.waiting, s.waiting_rows, rank, ticket, slot)
        s.waiting_rows += 1
    s.aside = 0


# --- running sequences and their blocks ----------------------------------------------------------


@compiled
def _blocks(s: State, tokens: int) -> int:
    return (tokens + s.block_tokens - 1) // s.block_tokens


@compiled
def _release(address: int, slot: int, ahead: int) -> None:
    """Take a sequence out of the running batch and free its blocks.

    ``ahead``: for how many ticks of the step that is being formed it has room already.
    """
    r = _arrays(address)
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
        _give_back(address, slot, _blocks(s, job.kv_tokens), job.computed_tokens)
        _no_longer_partial(address, slot)
        return
    job.generated_tokens = job.output_tokens - max(job.finish_step - s.tick, 0)
    context = job.prompt_tokens + job.output_tokens - (job.finish_step - s.tick)
    _give_back(address, slot, _blocks(s, context - 1 + s.drafted + ahead), context - 1)
    r.phases[job.phase] -= job.width
    s.decoding -= 1
    s.branches -= job.width
    s.context_tokens -= job.width * context
    job.finish_step = 0


@compiled
def _no_longer_partial(address: int, slot: int) -> None:
    r = _arrays(address)
    s = r.state[0]
    if not r.jobs[slot].partial:
        return
    r.jobs[slot].partial = 0
    kept = 0
    for row in range(s.partials):
        if r.partials[row, 0] != slot:
            r.partials[kept, 0] = r.partials[row, 0]
            kept += 1
    s.partials = kept


@compiled
def _victim(address: int) -> int:
    """Return the last admitted; by priority, the last admitted of the lowest."""
    r = _arrays(address)
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
    """Send a job back to the queue; ``ahead`` as in :func:`_release`."""
    r = _arrays(address)
    s = r.state[0]
    if r.jobs[slot].finish_step:
        s.budget += r.jobs[slot].width * (1 + s.drafted)
    else:
        s.budget += _unschedule(address, slot)
    _release(address, slot, ahead)
    s.preemptions += 1
    s.tickets += 1
    _wait(address, slot, -s.tickets)


@compiled
def _unschedule(address: int, slot: int) -> int:
    """Take a prefill out of this step; return the tokens of its chunk."""
    r = _arrays(address)
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


# --- the KV blocks: a count, or names (see capplan.replica.prefix) --------------------------------

SPREAD = 0x9E3779B97F4A7C1
"""An odd number of 60 bits. Source: Knuth, "The Art of Computer Programming" 3, 1998, section 6.4
(multiplicative hashing by the golden ratio)."""
MOST_KEYS = 1 << 24
"""More blocks than a job has."""


@compiled
def _needed(address: int, slot: int, tokens: int) -> int:
    """Return how many more blocks a prefill needs to store so many tokens."""
    r = _arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    return job.width * (_blocks(s, tokens) - _blocks(s, job.kv_tokens))


@compiled
def _has_room(address: int, slot: int, blocks: int, spare: int) -> bool:
    """Return whether a new job that takes so many blocks leaves ``spare`` free."""
    r = _arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    shared = 0
    if s.caching:
        for k in range(job.computed_tokens // s.block_tokens):
            block = _first_of(address, _key(address, slot, k))
            if block < 0:
                break
            shared += r.blocks[block].holders > 0
    return job.width * blocks - shared + spare <= s.free_blocks


@compiled
def _grow(address: int, slot: int, tokens: int) -> None:
    """Let a prefill store so many tokens in all; its full blocks become known."""
    r = _arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    if not s.caching:
        s.free_blocks -= _needed(address, slot, tokens)
        job.kv_tokens = tokens
        return
    for _ in range(_needed(address, slot, tokens)):
        r.held[job.row, job.held] = _take(address)
        job.held += 1
    job.kv_tokens = tokens
    for k in range(min(min(tokens, job.known_tokens) // s.block_tokens, job.keys)):
        block = r.held[job.row, k]
        if r.blocks[block].key == 0:
            _learn(address, block, _key(address, slot, k))


@compiled
def _take_alike(address: int, count: int) -> None:
    """Take blocks for answers."""
    r = _arrays(address)
    s = r.state[0]
    if not s.caching:
        s.free_blocks -= count
        return
    for _ in range(count):
        r.stacks[1, s.piled] = _take(address)
        s.piled += 1


@compiled
def _give_back(address: int, slot: int, blocks: int, computed_tokens: int) -> None:
    """Take back the blocks of a job, the last one first; what it computed stays known."""
    r = _arrays(address)
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
def _found(address: int, slot: int, known_tokens: int) -> int:
    """Return how many of the tokens to prefill are in the cache: whole blocks, not all."""
    r = _arrays(address)
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
def _take_found(address: int, slot: int) -> None:
    """Give a new job the blocks that were found for it."""
    r = _arrays(address)
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
def _key(address: int, slot: int, k: int) -> int:
    """Return the key of a job's block: by the ids of the trace, else its own."""
    r = _arrays(address)
    job = r.jobs[slot]
    if k < job.keys:
        return carray(_pointer(job.keys_at), job.keys, np.int64)[k]
    return -(job.serial * MOST_KEYS + k + 1)


@compiled
def _take(address: int) -> int:
    """Take the block that has been free for longest, and forget what it holds."""
    r = _arrays(address)
    s = r.state[0]
    block = s.free_first
    s.cached -= r.blocks[block].key != 0
    _unfree(address, block)
    _forget(address, block)
    r.blocks[block].holders = 1
    return block


@compiled
def _free(address: int, block: int) -> None:
    r = _arrays(address)
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
    r = _arrays(address)
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
    """Return where the search for a key begins."""
    r = _arrays(address)
    spread = key * SPREAD
    return (spread ^ (spread >> 32)) & r.state[0].mask


@compiled
def _entry(address: int, key: int) -> int:
    """Return where a key is, or would be."""
    r = _arrays(address)
    at = _home(address, key)
    while r.known[at, 0] != 0 and r.known[at, 0] != key:
        at = (at + 1) & r.state[0].mask
    return at


@compiled
def _first_of(address: int, key: int) -> int:
    """Return the block that has held a key for longest, -1 if none does."""
    r = _arrays(address)
    at = _entry(address, key)
    return r.known[at, 1] if r.known[at, 0] != 0 else -1


@compiled
def _learn(address: int, block: int, key: int) -> None:
    r = _arrays(address)
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
    r = _arrays(address)
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
    """Empty an entry, and move up those behind it that are not where their search begins.

    Source: Knuth, "The Art of Computer Programming" 3, 1998, section 6.4, algorithm R.
    """
    r = _arrays(address)
    mask = r.state[0].mask
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


@compiled
def _empty_cache(address: int) -> None:
    r = _arrays(address)
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


# --- forming a step ------------------------------------------------------------------------------


@compiled
def _ticks(s: State, steps: int, tick: int) -> int:
    """Return how many tokens each sequence makes in the step after so many."""
    return math.floor((steps + 1) * s.ticks_per_step) - tick


@compiled
def _room(address: int, slot: int, chunk: int) -> int:
    """Return the tokens to have room for after a chunk: with the last, also for the draft."""
    r = _arrays(address)
    job = r.jobs[slot]
    tokens = job.computed_tokens + chunk
    return tokens + r.state[0].drafted if tokens == job.known_tokens else tokens


@compiled
def _schedule(address: int, slot: int, chunk: int) -> None:
    """Give a prefill its chunk of this step."""
    r = _arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    tokens = _room(address, slot, chunk)
    _grow(address, slot, tokens)
    r.chunks[s.chunks, 0], r.chunks[s.chunks, 1] = slot, chunk
    s.chunks += 1
    s.budget -= chunk
    if job.computed_tokens + chunk >= job.known_tokens:
        _no_longer_partial(address, slot)
    elif not job.partial:
        job.partial = 1
        r.partials[s.partials, 0] = slot
        s.partials += 1


@compiled
def _decode_blocks(address: int) -> None:
    """Allocate what decoding needs in this step, preempting where there is not enough."""
    r = _arrays(address)
    s = r.state[0]
    for ahead in range(s.ticks):
        phase = -(s.tick + ahead) % s.block_tokens
        while r.phases[phase] > s.free_blocks:
            _preempt(address, _victim(address), ahead)
        _take_alike(address, r.phases[phase])


@compiled
def _continue_prefills(address: int) -> None:
    """Schedule the next chunk of each prefill in progress."""
    r = _arrays(address)
    s = r.state[0]
    count = s.partials
    for row in range(count):
        r.aside[row, 0] = r.partials[row, 0]
    for row in range(count):
        if r.jobs[r.aside[row, 0]].partial:
            _continue_prefill(address, r.aside[row, 0])


@compiled
def _continue_prefill(address: int, slot: int) -> None:
    """Schedule the next chunk of a prefill, preempting where blocks are short."""
    r = _arrays(address)
    s = r.state[0]
    left = r.jobs[slot].known_tokens - r.jobs[slot].computed_tokens
    chunk = min(left, s.threshold, s.budget)
    tokens = _room(address, slot, chunk)
    while _needed(address, slot, tokens) > s.free_blocks:
        victim = _victim(address)
        _preempt(address, victim, s.ticks)
        if victim == slot:
            return
    _schedule(address, slot, chunk)


ALL, LATE, SEATS, BUDGET, BLOCKS = 0, 1, 2, 3, 4
"""Why no more are admitted: nobody waits, who waits came too late, or what there is too little of
(too many prefills in progress count as too few tokens)."""


@compiled
def _admit(address: int, now_s: float, formed_s: float) -> int:
    """Admit while tokens, places and blocks last; return why it ended.

    Who came after ``formed_s`` is not known yet.
    """
    r = _arrays(address)
    s = r.state[0]
    first_new = s.chunks
    why = _admit_each(address, formed_s)
    _return_passed(address)
    size = s.branches + s.chunks
    for row in range(first_new, s.chunks):
        job = r.jobs[r.chunks[row, 0]]
        if math.isnan(job.batch_in_s):
            job.batch_in_s, job.cached_tokens = now_s, job.computed_tokens
            job.batch_id, job.batch_size = s.steps + 1, size
    return why


@compiled
def _admit_each(address: int, formed_s: float) -> int:
    r = _arrays(address)
    s = r.state[0]
    slot = _first_waiting(address)
    while slot >= 0:
        job = r.jobs[slot]
        if s.budget <= 0:
            return BUDGET
        if job.joined_s > formed_s:
            return LATE
        if s.seats + job.width > s.sequences_limit:
            return SEATS
        known = job.prompt_tokens + job.generated_tokens
        found = _found(address, slot, known) if s.caching else 0
        job.known_tokens, job.computed_tokens, job.kv_tokens = known, found, found
        left = known - found
        chunk = min(left, s.threshold)
        long = chunk > s.budget
        chunk = min(chunk, s.budget)
        if (long and not s.chunked) or (chunk < left and s.partials >= s.most_partial):
            return BUDGET
        spare = s.watermark if s.decoding or s.chunks else 0
        if left > s.threshold and _long_prefills(address) >= s.most_long:
            _pass_over(address)
        elif not _has_room(address, slot, _blocks(s, _room(address, slot, chunk)), spare):
            return BLOCKS
        else:
            _stop_waiting(address, slot)
            _run(address, slot)
            if s.caching:
                _take_found(address, slot)
            _schedule(address, slot, chunk)
        slot = _first_waiting(address)
    return ALL


@compiled
def _long_prefills(address: int) -> int:
    r = _arrays(address)
    s = r.state[0]
    count = 0
    for row in range(s.partials):
        job = r.jobs[r.partials[row, 0]]
        count += job.known_tokens - job.computed_tokens > s.threshold
    return count


@compiled
def _run(address: int, slot: int) -> None:
    """Let a job be the newest of those that run."""
    r = _arrays(address)
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
def _begin(address: int, now_s: float) -> float:
    """Form the next step and plan ahead; return when the plan ends, s: inf if nothing is to do."""
    r = _arrays(address)
    s = r.state[0]
    preemptions, why = s.preemptions, ALL
    s.chunks = s.planned = s.passed = 0
    s.ticks = _ticks(s, s.decode_steps, s.tick)
    _decode_blocks(address)
    s.budget = max(s.tokens_limit - s.branches * (1 + s.drafted), 0)
    if s.partials:
        _continue_prefills(address)
    formed_s = s.began_s if s.ahead and s.ended_s == now_s and s.running else now_s
    s.began_s = now_s
    if s.waiting and s.preemptions == preemptions:
        why = _admit(address, now_s, formed_s)
    if not s.running:
        return math.inf
    tokens, pairs = 0, 0.0
    for row in range(s.chunks):
        chunk = r.chunks[row, 1]
        tokens += chunk
        pairs += chunk * (r.jobs[r.chunks[row, 0]].computed_tokens + chunk / 2)
    seconds = _step_s(address, float(tokens), pairs, s.branches, s.context_tokens)
    r.plan[0, END_S], r.plan[0, SECONDS] = now_s + seconds, seconds
    s.planned = 1
    _begun(s, tokens, s.branches + s.chunks, seconds)
    if not s.partials and s.preemptions == preemptions and not s.aborted and _nobody_joins(s, why):
        _look_ahead(address)
    return r.plan[s.planned - 1, END_S]


@compiled
def _nobody_joins(s: State, why: int) -> bool:
    """Return whether whoever waits must wait until somebody leaves.

    After this step's prefills the budget is at least as large, unless a sequence that decodes
    takes several tokens of it; then a shorter chunk might find blocks. So it might when known
    blocks are taken for answers, because a chunk begins where what is known ends.
    """
    if why == BLOCKS and s.cached:
        return False
    if why in (ALL, SEATS) or s.chunks == 0:
        return why != LATE
    return why == BLOCKS and s.drafted == 0 and s.seats == s.running


@compiled
def _step_s(address: int, tokens: float, pairs: float, branches: int, context: int) -> float:
    """Return how long a step takes, with its draft."""
    r = _arrays(address)
    s = r.state[0]
    if not s.drafted or not branches:
        return step_seconds(r.law, tokens, pairs, float(branches), float(context))
    draft_s = s.draft_steps * step_seconds(r.law, 0.0, 0.0, float(branches), float(context))
    tokens += s.drafted * branches
    pairs += s.drafted * (context + branches * s.drafted / 2)
    return step_seconds(r.law, tokens, pairs, float(branches), float(context)) + draft_s


@compiled
def _begun(s: State, tokens: int, sequences: int, seconds: float) -> None:
    s.steps += 1
    s.prefill_tokens += tokens
    s.sequences += sequences
    s.begun_s += seconds


@compiled
def _look_ahead(address: int) -> None:
    """Plan the steps until somebody finishes or blocks run out; nobody joins meanwhile."""
    r = _arrays(address)
    s = r.state[0]
    tick, branches = s.tick + s.ticks, s.branches
    context = s.context_tokens + s.branches * s.ticks
    finish = tick + PLAN_STEPS * (1 + s.drafted)
    while s.ends_rows:
        job = r.jobs[r.ends[0, 2]]
        if job.finish_step == r.ends[0, 0] and job.admission == r.ends[0, 1]:
            finish = min(finish, r.ends[0, 0])
            break
        _heap_pop(r.ends, s.ends_rows)
        s.ends_rows -= 1
    for row in range(s.chunks):
        job = r.jobs[r.chunks[row, 0]]
        finish = min(finish, tick + job.output_tokens - job.generated_tokens - 1)
        branches += job.width
        context += job.width * (job.known_tokens + 1)
    _mark_phases(address, tick, 1)
    free = s.free_blocks
    while s.planned < PLAN_STEPS and tick < finish:
        ticks = _ticks(s, s.decode_steps + s.planned, tick)
        for ahead in range(ticks):
            free -= r.phases[-(tick + ahead) % s.block_tokens]
        if free < 0:
            break
        seconds = _step_s(address, 0.0, 0.0, branches, context)
        r.plan[s.planned, END_S] = r.plan[s.planned - 1, END_S] + seconds
        r.plan[s.planned, SECONDS] = seconds
        s.planned += 1
        tick += ticks
        context += branches * ticks
    _mark_phases(address, s.tick + s.ticks, -1)


@compiled
def _mark_phases(address: int, tick: int, change: int) -> None:
    """Count the prefills of this step, which ends at a tick, as decoding, or no longer."""
    r = _arrays(address)
    s = r.state[0]
    for row in range(s.chunks):
        job = r.jobs[r.chunks[row, 0]]
        r.phases[(job.known_tokens + s.drafted - tick) % s.block_tokens] += change * job.width


# --- ending steps --------------------------------------------------------------------------------


@compiled
def _end_step(address: int, now_s: float) -> int:
    """End one step; return how many jobs leave."""
    r = _arrays(address)
    s = r.state[0]
    s.decode_steps += 1
    s.ended_s = now_s
    s.tick += s.ticks
    s.context_tokens += s.branches * s.ticks
    s.output_tokens += s.branches * s.ticks
    leaving = 0
    while s.ends_rows and r.ends[0, 0] <= s.tick:
        finish_step, admission, slot = r.ends[0, 0], r.ends[0, 1], r.ends[0, 2]
        _heap_pop(r.ends, s.ends_rows)
        s.ends_rows -= 1
        if r.jobs[slot].finish_step == finish_step and r.jobs[slot].admission == admission:
            leaving = _leave(address, leaving, slot, 1)
    for row in range(s.chunks):
        slot = r.chunks[row, 0]
        if _computed(address, slot, r.chunks[row, 1], now_s):
            leaving = _leave(address, leaving, slot, 1)
    s.chunks = 0
    for which in range(1, s.aborted + 1):
        slot = s.newest
        while slot >= 0 and r.jobs[slot].aborted != which:
            slot = r.jobs[slot].older
        if slot >= 0:
            leaving = _leave(address, leaving, slot, 0)
    s.aborted = 0
    return leaving


@compiled
def _leave(address: int, leaving: int, slot: int, done: int) -> int:
    _release(address, slot, 0)
    _tell(address, leaving, slot, done)
    return leaving + 1


@compiled
def _tell(address: int, row: int, slot: int, done: int) -> None:
    """Write what is said of a job (columns ``LEFT``)."""
    r = _arrays(address)
    job = r.jobs[slot]
    r.left[row, 0], r.left[row, 1] = slot, done
    r.left[row, 2], r.left[row, 3] = job.batch_in_s, job.prefill_end_s
    r.left[row, 4] = job.batch_id if job.batch_id else math.nan
    r.left[row, 5] = job.batch_size if job.batch_id else math.nan
    r.left[row, 6], r.left[row, 7] = job.prefilled_tokens, job.generated_tokens
    r.left[row, 8] = job.cached_tokens


@compiled
def _computed(address: int, slot: int, chunk: int, now_s: float) -> bool:
    """Book a chunk; return whether its job has made its last token already."""
    r = _arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    job.computed_tokens += chunk
    job.prefilled_tokens += chunk
    if job.computed_tokens < job.known_tokens:
        return False
    job.generated_tokens += 1
    s.output_tokens += job.width
    if math.isnan(job.prefill_end_s):
        job.prefill_end_s = now_s
    if job.generated_tokens >= job.output_tokens:
        return True
    job.finish_step = s.tick + job.output_tokens - job.generated_tokens
    job.phase = (job.known_tokens + s.drafted - s.tick) % s.block_tokens
    r.phases[job.phase] += job.width
    s.decoding += 1
    s.branches += job.width
    s.context_tokens += job.width * (job.known_tokens + 1)
    _push_end(address, job.finish_step, job.admission, slot)
    return False


@compiled
def _push_end(address: int, finish_step: int, admission: int, slot: int) -> None:
    """Note when a sequence ends; rows of sequences that left are dropped when the heap is full."""
    r = _arrays(address)
    s = r.state[0]
    if s.ends_rows == len(r.ends):
        rows = 0
        for row in range(s.ends_rows):
            first, second, who = r.ends[row, 0], r.ends[row, 1], r.ends[row, 2]
            if r.jobs[who].finish_step == first and r.jobs[who].admission == second:
                _heap_push(r.ends, rows, first, second, who)
                rows += 1
        s.ends_rows = rows
    _heap_push(r.ends, s.ends_rows, finish_step, admission, slot)
    s.ends_rows += 1


@compiled
def _pass(address: int, until: int) -> None:
    """Let the steps of the plan before number ``until`` be over, and the next one be running."""
    r = _arrays(address)
    s = r.state[0]
    while s.passed < until:
        now_s = r.plan[s.passed, END_S]
        _end_step(address, now_s)
        s.passed += 1
        s.ticks = _ticks(s, s.decode_steps, s.tick)
        for ahead in range(s.ticks):
            _take_alike(address, r.phases[-(s.tick + ahead) % s.block_tokens])
        s.began_s = now_s
        _begun(s, 0, s.branches, r.plan[s.passed, SECONDS])


@compiled
def _settle(address: int, now_s: float, inclusive: bool) -> float:
    """Let what is over at ``now_s`` be over; ``inclusive``: also what ends right then.

    Returns when the running step ends.
    """
    r = _arrays(address)
    s = r.state[0]
    if not s.planned:
        return math.inf
    until = s.passed
    while until < s.planned - 1 and (
        r.plan[until, END_S] < now_s or (inclusive and r.plan[until, END_S] == now_s)
    ):
        until += 1
    _pass(address, until)
    return r.plan[s.passed, END_S]


@compiled
def _end(address: int) -> int:
    """End the plan; return how many jobs leave: their slots are in ``left``."""
    r = _arrays(address)
    s = r.state[0]
    _pass(address, s.planned - 1)
    now_s = r.plan[s.passed, END_S]
    s.planned = s.passed = 0
    return _end_step(address, now_s)


@compiled
def _go_on(address: int, now_s: float, stops: bool) -> tuple[int, float]:
    r = _arrays(address)
    leaving = 0
    if r.state[0].planned:
        leaving = _end(address)
        if leaving and stops:
            return leaving, math.inf
    return leaving, _begin(address, now_s)


# --- coming and going ----------------------------------------------------------------------------


@compiled
def _fill(address: int, slot: int, tokens: tuple[int, int], order: tuple[int, int, int]) -> None:
    """Let a new job wait, in a free slot.

    ``tokens`` are those of its prompt and its answer, ``order`` its priority, its rank in the
    line, and how many sequences it becomes.
    """
    r = _arrays(address)
    job = r.jobs[slot]
    job.prompt_tokens, job.output_tokens = tokens
    job.priority, job.rank, job.width = order
    job.prefilled_tokens = job.generated_tokens = job.finish_step = 0
    job.partial = job.running = job.aborted = job.batch_id = job.batch_size = 0
    job.held = job.cached_tokens = 0
    job.batch_in_s = job.prefill_end_s = math.nan
    r.state[0].tickets += 1
    job.serial = r.state[0].tickets
    _wait(address, slot, r.state[0].tickets)


@compiled
def _give_up(address: int, slot: int) -> None:
    r = _arrays(address)
    job = r.jobs[slot]
    if job.ticket:
        _stop_waiting(address, slot)
    elif not job.aborted:
        r.state[0].aborted += 1
        job.aborted = r.state[0].aborted


@compiled
def _cut(address: int, now_s: float, inclusive: bool) -> float:
    r = _arrays(address)
    s = r.state[0]
    end_s = _settle(address, now_s, inclusive)
    if s.planned:
        s.planned = s.passed + 1
    return end_s


# --- for Python ----------------------------------------------------------------------------------


@compiled
def go_on(address: int, now_s: float, stops: bool) -> tuple[int, float]:
    """End the plan, if there is one; begin the next, unless somebody leaves and it ``stops``.

    Returns how many leave (rows of ``left``), and when the next plan ends: inf if it is not made.
    """
    return _go_on(address, now_s, stops)


@compiled
def settle(address: int, now_s: float, inclusive: bool) -> float:
    """Let what is over at ``now_s`` be over; ``inclusive``: also what ends right then.

    Returns when the running step ends, inf if none runs.
    """
    return _settle(address, now_s, inclusive)


# fmt: off
@compiled
def join(
    address: int, slot: int, prompt_tokens: int, output_tokens: int, priority: int, rank: int,
    width: int, now_s: float, inclusive: bool,
) -> float:
    """Let a new job wait, in a free slot; cut the plan to the running step, and return its end."""
    r = _arrays(address)
    r.jobs[slot].joined_s = now_s
    _fill(address, slot, (prompt_tokens, output_tokens), (priority, rank, width))
    return _cut(address, now_s, inclusive)
# fmt: on


@compiled
def withdraw(address: int, slot: int, now_s: float, inclusive: bool) -> float:
    """Give a job up: one that waits leaves at once, one that runs when its step ends.

    Cuts the plan to the running step, and returns its end.
    """
    end_s = _cut(address, now_s, inclusive)
    _give_up(address, slot)
    return end_s


@compiled
def limit(address: int, sequences: int, tokens: int, now_s: float, inclusive: bool) -> float:
    """Set the limits of the next steps; cut the plan to the running step, and return its end."""
    r = _arrays(address)
    end_s = _cut(address, now_s, inclusive)
    r.state[0].sequences_limit, r.state[0].tokens_limit = sequences, tokens
    return end_s


@compiled
def tell(address: int, row: int, slot: int) -> None:
    """Write what is said of a job that is not done (columns ``LEFT``)."""
    _tell(address, row, slot, 0)


@compiled
def empty_cache(address: int) -> None:
    """Let all blocks be free and nothing be known."""
    _empty_cache(address)


@compiled
def known_blocks(address: int, keys_at: int, count: int, most: int) -> int:
    """Return how many of the first ``most`` blocks are known, of ``count`` keys at an address."""
    k = 0
    while (
        k < min(count, most)
        and _first_of(address, carray(_pointer(keys_at), count, np.int64)[k]) >= 0
    ):
        k += 1
    return k
