"""The field that moves a crossed limit, and the value to try next.

The field fits the promise. A TPOT breaks by what runs at once: the sequences of the batch, then the
tokens of a step. Any other promise breaks by waiting: what refuses or holds the requests (limits,
batch, router), then the queue that should have refused them, and only then more replicas, if their
accelerators are planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.budget import allocate
from capplan.budget.limits import SHORTEST_S, rounded_down
from capplan.formatting import counted, rule_words
from capplan.replica.step_time import step_time
from capplan.results.cost import served_by
from capplan.results.timelines import held_values
from capplan.scenario.batching import ContinuousBatching, DynamicBatching
from capplan.scenario.files import with_values
from capplan.scenario.layers import Queue
from capplan.scenario.pools import Pool
from capplan.stages.pool_levels import p95_of
from capplan.stages.scaling import planned_supply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capplan.budget.results import ClassBudget
    from capplan.scenario import Scenario
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
    """None = no value to try: nothing that can be set mends it."""
    why: str

    @property
    def action(self) -> str:
        """Return what to do: set the field to the value to try, and why."""
        if self.candidate is None:
            return self.why
        return f"set {self.field} to {self.candidate:g}: {self.why}"

    @property
    def is_capacity(self) -> bool:
        """Return whether it adds replicas, in place of a limit on the requests."""
        return self.field.endswith(("replicas", "autoscaler.metrics.0.target"))

    def to_json(self) -> dict[str, Any]:
        """Return the limit as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def crossed_limit(stage: Stage, request_class: str, found: Blame) -> CrossedLimit:
    """Return the field that moves the limit a stage crossed.

    It is the one that the limit which ended most requests declares. Where none did, or no single
    field moves it, it is the first of the controls of the broken promise that can still move.
    """
    scenario = stage.scenario
    pool = scenario.pool_of(request_class)
    budget = allocate(scenario)
    own = next(c for c in budget.classes if c.request_class == request_class)
    settings = budget.settings
    controls = (
        _declared(scenario, found, settings),
        _network(scenario) if found.layer == "network" else None,
        _of_gateway(stage, scenario.gateway) if found.layer == "gateway" else None,
        _alone(stage, pool, own, found),
        _smaller_batch(stage, pool, settings) if found.promise == "tpot_s" else None,
        _fewer_prompts(pool, own, found),
        _held_back(stage, pool, found) if found.promise != "tpot_s" else None,
        _admission(pool, own, found, settings),
        _planned(scenario, pool, capacity := _capacity(stage, pool, found)),
        _fewer(stage, pool, found),
        _beyond_limits(scenario, request_class, found),
    )
    return next(filter(None, controls), None) or replace(
        capacity,
        candidate=None,
        why=f"{capacity.why}, and its limits refuse what would be late; plan more replicas: "
        "accelerators in a resource pool with an owner",
    )


def _declared(
    scenario: Scenario, found: Blame, settings: Mapping[str, float]
) -> CrossedLimit | None:
    """Return the limit that ended the requests, as far as the wait budget allows more of it."""
    for limit in scenario.limits():
        ends = (limit.layer, limit.reason) == (found.layer, found.reason)
        if ends and limit.is_set and limit.value is not None:
            allowed = settings.get(limit.moved_by, math.inf)
            why = limit.why or f"{limit.field} refuses them"
            if limit.value >= allowed:
                return None
            more = _more(limit.moved_by, limit.value, why)
            return more if math.isinf(allowed) else replace(more, candidate=allowed)
    return None


def _network(scenario: Scenario) -> CrossedLimit:
    value = scenario.network.one_way_s
    return CrossedLimit(
        field="network.one_way_s", value=value, candidate=value / 2, why="the way is too long"
    )


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


def _alone(stage: Stage, pool: Pool, own: ClassBudget, found: Blame) -> CrossedLimit | None:
    """Return the parallelism of a replica if a request that nothing delays breaks the promise."""
    before_s = own.network_s + own.gateway_s
    takes_s = {"ttft_s": before_s + own.prefill_s, "e2e_s": own.attempt_s}
    takes_s["deadline_s"] = own.attempt_s
    promises = stage.scenario.request_class(own.request_class).promises
    promised_s = getattr(promises, found.promise, None)
    late = found.promise in takes_s and promised_s and takes_s[found.promise] > promised_s
    if not late and not (found.promise == "tpot_s" and not _in_time(stage, pool, 1)):
        return None
    why = f"alone, a request breaks the {rule_words(found.promise)} promise: parallelism makes its "
    why += "steps shorter, replicas do not"
    field, value = f"pools.{pool.name}.tensor_parallel", pool.tensor_parallel
    return CrossedLimit(field=field, value=value, candidate=None, why=why)


def _fewer_prompts(pool: Pool, own: ClassBudget, found: Blame) -> CrossedLimit | None:
    """Return half the tokens of a step, if a TTFT is lost to prompts that share a prefill."""
    batching = pool.batching
    if (found.promise, found.layer) != ("ttft_s", "prefill"):
        return None
    if not isinstance(batching, ContinuousBatching) or not batching.chunked_prefill:
        return None
    tokens, half = batching.max_num_batched_tokens, batching.max_num_batched_tokens // 2
    if half < max(own.prompt_tokens, batching.max_num_seqs):
        return None
    why = f"prompts of up to {tokens:,} tokens share a step, and the first waits for the last"
    field = f"pools.{pool.name}.batching.max_num_batched_tokens"
    return CrossedLimit(field=field, value=tokens, candidate=half, why=why)


def _smaller_batch(stage: Stage, pool: Pool, settings: Mapping[str, float]) -> CrossedLimit | None:
    """Return fewer tokens a step, or fewer sequences if these alone are too slow."""
    path, batching = f"pools.{pool.name}.batching", pool.batching
    if not isinstance(batching, ContinuousBatching):
        return None
    value, stated = batching.max_num_seqs, batching.max_num_batched_tokens
    tokens = stated
    while tokens >= value and not _in_time(stage, pool, value, tokens - value):
        tokens //= 2
    if batching.chunked_prefill and value <= tokens < stated:
        why = f"a step of up to {stated:,} tokens delays each token decoded beside its prefill"
        field = f"{path}.max_num_batched_tokens"
        return CrossedLimit(field=field, value=stated, candidate=tokens, why=why)
    field, most = f"{path}.max_num_seqs", settings.get(f"{path}.max_num_seqs", value)
    if most >= value:
        return None
    why = f"more than {most} sequences at once take longer a token than was promised"
    return CrossedLimit(field=field, value=value, candidate=most, why=why)


def _in_time(stage: Stage, pool: Pool, sequences: int, prefilled: int = 0) -> bool:
    """Return whether a step of so many sequences and prompt tokens keeps a pool's TPOT promises."""
    names = served_by(stage.scenario, pool)
    promised = [stage.scenario.request_class(name).promises.tpot_s for name in names]
    limit_s = min((limit for limit in promised if limit is not None), default=math.inf)
    if math.isinf(limit_s) or pool.models:
        return True
    own = stage.of(names)
    prompt, output = (float(own[f"{part}_tokens"].mean()) for part in ("prompt", "output"))
    context, pairs = prompt + output / 2, prefilled * prompt / 2
    return step_time(pool).seconds(prefilled, pairs, sequences, sequences * context) <= limit_s


def _held_back(stage: Stage, pool: Pool, found: Blame) -> CrossedLimit | None:
    """Return the limit in front of replicas that could serve more: window, batch, router."""
    path, batching = f"pools.{pool.name}", pool.batching
    if found.layer == "batch_window" and isinstance(batching, DynamicBatching):
        value = batching.max_queue_delay_s
        field = f"{path}.batching.max_queue_delay_s"
        return CrossedLimit(
            field=field, value=value, candidate=value / 2, why="they wait for the window to close"
        )
    if isinstance(batching, ContinuousBatching) and found.layer in _WAITS:
        running = p95_of(stage, pool, "running")
        memory = p95_of(stage, pool, "kv_usage_fraction")
        field = f"{path}.batching.max_num_seqs"
        why = f"replicas run {running:.0f} of {batching.max_num_seqs} sequences at once"
        larger = _more(field, batching.max_num_seqs, why)
        in_time = _in_time(stage, pool, larger.candidate)
        if running >= FULL * batching.max_num_seqs and not memory >= FULL and in_time:
            return larger
    if found.layer == "service_queue" and pool.router.max_in_flight is not None:
        held = p95_of(stage, pool, "in_flight", layer="decode")
        most = pool.router.max_in_flight
        if held >= FULL * most and most < pool.places:
            why = f"the router passes {most} to a replica whose batch holds {pool.places}"
            return _more(f"{path}.router.max_in_flight", pool.router.max_in_flight, why)
    return None


def _admission(
    pool: Pool, own: ClassBudget, found: Blame, settings: Mapping[str, float]
) -> CrossedLimit | None:
    """Return the limit of the queue that holds the requests, if it holds more than the promise.

    A request that waits through it still keeps the broken promise: the limit is the wait budget's
    length if that drains in time, else the wait that is left.
    """
    if found.layer not in _WAITS:
        return None
    part, queue = _queue(pool, found.layer)
    length, wait_s = (
        settings.get(f"{part}.{name}", math.inf) for name in ("length", "wait_limit_s")
    )
    if found.promise == own.basis and own.remaining_s > SHORTEST_S:
        wait_s = min(wait_s, rounded_down(own.remaining_s))
    drain_rps = own.drain_rps / (pool.replicas if found.layer == "scheduler_queue" else 1)
    limits = {"wait_limit_s": wait_s}
    if (length - 1) / drain_rps <= wait_s:
        limits = {"length": length} | limits
    for name, allowed in limits.items():
        value = getattr(queue, name)
        if queue.length != 0 and allowed < (math.inf if value is None else value):
            why = f"its {found.layer.replace('_', ' ')} holds more than can be answered in time"
            field = f"{part}.{name}"
            return CrossedLimit(field=field, value=value, candidate=allowed, why=why)
    return None


def _fewer(stage: Stage, pool: Pool, found: Blame) -> CrossedLimit | None:
    """Return the limit of what waits, or of what shares a replica, with less than there is."""
    if found.layer in _WAITS and found.reason != Queue.full.reason:
        part, queue = _queue(pool, found.layer)
        field, value = f"{part}.length", queue.length
        fewer, why = float(value or 0) / MORE, f"of {value} that wait the last are late"
    elif found.layer in _SHARED:
        field, value = f"pools.{pool.name}.router.max_in_flight", pool.router.max_in_flight
        fewer = p95_of(stage, pool, "in_flight", layer="decode")
        why = (
            f"more than {fewer:.0f} requests at once share a replica 5 % of the time, and are late"
        )
    else:
        return None
    if not fewer >= 1 or (value is not None and value <= fewer):
        return None
    return CrossedLimit(field=field, value=value, candidate=int(fewer), why=why)


def _queue(pool: Pool, layer: str) -> tuple[str, Queue]:
    """Return the path and the settings of a pool's queue."""
    if layer == "service_queue":
        return f"pools.{pool.name}.queue", pool.queue
    return f"pools.{pool.name}.batching.scheduler", pool.batching.scheduler


def _planned(scenario: Scenario, pool: Pool, limit: CrossedLimit) -> CrossedLimit | None:
    """Return the limit if an owned resource pool holds the replicas that it adds."""
    changed = with_values(scenario, {limit.field: limit.candidate})
    return limit if planned_supply(changed, changed.pool(pool.name)) else None


def _beyond_limits(scenario: Scenario, name: str, found: Blame) -> CrossedLimit | None:
    """Return a promise that a request breaks without any wait: no limit and no replica mends it."""
    value = getattr(scenario.request_class(name).promises, found.promise, None)
    if found.layer not in _SHARED or value is None:
        return None
    why = "a request takes too long without any wait: split its work, or promise less"
    field = f"classes.{name}.promises.{found.promise}"
    return CrossedLimit(field=field, value=value, candidate=None, why=why)


def _capacity(stage: Stage, pool: Pool, found: Blame) -> CrossedLimit:
    """Return the field that adds replicas: how many there are, may be, or when they are wanted."""
    path, rules = f"pools.{pool.name}", pool.autoscaler
    if rules is None:
        why = f"{pool.name} serves no more: its {found.layer.replace('_', ' ')} holds the time"
        field, value = f"{path}.replicas", pool.replicas
        return CrossedLimit(field=field, value=value, candidate=value + 1, why=why)
    rows = stage.run.timeline
    own = rows[(rows["replica"] == pool.name) & (rows["metric"] == "replicas_desired")]
    wanted, spans = held_values(own, "replicas_desired", start_s=stage.start_s, end_s=stage.end_s)
    most = float(wanted[spans > 0].max(initial=0.0))
    path += ".autoscaler"
    if most >= rules.max_replicas:
        why = f"its autoscaler may have {counted(rules.max_replicas, 'replica')} and wanted them"
        value = rules.max_replicas
        return CrossedLimit(field=f"{path}.max_replicas", value=value, candidate=value + 1, why=why)
    target = rules.metrics[0].target
    why = f"its autoscaler wanted {most:g} of {counted(rules.max_replicas, 'replica')}: too late"
    field = f"{path}.metrics.0.target"
    return CrossedLimit(field=field, value=target, candidate=target / MORE, why=why)


_WAITS = ("service_queue", "scheduler_queue")
_SHARED = ("prefill", "decode")
"""Layers in which the requests of a batch share the time of a replica."""


def _more(field: str, value: float, why: str) -> CrossedLimit:
    """Return the limit with the value to try: more of it, a whole number if it is one."""
    candidate = math.ceil(value * MORE) if isinstance(value, int) else value * MORE
    return CrossedLimit(field=field, value=value, candidate=candidate, why=why)
