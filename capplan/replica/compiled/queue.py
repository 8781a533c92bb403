"""Heaps of rows of integers, ordered by their first two: the waiting line, the ends of sequences.

Removal is lazy: a row counts only while its second number is still that of its job.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from capplan.replica.compiled.arrays import Whole, arrays
from capplan.replica.compiled.jit import compiled


@compiled
def _copy_row(heap: Whole, to: int, row: int) -> None:
    heap[to, 0], heap[to, 1], heap[to, 2] = heap[row, 0], heap[row, 1], heap[row, 2]


@compiled
def heap_push(heap: Whole, size: int, first: int, second: int, slot: int) -> None:
    """Add a row to a heap of ``size`` rows."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent, 0] < first or (heap[parent, 0] == first and heap[parent, 1] <= second):
            break
        _copy_row(heap, at, parent)
        at = parent
    heap[at, 0], heap[at, 1], heap[at, 2] = first, second, slot


@compiled
def heap_pop(heap: Whole, size: int) -> None:
    """Remove the first row of a heap of ``size`` rows."""
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


@compiled
def wait(address: int, slot: int, ticket: int) -> None:
    """Add a job to the waiting line; a full heap first drops rows of jobs that left."""
    r = arrays(address)
    s = r.state[0]
    if s.waiting_rows == len(r.waiting):
        rows = 0
        for row in range(s.waiting_rows):
            first, second, job = r.waiting[row, 0], r.waiting[row, 1], r.waiting[row, 2]
            if r.jobs[job].ticket == second:
                heap_push(r.waiting, rows, first, second, job)
                rows += 1
        s.waiting_rows = rows
    r.jobs[slot].ticket = ticket
    heap_push(r.waiting, s.waiting_rows, r.jobs[slot].rank, ticket, slot)
    s.waiting_rows += 1
    s.waiting += 1


@compiled
def first_waiting(address: int) -> int:
    """Return the slot to serve next, -1 if no job waits."""
    r = arrays(address)
    s = r.state[0]
    while s.waiting_rows:
        slot = r.waiting[0, 2]
        if r.jobs[slot].ticket == r.waiting[0, 1]:
            return slot
        heap_pop(r.waiting, s.waiting_rows)
        s.waiting_rows -= 1
    return -1


@compiled
def stop_waiting(address: int, slot: int) -> None:
    """Take a job out of the waiting line."""
    r = arrays(address)
    s = r.state[0]
    r.jobs[slot].ticket = 0
    s.waiting -= 1


@compiled
def pass_over(address: int) -> None:
    """Put the job to serve next aside, until :func:`return_passed`."""
    r = arrays(address)
    s = r.state[0]
    for column in range(3):
        r.aside[s.aside, column] = r.waiting[0, column]
    s.aside += 1
    heap_pop(r.waiting, s.waiting_rows)
    s.waiting_rows -= 1


@compiled
def return_passed(address: int) -> None:
    """Put all jobs that were set aside back into the line."""
    r = arrays(address)
    s = r.state[0]
    for row in range(s.aside):
        rank, ticket, slot = r.aside[row, 0], r.aside[row, 1], r.aside[row, 2]
        heap_push(r.waiting, s.waiting_rows, rank, ticket, slot)
        s.waiting_rows += 1
    s.aside = 0


@compiled
def push_end(address: int, finish_step: int, admission: int, slot: int) -> None:
    """Note when a sequence ends; a full heap first drops rows of sequences that left."""
    r = arrays(address)
    s = r.state[0]
    if s.ends_rows == len(r.ends):
        rows = 0
        for row in range(s.ends_rows):
            first, second, job = r.ends[row, 0], r.ends[row, 1], r.ends[row, 2]
            if r.jobs[job].finish_step == first and r.jobs[job].admission == second:
                heap_push(r.ends, rows, first, second, job)
                rows += 1
        s.ends_rows = rows
    heap_push(r.ends, s.ends_rows, finish_step, admission, slot)
    s.ends_rows += 1
