"""The stage with a fault: the planned load while it lasts, and the retest after it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.formatting import counted
from capplan.scenario.times import FixedTime
from capplan.simulation.shared_host import load_alone_s
from capplan.stages.run_load import Loads, fault_values, lengthened, run_load, steady
from capplan.stages.stage import Stage, stage_of

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.scenario.times import Duration

LASTS = {
    "crash": "down_s",
    "node_loss": "down_s",
    "hang": "for_s",
    "slow": "for_s",
    "router_blind": "for_s",
}
"""The field with the length of each kind; a reload lasts as long as its loads."""
OF_LAW = ("mtbf_s", "mttr_s")
LEAST_S = 1e-3
"""Shortest outage, s: a replacement takes some time."""


def failure(scenario: Scenario, loads: Loads, *, seed: int) -> tuple[Stage, Stage]:
    """Return the planned load during a fault of the plan's kind, and the retest after it.

    Without ``down_s`` the fault lasts until a replacement is warm (:func:`replacement_s`). Like the
    part of a run that ``size`` judges for a loss, the stage lasts until the fault is over and each
    class's percentiles have their samples; the retest lasts until it counts.
    """
    plan, load = scenario.stages, loads.planned_rps
    at, pool = plan.step_s / 2, scenario.pool(plan.failed_pool)
    after = f"after {plan.failure.replace('_', ' ')} is over"
    if plan.failure == "crash":
        after = "after the replica's return"
    found = failure_of(scenario, at_s=at, down_s=replacement_s(scenario, pool)[0] or plan.step_s)
    lasts_s, judged_s = found.ends_s - at, plan.fall_back_s / 2 + plan.steady_s
    while True:
        judged_until = at + lasts_s
        start = judged_until + plan.fall_back_s / 2
        end = start + judged_s
        note = found.note
        if judged_until > found.ends_s:
            note += f", judged over {lasts_s:.3g} s for its samples"
        run = run_load(scenario, steady(load), duration_s=end, seed=seed, faults=[found.fault])
        one = stage_of(
            "failure", "failure", load, run, start_s=at, end_s=judged_until, note=note, steady=False
        )
        two = stage_of("retest", "retest", load, one.run, start_s=start, end_s=end, note=after)
        longer_s = lengthened(one, lasts_s, plan.longest_s)
        more_s = lengthened(two, judged_s, plan.longest_s)
        if more_s <= judged_s and longer_s <= lasts_s:
            return one, two
        lasts_s, judged_s = longer_s, more_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFault:
    """A fault that strikes once, when it is over, and what happens, in words."""

    fault: dict[str, Any]
    ends_s: float
    note: str


def failure_of(scenario: Scenario, *, at_s: float, down_s: float) -> StageFault:
    """Return the fault of the plan's kind at a moment, for so long.

    It is as the scenario's first fault of that kind (in the failed pool, if one is named) states
    it. Only its moment is another one, and its length if the plan states one or the fault states
    none.
    """
    plan = scenario.stages
    stated = _stated(scenario, scenario.pool(plan.failed_pool))
    pool = scenario.pool(stated.get("pool") or plan.failed_pool)
    fault = {k: v for k, v in stated.items() if k not in OF_LAW} | {"at_s": at_s}
    if plan.failure == "model_reload":
        return _reload(fault, scenario, pool, at_s=at_s, down_s=down_s)
    if plan.failure == "node_loss" and not {"host", "node"} & fault.keys():
        fault |= _first_node(pool)
    length = LASTS[plan.failure]
    load_s = model_load_s(scenario, pool)
    own = plan.down_s is None and length in fault  # its model is loaded after that
    lasts_s = fault[length] if own else down_s
    ends_s = at_s + lasts_s + (load_s if own and length == "down_s" else 0.0)
    loaded_within = length == "down_s" and not own
    fault[length] = unloaded_s(lasts_s, load_s) if loaded_within else lasts_s
    if "restart_s" in fault and "detect_s" in fault:
        noticed_s = at_s + fault["detect_s"]
        ends_s = ends_s if ends_s <= noticed_s else noticed_s + fault["restart_s"] + load_s
    return StageFault(fault=fault, ends_s=ends_s, note=_note(fault, pool, ends_s - at_s))


def _stated(scenario: Scenario, pool: Pool) -> dict[str, Any]:
    """Return the scenario's fault of the plan's kind, or the kind and pool alone."""
    kind = scenario.stages.failure
    named = scenario.stages.failed_pool
    for fault in scenario.faults:
        if fault.kind == kind and (named is None or getattr(fault, "pool", None) == named):
            return fault_values(fault)
    return {"kind": kind, "pool": pool.name}


def _first_node(pool: Pool) -> dict[str, Any]:
    """Return the machine that is lost: the first of a pool."""
    return {"host": pool.hosts[0], "pool": None} if pool.hosts else {"pool": pool.name, "node": 0}


def _reload(
    fault: dict[str, Any], scenario: Scenario, pool: Pool, *, at_s: float, down_s: float
) -> StageFault:
    """Return a rolling reload, and when its last replica is back if no other work slows it."""
    load_s = fault.get("load_s")
    if load_s is None and pool.model_load is None:
        load_s = down_s
        fault = fault | {"load_s": load_s}
    elif load_s is None and pool.model_load is not None:
        load_s = model_load_s(scenario, pool)
    most = fault.get("max_unavailable", 1)
    turns = math.ceil((fault.get("count") or pool.replicas) / most)
    ends_s = at_s + turns * (fault.get("drain_s", 30.0) + load_s)
    note = f"{pool.name} replicas load their model anew, at most {most} at a time"
    return StageFault(fault=fault, ends_s=ends_s, note=note)


def _note(fault: dict[str, Any], pool: Pool, lasts_s: float) -> str:
    name = str(fault.get("pool") or pool.name)
    count = min(fault.get("count", 1), pool.most_replicas)
    some = f"{'one' if count == 1 else count} of {counted(pool.replicas, f'{name} replica')}"
    if pool.replicas == 1:
        some = f"the only {name} replica"
    if pool.is_elastic:  # how many there are then is not known
        some = counted(count, f"{name} replica")
    what = {
        "crash": f"{some} away",
        "hang": f"{some} hanging",
        "slow": f"{some} {fault.get('factor', 2.0):g} times slower",
        "node_loss": f"a machine of {name} away",
        "router_blind": f"the router of {name} blind",
    }[str(fault["kind"])]
    return f"{what} for {lasts_s:.3g} s"


def replacement_s(scenario: Scenario, pool: Pool) -> tuple[float | None, str]:
    """Return how long a lost replica of a pool is away, s, and where that is stated.

    ``stages.down_s``, else the 95th percentiles of the parts of ``lifecycle``, else
    ``cold_start_s``, else the time of ``model_load``; None = nothing states it.
    """
    load_s = model_load_s(scenario, pool)
    life = pool.lifecycle
    if scenario.stages.down_s is not None:
        return scenario.stages.down_s, "stages.down_s"
    if life is not None:
        load = load_s if life.model_load is None else _p95_s(life.model_load)
        whole = _p95_s(life.provisioning) + _p95_s(life.image_pull) + load
        return max(whole, LEAST_S), f"pools.{pool.name}.lifecycle, 95th percentiles"
    if pool.cold_start_s is not None:
        return max(pool.cold_start_s, LEAST_S), f"pools.{pool.name}.cold_start_s"
    if pool.model_load is not None:
        return max(load_s, LEAST_S), f"pools.{pool.name}.model_load"
    return None, "no stages.down_s, lifecycle or cold_start_s"


def unloaded_s(down_s: float, load_s: float) -> float:
    """Return after how long a replica that is away for ``down_s`` begins to load its model, s."""
    return max(down_s - load_s, LEAST_S)


def _p95_s(law: Duration) -> float:
    return law.seconds if isinstance(law, FixedTime) else law.p95_s


def model_load_s(scenario: Scenario, pool: Pool) -> float:
    """Return how long a replica loads its model, s, on a host that nothing else uses."""
    if pool.model_load is None:
        return 0.0
    host = next((h for h in scenario.hosts if h.name in pool.hosts), None)
    return load_alone_s(pool, pool.model_load, host)
