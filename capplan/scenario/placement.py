"""Where replicas stand: which of them share a host or a node, and whether they fit there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capplan.scenario.batching import Batching, ContinuousBatching
from capplan.scenario.classes import RequestClass
from capplan.scenario.faults import Leak, ModelReload, NodeLoss, Occurrence
from capplan.scenario.hosts import SPACES, Host
from capplan.scenario.pools import Pool


def replicas_on(host: str, pool: Pool) -> int:
    """Return how many replicas of a pool can stand on a host: replica i on the i-th in turn."""
    if not pool.hosts:
        return 0
    return sum(pool.hosts[i % len(pool.hosts)] == host for i in range(pool.most_replicas))


def overfull(
    host: Host, served: Iterable[tuple[RequestClass, Pool]]
) -> tuple[str, float, float] | None:
    """Return the first memory of a host that is too small, with demand and capacity, or None.

    ``served`` pairs each class with its pool.
    """
    pairs = [(c.demand, replicas_on(host.name, pool)) for c, pool in served]
    for space in SPACES:
        capacity = getattr(host, space)
        demand = sum(getattr(d, space) * n for d, n in pairs)
        if capacity is not None and demand > capacity:
            return space, demand, capacity
    return None


def load_rate_bytes_per_s(pool: Pool, host: Host | None) -> float | None:
    """Return how fast a replica loads alone, bytes/s; None = unknown."""
    if pool.load_bandwidth_bytes_per_s is not None:
        return pool.load_bandwidth_bytes_per_s * pool.accelerators_per_replica
    if pool.model_load is None or host is None:
        return None
    stated = [getattr(host, rate) for rate in pool.model_load.rates]
    return min((rate for rate in stated if rate is not None), default=None)


def without_rate(pools: tuple[Pool, ...], hosts: Mapping[str, Host]) -> str | None:
    """Return the name of the first pool whose model load has no bandwidth; None = there is none."""
    for pool in pools:
        stands_on: list[Host | None] = [hosts[name] for name in pool.hosts] or [None]
        if pool.model_load and any(load_rate_bytes_per_s(pool, h) is None for h in stands_on):
            return pool.name
    return None


def nodes_of(pool: Pool) -> list[range]:
    """Return the replicas on each node of a pool."""
    per_node = pool.replicas_per_node or pool.replicas
    starts = range(0, pool.replicas, per_node)
    return [range(first, min(first + per_node, pool.replicas)) for first in starts]


def misplaced(fault: Occurrence, pool: Pool) -> str | None:
    """Return what a fault needs and its pool lacks; None = nothing."""
    if isinstance(fault, ModelReload) and fault.load_s is None and pool.model_load is None:
        return f"model_reload needs load_s, or model_load of pool {pool.name}"
    if isinstance(fault, Leak) and (pool.models or not _is_paged(pool.batching)):
        return f"leak needs paged KV of one model, which pool {pool.name} lacks"
    if not isinstance(fault, NodeLoss) or fault.host is not None:
        return None
    if pool.replicas_per_node is None:
        return f"node_loss needs host, or replicas_per_node of pool {pool.name}"
    nodes = len(nodes_of(pool))
    if fault.node is not None and fault.node >= nodes:
        return f"node: pool {pool.name} has {nodes} (from 0), got {fault.node}"
    return None


def _is_paged(batching: Batching) -> bool:
    return isinstance(batching, ContinuousBatching) and batching.kv_layout == "paged"
