"""Running an acceptance: its stages in order, what they find, and the verdict."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from capplan.budget import resolved
from capplan.evidence import TraceIdentity
from capplan.progress import work
from capplan.simulation.backend import SIMULATION, Backend, current, running_on
from capplan.slo import scope_of
from capplan.stages import stage_kinds
from capplan.stages.acceptance import Acceptance
from capplan.stages.degradation import degradation_of
from capplan.stages.failure_stage import failure
from capplan.stages.isolation import cuts_of
from capplan.stages.next_change import run_next
from capplan.stages.protection import protections
from capplan.stages.ramp import ramp_of
from capplan.stages.recovery import recovery_of
from capplan.stages.replications import Replications, further, knees_of, replication_of
from capplan.stages.rules import Findings, rules, unowned_queues
from capplan.stages.run_load import loads_of, settled
from capplan.stages.within_error import loads_within_error
from capplan.traffic.draw import draw
from capplan.verdict import Verdict

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage


RAMP_RUNS = 14
"""Runs that a ramp and its knees usually take, for the time that is left."""


def verdict_of(findings: Findings) -> Verdict:
    """Return the verdict of all rules, the worst first, in the scope of every stage's run."""
    reasons = sorted(rules(findings), key=attrgetter("rank"))
    stages = findings.judged
    scope = scope_of(findings.scenario, [s.run for s in stages], [s.table for s in stages])
    return Verdict(reasons=tuple(reasons), scope=scope)


def run_stages(
    scenario: Scenario,
    *,
    seed: int = 0,
    try_next: bool = False,
    jobs: int = 1,
    backend: Backend = SIMULATION,
) -> Acceptance:
    """Return the acceptance of a scenario: its baseline, ramp, bursts, fall-back and failure.

    ``scenario.stages`` plans the stages and their loads. With two queues without an owner it ends
    after the baseline. ``try_next`` runs the one change that the first degradation names.

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
    backend
        What runs the stages: the simulation, or a real server, whose faults and next change are
        left out.

    Raises
    ------
    DataError
        For a scenario that cannot be drawn or run.
    ValueError
        For ``jobs`` or ``try_next`` on a real server.
    """
    scenario, live = resolved(scenario), backend.name == "live"
    if live and (jobs > 1 or try_next):
        raise ValueError("jobs and try_next are for the simulation")
    runs = work("", total=RAMP_RUNS + len(scenario.stages.run), guessed=True)
    with running_on(backend), runs:
        loads = loads_of(scenario, seed=seed)
        plan = scenario.stages.run
        found = Findings(scenario=scenario, loads=loads, left_out=_left_out(scenario, live=live))
        if "baseline" in plan:
            found = replace(found, baseline=stage_kinds.baseline(scenario, loads, seed=seed))
        if unowned_queues(scenario).outcome != "blocked":
            found = _loaded(found, seed, jobs)
        candidate = None
        if try_next and found.first_degradation is not None:
            candidate = run_next(scenario, found.first_degradation, seed=seed)
    return Acceptance(
        **{part.name: getattr(found, part.name) for part in fields(found)},
        seed=seed,
        trace=TraceIdentity.of(draw(scenario, seed=seed)),
        protections=protections(scenario, found.judged),
        verdict=verdict_of(found),
        candidate=candidate,
        asked_next=try_next,
        backend=backend,
    )


def _left_out(scenario: Scenario, *, live: bool) -> dict[str, str]:
    """Return the stages of the plan that a real server cannot be asked for, and why."""
    if live and "failure" in scenario.stages.run:
        return {"failure": "no fault was run on the server"}
    return {}


def _loaded(found: Findings, seed: int, jobs: int) -> Findings:
    """Return the findings with every stage that the plan asks for beyond the baseline."""
    scenario, loads, plan = found.scenario, found.loads, found.scenario.stages.run
    if "ramp" in plan:
        ramp = ramp_of(scenario, loads, seed=seed)
        point = degradation_of(ramp.steps, found.baseline, counted=True)
        knees = knees_of(scenario, ramp, seed=seed)
        first = scenario.request_class(point.request_class if point else None)
        pool = scenario.pool_of(first.name).name
        simulated = current().name == "simulated"
        within = loads_within_error(scenario, ramp, pool, seed=seed) if simulated else None
        found = replace(found, ramp=ramp, first_degradation=point, knees=knees, within_error=within)
        found = replace(found, replications=_replicated(found, seed, jobs))
    planned = settled(scenario, loads.planned_rps, seed=seed)
    others = stage_kinds.selected(scenario, planned, loads, seed=seed)
    run: dict[str, Stage] = {s.kind: s for s in others}
    if "fall_back" in plan:
        stage = stage_kinds.fall_back(scenario, loads, found.ramp, seed=seed)
        run["fall_back"] = stage
        found = replace(found, recovery=recovery_of(stage, found.baseline))
    if "failure" in plan and "failure" not in found.left_out:
        run["failure"], run["retest"] = failure(planned, loads, seed=seed)
    found = replace(found, others=run)
    return replace(found, cuts=tuple(cuts_of(scenario, found.within)))


def _replicated(found: Findings, seed: int, jobs: int) -> Replications | None:
    """Return what all replications of the ramp found; None if the plan has only this one."""
    scenario, ramp = found.scenario, found.ramp
    if ramp is None or scenario.stages.replications < 2:  # noqa: PLR2004
        return None
    first = replication_of(scenario, ramp, found.knees, found.first_degradation)
    others = further(scenario, found.baseline, loads=found.loads, seed=seed, jobs=jobs)
    return Replications(each=(first, *others))
