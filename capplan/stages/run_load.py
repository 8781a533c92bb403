"""Run one load: the scenario's requests at a stated shape, its start-up found and cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.scenario.files import with_values
from capplan.simulation import simulate
from capplan.stages.failure_stage import generator_limits
from capplan.stages.stage import Stage, stage_of, windowed
from capplan.stages.violations import margins_of
from capplan.statistics import mser5

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario

Shape = Mapping[str, Any]


def play(
    scenario: Scenario,
    shape: Shape,
    *,
    duration_s: float,
    seed: int,
    replication: int = 0,
    perturbations: Sequence[Mapping[str, Any]] = (),
    faults: Sequence[Mapping[str, Any]] = (),
) -> RunResult:
    """Return the run of a scenario's requests under another shape of the load.

    Every run of a seed and replication draws the same requests in the same order: two steps differ
    in load alone. Limits of the load generator hold in each; the scenario's other faults do not.
    """
    changed = with_values(
        scenario,
        {
            "traffic.shape": dict(shape),
            "traffic.duration_s": duration_s,
            "traffic.perturbations": [dict(p) for p in perturbations],
            "traffic.mix": [],
            "faults": [*generator_limits(scenario), *(dict(f) for f in faults)],
            "requests": None,
            "warmup_s": 0.0,
        },
    )
    return simulate(changed, seed=seed, replication=replication)


def risen(from_rps: float, to_rps: float, *, ramp_s: float, duration_s: float) -> Shape:
    """Return the shape of a step: from the load before in a straight line, then held."""
    steady = {"kind": "steady", "rate_rps": to_rps}
    if ramp_s <= 0:
        return steady
    line = {"kind": "ramp", "start_rps": from_rps, "target_rps": to_rps, "ramp_s": ramp_s}
    return {
        "kind": "sequence",
        "parts": [
            {"shape": line, "duration_s": ramp_s},
            {"shape": steady, "duration_s": duration_s - ramp_s},
        ],
    }


def step(
    scenario: Scenario,
    load_rps: float,
    *,
    before_rps: float,
    name: str,
    kind: str,
    seed: int,
    replication: int = 0,
) -> tuple[Stage, list[Stage]]:
    """Return a stage at one load, and the void tries before it.

    A try whose start-up alone breaks a promise is void and repeated with twice the rise. One that
    is too short for its steady part, its percentiles or its stability gate is repeated longer.
    """
    plan = scenario.stages
    ramp_s, duration_s = plan.ramp_s, plan.step_s
    voids: list[Stage] = []
    while True:
        shape = risen(before_rps, load_rps, ramp_s=ramp_s, duration_s=duration_s)
        run = play(scenario, shape, duration_s=duration_s, seed=seed, replication=replication)
        start_s, settled = warmed_up(run, ramp_s=ramp_s, end_s=duration_s, steady_s=plan.steady_s)
        found = stage_of(name, kind, load_rps, run, start_s=start_s, end_s=duration_s)
        if not found.broken and _broke_early(run, start_s, found):
            voids.append(replace(found, void=True, note="void: the ramp was too fast"))
            if len(voids) > plan.repeats:
                return voids[-1], voids[:-1]
            ramp_s, duration_s = 2 * ramp_s, duration_s + ramp_s
            continue
        missing_s = 60 * found.needs_min
        if not settled and not found.broken:
            missing_s = max(missing_s, plan.steady_s / 2)
        longer_s = min(1.05 * (duration_s + missing_s), plan.longest_s)
        if missing_s == 0 or longer_s <= duration_s or found.stationary is False:
            return found, voids
        duration_s = longer_s


def warmed_up(
    run: RunResult, *, ramp_s: float, end_s: float, steady_s: float
) -> tuple[float, bool]:
    """Return when the start-up of a run ends, s, and whether it left ``steady_s`` of it.

    The series is the number of requests in flight (MSER-5); one that never settles leaves its last
    ``steady_s``, and the stability gate decides.
    """
    rows = run.timeline
    rows = rows[(rows["layer"] == "caller") & (rows["metric"] == "in_flight")]
    rows = rows[(rows["time_s"] >= ramp_s) & (rows["time_s"] < end_s)]
    time = rows["time_s"].to_numpy(np.float64)
    cut = mser5(rows["value"].to_numpy(np.float64))
    latest = end_s - steady_s
    if cut is None or not time.size:
        return max(latest, ramp_s), False
    start = max(float(time[cut]), ramp_s)
    return min(start, max(latest, ramp_s)), start <= latest


def _broke_early(run: RunResult, start_s: float, stage: Stage) -> bool:
    """Return whether the requests of the start-up broke a promise beyond doubt."""
    from capplan.results import per_request

    if start_s <= 0:
        return False
    early = per_request(windowed(run, 0.0, start_s))
    return any(found.proven for found in margins_of(early, stage.scenario))
