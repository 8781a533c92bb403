"""Faults of a pool's scaling: flapping, targets out of reach, empty resource pools."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.formatting import counted, rule_words
from capplan.results.replica_lifecycle import lead_times, lifecycle_table, wanted_changes
from capplan.scenario import Scenario
from capplan.scenario.autoscaling import ScalingMetric
from capplan.scenario.pools import Pool
from capplan.statistics import quantiles
from capplan.verdict import Reason

if TYPE_CHECKING:
    from capplan.results.run import RunResult

FULL_FRACTION = 0.95
"""Busy share of the time above which replicas are saturated; a default."""
OUTPUT_RATES = ("output_tokens_per_s", "prefill_tokens_per_s")
LIMITED_BY = {"kv_usage_fraction": "running", "running": "kv_usage_fraction"}
"""Metrics of a replica that stop growing when another one is full: batch and KV memory."""


FINDING_KEYS = ("rule", "pool", "field", "value", "limit", "evidence", "next_action")
"""The parts of a finding that the headline has."""
KEEP_SMALL = ("target_out_of_reach", "rate_flat_at_saturation", "resource_pool_empty")
"""Findings that keep a pool from getting the replicas it needs."""


def scaling_findings(result: RunResult) -> list[Reason]:
    """Return the findings about the scaling of each pool, in the scenario and in the run."""
    found = out_of_reach(result.scenario)
    table = lifecycle_table(result)
    for pool in result.scenario.pools:
        own = table[table["pool"] == pool.name]
        if pool.autoscaler is not None:
            found += _flapping(result, pool, own)
            found += _flat_rates(result, pool)
            found += _held_below_target(result, pool)
        found += _without_accelerator(result, pool, own)
    return found


def scaling_summary(result: RunResult) -> dict[str, dict[str, Any]]:
    """Return the figures of each elastic pool, by its name.

    ``asked`` and ``refused`` replicas; ``turns`` of the wanted number; ``ready_s`` and
    ``first_answer_s`` from the request (median, 95th percentile, number of samples).
    """
    table = lifecycle_table(result)
    summary: dict[str, dict[str, Any]] = {}
    for pool in result.scenario.pools:
        if not pool.is_elastic:
            continue
        own = table[table["pool"] == pool.name]
        leads = lead_times(result, pool=pool.name)
        summary[pool.name] = {
            "asked": int(own["asked_s"].notna().sum()),
            "refused": int(own["refused"].sum()),
            "became_ready": len(leads),
            "turns": len(turns(wanted_changes(result, pool.name))),
            "ready_s": _quantiles(leads["ready_s"]),
            "first_answer_s": _quantiles(leads["first_answer_s"]),
        }
    return summary


def scaling_figures(result: RunResult) -> list[dict[str, Any]]:
    """Return :func:`scaling_summary` as rows, each with its pool's findings."""
    summary = scaling_summary(result)
    if not summary:
        return []
    found = scaling_findings(result)
    return [
        {
            "pool": pool,
            **figures,
            "findings": [f.to_json(FINDING_KEYS) for f in found if f.pool == pool],
        }
        for pool, figures in summary.items()
    ]


def scaling_table(result: RunResult) -> pd.DataFrame:
    """Return the findings about scaling for a reader: what is wrong, where, and what to do."""
    rows = [
        (rule_words(f.rule), f.field, f.evidence, f.next_action) for f in scaling_findings(result)
    ]
    return pd.DataFrame(rows, columns=["scaling", "field", "evidence", "next action"])


def turns(changes: Sequence[tuple[float, int]]) -> list[float]:
    """Return the moments at which the direction of change reverses, s.

    >>> turns([(0.0, 2), (10.0, 1), (20.0, -1), (30.0, 4)])
    [20.0, 30.0]
    """
    found, before = [], 0
    for time_s, change in changes:
        if before * change < 0:
            found.append(time_s)
        before = change
    return found


def out_of_reach(scenario: Scenario) -> list[Reason]:
    """Return the metrics whose target a full replica cannot exceed: they never scale up.

    A pool scales up when a metric exceeds target × (1 + tolerance). A share in use ends at 1,
    running requests at the size of the batch, requests in flight at the router's limit.
    """
    found = []
    for pool in scenario.pools:
        if pool.autoscaler is None:
            continue
        for index, metric in enumerate(pool.autoscaler.metrics):
            most = _most_shown(pool, metric)
            if most <= _scales_above(pool, metric):
                text = f"{metric.metric} of a full replica is {most:g} at most"
                found.append(_unreachable(pool, index, metric, most=most, evidence=text))
    return found


def _scales_above(pool: Pool, metric: ScalingMetric) -> float:
    """Return the value of a metric above which a pool scales up; a share stays a share."""
    tolerance = 0.0 if pool.autoscaler is None else pool.autoscaler.tolerance
    return metric.target / _unit(metric) * (1 + tolerance)


def _unit(metric: ScalingMetric) -> float:
    """Return by what a value is multiplied to compare it with the target."""
    return 100.0 if metric.target_type == "Utilization" else 1.0


def _unreachable(
    pool: Pool, index: int, metric: ScalingMetric, *, most: float, evidence: str
) -> Reason:
    above = _scales_above(pool, metric)
    shown = metric.target * most / above
    return Reason(
        rule="target_out_of_reach",
        outcome="fail",
        origin="default",
        pool=pool.name,
        field=f"pools.{pool.name}.autoscaler.metrics.{index}.target",
        value=metric.target,
        limit=shown,
        evidence=f"{evidence}, and the pool scales up above {above:.4g}: never",
        next_action=f"set the target below {shown:.4g}, or scale on the queue's length",
    )


def _most_shown(pool: Pool, metric: ScalingMetric) -> float:
    """Return the largest value of a metric per replica; inf if nothing limits it."""
    held, batch = pool.router.max_in_flight, pool.places
    name = metric.metric
    if metric.target_type == "Value":
        return 1.0 if name.endswith("_fraction") else math.inf
    if name.endswith("_fraction"):
        return 1.0
    if name == "running":
        return min(batch, held or math.inf)
    if name in {"in_flight", "in_flight_per_replica"}:
        return held or math.inf
    if name == "queue_length" and metric.source != "external":
        return _waiting(pool.batching.scheduler.length, held, batch)
    return math.inf


def _waiting(length: int | None, held: int | None, batch: int) -> float:
    """Return the number of requests that can wait in one replica's scheduler queue."""
    room = math.inf if length is None else length
    return room if held is None else min(room, max(held - batch, 0))


def _flapping(result: RunResult, pool: Pool, table: pd.DataFrame) -> Iterator[Reason]:
    """Find starts paid for nothing: released unready, or a turn sooner than a start takes.

    What turns so soon pays for a start that serves nothing, at any load; a start takes the median
    of the run's own, else the pool's ``cold_start_s``.
    """
    changes = wanted_changes(result, pool.name)
    start_s = _start_s(pool, table)
    close = [(one, two) for one, two in pairwise(turns(changes)) if two - one < start_s]
    lost = table[table["provisioning_s"].notna() & table["ready_s"].isna() & ~table["warm"]]
    lost = lost[lost["gone_s"].notna()]
    if lost.empty and not close:
        return
    paid_s = float((lost["gone_s"] - lost["provisioning_s"]).sum())
    first_s = min([*lost["gone_s"], *(two for _, two in close)])
    fastest = f", fastest after {min(two - one for one, two in close):.4g} s" if close else ""
    yield Reason(
        rule="flapping",
        outcome="fail",
        pool=pool.name,
        field=f"pools.{pool.name}.autoscaler.{_holds_back(pool, changes)}",
        value=float(len(lost) + len(close)),
        limit=0.0,
        evidence=f"{counted(len(lost), 'replica')} released before it was ready, after "
        f"{paid_s:.4g} s of paid starts; the wanted number turned {counted(len(close), 'time')} "
        f"sooner than a start takes ({start_s:.4g} s){fastest}: first at {first_s:.6g} s",
        next_action="make it longer than a start takes, or choose a metric that more replicas do "
        "not change",
    )


def _start_s(pool: Pool, table: pd.DataFrame) -> float:
    """Return how long a cold start takes that waits for no accelerator, s; NaN if not known."""
    cold = table[~(table["refused"] | table["warm"])]
    known = (cold["ready_s"] - cold["asked_s"]).dropna()
    stated = math.nan if pool.cold_start_s is None else pool.cold_start_s
    return stated if known.empty else float(known.median())


def _holds_back(pool: Pool, changes: Sequence[tuple[float, int]]) -> str:
    """Return the field of an autoscaler that delays scaling down."""
    wanted = np.cumsum([pool.replicas, *(change for _, change in changes)])
    to_zero = pool.autoscaler is not None and pool.autoscaler.event_driven is not None
    if to_zero and (wanted == 0).any():
        return "event_driven.cooldown_s"
    return "behavior.scale_down.stabilization_window_s"


def _flat_rates(result: RunResult, pool: Pool) -> Iterator[Reason]:
    """Find saturated replicas under a metric of output, which does not scale them up."""
    rules = pool.autoscaler
    if rules is None or any(m.metric not in OUTPUT_RATES for m in rules.metrics):
        return
    seconds = _seconds(result, _saturated(result, pool, "busy_fraction"))
    if seconds < 2 * rules.sync_period_s:
        return
    names = " and ".join(dict.fromkeys(m.metric for m in rules.metrics))
    yield Reason(
        rule="rate_flat_at_saturation",
        outcome="fail",
        origin="default",
        pool=pool.name,
        field=f"pools.{pool.name}.autoscaler.metrics",
        value=seconds,
        limit=2 * rules.sync_period_s,
        evidence=f"for {seconds:.4g} s requests waited at replicas busy for {FULL_FRACTION:.0%} of "
        f"the time or more, and {names} did not scale up: output does not grow with the queue",
        next_action="scale on queue_length or in_flight, which grow with the load",
    )


def _held_below_target(result: RunResult, pool: Pool) -> Iterator[Reason]:
    """Find a target of KV use that a full batch keeps out of reach, and the reverse."""
    rules = pool.autoscaler
    if rules is None or any(m.metric not in LIMITED_BY for m in rules.metrics):
        return
    for index, metric in enumerate(rules.metrics):
        above, limited_by = _scales_above(pool, metric), LIMITED_BY[metric.metric]
        if metric.source == "external" or _most_shown(pool, metric) <= above:
            continue
        full = _saturated(result, pool, limited_by)
        seconds, most = _seconds(result, full), _highest(result, pool, metric.metric, full)
        if seconds >= 2 * rules.sync_period_s and most <= above:
            full_of = {"running": f"a full batch of {pool.places}"}.get(
                limited_by, "full KV memory"
            )
            text = f"for {seconds:.4g} s requests waited at replicas with {full_of}, and "
            text += f"{metric.metric} was {most:.4g} at most"
            yield _unreachable(pool, index, metric, most=most, evidence=text)


def _highest(result: RunResult, pool: Pool, metric: str, at: pd.Series) -> float:
    """Return the largest mean over the replicas at the marked times; NaN if none is marked."""
    values = _by_time(result, pool, metric, "mean")
    return float(values[values.index.isin(at.index[at])].max())


def _by_time(result: RunResult, pool: Pool, metric: str, how: str) -> pd.Series:
    """Return a metric over a pool's replicas by time; of a replica, the sum over its layers."""
    rows = result.timeline[result.timeline["metric"] == metric]
    own = rows[rows["replica"].str.rpartition("-")[0] == pool.name]
    replicas = own.groupby(["time_s", "replica"], observed=True)["value"].sum()
    values: pd.Series = replicas.groupby("time_s").agg(how)
    return values


def _saturated(result: RunResult, pool: Pool, limit: str) -> pd.Series:
    """Return by time whether a pool had a queue and full replicas and did not scale up.

    ``limit`` is what fills a replica: its time (``busy_fraction``), batch or KV memory.
    """
    rows = result.timeline
    own = rows[(rows["layer"] == "service_queue") & (rows["replica"] == pool.name)]
    wide = own.pivot_table(index="time_s", columns="metric", values="value")
    if pool.autoscaler is None or not {"length", "replicas", "replicas_desired"} <= set(wide):
        return pd.Series(dtype=np.bool_)
    waiting = wide["length"].add(_by_time(result, pool, "length", "sum"), fill_value=0.0)
    used = _by_time(result, pool, limit, "mean").reindex(wide.index)
    full = used >= FULL_FRACTION * (pool.places if limit == "running" else 1.0)
    wanted = wide["replicas_desired"]
    idle = (wanted <= wide["replicas"]) & (wanted < pool.autoscaler.max_replicas)
    return (waiting.reindex(wide.index) > 0) & full & idle


def _seconds(result: RunResult, at: pd.Series) -> float:
    """Return for how long the marked moments lasted, each until the next one, s."""
    spans = np.diff(np.append(at.index.to_numpy(np.float64), result.duration_s))
    return float(spans[at.to_numpy(np.bool_)].sum())


def _without_accelerator(result: RunResult, pool: Pool, table: pd.DataFrame) -> Iterator[Reason]:
    """Find replicas that were asked for when no accelerator was free."""
    refused = table[table["refused"]]
    if refused.empty:
        return
    asked = int(table["asked_s"].notna().sum())
    ends = refused[["provisioning_s", "gone_s"]].min(axis=1).fillna(result.duration_s)
    waited = float((ends - refused["asked_s"]).max())
    yield Reason(
        rule="resource_pool_empty",
        outcome="fail",
        origin="default",
        pool=pool.name,
        field=f"resource_pools.{pool.resource_pool}.accelerators",
        value=float(len(refused)),
        limit=0.0,
        evidence=f"asked {asked}, got {asked - len(refused)} at once: no accelerator was left for "
        f"{counted(len(refused), 'replica')}, the first time at {refused['asked_s'].min():.6g} "
        "s; the longest "
        f"wait was {waited:.4g} s",
        next_action="hold more accelerators for it, lower max_replicas of the pools that share "
        "them, or protect it by a limit instead",
    )


def _quantiles(values: pd.Series) -> dict[str, float]:
    known = values.dropna().to_numpy(np.float64)
    p50, p95 = quantiles(known, [0.5, 0.95])
    return {"p50": float(p50), "p95": float(p95), "samples": len(known)}
