"""The stages beside the ramp: baseline, bursts, long outputs, fall-back, failure, soak, waves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from capplan.formatting import counted
from capplan.simulation import simulate
from capplan.simulation.shared_host import load_alone_s
from capplan.stages.run_load import (
    Loads,
    Shape,
    fault_values,
    in_sequence,
    lengthened,
    prolonged,
    run_load,
    steady,
    step,
    warmed_up,
)
from capplan.stages.scaling import fall_back_s
from capplan.stages.stage import Stage, judged, stage_of, windowed
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
"""The field with the length of each kind; a reload lasts as long as its loads."""
OF_LAW = ("mtbf_s", "mttr_s")


def baseline(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the stage at low load that the others are compared with."""
    load = loads.baseline_rps
    found, _ = step(
        scenario, load, before_rps=load / 2, name="baseline", kind="baseline", seed=seed
    )
    return found


def _load_stage(
    scenario: Scenario,
    kind: str,
    load_rps: float,
    shape: Shape,
    *,
    end_s: float,
    seed: int,
    quiet_s: float | None = None,
    steady_s: float | None = None,
    steady: bool = True,
    own_gaps: bool = False,
    perturbations: Sequence[Mapping[str, Any]] = (),
    note: str = "",
) -> Stage:
    """Return a load as a stage, without its start-up, which ends within ``quiet_s``.

    By default the start-up may take the first fifth of the run.
    """
    run = run_load(
        scenario,
        shape,
        duration_s=end_s,
        seed=seed,
        own_gaps=own_gaps,
        perturbations=perturbations,
    )
    quiet_s = end_s if quiet_s is None else quiet_s
    steady_s = 0.8 * end_s if steady_s is None else steady_s
    start, _ = warmed_up(run, ramp_s=0.0, end_s=quiet_s, steady_s=steady_s)
    name = kind.replace("_", " ")
    return stage_of(name, kind, load_rps, run, start_s=start, end_s=end_s, note=note, steady=steady)


def _repeated(
    scenario: Scenario, period_s: float, stage: Callable[[int], Stage], least: int = 1
) -> Stage:
    """Return the stage of so many periods of a load that it counts, within the plan's longest."""
    most = max(math.floor(scenario.stages.longest_s / period_s), least)
    return prolonged(
        lambda length_s: stage(math.ceil(length_s / period_s - 1e-9)),
        least * period_s,
        most * period_s,
    )


def burst(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the planned load with bursts to a multiple of the planned peak."""
    plan, planned = scenario.stages, loads.planned_rps
    first = plan.every_s / 2
    load = plan.peak_fraction * loads.peak_rps
    bursts = {
        "kind": "bursts",
        "peak_fraction": load / planned,
        "burst_s": plan.burst_s,
        "every_s": plan.every_s,
        "first_s": first,
    }

    def of(count: int) -> Stage:
        return _load_stage(
            scenario,
            "burst",
            load,
            steady(planned),
            end_s=count * plan.every_s,
            seed=seed,
            quiet_s=first,
            steady_s=first / 2,
            steady=False,
            perturbations=[bursts],
            note=f"{counted(count, 'burst')} of {plan.burst_s:g} s to {load:.3g}/s "
            f"over {planned:.3g}/s",
        )

    return _repeated(scenario, plan.every_s, of, plan.bursts)


def long_outputs(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the planned load with some very long outputs; the others' promises are judged.

    A request for thousands of tokens can hardly be answered in the time promised for hundreds; the
    question is whether the others still are.
    """
    plan, planned, outputs = scenario.stages, loads.planned_rps, scenario.stages.long_outputs

    def of(length_s: float) -> Stage:
        found = _load_stage(
            scenario,
            "long_outputs",
            planned,
            steady(planned),
            end_s=length_s,
            seed=seed,
            steady_s=plan.steady_s,
            perturbations=[outputs.model_dump()],
        )
        frame = found.run.trace.frame
        short = frame.loc[frame["output_tokens"] <= outputs.above_tokens, "request_id"]
        part = windowed(found.run, found.start_s, found.end_s)
        log = part.requests
        part = replace(part, requests=log[log["request_id"].isin(short)].reset_index(drop=True))
        note = f"judged without {counted(len(frame) - len(short), 'request')} of more than "
        return replace(found, **judged(part), note=f"{note}{outputs.above_tokens:,} tokens")

    return prolonged(of, plan.step_s, plan.longest_s)


def fall_back(scenario: Scenario, loads: Loads, ramp: LoadRamp | None, *, seed: int) -> Stage:
    """Return an overload of half a step's length, then the baseline load; the latter is judged.

    The overload is the highest load of the ramp, or that of a burst if it is higher. The baseline
    load is held for :func:`fall_back_s`, and until it has its samples.
    """
    plan, low = scenario.stages, loads.baseline_rps
    top = max((s.load_rps for s in ramp.steps), default=0.0) if ramp else 0.0
    over = max(top, plan.peak_fraction * loads.peak_rps)
    held = plan.step_s / 2

    def of(low_s: float) -> Stage:
        end = held + low_s
        shape = in_sequence((steady(over), held), (steady(low), low_s))
        run = run_load(scenario, shape, duration_s=end, seed=seed)
        note = f"after {held:g} s at {over:.3g}/s"
        return stage_of(
            "fall back", "fall_back", low, run, start_s=held, end_s=end, note=note, steady=False
        )

    return replace(prolonged(of, fall_back_s(scenario), plan.longest_s), top_rps=over)


def failure(scenario: Scenario, loads: Loads, *, seed: int) -> tuple[Stage, Stage]:
    """Return the planned load during a fault of the plan's kind, and the retest after it.

    Without ``down_s`` the fault lasts for the pool's cold start, or for longer, until each class's
    percentiles have their samples; the retest lasts until it counts.
    """
    plan, load = scenario.stages, loads.planned_rps
    at, pool = plan.step_s / 2, scenario.pool(plan.failed_pool)
    after = f"after {plan.failure.replace('_', ' ')} is over"
    if plan.failure == "crash":
        after = "after the replica's return"
    down_s = plan.down_s or pool.cold_start_s or plan.step_s
    judged_s = plan.fall_back_s / 2 + plan.steady_s
    while True:
        found = failure_of(scenario, at_s=at, down_s=down_s)
        back = found.ends_s
        start = back + plan.fall_back_s / 2
        end = start + judged_s
        run = run_load(scenario, steady(load), duration_s=end, seed=seed, faults=[found.fault])
        one = stage_of(
            "failure", "failure", load, run, start_s=at, end_s=back, note=found.note, steady=False
        )
        two = stage_of("retest", "retest", load, one.run, start_s=start, end_s=end, note=after)
        longer_s = lengthened(one, back - at, plan.longest_s) if plan.down_s is None else 0.0
        more_s = lengthened(two, judged_s, plan.longest_s)
        lasts_longer = failure_of(scenario, at_s=at, down_s=max(down_s, longer_s)).ends_s > back
        if more_s <= judged_s and not lasts_longer:
            return one, two
        down_s, judged_s = max(down_s, longer_s), more_s


def soak(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the planned load for as long as the plan's soak lasts."""
    load, end_s = loads.planned_rps, scenario.stages.soak_s
    return _load_stage(scenario, "soak", load, steady(load), end_s=end_s, seed=seed, own_gaps=True)


def spike(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return spikes to a multiple of the planned peak, one a step's length, out of the baseline."""
    plan = scenario.stages
    peak = plan.peak_fraction * loads.peak_rps
    shape = {
        "kind": "spike",
        "base_rps": loads.baseline_rps,
        "peak_rps": peak,
        "burst_s": min(plan.burst_s, plan.step_s),
        "every_s": plan.step_s,
        "first_s": plan.step_s / 2,
    }

    def of(count: int) -> Stage:
        end_s = count * plan.step_s
        return _load_stage(scenario, "spike", peak, shape, end_s=end_s, seed=seed, steady=False)

    return _repeated(scenario, plan.step_s, of)


def wave(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return two periods or more of a wave around the planned load."""
    period_s, load = scenario.stages.wave_period_s, loads.planned_rps
    shape = {"kind": "wave", "rate_rps": load, "period_s": period_s}

    def of(count: int) -> Stage:
        end_s = count * period_s
        return _load_stage(scenario, "wave", load, shape, end_s=end_s, seed=seed, steady=False)

    return _repeated(scenario, period_s, of, 2)


def replay(scenario: Scenario, loads: Loads, *, seed: int) -> Stage:
    """Return the scenario's own traffic, unchanged."""
    trace = draw(scenario, seed=seed)
    run = simulate(scenario, trace=trace, seed=seed)
    end = math.nextafter(float(trace.frame["arrival_s"].iloc[-1]), math.inf)
    load, start = loads.planned_rps, scenario.warmup_s
    return stage_of("replay", "replay", load, run, start_s=start, end_s=end, steady=False)


SELECTABLE: Mapping[str, Callable[..., Stage]] = {
    "burst": burst,
    "long_outputs": long_outputs,
    "soak": soak,
    "spike": spike,
    "wave": wave,
    "replay": replay,
}


def selected(scenario: Scenario, planned: Scenario, loads: Loads, *, seed: int) -> Iterator[Stage]:
    """Yield the plan's stages that need no other stage, in its order.

    ``planned`` begins with the replicas of the planned load, which most of them start at.
    """
    for kind in scenario.stages.run:
        if kind in SELECTABLE:
            begin = scenario if kind in ("spike", "replay") else planned
            yield SELECTABLE[kind](begin, loads, seed=seed)


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
    lasts_s = down_s if plan.down_s is not None else fault.get(length, down_s)
    fault[length] = lasts_s
    ends_s = at_s + lasts_s
    if "restart_s" in fault and "detect_s" in fault:
        noticed_s = at_s + fault["detect_s"]
        ends_s = ends_s if ends_s <= noticed_s else noticed_s + fault["restart_s"]
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
        host = next((h for h in scenario.hosts if h.name in pool.hosts), None)
        load_s = load_alone_s(pool, pool.model_load, host)
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
