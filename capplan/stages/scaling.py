"""Rules on replicas that come and go: whether a recovery rests on them, and on enough of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.formatting import counted
from capplan.results.replica_lifecycle import lead_times
from capplan.results.scaling import scaling_findings
from capplan.stages.protection import protections
from capplan.verdict import Reason, checked, unknown

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.stages.recovery import Recovery
    from capplan.stages.stage import Stage

READINESS_SAMPLES = 10
"""Replicas that must have become ready for a recovery by scale-out to prove much; a default."""
READINGS = 4
"""Readings of its metrics that an autoscaler needs to see that the load has ended; a default."""
FIXED = "no pool's number of replicas changes by itself"
"""Why rules on replicas that come and go do not apply."""


def scales(scenario: Scenario) -> bool:
    """Return whether any pool's number of replicas changes by itself."""
    return any(pool.is_elastic for pool in scenario.pools)


def release_s(pool: Pool) -> float:
    """Return how long after an overload a pool may keep what it added, s; 0 for a fixed one.

    Its stabilisation window or cool-down, a few readings of its metrics, and the grace period.
    """
    rules = pool.autoscaler
    if rules is None:
        return 0.0
    window = rules.behavior.scale_down.stabilization_window_s
    if rules.event_driven is not None:
        window = max(window, rules.event_driven.cooldown_s)
    readings = READINGS * (rules.sync_period_s + rules.scrape_interval_s) + rules.metric_lag_s
    grace = 0.0 if pool.lifecycle is None else pool.lifecycle.grace_period_s
    return window + readings + grace


def fall_back_s(scenario: Scenario) -> float:
    """Return how long after an overload a service may take to come back, s.

    It is the plan's ``fall_back_s``, and what pools that scale need to release what they added.
    """
    return scenario.stages.fall_back_s + max(map(release_s, scenario.pools))


def replica_counts(run: RunResult) -> pd.Series:
    """Return how many replicas of all pools were in service over time; empty if not measured."""
    rows = run.timeline
    rows = rows[rows["metric"] == "replicas"]
    counts: pd.Series = rows.groupby("time_s")["value"].sum()
    return counts


def added(run: RunResult) -> float:
    """Return how many replicas became ready on request; NaN if not measured.

    Without the phases of replicas in the timeline, it is by how much their number rose.
    """
    if (run.timeline["metric"] == "phase").any():
        return float(len(lead_times(run)))
    counts = replica_counts(run)
    if counts.empty:
        return np.nan
    return float(np.maximum(np.diff(counts.to_numpy(np.float64)), 0).sum())


def finding_reasons(stages: Sequence[Stage]) -> Iterator[Reason]:
    """Yield what is wrong with how pools scale: each rule and pool once, in the first stage.

    A resource pool that is empty is no fault of the scaling as long as no promise breaks.
    """
    seen: set[tuple[str, str]] = set()
    for stage in stages:
        for found in scaling_findings(stage.run) if scales(stage.scenario) else ():
            if (found.rule, found.pool) in seen:
                continue
            harmless = found.rule == "resource_pool_empty" and not stage.broken
            if harmless:
                continue
            seen.add((found.rule, found.pool))
            where = f"{found.pool}, in {stage.name} (run {stage.run_id})"
            yield replace(
                found,
                evidence=f"{where}: {found.evidence}",
                next_action=f"{found.field}: {found.next_action}",
            )


def planned_supply(scenario: Scenario, pool: Pool) -> str | None:
    """Return the owned resource pool that holds the most replicas of a pool; None without one.

    It must hold those of the pools that share it, each at its own most.
    """
    shared = next((r for r in scenario.resource_pools if r.name == pool.resource_pool), None)
    if shared is None or not shared.owner:
        return None
    own = [p for p in scenario.pools if p.resource_pool == shared.name]
    needed = sum(p.most_replicas * p.accelerators_per_replica for p in own)
    return shared.name if needed <= shared.accelerators else None


def readiness(rule: str, runs: Iterable[RunResult], evidence: str, *, rests: bool) -> Reason:
    """Return *retest* if something rests on replicas of which too few became ready in the runs."""
    total = float(np.nansum([added(run) for run in runs]))
    few = rests and total < READINESS_SAMPLES
    return Reason(
        rule=rule,
        outcome="retest" if few else "pass",
        value=total,
        limit=READINESS_SAMPLES,
        evidence=f"{evidence}; {counted(total, 'replica')} became ready in all stages",
        next_action="repeat exactly the scale-out until enough replicas became ready",
        origin="default",
    )


def scaling_reasons(stage: Stage, recovery: Recovery, every: Sequence[Stage]) -> Iterator[Reason]:
    """Yield what a recovery after an overload owes to replicas that were added.

    ``stage`` is the overload and its fall-back, ``every`` the stages whose scale-outs count as
    samples. No rule applies to a scenario whose replicas are fixed. A recovery by new replicas
    alone fails, unless an owned resource pool holds their accelerators.
    """
    scenario = stage.scenario
    if not scales(scenario):
        return
    came = added(stage.run)
    if np.isnan(came):
        for rule in ("recovery_by_scale_out", "protective_action"):
            yield unknown(rule, "the timeline has no number of replicas")
        return
    acted = [p for p in protections(scenario, [stage]) if p.acted]
    limits = [p.boundary.field for p in acted if p.boundary.layer != "caller"]
    rests = came > 0 and recovery.converged and not limits
    text = f"{counted(came, 'replica')} became ready in the overload and after it; the recovery "
    text += "rests on them alone" if rests else "has other reasons"
    runs = {s.run_id: s.run for s in (*every, stage)}
    yield readiness("recovery_by_scale_out", runs.values(), text, rests=rests)
    supplies = [planned_supply(scenario, p) for p in scenario.pools if p.is_elastic]
    planned = bool(supplies) and None not in supplies
    evidence = f"acted in the overload: {', '.join(limits) or 'nothing'}; "
    evidence += f"{counted(came, 'replica')} came"
    if rests and planned:
        evidence = f"it recovers by replicas that {', '.join(filter(None, supplies))} holds"
    elif rests:
        evidence = "it recovers by new accelerators alone: that is no protective action"
    yield checked(
        "protective_action",
        planned or not rests,
        value=len(limits),
        evidence=evidence,
        next_action="set the limit that refuses what the running replicas cannot serve, or agree "
        "on a resource pool, with an owner, that holds the new ones",
    )
