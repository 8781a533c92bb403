"""The field that moves a crossed limit, and the value to try next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.formatting import counted
from capplan.results.timelines import held_values
from capplan.scenario.batching import ContinuousBatching, DynamicBatching
from capplan.scenario.pools import Pool

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.autoscaling import Autoscaler
    from capplan.scenario.gateway import Gateway
    from capplan.stages.degradation import Blame
    from capplan.stages.stage import Stage

FULL = 0.9
"""Share of a limit at which its holder counts as full; a default of this project."""
MORE = 1.2
"""The next value of a limit: one step of the ramp more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedLimit:
    """The field that moves a crossed limit, its value, the value to try, and why this field."""

    field: str
    value: Any
    candidate: Any
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return the limit as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def crossed_limit(stage: Stage, request_class: str, found: Blame) -> CrossedLimit:
    """Return the field that moves the limit a stage crossed.

    It is the one that the limit which ended most requests declares. Where none did, or no single
    field moves it, it is what holds them in their layer.
    """
    scenario = stage.scenario
    if declared := _declared(scenario, found):
        return declared
    if found.layer == "gateway" and (held := _of_gateway(stage, scenario.gateway)):
        return held
    if found.layer == "network":
        value = scenario.network.one_way_s
        return CrossedLimit(
            field="network.one_way_s", value=value, candidate=value / 2, why="the way is too long"
        )
    return _of_pool(stage, scenario.pool_of(request_class), found)


def _declared(scenario: Scenario, found: Blame) -> CrossedLimit | None:
    for limit in scenario.limits():
        ends = (limit.layer, limit.reason) == (found.layer, found.reason)
        if ends and limit.is_set and limit.value is not None:
            why = limit.why or f"{limit.field} refuses them"
            return _more(limit.moved_by, limit.value, why)
    return None


def _of_gateway(stage: Stage, gateway: Gateway) -> CrossedLimit | None:
    if (workers := gateway.overhead_concurrency) is not None and _all_work(stage, workers):
        why = f"the gateway's {workers} workers are busy with overhead"
        return _more("gateway.overhead_concurrency", workers, why)
    if gateway.concurrency is not None:
        why = "the gateway holds as many open as it may"
        return _more("gateway.concurrency", gateway.concurrency, why)
    return None


def _all_work(stage: Stage, workers: int) -> bool:
    """Return whether the gateway's workers are busy most of the time."""
    rows = stage.run.timeline
    rows = rows[rows["layer"] == "gateway"]
    busy, spans = held_values(rows, "busy_workers", start_s=stage.start_s, end_s=stage.end_s)
    known = (spans > 0) & ~np.isnan(busy)
    worked_s, span_s = (busy[known] * spans[known]).sum(), spans[known].sum()
    return bool(known.any() and worked_s >= FULL * workers * span_s)


def _of_pool(stage: Stage, pool: Pool, found: Blame) -> CrossedLimit:
    """Return what keeps a pool's requests waiting: its batch, its KV, its router, its replicas."""
    path, batching = f"pools.{pool.name}", pool.batching
    if found.layer == "batch_window" and isinstance(batching, DynamicBatching):
        value = batching.max_queue_delay_s
        field = f"{path}.batching.max_queue_delay_s"
        return CrossedLimit(
            field=field, value=value, candidate=value / 2, why="they wait for the window to close"
        )
    if isinstance(batching, ContinuousBatching) and found.layer in _WAITS:
        running = _level(stage, pool, "running", 0.95)
        memory = _level(stage, pool, "kv_usage_fraction", 0.95)
        if running >= FULL * batching.max_num_seqs and not memory >= FULL:
            why = f"replicas run {running:.0f} of {batching.max_num_seqs} sequences at once"
            return _more(f"{path}.batching.max_num_seqs", batching.max_num_seqs, why)
    if found.layer == "service_queue" and pool.router.max_in_flight is not None:
        held = _level(stage, pool, "in_flight", 0.95, layer="decode")
        most = pool.router.max_in_flight
        if held >= FULL * most and most < pool.places:
            why = f"the router passes {most} to a replica whose batch holds {pool.places}"
            return _more(f"{path}.router.max_in_flight", pool.router.max_in_flight, why)
    if pool.autoscaler is not None:
        return _scaling_limit(stage, pool, pool.autoscaler)
    why = f"{pool.name} serves no more: its {found.layer.replace('_', ' ')} holds the time"
    value = pool.replicas
    return CrossedLimit(field=f"{path}.replicas", value=value, candidate=value + 1, why=why)


def _scaling_limit(stage: Stage, pool: Pool, rules: Autoscaler) -> CrossedLimit:
    """Return what keeps an autoscaler from more replicas: its most of them, or when it asks."""
    rows = stage.run.timeline
    own = rows[(rows["replica"] == pool.name) & (rows["metric"] == "replicas_desired")]
    wanted, spans = held_values(own, "replicas_desired", start_s=stage.start_s, end_s=stage.end_s)
    most = float(wanted[spans > 0].max(initial=0.0))
    path = f"pools.{pool.name}.autoscaler"
    if most >= rules.max_replicas:
        why = f"its autoscaler may have {counted(rules.max_replicas, 'replica')} and wanted them"
        value = rules.max_replicas
        return CrossedLimit(field=f"{path}.max_replicas", value=value, candidate=value + 1, why=why)
    target = rules.metrics[0].target
    why = f"its autoscaler wanted {most:g} of {counted(rules.max_replicas, 'replica')}: too late"
    field = f"{path}.metrics.0.target"
    return CrossedLimit(field=field, value=target, candidate=target / MORE, why=why)


_WAITS = ("service_queue", "scheduler_queue")


def _level(
    stage: Stage, pool: Pool, metric: str, quantile: float, *, layer: str | None = None
) -> float:
    """Return a quantile over time of a metric of a pool's replicas; NaN if not known.

    ``running`` is the sum of what a replica prefills and decodes.
    """
    rows = stage.run.timeline
    names = served_replicas(stage, pool)
    rows = rows[rows["replica"].isin(names) & (rows["metric"] == metric)]
    if metric == "running":
        sums = rows.groupby(["time_s", "replica"], observed=True)["value"].sum()
        rows = sums.reset_index().assign(metric="running", layer="decode")
    if layer is not None:
        rows = rows[rows["layer"] == layer]
    values, spans = held_values(rows, metric, start_s=stage.start_s, end_s=stage.end_s)
    known = (spans > 0) & ~np.isnan(values)
    if not known.any():
        return math.nan
    order = np.argsort(values[known])
    share = np.cumsum(spans[known][order]) / spans[known].sum()
    return float(values[known][order][np.searchsorted(share, quantile - 1e-12)])


def served_replicas(stage: Stage, pool: Pool) -> list[str]:
    """Return the names of a pool's replicas in the timeline."""
    known = stage.run.timeline["replica"].unique()
    return [str(n) for n in known if str(n).rpartition("-")[0] == pool.name]


def own_queues(stage: Stage, pool: Pool) -> pd.DataFrame:
    """Return the lengths over time of the queues on the way to a pool, the gateway's included."""
    rows = stage.run.timeline
    names = (pool.name, *served_replicas(stage, pool))
    here = rows["replica"].isin(names) | (rows["layer"] == "gateway")
    return rows[(rows["metric"] == "length") & here]


def _more(field: str, value: float, why: str) -> CrossedLimit:
    """Return the limit with the value to try: more of it, a whole number if it is one."""
    candidate = math.ceil(value * MORE) if isinstance(value, int) else value * MORE
    return CrossedLimit(field=field, value=value, candidate=candidate, why=why)
