"""Beginning and ending steps, the plan of steps to come, and jobs that come and go.

The functions at the end are those that Python calls.
"""

# mypy: disable-error-code="no-any-return,unreachable"

from __future__ import annotations

import math

from capplan.replica.compiled.arrays import END_S, PLAN_STEPS, SECONDS, Memory, State, Whole, arrays
from capplan.replica.compiled.blocks import count_known, take
from capplan.replica.compiled.forming import (
    ALL,
    BLOCKS,
    LATE,
    SEATS,
    admit,
    continue_prefills,
    decode_blocks,
    release,
    ticks_of,
)
from capplan.replica.compiled.jit import compiled
from capplan.replica.compiled.laws import step_seconds
from capplan.replica.compiled.queue import heap_pop, push_end, stop_waiting, wait


@compiled
def _begin(address: int, now_s: float) -> float:
    """Form the next step and plan ahead; return the end of the plan, s: inf if no job runs."""
    r = arrays(address)
    s = r.state[0]
    preemptions, why = s.preemptions, ALL
    s.chunks = s.planned = s.passed = 0
    s.ticks = ticks_of(s, s.decode_steps, s.tick)
    decode_blocks(address)
    s.budget = max(s.tokens_limit - s.branches * (1 + s.drafted), 0)
    if s.partials:
        continue_prefills(address)
    formed_s = s.began_s if s.ahead and s.ended_s == now_s and s.running else now_s
    s.began_s = now_s
    if s.waiting and s.preemptions == preemptions:
        why = admit(address, now_s, formed_s)
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
    if not s.partials and s.preemptions == preemptions and not s.aborted and _none_joins(s, why):
        _look_ahead(address)
    return r.plan[s.planned - 1, END_S]


@compiled
def _none_joins(s: State, why: int) -> bool:
    """Return whether no waiting job can be admitted until a running one leaves.

    After this step's prefills the budget is at least as large, unless a decoding sequence takes
    several tokens of it: then a shorter chunk might find blocks. It might also when cached blocks
    are taken for answers, because a chunk begins where the cached tokens end.
    """
    if why == BLOCKS and s.cached:
        return False
    if why in (ALL, SEATS) or s.chunks == 0:
        return why != LATE
    return why == BLOCKS and s.drafted == 0 and s.seats == s.running


@compiled
def _step_s(address: int, tokens: float, pairs: float, branches: int, context: int) -> float:
    """Return how long a step takes, with its draft."""
    r = arrays(address)
    s = r.state[0]
    law, decoding = r.law[0], float(branches)
    if not s.drafted or not branches:
        return step_seconds(law, r.tables, tokens, pairs, decoding, float(context))
    draft = step_seconds(law, r.tables, 0.0, 0.0, decoding, float(context))
    tokens += s.drafted * branches
    pairs += s.drafted * (context + branches * s.drafted / 2)
    whole = step_seconds(law, r.tables, tokens, pairs, decoding, float(context))
    return whole + s.draft_steps * draft


@compiled
def _begun(s: State, tokens: int, sequences: int, seconds: float) -> None:
    """Count a step that begins."""
    s.steps += 1
    s.prefill_tokens += tokens
    s.sequences += sequences
    s.begun_s += seconds


@compiled
def _look_ahead(address: int) -> None:
    """Plan the steps until a job finishes or blocks run out; no job joins meanwhile."""
    r = arrays(address)
    s = r.state[0]
    tick, branches = s.tick + s.ticks, s.branches
    context = s.context_tokens + s.branches * s.ticks
    finish = tick + PLAN_STEPS * (1 + s.drafted)
    while s.ends_rows:
        job = r.jobs[r.ends[0, 2]]
        if job.finish_step == r.ends[0, 0] and job.admission == r.ends[0, 1]:
            finish = min(finish, r.ends[0, 0])
            break
        heap_pop(r.ends, s.ends_rows)
        s.ends_rows -= 1
    for row in range(s.chunks):
        job = r.jobs[r.chunks[row, 0]]
        finish = min(finish, tick + job.output_tokens - job.generated_tokens - 1)
        branches += job.width
        context += job.width * (job.known_tokens + 1)
    _mark_phases(address, tick, 1)
    free = s.free_blocks
    while s.planned < PLAN_STEPS and tick < finish:
        ticks = ticks_of(s, s.decode_steps + s.planned, tick)
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
    """Add to, or take from, the phases the blocks of prefills that end at a tick."""
    r = arrays(address)
    s = r.state[0]
    for row in range(s.chunks):
        job = r.jobs[r.chunks[row, 0]]
        r.phases[(job.known_tokens + s.drafted - tick) % s.block_tokens] += change * job.width


@compiled
def _end_step(address: int, now_s: float) -> int:
    """End one step; return how many jobs leave."""
    r = arrays(address)
    s = r.state[0]
    s.decode_steps += 1
    s.ended_s = now_s
    s.tick += s.ticks
    s.context_tokens += s.branches * s.ticks
    s.output_tokens += s.branches * s.ticks
    leaving = 0
    while s.ends_rows and r.ends[0, 0] <= s.tick:
        finish_step, admission, slot = r.ends[0, 0], r.ends[0, 1], r.ends[0, 2]
        heap_pop(r.ends, s.ends_rows)
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
    """Release a job and write its record; return how many jobs have left."""
    release(address, slot, 0)
    _record(address, leaving, slot, done)
    return leaving + 1


@compiled
def _record(address: int, row: int, slot: int, done: int) -> None:
    """Write the record of a job (columns ``LEFT``)."""
    r = arrays(address)
    job = r.jobs[slot]
    r.left[row, 0], r.left[row, 1] = slot, done
    r.left[row, 2], r.left[row, 3] = job.batch_in_s, job.prefill_end_s
    r.left[row, 4] = job.batch_id if job.batch_id else math.nan
    r.left[row, 5] = job.batch_size if job.batch_id else math.nan
    r.left[row, 6], r.left[row, 7] = job.prefilled_tokens, job.generated_tokens
    r.left[row, 8] = job.cached_tokens


@compiled
def _computed(address: int, slot: int, chunk: int, now_s: float) -> bool:
    """Count a computed chunk; return whether its job has made its last token already."""
    r = arrays(address)
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
    push_end(address, job.finish_step, job.admission, slot)
    return False


@compiled
def _pass(address: int, until: int) -> None:
    """End the steps of the plan before number ``until``; the next one runs."""
    r = arrays(address)
    s = r.state[0]
    while s.passed < until:
        now_s = r.plan[s.passed, END_S]
        _end_step(address, now_s)
        s.passed += 1
        s.ticks = ticks_of(s, s.decode_steps, s.tick)
        for ahead in range(s.ticks):
            take(address, r.phases[-(s.tick + ahead) % s.block_tokens])
        s.began_s = now_s
        _begun(s, 0, s.branches, r.plan[s.passed, SECONDS])


@compiled
def _settle(address: int, now_s: float, inclusive: bool) -> float:
    """Do what :func:`settle` does."""
    r = arrays(address)
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
    """End the plan; return how many jobs leave."""
    r = arrays(address)
    s = r.state[0]
    _pass(address, s.planned - 1)
    now_s = r.plan[s.passed, END_S]
    s.planned = s.passed = 0
    return _end_step(address, now_s)


@compiled
def _cut(address: int, now_s: float, inclusive: bool) -> float:
    """Cut the plan to the running step; return its end."""
    s = arrays(address).state[0]
    end_s = _settle(address, now_s, inclusive)
    if s.planned:
        s.planned = s.passed + 1
    return end_s


@compiled
def go_on(memory: Memory, now_s: float, stops: bool) -> tuple[int, float]:
    """End the plan, if there is one; begin the next, unless a job leaves and it ``stops`` then.

    Returns how many jobs leave (rows of ``left``), and when the next plan ends, inf without one.
    """
    address, leaving = memory.ctypes.data, 0
    if arrays(address).state[0].planned:
        leaving = _end(address)
        if leaving and stops:
            return leaving, math.inf
    return leaving, _begin(address, now_s)


@compiled
def settle(memory: Memory, now_s: float, inclusive: bool) -> float:
    """End the steps that end before ``now_s``; if ``inclusive``, also those that end at it.

    Returns when the running step ends, inf if none runs.
    """
    return _settle(memory.ctypes.data, now_s, inclusive)


@compiled
def join(  # noqa: PLR0917
    memory: Memory, slot: int, prompt_tokens: int, output_tokens: int, priority: int, rank: int,
    width: int, keys_at: int, named: int, per_key: int, share: int, now_s: float, inclusive: bool,
) -> float:  # fmt: skip
    """Add a new job to the waiting line, in a free slot; cut the plan and return its end.

    ``rank`` is its rank in the line, ``width`` the number of sequences that decode its answer; for
    the next four see ``JOB``.
    """
    address = memory.ctypes.data
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    job.joined_s = now_s
    job.prompt_tokens, job.output_tokens = prompt_tokens, output_tokens
    job.priority, job.rank, job.width = priority, rank, width
    job.keys_at, job.named, job.per_key, job.share = keys_at, named, per_key, share
    job.prefilled_tokens = job.generated_tokens = job.finish_step = 0
    job.partial = job.running = job.aborted = job.batch_id = job.batch_size = 0
    job.held = job.entries = job.cached_tokens = 0
    job.batch_in_s = job.prefill_end_s = math.nan
    s.tickets += 1
    job.serial = s.tickets
    wait(address, slot, s.tickets)
    return _cut(address, now_s, inclusive)


@compiled
def withdraw(memory: Memory, slot: int, now_s: float, inclusive: bool) -> float:
    """Give a job up: one that waits leaves at once, one that runs when its step ends.

    Cuts the plan and returns its end.
    """
    address = memory.ctypes.data
    end_s = _cut(address, now_s, inclusive)
    r = arrays(address)
    s = r.state[0]
    job = r.jobs[slot]
    if job.ticket:
        stop_waiting(address, slot)
    elif not job.aborted:
        s.aborted += 1
        job.aborted = s.aborted
    return end_s


@compiled
def limit(memory: Memory, sequences: int, tokens: int, now_s: float, inclusive: bool) -> float:
    """Set the limits of the next steps; cut the plan and return its end."""
    address = memory.ctypes.data
    end_s = _cut(address, now_s, inclusive)
    s = arrays(address).state[0]
    s.sequences_limit, s.tokens_limit = sequences, tokens
    return end_s


@compiled
def record(memory: Memory, slot: int) -> None:
    """Write the record of a job that is not done into the first row of ``left``."""
    _record(memory.ctypes.data, 0, slot, 0)


@compiled
def known_blocks(  # noqa: PLR0917
    memory: Memory, keys: Whole, per_key: int, most: int, now_s: float, inclusive: bool
) -> int:
    """Return how many of the first blocks, ``most`` at most, are known, after :func:`settle`."""
    address = memory.ctypes.data
    _settle(address, now_s, inclusive)
    return count_known(address, keys, per_key, most)
