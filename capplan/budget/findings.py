"""Findings about a scenario's limits: each rule a function from scenario and budget to reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from capplan.budget.limits import queues_of
from capplan.budget.queue_findings import (
    attempt_timeout_below,
    double_queue,
    no_owner,
    waits_exceed,
)
from capplan.budget.results import ClassBudget
from capplan.budget.service import PoolService
from capplan.formatting import counted
from capplan.replica.multi_model import FULL, footprint_fraction
from capplan.scenario import Scenario
from capplan.scenario.classes import RequestClass
from capplan.scenario.part import Part
from capplan.verdict import Reason

TOLERANCE_FRACTION = 0.05
"""Limits that differ by less are equal: budgets from two draws of one load differ as much."""


def find(
    scenario: Scenario,
    classes: Sequence[ClassBudget],
    services: Mapping[str, PoolService],
    settings: Mapping[str, int | float],
) -> tuple[Reason, ...]:
    """Return every finding once, the most severe first."""
    found: list[Reason] = []
    for budget in classes:
        c = scenario.request_class(budget.request_class)
        found += missing_promise(c)
        found += unknown_rate(budget)
        found += infeasible(budget)
        found += tpot_broken(budget, services[budget.pool])
        found += below_window(budget)
        found += attempt_timeout_below(scenario, c, classes)
        found += retries_exceed(c)
    found += waits_exceed(scenario, classes)
    found += double_queue(scenario, classes)
    for service in services.values():
        found += overload(service)
        found += swaps(service, scenario)
        found += no_owner(scenario, service.pool.name)
    found += unlimited(scenario, list(services))
    found += differs(scenario, settings, services)
    return tuple(sorted(dict.fromkeys(found), key=attrgetter("rank")))


def missing_promise(c: RequestClass) -> Iterator[Reason]:
    """Find a class without a promise that its budget needs."""
    promises = c.promises
    needed = {"deadline_s or e2e_s": promises.deadline_s is not None or promises.e2e_s is not None}
    if c.streaming:
        needed = {"ttft_s": promises.ttft_s is not None, "tpot_s": promises.tpot_s is not None}
    for name, stated in needed.items():
        if not stated:
            yield Reason(
                rule="missing_promise",
                outcome="unknown",
                field=f"classes.{c.name}.promises.{name}",
                next_action=f"agree with the callers of {c.name} on {name}",
                request_class=c.name,
            )


def unknown_rate(budget: ClassBudget) -> Iterator[Reason]:
    """Find a class whose rate is unknown, so that no queue length follows."""
    if math.isnan(budget.rate_rps):
        yield Reason(
            rule="unknown_rate",
            outcome="unknown",
            field="traffic",
            next_action="give a trace with at least two requests, or a shape with a rate",
            request_class=budget.request_class,
        )


def infeasible(budget: ClassBudget) -> Iterator[Reason]:
    """Find a class whose service time alone reaches the promise."""
    if not budget.remaining_s <= 0:
        return
    prompt, output = budget.feasible_prompt_quantile, budget.feasible_output_quantile
    ways = [
        f"{name} quantile ≤ {q:.2f}"
        for name, q in (("prompt", prompt), ("output", output))
        if not math.isnan(q)
    ]
    way = f"feasible at {' or '.join(ways)}" if ways else "at no quantile of one length alone"
    yield Reason(
        rule="infeasible",
        outcome="fail",
        field=f"classes.{budget.request_class}.promises.{budget.basis}",
        value=budget.promise_s - budget.remaining_s,
        limit=budget.promise_s,
        next_action=f"{-budget.remaining_s:.3g} s too long; {way}; faster steps, shorter lengths, "
        "or a longer promise",
        request_class=budget.request_class,
    )


def tpot_broken(budget: ClassBudget, service: PoolService) -> Iterator[Reason]:
    """Find a TPOT promise that breaks at the class's rate."""
    if budget.tpot_s > budget.tpot_promise_s:
        alone = service.of(budget.request_class).tpot_alone_s > budget.tpot_promise_s
        yield Reason(
            rule="tpot",
            outcome="fail",
            field=f"classes.{budget.request_class}.promises.tpot_s",
            value=budget.tpot_s,
            limit=budget.tpot_promise_s,
            next_action="faster steps: one sequence alone breaks it" if alone else "more replicas",
            request_class=budget.request_class,
        )


def below_window(budget: ClassBudget) -> Iterator[Reason]:
    """Find a budget that is smaller than one batch window."""
    share = budget.shares_s["batch_window"]
    if share < budget.window_s * (1 - 1e-9):
        yield Reason(
            rule="below_batch_window",
            outcome="fail",
            field=f"pools.{budget.pool}.batching",
            value=share,
            limit=budget.window_s,
            next_action="a smaller window (queue delay, token budget), or a larger share for it",
            request_class=budget.request_class,
        )


def retries_exceed(c: RequestClass) -> Iterator[Reason]:
    """Find retries that cannot end within the deadline."""
    retry = c.retry
    stated = [p for p in (c.promises.deadline_s, c.promises.e2e_s) if p is not None]
    if retry.max_attempts == 1 or not stated:
        return
    field = f"classes.{c.name}.retry"
    if retry.attempt_timeout_s is None:
        yield Reason(
            rule="retries_without_timeout",
            outcome="unknown",
            field=f"{field}.attempt_timeout_s",
            limit=max(stated),
            next_action="state how long one attempt may take",
            request_class=c.name,
        )
        return
    waits = [retry.backoff_before(n) for n in range(1, retry.max_attempts + 1)]
    total = retry.max_attempts * retry.attempt_timeout_s + sum(waits)
    if total > max(stated):
        yield Reason(
            rule="retries_exceed_deadline",
            outcome="fail",
            field=f"{field}.max_attempts",
            value=total,
            limit=max(stated),
            next_action="fewer attempts, shorter timeouts, or shorter backoff",
            request_class=c.name,
        )


def overload(service: PoolService) -> Iterator[Reason]:
    """Find a pool whose requests arrive faster than it serves them: no queue length helps.

    The replicas of its start count. If an autoscaler may add enough, the finding is unknown.
    """
    if not service.overloaded:
        return
    needed = math.floor(service.rate_rps / service.replica_rps) + 1
    if needed > service.most_replicas:
        scaled = service.most_replicas > service.pool.replicas
        limit = "autoscaler.max_replicas" if scaled else "replicas"
        yield Reason(
            rule="overload",
            outcome="fail",
            field=f"pools.{service.pool.name}.{limit}",
            value=service.rate_rps,
            limit=service.most_replicas * service.replica_rps,
            next_action=f"at least {counted(needed, 'replica')}, or less load",
        )
        return
    yield Reason(
        rule="overload_until_scaled",
        outcome="unknown",
        field=f"pools.{service.pool.name}.replicas",
        value=service.rate_rps,
        limit=service.drain_rps,
        next_action=f"simulate: the autoscaler must reach {counted(needed, 'replica')}, and "
        "until then requests wait longer than the budget allows; or start with as many",
    )


def swaps(service: PoolService, scenario: Scenario) -> Iterator[Reason]:
    """Find models that do not fit together: the budget leaves loading out."""
    pool, asked = service.pool, {scenario.model_of(name) for name in service.by_class}
    held = sum(footprint_fraction(pool, entry) for entry in pool.models if entry.name in asked)
    if held > FULL:
        yield Reason(
            rule="swaps",
            outcome="unknown",
            field=f"pools.{pool.name}.models",
            value=held,
            limit=1.0,
            next_action="simulate, which includes loading; or smaller kv_fraction, or a pool each",
        )


def unlimited(scenario: Scenario, pools: Iterable[str]) -> Iterator[Reason]:
    """Find queues and numbers in flight without a limit."""
    fields: dict[str, object] = {"gateway.concurrency": scenario.gateway.concurrency}
    for name in pools:
        fields[f"pools.{name}.router.max_in_flight"] = scenario.pool(name).router.max_in_flight
        for queue in queues_of(scenario, name):
            if queue.holds:
                fields[f"{queue.path}.length"] = queue.queue.length
                idle = queue.queue.length == 0
                fields[f"{queue.path}.wait_limit_s"] = 0 if idle else queue.queue.wait_limit_s
    for field, value in fields.items():
        if value is None:
            yield Reason(
                rule="unlimited",
                outcome="fail",
                field=field,
                value="inf",
                next_action="set a limit, for example the budget's",
            )


def differs(
    scenario: Scenario,
    settings: Mapping[str, int | float],
    services: Mapping[str, PoolService],
) -> Iterator[Reason]:
    """Find limits that differ from the budget's; absent ones are :func:`unlimited`.

    A looser limit fails: it holds requests that are lost. A tighter one, which refuses requests
    that could be served in time, and another status or Retry-After are a retest. A limit on what is
    in flight that fills every replica refuses nothing: the queue in front of it holds the rest.
    """
    filled = {f"pools.{name}.router.max_in_flight": s.places for name, s in services.items()}
    filled["gateway.concurrency"] = sum(s.most_replicas * s.places for s in services.values())
    for path, derived in settings.items():
        stated = value_at(scenario, path)
        if (
            stated is None
            or same(stated, derived)
            or filled.get(path, math.inf) <= stated < derived
        ):
            continue
        answer = path.endswith((".status", ".retry_after_s"))
        yield Reason(
            rule="differs_from_budget",
            outcome="fail" if stated > derived and not answer else "retest",
            field=path,
            value=stated,
            limit=derived,
            next_action=f"set {path} to {derived:g}, or the promises to what this limit allows",
        )


def same(stated: float, derived: float) -> bool:
    """Return whether two limits are equal within the tolerance; counts within 1 as well."""
    whole = isinstance(stated, int) and isinstance(derived, int)
    allowed = max(TOLERANCE_FRACTION * abs(derived), 1.0 if whole else 0.0)
    return abs(stated - derived) <= allowed


def value_at(scenario: Scenario, path: str) -> Any:
    """Return the value at a dotted path; entries of lists go by name."""
    *_, (_, _, value) = _walk(scenario, path)
    return value


def changes(scenario: Scenario, settings: Mapping[str, int | float]) -> dict[str, int | float]:
    """Return the settings that a file must state to give the scenario all of them.

    Those that differ, and all of a part that the scenario does not state: the default of a part
    can differ from the defaults of its fields (a gateway's queue refuses with 429).
    """
    return {
        path: value
        for path, value in settings.items()
        if value_at(scenario, path) != value or not _part_is_stated(scenario, path)
    }


def _part_is_stated(scenario: Scenario, path: str) -> bool:
    steps = [(part, key) for part, key, _ in _walk(scenario, path) if isinstance(part, Part)]
    return all(key in part.model_fields_set for part, key in steps[:-1])


def _walk(scenario: Scenario, path: str) -> Iterator[tuple[Any, str, Any]]:
    """Yield each part on a dotted path, the key taken in it, and the value there."""
    part: Any = scenario
    for key in path.split("."):
        if isinstance(part, tuple):
            value = next(entry for entry in part if entry.name == key)
        else:
            value = getattr(part, key)
        yield part, key, value
        part = value
