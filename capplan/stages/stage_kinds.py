"""The stages beside the ramp: baseline, bursts, long outputs, fall-back, failure, soak, waves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from capplan.formatting import counted
from capplan.results import per_request
from capplan.simulation.loading import load_alone_s
from capplan.slo import judge
from capplan.stages.run_load import Loads, fault_values, play, step, warmed_up
from capplan.stages.scaling import release_s
from capplan.stages.stage import Stage, stage_of, windowed
from capplan.stages.violations import breaks_of, margins_of
from capplan.traffic.draw import draw

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.stages.ramp import LoadRamp


LASTS = {
    "crash": "down_s",
    "node_loss": "down_s",
    "hang": "for_s",
    "slow": "for_s",
    "router_blind": "for_s",
}
"""The field that says for how long each kind lasts; a reload lasts as long as its loads."""
OF_LAW = ("mtbf_s", "mttr_s")


def baseline(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the stage at low load that the others are compared with."""
    load = loads.start_rps
    found, _ = step(
        scenario, load, before_rps=load / 2, name="baseline", kind="baseline", seed=seed
    )
    return found


def burst(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the planned load with bursts to a multiple of the planned peak."""
    plan = scenario.stages
    first = plan.every_s / 2
    duration = plan.bursts * plan.every_s
    perturbation = {
        "kind": "bursts",
        "peak_fraction": plan.peak_fraction * loads.peak_rps / loads.planned_rps,
        "burst_s": plan.burst_s,
        "every_s": plan.every_s,
        "first_s": first,
    }
    run = play(
        scenario,
        {"kind": "steady", "rate_rps": loads.planned_rps},
        duration_s=duration,
        seed=seed,
        perturbations=[perturbation],
    )
    load = plan.peak_fraction * loads.peak_rps
    note = f"{counted(plan.bursts, 'burst')} of {plan.burst_s:g} s to {load:.3g}/s"
    note += f" over {loads.planned_rps:.3g}/s"
    start, _ = warmed_up(run, ramp_s=0.0, end_s=first, steady_s=first / 2)
    return stage_of("burst", "burst", load, run, start_s=start, end_s=duration, note=note)


def long_outputs(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the planned load with some very long outputs; the others' promises are judged.

    Who asks for thousands of tokens can hardly be answered in the time promised for hundreds; the
    question is whether the others still are.
    """
    plan = scenario.stages
    perturbation = {
        "kind": "long_outputs",
        "fraction": plan.long_fraction,
        "above_tokens": plan.long_above_tokens,
        "max_tokens": plan.long_max_tokens,
    }
    samples = samples_s(loads, scenario) / (1 - plan.long_fraction)
    end = max(plan.step_s, min(plan.longest_s, plan.ramp_s + samples))
    run = play(
        scenario,
        {"kind": "steady", "rate_rps": loads.planned_rps},
        duration_s=end,
        seed=seed,
        perturbations=[perturbation],
    )
    start, _ = warmed_up(run, ramp_s=0.0, end_s=end, steady_s=plan.steady_s)
    found = stage_of(
        "long outputs", "long_outputs", loads.planned_rps, run, start_s=start, end_s=end
    )
    frame = run.trace.frame
    short = frame.loc[frame["output_tokens"] <= plan.long_above_tokens, "request_id"]
    part = windowed(found.run, start, end)
    log = part.requests
    part = replace(part, requests=log[log["request_id"].isin(short)].reset_index(drop=True))
    table, verdict = per_request(part), judge(part)
    margins = tuple(margins_of(table, scenario))
    many = len(frame) - len(short)
    return replace(
        found,
        table=table,
        verdict=verdict,
        margins=margins,
        breaks=breaks_of(verdict, margins),
        note=f"judged without {counted(many, 'request')} of more than "
        f"{plan.long_above_tokens:,} tokens",
    )


def fall_back(scenario: Scenario, loads: Loads, ramp: LoadRamp | None, *, seed: int) -> Stage:
    """Return an overload of half a step's length, then the baseline load; the latter is judged.

    The overload is the highest load of the ramp, or that of a burst if it is higher. Where replicas
    come and go, the baseline load is held long enough for them to be released.
    """
    plan = scenario.stages
    top = max((s.load_rps for s in ramp.steps), default=0.0) if ramp else 0.0
    over = max(top, plan.peak_fraction * loads.peak_rps)
    held = plan.step_s / 2
    low_s = plan.fall_back_s + max(map(release_s, scenario.pools))
    end = held + low_s
    shape = {
        "kind": "sequence",
        "parts": [
            {"shape": {"kind": "steady", "rate_rps": over}, "duration_s": held},
            {
                "shape": {"kind": "steady", "rate_rps": loads.start_rps},
                "duration_s": low_s,
            },
        ],
    }
    run = play(scenario, shape, duration_s=end, seed=seed)
    note = f"after {held:g} s at {over:.3g}/s"
    low = loads.start_rps
    found = stage_of("fall back", "fall_back", low, run, start_s=held, end_s=end, note=note)
    return replace(found, top_rps=over)


def failure(scenario: Scenario, loads: Loads, *, seed: int) -> tuple[Stage, Stage]:
    """Return the planned load while something fails, and the retest after it is over.

    The plan states what fails (:mod:`capplan.stages.stage_kinds`). Without ``down_s`` it
    lasts for the pool's cold start, or for longer, until each class's percentiles have their
    samples.
    """
    plan = scenario.stages
    pool = scenario.pool(plan.failed_pool)
    at = plan.step_s / 2
    enough = min(samples_s(loads, scenario), plan.longest_s)
    found = failure_of(
        scenario, at_s=at, down_s=plan.down_s or max(pool.cold_start_s or plan.step_s, enough)
    )
    back = found.ends_s
    end = back + plan.fall_back_s + plan.steady_s
    run = play(
        scenario,
        {"kind": "steady", "rate_rps": loads.planned_rps},
        duration_s=end,
        seed=seed,
        faults=[found.fault],
    )
    load, note = loads.planned_rps, found.note
    one = stage_of("failure", "failure", load, run, start_s=at, end_s=back, note=note)
    other = stage_of(
        "retest", "retest", load, one.run, start_s=back + plan.fall_back_s / 2, end_s=end,
        note=f"after {plan.failure.replace('_', ' ')} is over"
        if plan.failure != "crash"
        else "after the replica's return",
    )  # fmt: skip
    return one, other


def samples_s(loads: Loads, scenario: Scenario) -> float:
    """Return how long the planned load takes to give each class's percentiles their samples, s.

    A tenth more, because arrivals are random; inf for a class that never comes.
    """
    rates = {c.name: loads.planned_rps * loads.share.get(c.name, 0.0) for c in scenario.classes}
    needed = {c.name: c.promises.samples_needed() for c in scenario.classes}
    times = [needed[n] / rate if rate > 0 else math.inf for n, rate in rates.items()]
    return 1.1 * max(times)


def soak(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the planned load for as long as the plan's soak lasts."""
    plan = scenario.stages
    return _plain(
        scenario,
        "soak",
        loads.planned_rps,
        shape={"kind": "steady", "rate_rps": loads.planned_rps},
        end=plan.soak_s,
        seed=seed,
    )


def spike(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return one spike to a multiple of the planned peak, out of the baseline."""
    plan = scenario.stages
    peak = plan.peak_fraction * loads.peak_rps
    shape = {
        "kind": "spike",
        "base_rps": loads.start_rps,
        "peak_rps": peak,
        "burst_s": plan.burst_s,
        "every_s": plan.every_s,
        "first_s": plan.step_s / 2,
    }
    return _plain(scenario, "spike", peak, shape=shape, end=plan.step_s, seed=seed)


def wave(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return two periods of a wave around the planned load."""
    plan = scenario.stages
    shape = {
        "kind": "wave",
        "rate_rps": loads.planned_rps,
        "amplitude_fraction": plan.wave_amplitude_fraction,
        "period_s": plan.wave_period_s,
    }
    return _plain(
        scenario, "wave", loads.planned_rps, shape=shape, end=2 * plan.wave_period_s, seed=seed
    )


def replay(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the scenario's own traffic, as it stands."""
    from capplan.simulation import simulate

    trace = draw(scenario, seed=seed)
    run = simulate(scenario, trace=trace, seed=seed)
    end = math.nextafter(float(trace.frame["arrival_s"].iloc[-1]), math.inf)
    return stage_of(
        "replay", "replay", loads.planned_rps, run, start_s=scenario.warmup_s, end_s=end
    )


def _plain(
    scenario: Scenario, kind: str, load: float, *, shape: Mapping[str, Any], end: float, seed: int
) -> Stage:
    run = play(scenario, shape, duration_s=end, seed=seed)
    start, _ = warmed_up(run, ramp_s=0.0, end_s=end, steady_s=0.8 * end)
    return stage_of(kind, kind, load, run, start_s=start, end_s=end)


Play = Callable[..., Stage]
SELECTABLE: Mapping[str, Play] = {
    "burst": burst,
    "long_outputs": long_outputs,
    "soak": soak,
    "spike": spike,
    "wave": wave,
    "replay": replay,
}


def selected(scenario: Scenario, loads: Loads, *, seed: int) -> Iterator[Stage]:
    """Yield the plan's stages that need no other stage, in its order."""
    for kind in scenario.stages.run:
        if kind in SELECTABLE:
            yield SELECTABLE[kind](scenario, loads, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFault:
    """A fault that strikes once, when it is over, and what happens, in words."""

    fault: dict[str, Any]
    ends_s: float
    note: str


def failure_of(scenario: Scenario, *, at_s: float, down_s: float) -> StageFault:
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
    return StageFault(fault=fault, ends_s=ends_s, note=_note(fault, pool, ends_s - at_s))


def _stated(scenario: Scenario, pool: Pool) -> dict[str, Any]:
    """Return what the scenario says of a fault of the plan's kind, or the kind and pool alone."""
    kind = scenario.stages.failure
    named = scenario.stages.failed_pool
    for fault in scenario.faults:
        if fault.kind == kind and (named is None or getattr(fault, "pool", None) == named):
            return fault_values(fault)
    return {"kind": kind, "pool": pool.name}


def _node(pool: Pool) -> dict[str, Any]:
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
        host = next((h for h in scenario.hosts if h.name in pool.hosts), None)
        load_s = load_alone_s(pool, pool.model_load, host)
    turns = math.ceil((fault.get("count") or pool.replicas) / fault.get("max_unavailable", 1))
    ends_s = at_s + turns * (fault.get("drain_s", 30.0) + load_s)
    most = fault.get("max_unavailable", 1)
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
    told = {
        "crash": f"{some} away",
        "hang": f"{some} hanging",
        "slow": f"{some} {fault.get('factor', 2.0):g} times slower",
        "node_loss": f"a machine of {name} away",
        "router_blind": f"the router of {name} blind",
    }[str(fault["kind"])]
    return f"{told} for {lasts_s:.3g} s"
