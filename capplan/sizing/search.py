"""Search the fewest replicas that keep the promises under each loss."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from capplan.budget import resolved
from capplan.formatting import counted, does
from capplan.scenario import Scenario
from capplan.scenario.pools import Pool
from capplan.sizing.own import own_reason
from capplan.sizing.points import Evaluator, Loss, Point, Rejection
from capplan.sizing.result import Sizing
from capplan.sizing.rules import RuleOfThumb, rules_of_thumb
from capplan.sizing.table import capacity_table, margin_row, row_reasons
from capplan.traffic.draw import draw
from capplan.verdict import Reason, Verdict

if TYPE_CHECKING:
    from capplan.traffic.trace import Trace

N_MAX = 64
COST = "cost_usd_per_success"


def size(
    scenario: Scenario,
    *,
    lose: int | Sequence[int] = (0, 1),
    at_s: float | None = None,
    down_s: float | None = None,
    pool: str | None = None,
    seed: int = 0,
    replications: int = 1,
    traces: Sequence[Trace] | None = None,
    n_max: int = N_MAX,
    jobs: int = 1,
) -> Sizing:
    """Return the fewest replicas that keep every promise with some of them lost.

    Each number is simulated on the same drawn traces (common random numbers), so that two numbers
    differ only in their replicas. The search doubles until a number holds, then halves; it takes
    for granted that more replicas are never worse, and always simulates the number below the
    one it returns. A number holds if no promise of the pool's classes is broken; what is left open
    (too few samples, an interval that holds the limit) is in the verdict. A promise about cost
    does not steer the search, as more replicas only make it worse.

    Parameters
    ----------
    scenario
        The service; its traffic is drawn as it stands, whatever the number of replicas.
    lose
        How many replicas are lost; one number or several.
    at_s, down_s
        When they crash and for how long; ``at_s`` None = they are missing from the start.
    pool
        The pool that is sized; None = the primary one.
    seed, replications
        Name the drawn traces.
    traces
        One drawn trace per replication; None draws them.
    n_max
        Most replicas tried; fewer where the pool's ``resource_pool`` holds no more.
    jobs
        Processes that the replications run in; the result does not depend on it.

    Raises
    ------
    ValueError
        For counts that make no sense.
    """
    scenario = resolved(scenario)
    losses = _losses(lose, at_s=at_s, down_s=down_s)
    _check(replications=replications if traces is None else len(traces))
    drawn = list(traces or [draw(scenario, seed=seed, replication=i) for i in range(replications)])
    _check(n_max=n_max, least=losses[-1].count + 1)
    _check(jobs=jobs)
    target = scenario.pool(pool)
    n_max = int(min(n_max, max(most_replicas(scenario, target), losses[-1].count + 1)))
    workers = min(jobs, len(drawn))
    spawn = multiprocessing.get_context("spawn")
    with nullcontext() if workers == 1 else ProcessPoolExecutor(workers, spawn) as executor:
        evaluate = Evaluator(
            scenario=scenario, pool=target, traces=drawn, seed=seed, executor=executor
        )
        chosen = {one: _search(evaluate, one, target.replicas, n_max) for one in losses}
        rules = tuple(_tried(evaluate, losses, n_max, target, drawn[0]))
        costs = [evaluate(p.replicas, Loss(count=0)) for p in chosen.values() if p is not None]
        return _sizing(evaluate, n_max=n_max, chosen=chosen, rules=rules, costs=costs)


def most_replicas(scenario: Scenario, pool: Pool) -> float:
    """Return how many replicas of a pool its resource pool has room for; inf without one."""
    shared = next((r for r in scenario.resource_pools if r.name == pool.resource_pool), None)
    if shared is None:
        return math.inf
    others = [p for p in scenario.pools if p.resource_pool == shared.name and p.name != pool.name]
    taken = sum(p.accelerators_at_start for p in others)
    warm = 0 if pool.standby is None else pool.standby.replicas
    return (shared.accelerators - taken) // pool.accelerators_per_replica - warm


def _tried(
    evaluate: Evaluator, losses: Sequence[Loss], n_max: int, pool: Pool, trace: Trace
) -> Iterator[RuleOfThumb]:
    """Yield the rules of thumb, each with whether its number holds in simulation."""
    by_count = {lose.count: lose for lose in losses}
    for rule in rules_of_thumb(evaluate.scenario, pool, trace, lose=list(by_count)):
        if rule.replicas is None or rule.replicas > n_max:
            yield rule
            continue
        found = evaluate(rule.replicas, by_count[rule.lose])
        yield replace(rule, holds=isinstance(found, Point) and found.holds)


def _losses(
    lose: int | Sequence[int], *, at_s: float | None, down_s: float | None
) -> tuple[Loss, ...]:
    counts = sorted({lose} if isinstance(lose, int) else set(lose))
    if not counts or counts[0] < 0:
        msg = f"lose must name counts of at least 0, got {lose}"
        raise ValueError(msg)
    return tuple(Loss(count=n, at_s=at_s, down_s=down_s) if n else Loss(count=0) for n in counts)


def _check(*, least: int = 1, **counts: int) -> None:
    for name, value in counts.items():
        if value < least:
            msg = f"{name} must be at least {least}, got {value}"
            raise ValueError(msg)


def _search(evaluate: Evaluator, lose: Loss, start: int, n_max: int) -> Point | None:
    """Return the point of the fewest replicas that hold, None if none does."""
    least = lose.count + 1
    low, high = least - 1, min(max(start, least), n_max)
    found = evaluate(high, lose)
    while not (isinstance(found, Point) and found.holds):
        if high == n_max:
            return None
        low, high = high, min(2 * high, n_max)
        found = evaluate(high, lose)
    while high - low > 1:
        middle = (low + high) // 2
        point = evaluate(middle, lose)
        if isinstance(point, Point) and point.holds:
            high, found = middle, point
        else:
            low = middle
    return found


def _sizing(
    evaluate: Evaluator,
    *,
    n_max: int,
    chosen: Mapping[Loss, Point | None],
    rules: tuple[RuleOfThumb, ...],
    costs: Sequence[Point | Rejection],
) -> Sizing:
    scenario, pool, losses = evaluate.scenario, evaluate.pool, list(chosen)
    points = tuple(evaluate.points.values())
    rejected = [p.rejection() for p in points if not p.holds and p.lose in chosen]
    rejected += [r for one in losses if isinstance(r := evaluate(one.count, one), Rejection)]
    normal, lossy = _tabled(evaluate, chosen)
    margin = [margin_row(scenario, pool, one, point) for one, point in chosen.items()]
    reasons = [_margin_reason(pool, n_max, lose, point) for lose, point in chosen.items()]
    table = capacity_table(
        scenario, pool, normal, lossy, lost=losses[-1].count > 0, seed=evaluate.seed
    )
    reasons += [own_reason(evaluate(pool.replicas, one), pool, p) for one, p in chosen.items()]
    reasons += row_reasons(table)
    reasons += _left_open([p for p in chosen.values() if p is not None], costs)
    return Sizing(
        scenario=scenario,
        pool=pool.name,
        n_max=n_max,
        chosen=chosen,
        rejected=tuple(sorted(rejected, key=lambda r: (r.lose.count, r.replicas))),
        rules=rules,
        points=points,
        capacity_table=table,
        failure_margin=pd.DataFrame(margin),
        verdict=Verdict(reasons=tuple(reasons), scope=points[-1].verdict.scope),
    )


def _tabled(
    evaluate: Evaluator, chosen: Mapping[Loss, Point | None]
) -> tuple[Point | None, Point | None]:
    """Return the points of the capacity table: with nothing lost, and with the most lost.

    Both have the scenario's own replicas if these suffice, else the fewest that do.
    """
    most = max(chosen, key=lambda lose: lose.count)
    lossy = _own_or(evaluate, chosen[most], most)
    none_lost = Loss(count=0)
    fewest = chosen.get(none_lost, lossy)
    return _own_or(evaluate, fewest, none_lost), lossy if most.count else None


def _own_or(evaluate: Evaluator, fewest: Point | None, lose: Loss) -> Point | None:
    """Return the point of the scenario's own replicas if it holds, else of the fewest that do."""
    if fewest is None:
        return None
    own = evaluate(max(evaluate.pool.replicas, fewest.replicas), lose)
    return own if isinstance(own, Point) and own.holds else fewest


def _margin_reason(pool: Pool, n_max: int, lose: Loss, point: Point | None) -> Reason:
    if point is None:
        return Reason(
            rule="failure_margin",
            outcome="fail",
            limit=n_max,
            evidence=f"no number of {pool.name} replicas up to {n_max} keeps the promises, {lose}",
            next_action="see the rejections: a limit in front of the pool may be what breaks them"
            + (f", or resource pool {pool.resource_pool} too small" if pool.resource_pool else ""),
        )
    if point.open:
        first = point.open[0]
        return Reason(
            rule="failure_margin",
            outcome="unknown",
            limit=n_max,
            evidence=f"{counted(point.replicas, f'{pool.name} replica')} "
            f"{does(point.replicas, 'breaks', 'break')} no promise, {lose}, but "
            f"{first.request_class or 'the run'} is not shown to keep {first.rule}: "
            f"{first.evidence}",
            next_action=first.next_action,
        )
    return Reason(
        rule="failure_margin",
        outcome="pass",
        value=point.replicas,
        limit=n_max,
        evidence=f"{counted(point.replicas, f'{pool.name} replica')} "
        f"{does(point.replicas, 'keeps', 'keep')} the promises, {lose} "
        f"(the scenario has {pool.replicas})",
    )


def _left_open(points: Sequence[Point], costs: Sequence[Point | Rejection]) -> list[Reason]:
    """Return what the chosen points' verdicts say beside pass, each rule and class once.

    What a success costs is judged with every replica there: the lost ones are paid for too.
    """
    found: dict[tuple[str, str | None], Reason] = {}
    paid = [point for point in costs if isinstance(point, Point)]
    for point, about_cost in [(p, False) for p in points] + [(p, True) for p in paid]:
        for reason in point.verdict.reasons:
            if reason.outcome != "pass" and (reason.rule == COST) == about_cost:
                found.setdefault((reason.rule, reason.request_class), reason)
    return list(found.values())
