"""The capacity table: operating limits, each with its protective action and its evidence."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from capplan.catalog import accelerator
from capplan.display import once
from capplan.formatting import counted, rule_words
from capplan.results import pool_cost_usd_per_hour
from capplan.results.cost import served_by
from capplan.scenario import Scenario
from capplan.scenario.breaker_rules import placements
from capplan.scenario.classes import Promises
from capplan.scenario.files import with_values
from capplan.scenario.layers import Queue
from capplan.scenario.pools import Pool
from capplan.sizing.points import Loss, Point
from capplan.stages.protection import ProtectiveAction, protections
from capplan.stages.run_load import loads_of
from capplan.stages.stage import Stage
from capplan.stages.stage_kinds import burst

ROWS = ("stable load", "acceptable peak", "burst protection", "failure degradation")
COLUMNS = (
    "row",
    "class_group",
    "load_rps",
    "replicas",
    "accelerators",
    "memory_bytes",
    "promises",
    "protective_action",
    "evidence",
)
PROMISED = tuple(n for n in Promises.model_fields if n not in ("origins", "min_samples"))


def capacity_table(
    scenario: Scenario, pool: Pool, normal: Point | None, lossy: Point | None, *, seed: int
) -> pd.DataFrame:
    """Return the capacity table (columns ``COLUMNS``), one row for each of ``ROWS``.

    ``normal`` is the chosen point with nothing lost, ``lossy`` the one with the most lost. A limit
    that the runs did not measure has NaN as its load, and the reason as its evidence.
    """
    group = ", ".join(served_by(scenario, pool))
    stated = {
        c.name: {n: getattr(c.promises, n) for n in PROMISED if getattr(c.promises, n) is not None}
        for c in map(scenario.request_class, served_by(scenario, pool))
    }
    entries = (
        (ROWS[0], normal, *_stable(normal)),
        (ROWS[1], normal, *_peak(normal, scenario)),
        (ROWS[2], normal, *_burst(scenario, pool, normal, seed=seed)),
        (ROWS[3], lossy, *_degraded(lossy)),
    )
    rows = [
        {
            "row": row,
            "class_group": group,
            "load_rps": load,
            **_size(pool, point),
            "promises": stated,
            "protective_action": protective_action(scenario, pool),
            "evidence": evidence,
        }
        for row, point, load, evidence in entries
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def limit_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the capacity table as it is shown: what a row limits, where, and what protects it."""
    shown = ["row", "class_group", "load_rps", "replicas", "protective_action", "evidence"]
    table = rows.reindex(columns=shown)
    return table.assign(
        load_rps=pd.to_numeric(table["load_rps"]),
        protective_action=once(table["protective_action"]),
    )


def _stable(point: Point | None) -> tuple[float, str]:
    if point is None or point.open:
        return math.nan, _not_shown(point)
    return point.mean_rps, f"simulated: {_kept(point)} at this mean rate, {_samples(point)}"


def _peak(point: Point | None, scenario: Scenario) -> tuple[float, str]:
    """Return the busiest minute's rate, if its own requests kept the promises."""
    if point is None or point.open:
        return math.nan, _not_shown(point)
    promises = [scenario.request_class(name).promises for name in point.classes]
    least = min(p.goodput_fraction or p.quantile for p in promises)
    share = point.peak_good_fraction
    if not share >= least:
        known = "unknown" if math.isnan(share) else f"{share:.2%}"
        return math.nan, f"not shown: {known} of the busiest minute's requests are good"
    text = f"simulated: {share:.2%} of the busiest minute's requests are good, {_samples(point)}"
    return point.peak_rps, text


def _burst(scenario: Scenario, pool: Pool, point: Point | None, *, seed: int) -> tuple[float, str]:
    """Return the load of the plan's bursts, if a pool of the point's replicas gets through them.

    Their load, length and distance are those of ``scenario.stages``. The promises of classes that
    may be shed are not asked for.
    """
    if point is None or point.open:
        return math.nan, "not measured: no number of replicas is shown"
    if scenario.traffic.shape.kind == "closed":
        return math.nan, "not measured: users who wait for their answers bring no burst"
    sized = with_values(scenario, {f"pools.{pool.name}.replicas": point.replicas})
    loads = loads_of(sized, seed=seed)
    stage = burst(sized, loads, seed=seed)
    firm = [b for b in stage.breaks if _is_firm(sized, pool, b.request_class)]
    thin = [r for r in stage.thin if r.request_class in point.classes]
    what = _burst_run(stage)
    if firm:
        first = firm[0]
        broken = f"{first.request_class} breaks {rule_words(first.promise)}"
        return math.nan, f"not shown: {broken} for {first.share.value:.2%}; {what}"
    if thin:
        few = f"no promise broken, but too few to judge {thin[0].rule}"
        return math.nan, f"not shown: {few}; {what}"
    share = sum(loads.share.get(name, 0.0) for name in point.classes)
    evidence = f"simulated: no promise broken of a class that may not be shed, in {what}"
    return share * stage.load_rps, evidence


def _is_firm(scenario: Scenario, pool: Pool, name: str) -> bool:
    return name in served_by(scenario, pool) and not scenario.request_class(name).sheddable


def _burst_run(stage: Stage) -> str:
    """Return what the bursts were, and which limits acted in them."""
    acted = [p for p in protections(stage.scenario, [stage]) if p.acted]
    limits = ", ".join(_acting(p) for p in acted if p.boundary.layer != "caller")
    requests = counted(len(stage.table), "request")
    return f"{stage.note}, {requests} (run {stage.run_id}); {limits or 'no limit acted'}"


def _acting(limit: ProtectiveAction) -> str:
    opened = f" (opened {counted(limit.opened, 'time')})" if limit.opened else ""
    return f"{limit.boundary.field}{opened} acted on {counted(limit.count, 'attempt')}"


def _degraded(point: Point | None) -> tuple[float, str]:
    if point is None:
        return math.nan, "not measured: no loss was asked for, or no number holds under it"
    if point.open:
        return math.nan, _not_shown(point)
    return point.mean_rps, f"simulated: {_kept(point)} with {point.lose}, {_samples(point)}"


def _not_shown(point: Point | None) -> str:
    if point is None:
        return "not measured: a size with none lost was not asked for, or none holds"
    return (
        f"not shown: no promise broken at {point.replicas} with {point.lose}, "
        f"but {_samples(point)} are too few to judge {point.open[0].rule}"
    )


def _kept(point: Point) -> str:
    outcome = point.verdict.outcome
    return "every promise kept" if outcome == "pass" else f"no promise broken ({outcome})"


def _samples(point: Point) -> str:
    return counted(int(point.figures["offered"].sum()), "request")


def _size(pool: Pool, point: Point | None) -> dict[str, float | None]:
    if point is None or point.open:
        return {"replicas": None, "accelerators": None, "memory_bytes": math.nan}
    count = point.replicas * pool.accelerators_per_replica
    memory = math.nan if pool.accelerator is None else accelerator(pool.accelerator).memory_bytes
    return {"replicas": point.replicas, "accelerators": count, "memory_bytes": count * memory}


def protective_action(scenario: Scenario, pool: Pool) -> str:
    """Return what protects a pool, in words: each limit and what happens at it."""
    gateway = scenario.gateway
    parts = [f"gateway: {limit.action}" for limit in gateway.limits() if limit.is_set]
    if gateway.concurrency is not None:
        parts.append(f"gateway: {gateway.concurrency:,} open at once, then {_queue(gateway.queue)}")
    parts.append(f"{pool.name} service queue: {_queue(pool.queue)}")
    parts.append(f"{pool.name} scheduler queue: {_queue(pool.batching.scheduler)}")
    return "; ".join([*parts, *_by_itself(scenario, pool)])


def _by_itself(scenario: Scenario, pool: Pool) -> list[str]:
    """Return what breakers and the autoscaler do for a pool, in words."""
    parts = [
        f"breaker {rule.name}: {rule.limit().action}"
        for rule, own, wrong in placements(scenario.breakers, scenario.pools)
        if own.name == pool.name and wrong is None
    ]
    if (scaler := pool.autoscaler) is not None:
        most = counted(scaler.max_replicas, "replica")
        parts.append(f"{pool.name} autoscaler: {scaler.min_replicas} to {most}")
    if (standby := pool.standby) is not None:
        parts.append(f"{pool.name} standby: {counted(standby.replicas, 'replica')}")
    return parts


def _queue(queue: Queue) -> str:
    limits = []
    if queue.length is not None:
        limits.append(f"{queue.status} beyond {queue.length} waiting")
    if queue.wait_limit_s is not None:
        limits.append(f"timeout after {queue.wait_limit_s:g} s")
    return " and ".join(limits) or "no limit"


def margin_row(scenario: Scenario, pool: Pool, lose: Loss, point: Point | None) -> dict[str, Any]:
    """Return one row of the failure margin: what surviving a loss takes, and which classes pay."""
    names = served_by(scenario, pool)
    shown = point if point is not None and not point.open else None
    hour = sum(
        pool_cost_usd_per_hour(
            other
            if other.name != pool.name
            else pool.model_copy(update={"replicas": shown.replicas if shown else 1})
        )
        for other in scenario.pools
    )
    return {
        "lose": {"kind": lose.kind, "count": lose.count},
        "replicas": shown.replicas if shown else None,
        "protected": [n for n in names if point and n in point.kept],
        "shed": [n for n in names if not point or n not in point.kept],
        "recovery_s": 0.0 if lose.count == 0 else math.nan,
        "cost_usd_per_hour": hour if shown else math.nan,
    }
