"""Rules on replicas that come and go: whether a recovery rests on them, and on enough of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.slo import Outcome, Reason
from capplan.stages.protection import protections

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Pool, Scenario
    from capplan.stages.recovery import Recovery
    from capplan.stages.stage import Stage

READINESS_SAMPLES = 10
"""Replicas that must have become ready for a recovery by scale-out to prove much; a default."""
FIXED = "no pool's number of replicas changes by itself"
"""Why rules on replicas that come and go say nothing of a scenario."""


def scales(scenario: Scenario) -> bool:
    """Return whether any pool's number of replicas changes by itself."""
    return any(pool_scales(pool) for pool in scenario.pools)


def pool_scales(pool: Pool) -> bool:
    """Return whether a pool's number of replicas changes by itself."""
    return getattr(pool, "autoscaler", None) is not None


def replica_counts(run: RunResult) -> pd.Series:
    """Return how many replicas of all pools were in service over time; empty if nobody tells."""
    rows = run.timeline
    rows = rows[rows["metric"] == "replicas"]
    counts: pd.Series = rows.groupby("time_s")["value"].sum()
    return counts


def added(run: RunResult, start_s: float = -np.inf, end_s: float = np.inf) -> float:
    """Return how many replicas came into service between two moments; NaN if nobody tells."""
    counts = replica_counts(run)
    if counts.empty:
        return np.nan
    counts = counts[(counts.index >= start_s) & (counts.index <= end_s)]
    return float(np.maximum(np.diff(counts.to_numpy(np.float64)), 0).sum())


def scaling_reasons(stage: Stage, recovery: Recovery, every: Sequence[Stage]) -> Iterator[Reason]:
    """Yield what a recovery after an overload owes to replicas that were added.

    ``stage`` is the overload and its fall-back, ``every`` the stages whose scale-outs count as
    samples. Nothing is said of a scenario whose replicas are fixed.
    """
    if not scales(stage.scenario):
        return
    came = added(stage.run)
    if np.isnan(came):
        for rule in ("recovery_by_scale_out", "protective_action"):
            yield _untold(rule)
        return
    acted = [p for p in protections(stage.scenario, [stage]) if p.acted]
    limits = [p.boundary.field for p in acted if p.boundary.layer != "caller"]
    rests = came > 0 and recovery.converged and not limits
    yield _samples(stage, every, came=came, rests=rests)
    yield _reason(
        "protective_action",
        "fail" if rests else "pass",
        value=len(limits),
        evidence="it recovers by new accelerators alone: that is no protective action"
        if rests
        else f"acted in the overload: {', '.join(limits) or 'nothing'}; {came:g} replicas came",
        action="set the limit that refuses what the running replicas cannot serve",
    )


def _samples(stage: Stage, every: Sequence[Stage], *, came: float, rests: bool) -> Reason:
    runs = {s.run_id: s.run for s in (*every, stage)}
    total = float(np.nansum([added(run) for run in runs.values()]))
    few = rests and total < READINESS_SAMPLES
    told = f"{came:g} replicas became ready in the overload and after it, {total:g} in all stages"
    return _reason(
        "recovery_by_scale_out",
        "retest" if few else "pass",
        value=total,
        evidence=f"{told}; the recovery {'rests on them alone' if rests else 'has other reasons'}",
        action="repeat exactly the scale-out until enough replicas became ready",
        limit=READINESS_SAMPLES,
    )


def _reason(
    rule: str,
    outcome: Outcome,
    *,
    value: float,
    evidence: str,
    action: str,
    limit: float | None = None,
) -> Reason:
    return Reason(
        rule=rule,
        outcome=outcome,
        value=value,
        limit=limit,
        evidence=evidence,
        next_action="" if outcome == "pass" else action,
        origin=None if limit is None else "default",
    )


def _untold(rule: str) -> Reason:
    return Reason(
        rule=rule,
        outcome="unknown",
        value=None,
        limit=None,
        evidence="the timeline tells no number of replicas",
        next_action="measure it",
    )
