"""The one field that controls a crossed limit, and the value to try next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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
class Limit:
    """A field of the scenario, its value, the value to try, and why this field."""

    field: str
    value: Any
    candidate: Any
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return the limit as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def limit_of(stage: Stage, request_class: str, found: Blame) -> Limit:
    """Return the field that controls the limit a stage crossed."""
    scenario = stage.scenario
    gateway, pool = scenario.gateway, scenario.pool_of(request_class)
    refusing = found.reason or ""
    if limit := _refusing(gateway, refusing) or _breaking(scenario, refusing):
        return limit
    if found.layer == "gateway":
        if (workers := gateway.overhead_concurrency) is not None and _all_work(stage, workers):
            why = f"the gateway's {workers} workers are busy with overhead"
            return _count("gateway.overhead_concurrency", workers, why)
        if gateway.rate_limit is not None and found.reason == "rate_limit":
            rate = gateway.rate_limit.rate_rps
            why = "the gateway's rate limit refuses them"
            return _more("gateway.rate_limit.rate_rps", rate, why)
        if gateway.concurrency is not None:
            why = "the gateway holds as many open as it may"
            return _count("gateway.concurrency", gateway.concurrency, why)
    if found.layer == "network":
        value = scenario.network.one_way_s
        return Limit(
            field="network.one_way_s", value=value, candidate=value / 2, why="the way is too long"
        )
    return _pool_limit(stage, scenario, pool, found)


def _breaking(scenario: Scenario, reason: str) -> Limit | None:
    """Return the limit of the breaker that refuses; None if the reason is another's."""
    kind, _, name = reason.partition(":")
    for rule in scenario.breakers:
        if kind == "breaker" and rule.name == name and rule.when.above is not None:
            why = f"the breaker {name} refuses them above {rule.when.above:g} {rule.when.metric}"
            return _more(f"breakers.{name}.when.above", rule.when.above, why)
    return None


def _refusing(gateway: Gateway, reason: str) -> Limit | None:
    """Return the gateway's limit that refuses for a reason; None if the reason is another's."""
    fields = {"rate_limit": "rate_rps", "token_limit": "rate_tokens_per_s"}
    fields |= {"request_too_large": "burst_tokens", "quota_exhausted": "tokens"}
    kind, _, name = reason.partition(":")
    for part in ("rate_limits", "token_limits", "allowances"):
        for meter in getattr(gateway, part):
            if name == meter.name:
                value, why = getattr(meter, fields[kind]), f"the gateway's {part}.{name} refuses"
                change = _count if isinstance(value, int) else _more
                return change(f"gateway.{part}.{name}.{fields[kind]}", value, f"{why} them")
    accept = gateway.accept
    if reason == "prompt_too_long" and gateway.max_prompt_tokens is not None:
        why = "their prompts are longer than the gateway takes"
        return _count("gateway.max_prompt_tokens", gateway.max_prompt_tokens, why)
    if reason == "connections_per_caller" and accept and accept.max_per_caller is not None:
        why = "their callers hold as many connections as they may"
        return _count("gateway.accept.max_per_caller", accept.max_per_caller, why)
    if reason == "connection_refused" and accept is not None:
        if accept.rate_per_s is not None:
            why = "the gateway accepts too few connections"
            return _more("gateway.accept.rate_per_s", accept.rate_per_s, why)
        if accept.max_open is not None:
            why = "the gateway holds as many connections as it may"
            return _count("gateway.accept.max_open", accept.max_open, why)
    return None


def _all_work(stage: Stage, workers: int) -> bool:
    """Return whether the gateway's workers are busy most of the time."""
    rows = stage.run.timeline
    rows = rows[rows["layer"] == "gateway"]
    busy, spans = held_values(rows, "busy_workers", start_s=stage.start_s, end_s=stage.end_s)
    told = (spans > 0) & ~np.isnan(busy)
    return bool(
        told.any() and (busy[told] * spans[told]).sum() >= FULL * workers * spans[told].sum()
    )


def _pool_limit(stage: Stage, scenario: Scenario, pool: Pool, found: Blame) -> Limit:
    """Return what keeps a pool's requests waiting: its batch, its KV, its router, its replicas."""
    path, batching = f"pools.{pool.name}", pool.batching
    if found.layer == "batch_window" and isinstance(batching, DynamicBatching):
        value = batching.max_queue_delay_s
        field = f"{path}.batching.max_queue_delay_s"
        return Limit(
            field=field, value=value, candidate=value / 2, why="they wait for the window to close"
        )
    if isinstance(batching, ContinuousBatching) and found.layer in _WAITS:
        running = _level(stage, pool, "running", 0.95)
        memory = _level(stage, pool, "kv_usage_fraction", 0.95)
        if running >= FULL * batching.max_num_seqs and not memory >= FULL:
            why = f"replicas run {running:.0f} of {batching.max_num_seqs} sequences at once"
            return _count(f"{path}.batching.max_num_seqs", batching.max_num_seqs, why)
    if found.layer == "service_queue" and pool.router.max_in_flight is not None:
        held = _level(stage, pool, "in_flight", 0.95, layer="decode")
        most = pool.router.max_in_flight
        if held >= FULL * most and most < places(pool):
            why = f"the router passes {most} to a replica whose batch holds {places(pool)}"
            return _count(f"{path}.router.max_in_flight", pool.router.max_in_flight, why)
    if pool.autoscaler is not None:
        return _scaling_limit(stage, pool, pool.autoscaler)
    why = f"{pool.name} serves no more: its {found.layer.replace('_', ' ')} holds the time"
    value = pool.replicas
    return Limit(field=f"{path}.replicas", value=value, candidate=value + 1, why=why)


def _scaling_limit(stage: Stage, pool: Pool, rules: Autoscaler) -> Limit:
    """Return what keeps an autoscaler from more replicas: its most of them, or when it asks."""
    rows = stage.run.timeline
    own = rows[(rows["replica"] == pool.name) & (rows["metric"] == "replicas_desired")]
    wanted, spans = held_values(own, "replicas_desired", start_s=stage.start_s, end_s=stage.end_s)
    most = float(wanted[spans > 0].max(initial=0.0))
    path = f"pools.{pool.name}.autoscaler"
    if most >= rules.max_replicas:
        why = f"its autoscaler may have {counted(rules.max_replicas, 'replica')} and wanted them"
        value = rules.max_replicas
        return Limit(field=f"{path}.max_replicas", value=value, candidate=value + 1, why=why)
    target = rules.metrics[0].target
    why = f"its autoscaler wanted {most:g} of {counted(rules.max_replicas, 'replica')}: too late"
    field = f"{path}.metrics.0.target"
    return Limit(field=field, value=target, candidate=target / MORE, why=why)


def places(pool: Pool) -> int:
    """Return how many requests a replica serves at once."""
    batching = pool.batching
    if isinstance(batching, ContinuousBatching):
        return batching.max_num_seqs
    return batching.max_batch_size


_WAITS = ("service_queue", "scheduler_queue")


def _level(
    stage: Stage, pool: Pool, metric: str, quantile: float, *, layer: str | None = None
) -> float:
    """Return a quantile over time of a metric of a pool's replicas; NaN where it is not told.

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
    told = (spans > 0) & ~np.isnan(values)
    if not told.any():
        return math.nan
    order = np.argsort(values[told])
    share = np.cumsum(spans[told][order]) / spans[told].sum()
    return float(values[told][order][np.searchsorted(share, quantile - 1e-12)])


def served_replicas(stage: Stage, pool: Pool) -> list[str]:
    """Return the names of a pool's replicas, as they stand in the timeline."""
    known = stage.run.timeline["replica"].unique()
    return [str(n) for n in known if str(n).rpartition("-")[0] == pool.name]


def _more(field: str, value: float, why: str) -> Limit:
    return Limit(field=field, value=value, candidate=value * MORE, why=why)


def _count(field: str, value: int, why: str) -> Limit:
    return Limit(field=field, value=value, candidate=math.ceil(value * MORE), why=why)
