"""The part of a scenario that concerns one pool, without all that names another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from capplan.formatting import listed

if TYPE_CHECKING:
    from capplan.scenario import Scenario

BY_ITSELF = {
    "autoscaler": "the autoscaler (all the replicas it may bring are there)",
    "standby": "the standby",
}
"""What changes the number of a pool's replicas while a run goes on."""
METERS = ("allowances", "rate_limits", "token_limits", "quotas")


def part_of(scenario: Scenario, pool: str) -> dict[str, Any]:
    """Return the raw data of a scenario with only the classes that a pool serves.

    What acts by itself (breakers, autoscaler, standby) is left out, so that a batch window is
    compared with others at the same number of replicas and on the same requests; where there is
    an autoscaler, as many as it brings at most. Limits, quotas
    and weights of classes and tenants that are left out go with them.
    """
    data = scenario.model_dump(mode="json", exclude_unset=True)
    classes = [c.name for c in scenario.classes if scenario.pool_of(c.name).name == pool]
    tenants = [one for t in data.get("tenants", []) if (one := _with_classes(t, classes))]
    names = {t["name"] for t in tenants} or {t.name for t in scenario.tenants}
    own = next(p for p in data["pools"] if p["name"] == pool)
    kept = {
        "classes": [c for c in data["classes"] if c["name"] in classes],
        "pools": [_pool(own, names, classes) | {"replicas": _most(scenario, pool)}],
        "default_class": classes[0],
        "faults": [f for f in data.get("faults", []) if _strikes(f, scenario, pool)],
        "gateway": _gateway(data.get("gateway", {}), names, classes),
    }
    kept |= {"tenants": tenants} if tenants else {}
    plan = data.get("stages", {})
    kept["stages"] = {name: value for name, value in plan.items() if name != "failed_pool"}
    return {name: value for name, value in data.items() if name != "breakers"} | kept


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


def _with_classes(part: Mapping[str, Any], classes: Collection[str]) -> dict[str, Any] | None:
    """Return what names classes with those that are left, None if it has none of them."""
    if not part.get("classes"):
        return dict(part)
    kept = [name for name in part["classes"] if name in classes]
    return {**part, "classes": kept} if kept else None


def _strikes(fault: Mapping[str, Any], scenario: Scenario, pool: str) -> bool:
    kind = fault.get("kind", "crash")
    if kind == "generator_limit":
        return True
    if fault.get("host") is not None:
        return fault["host"] in scenario.pool(pool).hosts
    return bool(scenario.pool(fault.get("pool")).name == pool)


def _pool(own: Mapping[str, Any], tenants: Collection[str], classes: Collection[str]) -> Any:
    batching = dict(own["batching"])
    if "reserved" in batching:
        kept = [_with_classes(place, classes) for place in batching["reserved"]]
        batching["reserved"] = [place for place in kept if place]
    if "scheduler" in batching:
        batching["scheduler"] = _queue(batching["scheduler"], tenants, classes)
    changed = {"batching": batching}
    if "queue" in own:
        changed["queue"] = _queue(own["queue"], tenants, classes)
    return {name: value for name, value in own.items() if name not in BY_ITSELF} | changed


def _gateway(
    gateway: Mapping[str, Any], tenants: Collection[str], classes: Collection[str]
) -> dict[str, Any]:
    changed: dict[str, Any] = {
        field: [
            meter
            for meter in gateway[field]
            if meter.get("tenant") in (None, *tenants)
            and meter.get("request_class") in (None, *classes)
        ]
        for field in METERS
        if field in gateway
    }
    if not changed.get("quotas"):
        changed |= {"reclaim": "next_free"} if "reclaim" in gateway else {}
    if "queue" in gateway:
        changed["queue"] = _queue(gateway["queue"], tenants, classes)
    return {**gateway, **changed}


def _queue(
    queue: Mapping[str, Any], tenants: Collection[str], classes: Collection[str]
) -> dict[str, Any]:
    if not queue.get("fair"):
        return dict(queue)
    weights = {
        field: [one for one in queue["fair"][field] if one["name"] in known]
        for field, known in (("tenants", tenants), ("classes", classes))
        if field in queue["fair"]
    }
    return {**queue, "fair": {**queue["fair"], **weights}}
