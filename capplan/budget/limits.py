"""Limits that follow from the shares: queue lengths, timeouts, refusals, engine flags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from capplan.budget.results import ClassBudget, LayerLimit
from capplan.budget.service import PoolService
from capplan.scenario import Scenario
from capplan.scenario.batching import ContinuousBatching

GATEWAY_STATUS, POOL_STATUS = 429, 503
"""Too many requests of the caller's own making; a service that cannot take more for now.
Source: RFC 6585 section 4; RFC 9110 section 15.6.4."""

SHORTEST_S = 1e-6
"""A shorter share lets nobody wait, s: engines count in microseconds."""


def layer_limits(
    scenario: Scenario, classes: Sequence[ClassBudget], services: Mapping[str, PoolService]
) -> tuple[LayerLimit, ...]:
    """Return the limit of every waiting layer: of the gateway first, then pool by pool.

    A queue that serves several classes has one length and one timeout: those of the class with
    the smallest share, so that nobody waits past a promise. The last of ``length`` waiting
    requests is served after ``length / drain`` seconds (Little's law), which is at most the share.
    """
    drain = sum(service.drain_rps for service in services.values())
    limits = [_gateway(scenario, classes, drain)]
    for name, service in services.items():
        here = [c for c in classes if c.pool == name]
        limits += [
            make(service, here) for make in (_service_queue, _scheduler_queue, _batch_window)
        ]
    return tuple(limits)


def settings(
    limits: Sequence[LayerLimit], services: Mapping[str, PoolService]
) -> dict[str, int | float]:
    """Return the derived limits by dotted path in the scenario.

    Beside each queue's own limits they hold what makes the queue in front of it work:
    ``router.max_in_flight`` (what a replica works on and lets wait) and ``gateway.concurrency``
    (what all that lies behind the gateway holds, with as many replicas as there can be).
    """
    values: dict[str, int | float] = {}
    for limit in limits:
        values |= _limit_settings(limit)
    lengths = {(limit.pool, limit.layer): limit.length for limit in limits}
    behind: list[float] = []
    for name, service in services.items():
        scheduler, queue = lengths[name, "scheduler_queue"], lengths[name, "service_queue"]
        in_flight = math.nan if scheduler is None else service.running + scheduler
        behind.append(math.nan if queue is None else queue + service.most_replicas * in_flight)
        if not math.isnan(in_flight):
            values[f"pools.{name}.router.max_in_flight"] = int(in_flight)
        if service.max_num_seqs is not None:
            values[f"pools.{name}.batching.max_num_seqs"] = service.max_num_seqs
    if lengths["", "gateway_queue"] is not None and not math.isnan(sum(behind)):
        values["gateway.concurrency"] = int(sum(behind))
    return values


def retry_after_s(share_s: float) -> float:
    """Return when a refused caller should come back: once a full queue has drained, whole seconds.

    Source: RFC 9110 section 10.2.3 (Retry-After holds whole seconds).

    NaN of an unknown share.

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


def _gateway(scenario: Scenario, classes: Sequence[ClassBudget], drain_rps: float) -> LayerLimit:
    gateway = scenario.gateway
    name, share = _strictest(classes, ("gateway_queue",))
    return LayerLimit(
        layer="gateway_queue",
        pool="",
        path="gateway.queue",
        owner=gateway.queue.owner or gateway.owner,
        request_class=name,
        share_s=share,
        drain_rps=drain_rps,
        length=_length(share, drain_rps),
        wait_limit_s=_wait_limit_s(share),
        status=GATEWAY_STATUS,
        retry_after_s=retry_after_s(share),
        flags={},
    )


def _service_queue(service: PoolService, classes: Sequence[ClassBudget]) -> LayerLimit:
    pool = service.pool
    name, share = _strictest(classes, ("service_queue",))
    return LayerLimit(
        layer="service_queue",
        pool=pool.name,
        path=f"pools.{pool.name}.queue",
        owner=pool.queue.owner or pool.owner,
        request_class=name,
        share_s=share,
        drain_rps=service.drain_rps,
        length=_length(share, service.drain_rps),
        wait_limit_s=_wait_limit_s(share),
        status=POOL_STATUS,
        retry_after_s=retry_after_s(share),
        flags={},
    )


def _scheduler_queue(service: PoolService, classes: Sequence[ClassBudget]) -> LayerLimit:
    """Return the limit of the engine's queue, in which a request waits for the window as well.

    So its length and timeout are those of both shares, and where anybody may wait it holds at
    least one request, or one batch that gathers.
    """
    pool = service.pool
    name, share = _strictest(classes, ("scheduler_queue", "batch_window"))
    length, timeout = _length(share, service.replica_rps), _wait_limit_s(share)
    if length is not None and share >= SHORTEST_S:
        length = max(length, service.running if service.replica is None else 1)
    return LayerLimit(
        layer="scheduler_queue",
        pool=pool.name,
        path=f"pools.{pool.name}.batching.scheduler",
        owner=pool.batching.scheduler.owner or pool.owner,
        request_class=name,
        share_s=share,
        drain_rps=service.replica_rps,
        length=length,
        wait_limit_s=timeout,
        status=POOL_STATUS,
        retry_after_s=retry_after_s(share),
        flags=_scheduler_flags(service, length, timeout),
    )


def _batch_window(service: PoolService, classes: Sequence[ClassBudget]) -> LayerLimit:
    pool, batching = service.pool, service.pool.batching
    name, share = _strictest(classes, ("batch_window",))
    delay = None if math.isnan(share) else share
    flags: dict[str, int | float] = {}
    if not isinstance(batching, ContinuousBatching):
        if delay is not None:
            delay = batching.max_queue_delay_s
            delay = delay if delay <= share else rounded_down(share)
            flags = {"max_queue_delay_microseconds": int(delay * 1e6)}
    else:
        flags = {"--max-num-batched-tokens": batching.max_num_batched_tokens}
    return LayerLimit(
        layer="batch_window",
        pool=pool.name,
        path=f"pools.{pool.name}.batching",
        owner=batching.scheduler.owner or pool.owner,
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

    vLLM's ``--max-num-queued-reqs`` counts running and waiting requests. Source: vLLM pull request
    49445, "Add max_num_queued_reqs and max_num_queued_tokens", 2026-07; Triton Inference Server,
    ``model_config.proto`` (ModelQueuePolicy), 2025.
    """
    if length is None:
        return {}
    if service.max_num_seqs is not None:
        return {
            "--max-num-seqs": service.max_num_seqs,
            "--max-num-queued-reqs": service.running + length,
        }
    flags: dict[str, int | float] = {"max_queue_size": length}
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


def _length(share_s: float, drain_rps: float) -> int | None:
    return None if math.isnan(share_s) else math.floor(share_s * drain_rps)


def _wait_limit_s(share_s: float) -> float | None:
    return rounded_down(share_s) if share_s >= SHORTEST_S else None
