"""Run the stages of a scenario, in the order in which each makes the next one readable."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from capplan.evidence import TraceIdentity
from capplan.stages import others
from capplan.stages.acceptance import Acceptance, verdict_of
from capplan.stages.candidate import Candidate, run_next
from capplan.stages.degradation import degradation_of
from capplan.stages.knee import knee_of
from capplan.stages.loads import loads_of
from capplan.stages.protection import protections
from capplan.stages.ramp import raise_load
from capplan.stages.recovery import recovery_of
from capplan.stages.rules import Findings, unowned_queues
from capplan.traffic.draw import draw
from capplan.traffic.streams import stream

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage

BOOTSTRAP = 20
"""Random stream of the resampled curves; draws of traffic and simulation use those below."""


def run_stages(scenario: Scenario, *, seed: int = 0, try_next: bool = False) -> Acceptance:
    """Return the acceptance of a scenario: its baseline, ramp, bursts, fall-back and failure.

    Which stages run, and at which loads, says ``scenario.stages``. Two queues without an owner end
    it after the baseline. ``try_next`` runs the one change that the first degradation point names.

    Parameters
    ----------
    scenario
        The service; every stage serves requests of its traffic, at another load.
    seed
        Names the random numbers: each stage draws the same requests in the same order.
    try_next
        Whether to run the change of the crossed limit as a candidate.

    Raises
    ------
    DataError
        For a scenario that cannot be drawn or run.
    """
    loads = loads_of(scenario, seed=seed)
    plan = scenario.stages.run
    found = Findings(scenario=scenario, loads=loads)
    if "baseline" in plan:
        found = replace(found, baseline=others.baseline(scenario, loads, seed=seed))
    if unowned_queues(scenario).outcome != "blocked":
        found = _loaded(found, seed)
    candidate = None
    if try_next and found.degradation is not None:
        candidate = run_next(scenario, found.degradation, seed=seed)
    return _acceptance(found, seed, candidate, try_next=try_next)


def _loaded(found: Findings, seed: int) -> Findings:
    """Return the findings with every stage that the plan asks for beyond the baseline."""
    scenario, loads, plan = found.scenario, found.loads, found.scenario.stages.run
    if "ramp" in plan:
        ramp = raise_load(scenario, start_rps=loads.start_rps, seed=seed)
        point = degradation_of(ramp.steps, found.baseline, counted=True)
        found = replace(found, ramp=ramp, degradation=point)
    run: dict[str, Stage] = {s.kind: s for s in others.selected(scenario, loads, seed=seed)}
    if "fall_back" in plan:
        stage = others.fall_back(scenario, loads, found.ramp, seed=seed)
        run["fall_back"] = stage
        found = replace(found, recovery=recovery_of(stage, found.baseline))
    if "failure" in plan:
        run["failure"], run["retest"] = others.failure(scenario, loads, seed=seed)
    return replace(found, others=run)


def _acceptance(
    found: Findings, seed: int, candidate: Candidate | None, *, try_next: bool
) -> Acceptance:
    scenario = found.scenario
    steps = found.ramp.steps if found.ramp else ()
    every = [s for s in (found.baseline, *steps, *found.others.values()) if s is not None]
    knees = tuple(
        knee_of(steps, pool, rng=stream(seed, index, BOOTSTRAP))
        for index, pool in enumerate(scenario.pools)
    ) if steps else ()  # fmt: skip
    return Acceptance(
        scenario=scenario,
        seed=seed,
        trace=TraceIdentity.of(draw(scenario, seed=seed)),
        findings=found,
        knees=knees,
        protections=protections(scenario, every),
        verdict=verdict_of(found),
        candidate=candidate,
        asked_next=try_next,
    )
