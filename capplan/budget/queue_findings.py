"""Findings about the queues that requests pass in series: how long they hold, and for whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from capplan.budget.limits import QueueOnPath, queues_of
from capplan.budget.results import ClassBudget
from capplan.scenario import Scenario
from capplan.scenario.classes import RequestClass
from capplan.verdict import Reason


def waits_exceed(scenario: Scenario, classes: Sequence[ClassBudget]) -> Iterator[Reason]:
    """Find a wait limit past which a request is lost, of whichever class that waits there."""
    for queue, patient in _patient(scenario, classes):
        limit = patient.longest_wait_s
        if math.isfinite(queue.wait_s) and queue.wait_s > limit * (1 + 1e-9):
            yield Reason(
                rule="waits_exceed_promise",
                outcome="fail",
                field=f"{queue.path}.wait_limit_s",
                value=queue.wait_s,
                limit=limit,
                next_action=f"at most {limit:.3g} s: past it a request is lost",
                request_class=patient.request_class,
            )


def _patient(
    scenario: Scenario, classes: Sequence[ClassBudget]
) -> Iterator[tuple[QueueOnPath, ClassBudget]]:
    """Yield each queue that can hold requests, with the class that may wait longest there."""
    for name in dict.fromkeys(c.pool for c in classes):
        for queue in queues_of(scenario, name):
            shared = queue.layer == "gateway_queue"
            waiting = [c for c in classes if c.longest_wait_s > 0 and (shared or c.pool == name)]
            if waiting and queue.holds:
                yield queue, max(waiting, key=lambda c: c.longest_wait_s)


def attempt_timeout_below(
    scenario: Scenario, c: RequestClass, classes: Sequence[ClassBudget]
) -> Iterator[Reason]:
    """Find an attempt that ends before its longest wait and its answer: the work is thrown away.

    An inner queue's limit holds what the outer ones left, so the longest of them counts; in a queue
    that holds a more patient class, no more than the class itself may wait.
    """
    [budget] = [one for one in classes if one.request_class == c.name]
    timeout_s = c.retry.attempt_timeout_s
    waits = [
        queue.wait_s if patient is budget else min(queue.wait_s, budget.longest_wait_s)
        for queue, patient in _patient(scenario, classes)
        if patient.pool == budget.pool or queue.layer == "gateway_queue"
    ]
    stated = max((wait for wait in waits if math.isfinite(wait)), default=0.0)
    total = budget.attempt_s + stated
    if timeout_s is not None and timeout_s < total * (1 - 1e-9):
        yield Reason(
            rule="attempt_timeout_below_waits",
            outcome="fail",
            field=f"classes.{c.name}.retry.attempt_timeout_s",
            value=timeout_s,
            limit=total,
            next_action=f"at least {total:.3g} s ({stated:.3g} s of wait limits, "
            f"{budget.attempt_s:.3g} s of service), or shorter wait limits",
            request_class=c.name,
        )


def double_queue(scenario: Scenario, classes: Sequence[ClassBudget]) -> Iterator[Reason]:
    """Find two queues in series of which each can use the whole wait of its classes."""
    found = list(_patient(scenario, classes))
    for name in dict.fromkeys(c.pool for c in classes):
        paths = {queue.path for queue in queues_of(scenario, name)}
        whole = {
            queue.path: queue.wait_s
            for queue, patient in found
            if queue.path in paths and queue.wait_s >= patient.longest_wait_s
        }
        own = [c for c in classes if c.pool == name]
        if len(whole) > 1:
            yield Reason(
                rule="double_queue",
                outcome="blocked",
                field=", ".join(f"{path}.wait_limit_s" for path in whole),
                value=min(whole.values()),
                limit=max(c.longest_wait_s for c in own if c.longest_wait_s > 0),
                next_action="decide which queue holds the waiting requests, shorten the others",
            )


def no_owner(scenario: Scenario, pool_name: str) -> Iterator[Reason]:
    """Find a queue in series with another that has no owner."""
    holding = [queue for queue in queues_of(scenario, pool_name) if queue.holds]
    if len(holding) < 2:  # noqa: PLR2004
        return
    for queue in holding:
        if not queue.owner:
            yield Reason(
                rule="no_owner",
                outcome="blocked",
                field=f"{queue.path}.owner",
                value="",
                next_action="name the owner of this queue",
            )
