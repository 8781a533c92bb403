"""The stages beside the ramp: baseline, bursts, long outputs, fall-back, failure, soak, waves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capplan.formatting import counted
from capplan.simulation.backend import current
from capplan.stages.run_load import (
    Loads,
    Shape,
    in_sequence,
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
    from capplan.stages.ramp import LoadRamp


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
    run = current().run(scenario, trace=trace, seed=seed)
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
