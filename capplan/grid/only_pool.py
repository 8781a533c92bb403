"""A scenario with one of its pools only: without all that names another pool, class or tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.formatting import listed
from capplan.scenario.faults import GeneratorLimit, NodeLoss
from capplan.scenario.fields import narrowed
from capplan.scenario.files import validate

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.faults import Fault

BY_ITSELF = {
    "autoscaler": "the autoscaler (all the replicas it may bring are there)",
    "standby": "the standby",
}
"""What changes the number of a pool's replicas while a run goes on."""


def only_pool(scenario: Scenario, pool: str, *, rate_rps: float = 1.0) -> Scenario:
    """Return the scenario with only the classes that a pool serves, behind the same gateway.

    What acts by itself (breakers, autoscaler, standby) is left out, so that a batch window is
    compared with others at the same number of replicas and on the same requests; with an
    autoscaler, the pool has as many replicas as it brings at most. Limits, quotas, weights and
    faults of what is left out go with it. The warm-up is 0 and the traffic a steady rate: a run is
    given its trace.
    """
    classes = [c.name for c in scenario.classes if scenario.pool_of(c.name).name == pool]
    users = [t.name for t in scenario.tenants if not t.classes or set(t.classes) & set(classes)]
    users = users or [t.name for t in scenario.tenants]
    data = narrowed(scenario, {"classes": classes, "tenants": users, "pools": [pool]})
    (own,) = data["pools"]
    gateway = data.get("gateway", {})
    if not gateway.get("quotas"):
        gateway.pop("reclaim", None)
    steady = {"kind": "steady", "rate_rps": rate_rps if rate_rps > 0 else 1.0}
    data |= {
        "pools": [{n: v for n, v in own.items() if n not in BY_ITSELF}
                  | {"replicas": _most_replicas(scenario, pool)}],
        "default_class": classes[0],
        "faults": [narrowed(f, {}) for f in scenario.faults if _strikes(f, scenario, pool)],
        "traffic": {"shape": steady, "duration_s": scenario.traffic.duration_s},
        "warmup_s": 0.0,
        "derived": [path for path in scenario.derived if _is_kept(path, classes, pool)],
    }  # fmt: skip
    kept = {name: value for name, value in data.items() if name != "breakers"}
    return validate(kept, where=f"{scenario.name}, pool {pool}")


def _is_kept(path: str, classes: list[str], pool: str) -> bool:
    """Return whether a dotted path leads to something that the scenario of the pool has."""
    part, _, rest = path.partition(".")
    kept = {"pools": [pool], "classes": classes}
    return part not in kept or rest.partition(".")[0] in kept[part]


def acting_alone(scenario: Scenario, pool: str) -> str:
    """Return what :func:`only_pool` leaves out that acts by itself in a pool; "" = nothing."""
    own = scenario.pool(pool)
    acting = [name for field, name in BY_ITSELF.items() if getattr(own, field) is not None]
    if any(rule.pool in (None, pool) for rule in scenario.breakers):
        acting = ["breakers", *acting]
    return listed(acting, none="")


def _most_replicas(scenario: Scenario, pool: str) -> int:
    """Return a pool's replicas, or as many as its autoscaler brings and its accelerators hold."""
    own = scenario.pool(pool)
    if own.autoscaler is None:
        return own.replicas
    rooms = [r.accelerators for r in scenario.resource_pools if r.name == own.resource_pool]
    return min([own.autoscaler.max_replicas, *(n // own.accelerators_per_replica for n in rooms)])


def _strikes(fault: Fault, scenario: Scenario, pool: str) -> bool:
    if isinstance(fault, GeneratorLimit):
        return True
    if isinstance(fault, NodeLoss) and fault.host is not None:
        return fault.host in scenario.pool(pool).hosts
    return scenario.pool(fault.pool).name == pool
