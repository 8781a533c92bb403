"""Run the stages of a scenario, in the order in which each makes the next one readable."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from capplan.evidence import TraceIdentity
from capplan.stages import stage_kinds
from capplan.stages.acceptance import Acceptance, verdict_of
from capplan.stages.degradation import degradation_of
from capplan.stages.loads import loads_of
from capplan.stages.next_change import Candidate, run_next
from capplan.stages.protection import protections
from capplan.stages.ramp import raise_load
from capplan.stages.recovery import recovery_of
from capplan.stages.replications import Replications, further, knees_of, replication_of
from capplan.stages.rules import Findings, unowned_queues
from capplan.traffic.draw import draw

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage


def run_stages(
    scenario: Scenario, *, seed: int = 0, try_next: bool = False, jobs: int = 1
) -> Acceptance:
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
    jobs
        Processes that the plan's further replications of the ramp run in; the result does not
        depend on it.

    Raises
    ------
    DataError
        For a scenario that cannot be drawn or run.
    """
    loads = loads_of(scenario, seed=seed)
    plan = scenario.stages.run
    found = Findings(scenario=scenario, loads=loads)
    if "baseline" in plan:
        found = replace(found, baseline=stage_kinds.baseline(scenario, loads, seed=seed))
    if unowned_queues(scenario).outcome != "blocked":
        found = _loaded(found, seed, jobs)
    candidate = None
    if try_next and found.degradation is not None:
        candidate = run_next(scenario, found.degradation, seed=seed)
    return _acceptance(found, seed, candidate, try_next=try_next)


def _loaded(found: Findings, seed: int, jobs: int) -> Findings:
    """Return the findings with every stage that the plan asks for beyond the baseline."""
    scenario, loads, plan = found.scenario, found.loads, found.scenario.stages.run
    if "ramp" in plan:
        ramp = raise_load(scenario, start_rps=loads.start_rps, seed=seed)
        point = degradation_of(ramp.steps, found.baseline, counted=True)
        knees = knees_of(scenario, ramp, seed=seed)
        found = replace(found, ramp=ramp, degradation=point, knees=knees)
        found = replace(found, replications=_replicated(found, seed, jobs))
    run: dict[str, Stage] = {s.kind: s for s in stage_kinds.selected(scenario, loads, seed=seed)}
    if "fall_back" in plan:
        stage = stage_kinds.fall_back(scenario, loads, found.ramp, seed=seed)
        run["fall_back"] = stage
        found = replace(found, recovery=recovery_of(stage, found.baseline))
    if "failure" in plan:
        run["failure"], run["retest"] = stage_kinds.failure(scenario, loads, seed=seed)
    return replace(found, others=run)


def _replicated(found: Findings, seed: int, jobs: int) -> Replications | None:
    """Return what all replications of the ramp found; None where the plan has only this one."""
    scenario, ramp = found.scenario, found.ramp
    if ramp is None or scenario.stages.replications < 2:  # noqa: PLR2004
        return None
    first = replication_of(scenario, ramp, found.knees, found.degradation)
    start = found.loads.start_rps
    others = further(scenario, found.baseline, start_rps=start, seed=seed, jobs=jobs)
    return Replications(each=(first, *others))


def _acceptance(
    found: Findings, seed: int, candidate: Candidate | None, *, try_next: bool
) -> Acceptance:
    scenario = found.scenario
    return Acceptance(
        scenario=scenario,
        seed=seed,
        trace=TraceIdentity.of(draw(scenario, seed=seed)),
        findings=found,
        knees=found.knees,
        protections=protections(scenario, found.stages),
        verdict=verdict_of(found),
        candidate=candidate,
        asked_next=try_next,
    )
