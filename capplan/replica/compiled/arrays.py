"""The state of one replica: one array of whole numbers, and the views into it.

Python hands over one array, the *memory*: numba takes 2.6 µs to unpack fifteen, 0.3 µs for one, and
a step takes 2.5 µs. Inside compiled code its address goes from function to function, and
:func:`arrays` returns the views, which are not counted as references: views that numba counts take
1.3 µs a call. No address outlives a call from Python.
"""

# mypy: disable-error-code="no-any-return,attr-defined,call-arg,unreachable"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from capplan.replica.compiled.jit import compiled
from capplan.replica.compiled.laws import LAW
from capplan.scenario.batching import ContinuousBatching

Memory = NDArray[np.int64]
"""The state of one replica as one array."""
Whole = NDArray[np.int64]
Numbers = NDArray[np.float64]
State = Any
"""One record of ``STATE``."""

PLAN_STEPS = 128
"""Most steps of a plan."""

STATE = np.dtype(
    [
        (name, np.int64)
        for name in [
            *("sequences_limit", "tokens_limit", "block_tokens", "kv_blocks", "chunked"),
            *("by_priority", "watermark", "threshold", "most_partial", "most_long", "ahead"),
            *("caching", "cached", "runs", "unused", "free_rows", "mask"),
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
"""One replica: its limits, what runs, and the totals of the reference engine.

``newest`` is a slot, -1 = none; of the ``planned`` steps of the plan ``passed`` have ended;
``*_rows`` are the sizes of heaps, including rows of jobs that left; ``aside``, ``chunks`` and
``partials`` are those of lists, ``free_rows`` that of a stack. ``cached`` counts the free blocks
whose content is known; rows of ``runs`` were used up to that number, and ``unused`` is the first of
those that are not any more, 0 = none. ``began_s`` is the start of the last step, ``begun_s`` the
length of all.
"""

JOB = np.dtype(
    [
        (name, np.int64)
        for name in [
            *("prompt_tokens", "output_tokens", "priority", "rank", "width", "known_tokens"),
            *("computed_tokens", "kv_tokens", "prefilled_tokens", "generated_tokens"),
            *("finish_step", "phase", "admission", "ticket", "partial", "running", "aborted"),
            *("older", "newer", "batch_id", "batch_size", "cached_tokens"),
            *("keys_at", "named", "per_key", "share", "serial", "row", "entries", "held", "beside"),
        ]
    ]
    + [(name, np.float64) for name in ("joined_s", "batch_in_s", "prefill_end_s")]
)
"""One slot. ``ticket`` is 0 unless it waits; ``older`` and ``newer`` chain the running jobs;
``aborted`` numbers the jobs given up since the step began; each of its sequences holds ``beside``
blocks beside those that grow.

With a prefix cache: its first ``named`` blocks have keys from ``keys_at`` on, one for ``per_key``
blocks, or ``share`` blocks are found without keys; ``serial`` is the key of all other blocks. It
holds ``held`` blocks whose content is known, as ``entries`` in ``row`` of the array of that name.
"""

RUN = np.dtype(
    [
        (name, np.int64)
        for name in [
            *("key", "begin", "blocks", "holders", "before", "after"),
            *("same_before", "same_after", "rest"),
        ]
    ]
)
"""KV blocks of a prefix cache that follow each other: their key, where among the blocks of that key
they begin (-1 = content unknown), how many they are, how many jobs hold them, the neighbours among
the free runs, and among those of the same key, older first; ``rest`` is what was cut off its end;
0 = none. Number 0 stands between the last free run and the first."""

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
"""Columns of the record of a job that leaves; ``done``: its last token was made."""

END_S, SECONDS = 0, 1
"""Columns of the plan: when a step ends, and how long it takes."""


class Arrays(NamedTuple):
    """Views of everything about one replica."""

    state: Any
    """One ``STATE``."""
    jobs: Any
    """Slots (``JOB``)."""
    waiting: Whole
    """Heap of the waiting jobs: rank, ticket, slot."""
    ends: Whole
    """Heap of the decoding jobs: last step, admission, slot."""
    chunks: Whole
    """Slot and tokens of the prefills of the running step."""
    phases: Whole
    """How many blocks are needed at each phase."""
    aside: Whole
    """Rows of ``waiting`` that are passed over, or slots that are gone through."""
    partials: Whole
    """Slots whose prefill is in progress."""
    held: Whole
    """Runs of known blocks of each running job, in rows: how many blocks they had when they were
    taken (``rest`` has what was cut off since), and the run; this and the next four are of a prefix
    cache."""
    free_rows: Whole
    """Free rows of ``held``."""
    known: Whole
    """Oldest and newest run of each key, and the key, where its hash puts them."""
    keys: Whole
    """Keys of the blocks of the jobs, job after job."""
    runs: Any
    """Runs of KV blocks (``RUN``)."""
    plan: Numbers
    """Ends and lengths of the planned steps."""
    left: Numbers
    """Records of the jobs that left (``LEFT``)."""
    tables: Numbers
    """Numbers of the tables of the step time (:mod:`capplan.replica.compiled.laws`)."""
    law: Any
    """Its other numbers: one ``LAW``."""


PARTS = len(Arrays._fields)
SPARSE = ("held", "known")
"""Large tables: what begins with 0 in them holds nothing."""
WORD = 8
"""Bytes of every number."""


def laid_out(parts: Arrays) -> tuple[Memory, Arrays]:
    """Return one array with copies of all parts, and the parts as views of it.

    Its header says of each part where it begins, in bytes, and its rows and columns. Of the
    tables in ``SPARSE`` only the rows that hold something are read and written: pages that are not
    used take no memory.
    """
    header, at = [], 3 * PARTS * WORD
    for part in parts:
        header += [at, len(part), part.shape[1] if part.ndim > 1 else 1]
        at += part.nbytes
    memory = np.zeros(at // WORD, np.int64)
    memory[: 3 * PARTS] = header
    views = []
    for name, part, begin in zip(Arrays._fields, parts, header[::3], strict=True):
        words = memory[begin // WORD : (begin + part.nbytes) // WORD]
        view = words.view(part.dtype).reshape(part.shape)
        used = part[:, 0] != 0 if name in SPARSE else slice(None)
        view[used] = part[used]
        views.append(view)
    return memory, Arrays(*views)


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """Return an address as a pointer, as ``numba.carray`` takes it."""

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), lower


@compiled
def arrays(address: int) -> Arrays:
    """Return the views of the parts of the memory at an address.

    They are not counted as references: the caller of the compiled code holds the memory.
    """
    at = carray(_pointer(address), 3 * PARTS, np.int64)
    whole = np.int64
    return Arrays(
        carray(_pointer(address + at[0]), at[1], STATE),
        carray(_pointer(address + at[3]), at[4], JOB),
        carray(_pointer(address + at[6]), (at[7], 3), whole),
        carray(_pointer(address + at[9]), (at[10], 3), whole),
        carray(_pointer(address + at[12]), (at[13], 2), whole),
        carray(_pointer(address + at[15]), at[16], whole),
        carray(_pointer(address + at[18]), (at[19], 3), whole),
        carray(_pointer(address + at[21]), at[22], whole),
        carray(_pointer(address + at[24]), (at[25], at[26]), whole),
        carray(_pointer(address + at[27]), at[28], whole),
        carray(_pointer(address + at[30]), (at[31], 3), whole),
        carray(_pointer(address + at[33]), at[34], whole),
        carray(_pointer(address + at[36]), at[37], RUN),
        carray(_pointer(address + at[39]), (at[40], 2), np.float64),
        carray(_pointer(address + at[42]), (at[43], len(LEFT)), np.float64),
        carray(_pointer(address + at[45]), at[46], np.float64),
        carray(_pointer(address + at[48]), at[49], LAW),
    )


NO_LIMIT = 2**62


def new_arrays(
    rules: ContinuousBatching, kv_blocks: int, law: NDArray[np.void], tables: Numbers
) -> Arrays:
    """Return the arrays of a replica without slots; ``law`` and ``tables`` are a ``step_law``."""
    running = 2 * rules.max_num_seqs + 16
    blocks, rows, width = 1, 1, 1
    if rules.prefix_caching:
        drafted = 0 if rules.speculation is None else rules.speculation.num_speculative_tokens
        blocks, rows = kv_blocks, rules.max_num_seqs + 1
        width = 2 * ((rules.max_model_len + 3 * drafted) // rules.block_size + 4)
    whole = np.int64
    parts = Arrays(
        state=_new_state(rules, kv_blocks, mask=_entries(blocks) - 1),
        jobs=np.zeros(0, JOB),
        waiting=np.zeros((0, 3), whole),
        ends=np.zeros((running, 3), whole),
        chunks=np.zeros((running, 2), whole),
        phases=np.zeros(rules.block_size, whole),
        aside=np.zeros((0, 3), whole),
        partials=np.zeros(running, whole),
        held=np.zeros((rows, width), whole),
        free_rows=np.zeros(rows, whole),
        known=np.zeros((_entries(blocks), 3), whole),
        keys=np.zeros(16 * rows, whole),
        runs=np.zeros(blocks + 1, RUN),
        plan=np.zeros((PLAN_STEPS, 2)),
        left=np.zeros((running, len(LEFT))),
        tables=tables,
        law=law,
    )
    clear(parts)
    return parts


def _entries(blocks: int) -> int:
    """Return how many entries a table of as many keys has: a power of two, half of them empty."""
    return 1 << (2 * blocks).bit_length()


def _new_state(rules: ContinuousBatching, kv_blocks: int, *, mask: int) -> NDArray[np.void]:
    draft, state = rules.speculation, np.zeros(1, STATE)
    state["sequences_limit"] = rules.max_num_seqs
    state["tokens_limit"] = rules.max_num_batched_tokens
    state["block_tokens"] = rules.block_size
    state["kv_blocks"] = kv_blocks
    state["chunked"] = rules.chunked_prefill
    state["by_priority"] = rules.scheduler.order == "priority"
    state["watermark"] = int(rules.watermark * kv_blocks)
    state["threshold"] = rules.long_prefill_token_threshold or NO_LIMIT
    state["most_partial"] = rules.max_num_partial_prefills or NO_LIMIT
    state["most_long"] = rules.max_long_partial_prefills or NO_LIMIT
    state["ahead"] = rules.async_scheduling
    state["caching"] = rules.prefix_caching
    state["mask"] = mask
    state["ticks_per_step"] = 1.0
    if draft is not None:
        state["drafted"] = draft.num_speculative_tokens
        state["ticks_per_step"] = draft.tokens_per_step
        state["draft_steps"] = draft.num_speculative_tokens * draft.draft_cost_fraction
    return state


def clear(parts: Arrays) -> None:
    """Remove all that runs, waits or is cached; the limits, the totals and the count of steps stay.

    All blocks are one free run then, number 1.
    """
    state, runs = parts.state[0], parts.runs
    for name in (
        *("running", "decoding", "branches", "seats", "context_tokens", "waiting", "cached"),
        *("waiting_rows", "ends_rows", "chunks", "partials", "aborted", "planned", "passed"),
    ):
        state[name] = 0
    state["newest"] = -1
    state["free_blocks"] = state["kv_blocks"]
    state["began_s"] = state["ended_s"] = math.nan
    parts.phases[:] = parts.known[:, 0] = 0
    for name in ("ticket", "running", "partial"):
        parts.jobs[name] = 0
    state["runs"], state["unused"], state["free_rows"] = 1, 0, len(parts.free_rows)
    parts.free_rows[:] = np.arange(len(parts.free_rows))
    runs[:2] = np.zeros(2, RUN)
    runs["before"][0] = runs["after"][0] = 1
    runs["begin"][1], runs["blocks"][1] = -1, state["kv_blocks"]
