"""Limits that follow from the shares: queue lengths, timeouts, refusals, engine flags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from capplan.budget.backward import divide
from capplan.budget.results import WAITING, ClassBudget, LayerLimit
from capplan.budget.service import PoolService
from capplan.scenario import Scenario
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.layers import BudgetRule, Queue

GATEWAY_STATUS, POOL_STATUS = 429, 503
"""Too Many Requests of one caller; Service Unavailable for now.
Source: RFC 6585 section 4; RFC 9110 section 15.6.4."""

SHORTEST_S = 1e-6
"""A shorter share is no wait, s: engines count in microseconds."""


class QueueOnPath(NamedTuple):
    """One queue on the path of a class, as the scenario states it."""

    layer: str
    path: str
    owner: str
    queue: Queue
    holds: bool
    """Whether any request can wait here."""

    @property
    def is_last(self) -> bool:
        """Return whether it is the engine's own queue, in front of the batch."""
        return self.layer == "scheduler_queue"

    @property
    def wait_s(self) -> float:
        """Return the longest wait: inf if unlimited, 0 if no request can wait."""
        if not self.holds or self.queue.length == 0:
            return 0.0
        return math.inf if self.queue.wait_limit_s is None else self.queue.wait_limit_s


def queues_of(scenario: Scenario, pool_name: str) -> list[QueueOnPath]:
    """Return the queues in series before a pool's replicas, outermost first.

    The gateway's queue holds requests only if its concurrency or the workers of its overhead are
    limited, the service queue only if the router limits what a replica holds.
    """
    gateway, pool = scenario.gateway, scenario.pool(pool_name)
    path, routed = f"pools.{pool_name}", pool.router.max_in_flight is not None
    scheduler = pool.batching.scheduler
    queues = [
        ("gateway_queue", "gateway.queue", gateway.owner, gateway.queue, gateway.holds_waiting),
        ("service_queue", f"{path}.queue", pool.owner, pool.queue, routed),
        (
            "scheduler_queue",
            f"{path}.batching.scheduler",
            pool.owner,
            scheduler,
            True,
        ),
    ]
    return [
        QueueOnPath(layer, where, queue.owner or owner, queue, holds)
        for layer, where, owner, queue, holds in queues
    ]


def layer_limits(
    scenario: Scenario, classes: Sequence[ClassBudget], services: Mapping[str, PoolService]
) -> tuple[LayerLimit, ...]:
    """Return the limit of every waiting layer: of the gateway first, then pool by pool.

    A limit ends the wait of requests that are lost, and of no others. So a queue that serves
    several classes takes the wait of the one that may wait longest; each other caller leaves at a
    deadline of its own. An inner queue may use what the outer ones left, up to the whole wait: who
    waits outside finds the inner queues full, whose shares are still to come. A queue holds as many
    as drain within its limit if all are short (Little's law).
    """
    rule = scenario.budget
    limits: list[LayerLimit] = []
    for name, service in services.items():
        here = [c for c in classes if c.pool == name]
        gateway, queue, scheduler = queues_of(scenario, name)
        if not limits:
            drain = sum(s.drain_rps for s in services.values())
            fastest = sum(s.most_replicas * s.fastest.replica_rps for s in services.values())
            limits = [_limit(gateway, "", classes, rule, drain_rps=drain, fastest_rps=fastest)]
        drain, fastest = service.drain_rps, service.most_replicas * service.fastest.replica_rps
        limits += [
            _limit(queue, name, here, rule, drain_rps=drain, fastest_rps=fastest),
            _scheduler_queue(scheduler, service, here, rule),
            _batch_window(scheduler, service, here),
        ]
    return tuple(limits)


def settings(
    limits: Sequence[LayerLimit], services: Mapping[str, PoolService]
) -> dict[str, int | float]:
    """Return the derived limits by dotted path in the scenario.

    Beside each queue's own limits: the limits that make the queue in front of it hold requests,
    ``router.max_in_flight`` (running and waiting at a replica) and ``gateway.concurrency``
    (everything behind the gateway, with as many replicas as there can be).
    """
    values: dict[str, int | float] = {}
    for limit in limits:
        values |= _limit_settings(limit)
    lengths = {(limit.pool, limit.layer): limit.length for limit in limits}
    behind: list[float] = []
    for name, service in services.items():
        scheduler, queue = lengths[name, "scheduler_queue"], lengths[name, "service_queue"]
        in_flight = math.nan if scheduler is None else service.places + scheduler
        behind.append(math.nan if queue is None else queue + service.most_replicas * in_flight)
        if not math.isnan(in_flight):
            values[f"pools.{name}.router.max_in_flight"] = int(in_flight)
        if service.max_num_seqs is not None:
            values[f"pools.{name}.batching.max_num_seqs"] = service.max_num_seqs
    if lengths["", "gateway_queue"] is not None and not math.isnan(sum(behind)):
        values["gateway.concurrency"] = int(sum(behind))
    return values


def retry_after_s(share_s: float) -> float:
    """Return the time after which a full queue has drained, whole seconds; NaN if unknown.

    Source: RFC 9110 section 10.2.3 (Retry-After holds whole seconds).

    >>> retry_after_s(0.3), retry_after_s(2.2)
    (1.0, 3.0)
    """
    if math.isnan(share_s):
        return share_s
    return float(max(1, math.ceil(share_s)))


def rounded_down(seconds: float) -> float:
    """Return a time cut to three significant digits, so that sums of limits keep a promise.

    >>> rounded_down(0.123456), rounded_down(78912.0)
    (0.123, 78900.0)
    """
    digits = 2 - math.floor(math.log10(seconds))
    scale = 10.0**digits
    return round(math.floor(seconds * scale * (1 + 1e-12)) / scale, max(digits, 0))


def _limit(
    queue: QueueOnPath,
    pool: str,
    classes: Sequence[ClassBudget],
    rule: BudgetRule,
    *,
    drain_rps: float,
    fastest_rps: float,
) -> LayerLimit:
    """Return the limit of a queue: the share of its strictest class, the wait of its longest."""
    layers = ("scheduler_queue", "batch_window") if queue.is_last else (queue.layer,)
    name, share = _strictest(classes, layers)
    wait = max((w for c in classes if (w := _wait_s(c, layers, rule)) >= 0), default=math.nan)
    return LayerLimit(
        layer=queue.layer,
        pool=pool,
        path=queue.path,
        owner=queue.owner,
        request_class=name,
        share_s=share,
        drain_rps=drain_rps,
        length=None if math.isnan(wait) else math.ceil(wait * fastest_rps),
        wait_limit_s=rounded_down(wait) if wait >= SHORTEST_S else None,
        status=POOL_STATUS if pool else GATEWAY_STATUS,
        retry_after_s=retry_after_s(wait if math.isnan(share) else share),
        flags={},
    )


def _wait_s(c: ClassBudget, layers: tuple[str, ...], rule: BudgetRule) -> float:
    """Return the wait of a class up to the last of the layers; 0 if these have no share of it.

    NaN without a promise, or if even the least request misses it.
    """
    shares = divide(c.longest_wait_s, c.window_s, rule)
    own = sum(shares[layer] for layer in layers)
    until = WAITING[: WAITING.index(layers[-1]) + 1]
    if own < SHORTEST_S:
        return 0.0
    return own if math.isnan(own) else sum(shares[layer] for layer in until)


def _scheduler_queue(
    queue: QueueOnPath, service: PoolService, classes: Sequence[ClassBudget], rule: BudgetRule
) -> LayerLimit:
    """Return the limit of the engine's queue, in which a request waits for the window as well.

    If any request may wait, it holds at least one request, or one gathering batch.
    """
    pool, fastest = service.pool.name, service.fastest.replica_rps
    drain = service.replica_rps
    found = _limit(queue, pool, classes, rule, drain_rps=drain, fastest_rps=fastest)
    length = found.length
    if length:
        length = max(length, service.running if service.replica is None else 1)
    return replace(
        found, length=length, flags=_scheduler_flags(service, length, found.wait_limit_s)
    )


def _batch_window(
    queue: QueueOnPath, service: PoolService, classes: Sequence[ClassBudget]
) -> LayerLimit:
    batching = service.pool.batching
    name, share = _strictest(classes, ("batch_window",))
    delay = None if math.isnan(share) else share
    flags: dict[str, int | float] = {}
    if isinstance(batching, ContinuousBatching):
        flags = {"--max-num-batched-tokens": batching.max_num_batched_tokens}
    elif delay is not None:
        stated = batching.max_queue_delay_s
        delay = stated if stated <= delay else rounded_down(delay)
        flags = {"max_queue_delay_microseconds": int(delay * 1e6)}
    return LayerLimit(
        layer="batch_window",
        pool=service.pool.name,
        path=f"pools.{service.pool.name}.batching",
        owner=queue.owner,
        request_class=name,
        share_s=share,
        drain_rps=service.replica_rps,
        length=None,
        wait_limit_s=delay,
        status=POOL_STATUS,
        retry_after_s=math.nan,
        flags=flags,
    )


def _scheduler_flags(
    service: PoolService, length: int | None, timeout_s: float | None
) -> dict[str, int | float]:
    """Return the engine's names of the limits.

    vLLM's ``--max-num-queued-reqs`` counts running and waiting requests. Its
    ``--max-num-queued-tokens`` counts all prompt tokens of those in prefill or before it: here what
    the replica prefills within the wait limit. It does not subtract what a prefix cache would
    find, so with prefix caching it refuses too early and is left out. Source: vLLM pull request
    49445, "Add max_num_queued_reqs and max_num_queued_tokens", 2026-07, part of v0.29.0; Triton
    Inference Server, ``model_config.proto`` (ModelQueuePolicy), 2025.
    """
    if length is None:
        return {}
    if service.max_num_seqs is not None:
        flags: dict[str, int | float] = {
            "--max-num-seqs": service.max_num_seqs,
            "--max-num-queued-reqs": service.places + length,
        }
        batching, tokens_per_s = service.pool.batching, service.fastest.prompt_tokens_per_s
        caches = isinstance(batching, ContinuousBatching) and batching.prefix_caching
        if timeout_s is not None and not caches and not math.isnan(tokens_per_s):
            flags["--max-num-queued-tokens"] = math.ceil(timeout_s * tokens_per_s)
        return flags
    flags = {"max_queue_size": length}
    if timeout_s is not None:
        flags["default_timeout_microseconds"] = int(timeout_s * 1e6)
    return flags


def _limit_settings(limit: LayerLimit) -> dict[str, int | float]:
    if limit.layer == "batch_window":
        delay, derived = limit.wait_limit_s, "max_queue_delay_microseconds" in limit.flags
        return {f"{limit.path}.max_queue_delay_s": delay} if derived and delay is not None else {}
    if limit.length is None:
        return {}
    values: dict[str, int | float] = {
        f"{limit.path}.length": limit.length,
        f"{limit.path}.status": limit.status,
        f"{limit.path}.retry_after_s": limit.retry_after_s,
    }
    if limit.wait_limit_s is not None:
        values[f"{limit.path}.wait_limit_s"] = limit.wait_limit_s
    return values


def _strictest(classes: Sequence[ClassBudget], layers: tuple[str, ...]) -> tuple[str, float]:
    """Return the class with the smallest share of the layers together, and that share."""
    shares = [(c.request_class, sum(c.shares_s[layer] for layer in layers)) for c in classes]
    known = [(name, share) for name, share in shares if not math.isnan(share)]
    return min(known, key=lambda pair: pair[1], default=("", math.nan))
