"""The acceptance: its stages run in order, what they find, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.budget import resolved
from capplan.encoding import plain
from capplan.evidence import Inputs, RunRecord, TraceIdentity, store, write_run
from capplan.results.conservation import KEYS
from capplan.slo import scope_of
from capplan.stages import stage_kinds
from capplan.stages.degradation import degradation_of
from capplan.stages.metrics import levels, trends_of
from capplan.stages.next_change import Candidate, run_next
from capplan.stages.protection import protections
from capplan.stages.ramp import Replications, further, knees_of, raise_load, replication_of
from capplan.stages.recovery import recovery_of
from capplan.stages.rules import Findings, not_applicable, rules, unowned_queues
from capplan.stages.run_load import loads_of
from capplan.traffic.draw import draw
from capplan.verdict import PRECEDENCE, Verdict

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.degradation import Knee
    from capplan.stages.protection import ProtectiveAction
    from capplan.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Acceptance(Findings):
    """What the stages of a scenario found, the verdict on it, and what was tried next."""

    seed: int
    trace: TraceIdentity
    protections: tuple[ProtectiveAction, ...]
    verdict: Verdict
    candidate: Candidate | None = None
    asked_next: bool = False

    @property
    def knee(self) -> Knee | None:
        """Return the knee of the pool that degrades first, else of the primary pool."""
        point = self.first_degradation
        name = point.request_class if point else self.scenario.request_class().name
        pool = self.scenario.pool_of(name).name
        return next((k for k in self.knees if k.pool == pool), None)

    def acceptable(self) -> dict[str, dict[str, Any]]:
        """Return the load up to which each class's promises are kept, with its interval."""
        if self.ramp is None:
            return {}
        found: dict[str, dict[str, Any]] = {}
        for c in self.scenario.classes:
            kept = self.ramp.acceptable(c.name)
            found[c.name] = {
                "to_rps": kept.load_rps,
                "interval": [kept.low_rps, kept.high_rps],
                "class_rps": self.loads.share.get(c.name, 0.0) * kept.load_rps,
            }
            if self.replications is not None:
                found[c.name]["replications"] = self.replications.acceptable(c.name)
            found[c.name]["of"] = "all requests per second, at the mix of the traffic"
        return found

    @property
    def inputs(self) -> Inputs:
        """Return what decides the acceptance."""
        return Inputs(
            kind="stages",
            scenario=self.scenario,
            seed=self.seed,
            trace=self.trace,
            asked={"next": self.asked_next},
        )

    @property
    def run_id(self) -> str:
        """Return the id of the acceptance: the hash of its inputs."""
        return self.inputs.run_id

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``stages --json``."""
        knee, point = self.knee, self.first_degradation
        return {
            "run_id": self.run_id,
            "loads": self.loads.to_json(),
            "stages": [{**s.to_json(), "levels": levels(s)} for s in self.stages],
            "knee": None if knee is None else knee.to_json(),
            "knees": [k.to_json() for k in self.knees],
            "client_limit_rps": None if self.ramp is None else self.ramp.client_limit_rps,
            "first_degradation": None if point is None else point.to_json(),
            "acceptable_load": self.acceptable(),
            "replications": None if self.replications is None else self.replications.to_json(),
            "recovery": None if self.recovery is None else self.recovery.to_json(),
            "protective_actions": [p.to_json() for p in self.protections],
            "trends": self._trends(),
            "next": None if self.candidate is None else self.candidate.to_json(),
            "not_applicable": not_applicable(self),
            "verdict": self.verdict.to_json(),
        }

    def _trends(self) -> list[dict[str, Any]]:
        soak = self.stage("soak")
        return [] if soak is None else [trend.to_json() for trend in trends_of(soak)]

    def frame(self) -> pd.DataFrame:
        """Return one row per stage: loads, flows, whether it counts, what breaks first."""
        rows = []
        for s in self.stages:
            ended = s.table["outcome"].value_counts(normalize=True)
            first = s.breaks[0] if s.breaks else None
            rows.append(
                {
                    "stage": s.name,
                    "kind": s.kind,
                    "load_rps": s.load_rps,
                    "requests": len(s.table),
                    "throughput_rps": s.throughput_rps,
                    "goodput_rps": s.goodput_rps,
                    "timed_out_fraction": float(ended.get("timed_out", 0.0)),
                    "rejected_fraction": float(ended.get("rejected", 0.0)),
                    "stationary": s.stationary,
                    "counts": s.counts,
                    "request_class": first.request_class if first else "",
                    "promise": first.promise if first else "",
                    "note": s.remark,
                    "run_id": s.run_id,
                }
            )
        return pd.DataFrame(rows).astype({"stationary": "boolean"})

    def books(self) -> pd.DataFrame:
        """Return the books of every stage's window: ``stage``, ``load_rps``, ``run_id`` before."""
        parts = []
        for s in self.stages:
            table = s.books(KEYS)
            named = table.assign(stage=s.name, load_rps=s.load_rps, run_id=s.run_id)
            parts.append(named[["stage", "load_rps", "run_id", *table.columns]])
        return pd.concat(parts, ignore_index=True)

    def write(self, folder: str | Path) -> RunRecord:
        """Store the acceptance in ``folder``, and each of its runs in ``stages/`` below it.

        Same rules as :func:`capplan.evidence.write_run`; a folder that lacks some of the runs
        (a writer was stopped) is completed.
        """
        document = plain(self.to_json())
        tables = {"stages": self.frame(), "books": self.books()}
        record = store(self.inputs, tables, folder, document["verdict"], summary=document)
        written = set()
        for s in self.stages:
            if s.run_id not in written:
                written.add(s.run_id)
                write_run(s.run, s.verdict, Path(folder) / "stages" / folder_name(s))
        return record


def folder_name(stage: Stage) -> str:
    """Return the name of a stage's run folder: what it is, then its run id."""
    return f"{stage.name.replace(' ', '-')}-{stage.run_id}"


def verdict_of(findings: Findings) -> Verdict:
    """Return the verdict of all rules, the worst first, in the scope of every stage's run."""
    reasons = sorted(rules(findings), key=lambda r: PRECEDENCE.index(r.outcome))
    stages = findings.judged
    scope = scope_of([s.run for s in stages], [s.table for s in stages])
    return Verdict(reasons=tuple(reasons), scope=scope)


def run_stages(
    scenario: Scenario, *, seed: int = 0, try_next: bool = False, jobs: int = 1
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

    Raises
    ------
    DataError
        For a scenario that cannot be drawn or run.
    """
    scenario = resolved(scenario)
    loads = loads_of(scenario, seed=seed)
    plan = scenario.stages.run
    found = Findings(scenario=scenario, loads=loads)
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
    )


def _loaded(found: Findings, seed: int, jobs: int) -> Findings:
    """Return the findings with every stage that the plan asks for beyond the baseline."""
    scenario, loads, plan = found.scenario, found.loads, found.scenario.stages.run
    if "ramp" in plan:
        ramp = raise_load(scenario, start_rps=loads.start_rps, seed=seed)
        point = degradation_of(ramp.steps, found.baseline, counted=True)
        knees = knees_of(scenario, ramp, seed=seed)
        found = replace(found, ramp=ramp, first_degradation=point, knees=knees)
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
    first = replication_of(scenario, ramp, found.knees, found.first_degradation)
    start = found.loads.start_rps
    others = further(scenario, found.baseline, start_rps=start, seed=seed, jobs=jobs)
    return Replications(each=(first, *others))
