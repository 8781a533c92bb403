"""What goes wrong in the failure stage: a fault of the plan's kind, and when it is over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.formatting import counted
from capplan.scenario.faults import GeneratorLimit
from capplan.simulation.loading import load_alone_s

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.faults import Fault
    from capplan.scenario.pools import Pool

LASTS = {
    "crash": "down_s",
    "node_loss": "down_s",
    "hang": "for_s",
    "slow": "for_s",
    "router_blind": "for_s",
}
"""The field that says for how long each kind lasts; a reload lasts as long as its loads."""
OF_LAW = ("mtbf_s", "mttr_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A fault that strikes once, when it is over, and what happens, in words."""

    fault: dict[str, Any]
    ends_s: float
    note: str


def failure_of(scenario: Scenario, *, at_s: float, down_s: float) -> Failure:
    """Return the fault of the plan's kind at a moment, for so long.

    What the scenario's first fault of that kind (in the failed pool, if one is named) says of it
    stands: how many, how much slower, who notices. Only its moment is another one, and its length
    if the plan states one or the fault states none.
    """
    plan = scenario.stages
    stated = _stated(scenario, scenario.pool(plan.failed_pool))
    pool = scenario.pool(stated.get("pool") or plan.failed_pool)
    fault = {k: v for k, v in stated.items() if k not in OF_LAW} | {"at_s": at_s}
    if plan.failure == "model_reload":
        return _reload(fault, scenario, pool, at_s=at_s, down_s=down_s)
    if plan.failure == "node_loss" and not {"host", "node"} & fault.keys():
        fault |= _node(pool)
    length = LASTS[plan.failure]
    lasts_s = down_s if plan.down_s is not None else fault.get(length, down_s)
    fault[length] = lasts_s
    ends_s = at_s + lasts_s
    if "restart_s" in fault and "detect_s" in fault:
        noticed_s = at_s + fault["detect_s"]
        ends_s = ends_s if ends_s <= noticed_s else noticed_s + fault["restart_s"]
    return Failure(fault=fault, ends_s=ends_s, note=_note(fault, pool, ends_s - at_s))


def generator_limits(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the limits of the load generator: they are limits of the test, so of every stage."""
    return [_plain(f) for f in scenario.faults if isinstance(f, GeneratorLimit)]


def _stated(scenario: Scenario, pool: Pool) -> dict[str, Any]:
    """Return what the scenario says of a fault of the plan's kind, or the kind and pool alone."""
    kind = scenario.stages.failure
    named = scenario.stages.failed_pool
    for fault in scenario.faults:
        if fault.kind == kind and (named is None or getattr(fault, "pool", None) == named):
            return _plain(fault)
    return {"kind": kind, "pool": pool.name}


def _plain(fault: Fault) -> dict[str, Any]:
    return {**fault.model_dump(exclude_unset=True), "kind": fault.kind}


def _node(pool: Pool) -> dict[str, Any]:
    """Return the machine that is lost: the first of a pool."""
    return {"host": pool.hosts[0], "pool": None} if pool.hosts else {"pool": pool.name, "node": 0}


def _reload(
    fault: dict[str, Any], scenario: Scenario, pool: Pool, *, at_s: float, down_s: float
) -> Failure:
    """Return a rolling reload, and when its last replica is back if no other work slows it."""
    load_s = fault.get("load_s")
    if load_s is None and pool.model_load is None:
        load_s = down_s
        fault = fault | {"load_s": load_s}
    elif load_s is None and pool.model_load is not None:
        host = next((h for h in scenario.hosts if h.name in pool.hosts), None)
        load_s = load_alone_s(pool, pool.model_load, host)
    turns = math.ceil((fault.get("count") or pool.replicas) / fault.get("max_unavailable", 1))
    ends_s = at_s + turns * (fault.get("drain_s", 30.0) + load_s)
    most = fault.get("max_unavailable", 1)
    note = f"{pool.name} replicas load their model anew, at most {most} at a time"
    return Failure(fault=fault, ends_s=ends_s, note=note)


def _note(fault: dict[str, Any], pool: Pool, lasts_s: float) -> str:
    name = str(fault.get("pool") or pool.name)
    count = min(fault.get("count", 1), pool.most_replicas)
    some = f"{'one' if count == 1 else count} of {counted(pool.replicas, f'{name} replica')}"
    if pool.replicas == 1:
        some = f"the only {name} replica"
    if pool.is_elastic:  # how many there are then is not known
        some = counted(count, f"{name} replica")
    told = {
        "crash": f"{some} away",
        "hang": f"{some} hanging",
        "slow": f"{some} {fault.get('factor', 2.0):g} times slower",
        "node_loss": f"a machine of {name} away",
        "router_blind": f"the router of {name} blind",
    }[str(fault["kind"])]
    return f"{told} for {lasts_s:.3g} s"
