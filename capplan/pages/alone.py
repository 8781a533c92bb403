"""The part of a scenario that concerns one pool, without all that names another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capplan.formatting import listed
from capplan.scenario.faults import GeneratorLimit, NodeLoss
from capplan.scenario.fields import narrowed

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.faults import Fault

BY_ITSELF = {
    "autoscaler": "the autoscaler (all the replicas it may bring are there)",
    "standby": "the standby",
}
"""What changes the number of a pool's replicas while a run goes on."""


def part_of(scenario: Scenario, pool: str) -> dict[str, Any]:
    """Return the raw data of a scenario with only the classes that a pool serves.

    What acts by itself (breakers, autoscaler, standby) is left out, so that a batch window is
    compared with others at the same number of replicas and on the same requests; where there is
    an autoscaler, as many as it brings at most. Limits, quotas
    and weights of classes and tenants that are left out go with them.
    """
    classes = [c.name for c in scenario.classes if scenario.pool_of(c.name).name == pool]
    users = [t.name for t in scenario.tenants if not t.classes or set(t.classes) & set(classes)]
    kept = {"classes": classes, "tenants": users, "pools": [pool]}
    data = narrowed(scenario, kept if users else {**kept, "tenants": _names(scenario)})
    (own,) = data["pools"]
    own = {name: value for name, value in own.items() if name not in BY_ITSELF}
    gateway = data.get("gateway", {})
    if not gateway.get("quotas"):
        gateway.pop("reclaim", None)
    faults = [narrowed(f, {}) for f in scenario.faults if _strikes(f, scenario, pool)]
    changed = {
        "pools": [{**own, "replicas": _most(scenario, pool)}],
        "default_class": classes[0],
        "faults": faults,
    }
    return {name: value for name, value in data.items() if name != "breakers"} | changed


def left_out(scenario: Scenario, pool: str) -> str:
    """Return what :func:`part_of` leaves out that acts by itself in a pool; "" = nothing."""
    own = scenario.pool(pool)
    acting = [name for field, name in BY_ITSELF.items() if getattr(own, field) is not None]
    if any(rule.pool in (None, pool) for rule in scenario.breakers):
        acting = ["breakers", *acting]
    return listed(acting, none="")


def _most(scenario: Scenario, pool: str) -> int:
    """Return a pool's replicas, or as many as its autoscaler brings and its accelerators hold."""
    own = scenario.pool(pool)
    if own.autoscaler is None:
        return own.replicas
    rooms = [r.accelerators for r in scenario.resource_pools if r.name == own.resource_pool]
    return min([own.autoscaler.max_replicas, *(n // own.accelerators_per_replica for n in rooms)])


def _names(scenario: Scenario) -> list[str]:
    return [tenant.name for tenant in scenario.tenants]


def _strikes(fault: Fault, scenario: Scenario, pool: str) -> bool:
    if isinstance(fault, GeneratorLimit):
        return True
    if isinstance(fault, NodeLoss) and fault.host is not None:
        return fault.host in scenario.pool(pool).hosts
    return scenario.pool(fault.pool).name == pool
