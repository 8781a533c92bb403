"""Search the fewest replicas that keep the promises under each loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from capplan.budget import allocate, resolved
from capplan.evidence import Inputs, TraceIdentity
from capplan.progress import work
from capplan.replica.step_error import known_error
from capplan.scenario import Scenario
from capplan.scenario.pools import Pool
from capplan.sizing.fewest import WithinError, fewest_by_loss, within_error
from capplan.sizing.loss import Loss
from capplan.sizing.points import Evaluator, Point, Rejection
from capplan.sizing.reasons import left_open, margin_reason, own_reason
from capplan.sizing.result import Sizing
from capplan.sizing.rules import RuleOfThumb, rules_of_thumb
from capplan.sizing.table import capacity_table, margin_row, row_reasons
from capplan.stages.failure_stage import replacement_s
from capplan.traffic.draw import draw
from capplan.verdict import Verdict
from capplan.workers import worker_pool

if TYPE_CHECKING:
    from capplan.traffic.trace import Trace

N_MAX = 64


def size(
    scenario: Scenario,
    *,
    lose: int | Iterable[int] = (0, 1),
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
    differ only in their replicas. Lost replicas crash in the run. The search doubles until a number
    holds, then halves; it takes for granted that more replicas are never worse and that a greater
    loss never needs fewer, and always simulates the number below the one it returns. A number
    holds if no promise of the pool's classes is broken, over the run and in the part around the
    loss; what is left open (too few samples, an interval that holds the limit) is in the verdict.
    A promise about cost does not steer the search, as more replicas only make it worse; nor does
    one that requests beyond ``max_model_len`` break, which no replica serves.

    Parameters
    ----------
    scenario
        The service; its traffic is drawn as it stands, whatever the number of replicas.
    lose
        How many replicas are lost; one number or several.
    at_s, down_s
        When they crash and for how long; None = at the start of the busiest stretch of that
        length, until a replacement is warm (:func:`capplan.stages.failure_stage.replacement_s`).
    pool
        The pool that is sized; None = the primary one. Its autoscaler does not act.
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
    stated_scenario, scenario = scenario, resolved(scenario)
    target = scenario.pool(pool)
    away_s, stated = replacement_s(scenario, target)
    if down_s is not None:
        away_s, stated = down_s, "down_s"
    losses = _losses(lose, at_s=at_s, down_s=away_s)
    _check(replications=replications if traces is None else len(traces))
    drawn = list(traces or [draw(scenario, seed=seed, replication=i) for i in range(replications)])
    _check(n_max=n_max, least=losses[-1].count + 1)
    _check(jobs=jobs)
    asked = {
        "lose": [one.count for one in losses],
        "pool": pool,
        "replications": len(drawn),
        "most": n_max,
        **{k: v for k, v in {"at_s": at_s, "down_s": down_s}.items() if v is not None},
    }
    inputs = Inputs(
        kind="size",
        scenario=stated_scenario,
        seed=seed,
        trace=TraceIdentity.of(drawn[0]),
        asked=asked,
    )
    n_max = int(min(n_max, max(most_replicas(scenario, target), losses[-1].count + 1)))
    workers = min(jobs, len(drawn))
    pool_of_workers = nullcontext() if workers == 1 else worker_pool(workers)
    with work("", total=4 * len(losses), guessed=True) as under_way, pool_of_workers as executor:
        evaluate = Evaluator(
            scenario=scenario,
            pool=target,
            traces=drawn,
            seed=seed,
            executor=executor,
            budget=allocate(scenario, trace=drawn[0]),
            under_way=under_way,
        )
        chosen = fewest_by_loss(evaluate, losses, n_max)
        within = within_error(evaluate, chosen, n_max)
        rules = tuple(_tried(evaluate, chosen))
        notes = tuple(_notes(target, losses, stated))
        return _sizing(
            evaluate,
            n_max=n_max,
            chosen=chosen,
            within=within,
            rules=rules,
            inputs=inputs,
            notes=notes,
        )


def _notes(pool: Pool, losses: Sequence[Loss], stated: str) -> Iterator[str]:
    """Yield what the runs of a sizing rest on, beside the scenario."""
    lossy = [one for one in losses if one.count]
    if lossy and lossy[0].down_s is None:
        yield f"Lost replicas of {pool.name} stay away to the end of the run ({stated} is stated)."
    elif lossy:
        yield f"Lost replicas of {pool.name} are back after {lossy[0].down_s:.4g} s ({stated})."
    if pool.autoscaler is not None:
        yield f"The autoscaler of {pool.name} does not act in these runs: each holds its number."
    if known_error(pool) is None:
        yield (
            f"How many replicas of {pool.name} are needed within the error of step times is "
            "unknown, as that error is (step_time.error_fraction states it)."
        )


def most_replicas(scenario: Scenario, pool: Pool) -> float:
    """Return how many replicas of a pool its resource pool has room for; inf without one."""
    shared = next((r for r in scenario.resource_pools if r.name == pool.resource_pool), None)
    if shared is None:
        return math.inf
    others = [p for p in scenario.pools if p.resource_pool == shared.name and p.name != pool.name]
    taken = sum(p.accelerators_at_start for p in others)
    warm = 0 if pool.standby is None else pool.standby.replicas
    return (shared.accelerators - taken) // pool.accelerators_per_replica - warm


def _tried(evaluate: Evaluator, chosen: Iterable[Loss]) -> Iterator[RuleOfThumb]:
    """Yield the rules of thumb; whether a number holds is known if the search simulated it."""
    by_count = {lose.count: lose for lose in chosen}
    rules = rules_of_thumb(
        evaluate.scenario,
        evaluate.pool,
        evaluate.traces[0],
        lose=[*by_count],
        budget=evaluate.budget,
    )
    for rule in rules:
        point = evaluate.points.get((rule.replicas or 0, by_count[rule.lose]))
        if rule.replicas is not None and rule.replicas <= rule.lose:
            yield replace(rule, holds=False)
        else:
            yield rule if point is None or point.open else replace(rule, holds=point.holds)


def _losses(
    lose: int | Iterable[int], *, at_s: float | None, down_s: float | None
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


def _sizing(
    evaluate: Evaluator,
    *,
    n_max: int,
    chosen: Mapping[Loss, Point | None],
    within: WithinError | None,
    rules: tuple[RuleOfThumb, ...],
    inputs: Inputs,
    notes: tuple[str, ...],
) -> Sizing:
    scenario, pool, losses = evaluate.scenario, evaluate.pool, list(chosen)
    points = tuple(evaluate.points.values())
    rejected = [p.rejection() for p in points if not p.holds and p.lose in chosen]
    rejected += [r for one in losses if isinstance(r := evaluate(one.count, one), Rejection)]
    normal, lossy = _tabled(evaluate, chosen)
    margin = [margin_row(evaluate, one, point) for one, point in chosen.items()]
    reasons = [margin_reason(evaluate, n_max, lose, point) for lose, point in chosen.items()]
    table = capacity_table(
        scenario,
        pool,
        normal,
        lossy,
        lost=losses[-1].count > 0,
        outages=evaluate.outages(losses[-1]),
        seed=evaluate.seed,
    )
    alone = evaluate(pool.replicas, Loss(count=0))
    for one, point in chosen.items():  # what fails without a loss is not tried with one
        own = evaluate(pool.replicas, one) if _holds(alone) else alone
        reasons.append(own_reason(own, pool, point, one, within=within))
    reasons += row_reasons(table)
    shown = [p for p in (normal, lossy, *chosen.values()) if p is not None]
    reasons += left_open(p for p in shown if p.replicas == shown[0].replicas)
    return Sizing(
        inputs=inputs,
        scenario=scenario,
        pool=pool.name,
        n_max=n_max,
        chosen=chosen,
        within=within,
        rejected=tuple(sorted(rejected, key=lambda r: (r.lose.count, r.replicas))),
        rules=rules,
        points=points,
        capacity_table=table,
        failure_margin=pd.DataFrame(margin),
        outages={one.count: tuple(evaluate.outages(one)) for one in losses},
        cause=evaluate.cause_words,
        notes=notes,
        verdict=Verdict(reasons=tuple(reasons), scope=points[-1].verdict.scope),
    )


def _tabled(
    evaluate: Evaluator, chosen: Mapping[Loss, Point | None]
) -> tuple[Point | None, Point | None]:
    """Return the points of the capacity table: with nothing lost, and with the most lost.

    Both have the same number of replicas: the scenario's own if it suffices for every loss, else
    the fewest that do. Without a number for the most lost, those for nothing lost.
    """
    none_lost, most = Loss(count=0), max(chosen, key=lambda lose: lose.count)
    own = evaluate.pool.replicas
    fewest = [point.replicas for point in chosen.values() if point is not None]
    if not fewest:
        return None, None
    replicas = max(fewest)
    if own > replicas and all(_holds(evaluate(own, lose)) for lose in chosen):
        replicas = own
    lossy = None if chosen[most] is None else evaluate.point(replicas, most)
    return evaluate.point(replicas, none_lost), lossy if most.count else None


def _holds(found: Point | Rejection) -> bool:
    return isinstance(found, Point) and found.holds
