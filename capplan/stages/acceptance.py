"""The acceptance: its stages, what they found, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.display import Displayed
from capplan.encoding import plain
from capplan.evidence import Inputs, RunRecord, TraceIdentity, store, write_run
from capplan.formatting import counted, format_value, in_layer, listed, rule_words
from capplan.replica.assumptions import rests_on
from capplan.results.conservation import KEYS
from capplan.scenario.shapes import Replay
from capplan.simulation.backend import SIMULATION, Backend
from capplan.stages.metrics import levels, trends_of
from capplan.stages.rules import Findings, not_applicable
from capplan.stages.within_error import knee_words, moved_words
from capplan.verdict import Verdict, reason_table

if TYPE_CHECKING:
    from capplan.stages.knee import Knee
    from capplan.stages.next_change import Candidate
    from capplan.stages.protection import ProtectiveAction
    from capplan.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Acceptance(Findings, Displayed):
    """What the stages of a scenario found, the verdict on it, and what was tried next."""

    seed: int
    trace: TraceIdentity
    protections: tuple[ProtectiveAction, ...]
    verdict: Verdict
    candidate: Candidate | None = None
    asked_next: bool = False
    backend: Backend = SIMULATION

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
            backend=self.backend.name,
            asked={"next": self.asked_next, **self.backend.identity()},
        )

    @property
    def run_id(self) -> str:
        """Return the id of the acceptance: the hash of its inputs."""
        return self.inputs.run_id

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``stages --json``."""
        knee, point, within = self.knee, self.first_degradation, self.within_error
        ends = None if within is None or knee is None else within.knee(knee)
        return {
            "run_id": self.run_id,
            "loads": self.loads.to_json(),
            "stages": [{**s.to_json(), "levels": levels(s)} for s in self.stages],
            "isolation": [c.again.to_json() for c in self.cuts if c.again is not None],
            "knee": None if knee is None else {**knee.to_json(), "within_step_time_error": ends},
            "knees": [k.to_json() for k in self.knees],
            "client_limit_rps": None if self.ramp is None else self.ramp.client_limit_rps,
            "first_degradation": None if point is None else point.to_json(),
            "within_step_time_error": within and within.to_json(),
            "acceptable_load": self.acceptable(),
            "replications": None if self.replications is None else self.replications.to_json(),
            "recovery": None if self.recovery is None else self.recovery.to_json(),
            "protective_actions": [p.to_json() for p in self.protections],
            "trends": self._trends(),
            "next": None if self.candidate is None else self.candidate.to_json(),
            "not_applicable": not_applicable(self),
            "verdict": self.verdict.to_json(),
            "assumed": self.assumed,
        }

    def _trends(self) -> list[dict[str, Any]]:
        soak = self.stage("soak")
        return [] if soak is None else [trend.to_json() for trend in trends_of(soak)]

    @property
    def assumed(self) -> list[str]:
        """Return what was assumed, cut, dropped or filled, and how far step times can be off."""
        modelled = rests_on(self.scenario) if self.is_simulated else []
        return [*self.trace.notes, *self.backend.notes, *modelled]

    @property
    def is_simulated(self) -> bool:
        """Return whether step times of a law, with their error, are behind the figures."""
        return self.backend.name == "simulated"

    def summary(self) -> str:
        """Return where it first degrades, where the knee is, and whether it comes back."""
        parts = [self.degradation_summary(), self.knee_summary(), self.recovery_summary()]
        limit = math.nan if self.ramp is None else self.ramp.client_limit_rps
        if not math.isnan(limit):
            parts.append(f"The client itself could not send {format_value(limit, '_rps')}.")
        return " ".join(parts)

    def degradation_summary(self) -> str:
        """Return where it first degrades, in a sentence."""
        point = self.first_degradation
        if self.ramp is None:
            return "No ramp was run, so at which load a promise first breaks is unknown."
        if point is None:
            top = max((s.load_rps for s in self.ramp.steps), default=math.nan)
            return f"No promise is broken up to {format_value(top, '_rps')}."
        sure = f"beyond doubt from {format_value(point.high_rps, '_rps')}"
        if math.isinf(point.high_rps):
            sure = "at no load beyond doubt"
        moved = f"{moved_words(self.within_error)} " if self.is_simulated else ""
        return (
            f"The first promise to break is **{point.request_class}: "
            f"{rule_words(point.promise)}**, at {format_value(point.load_rps, '_rps')} "
            f"(surely kept up to {format_value(point.low_rps, '_rps')}, broken {sure}). "
            f"Most of its requests lose their time **{in_layer(point.layer)}**. "
            f"{moved}Next: {point.limit.action}."
        )

    def knee_summary(self) -> str:
        """Return where the knee is, in a sentence."""
        knee = self.knee
        if self.ramp is None:
            return "No ramp was run, so the load at the knee is unknown."
        if knee is None or math.isnan(knee.load_rps):
            why = "" if knee is None else f": {knee.reason}"
            return f"The curve has no knee in the range of the ramp{why}."
        low, high = format_value(knee.low_rps, "_rps"), format_value(knee.high_rps, "_rps")
        moved = f" ({knee_words(self.within_error, knee)})" if self.is_simulated else ""
        return (
            f"The knee of {knee.pool} lies at {format_value(knee.load_rps, '_rps')}, between {low} "
            f"and {high}{moved}: from there on mean E2E rises in greater proportion than the load."
        )

    def recovery_summary(self) -> str:
        """Return whether it comes back after the overload, in a sentence."""
        back, stage = self.recovery, self.stage("fall_back")
        if back is None or stage is None:
            return "No fall-back was run."
        word = "It comes back" if back.converged else "**It does not come back**"
        if back.converged and not stage.counts:
            word = "**It is not known to come back**"
        return (
            f"{word} from {format_value(stage.highest_rps, '_rps')} to "
            f"{format_value(stage.load_rps, '_rps')} (queues empty: {_when(back.queues_empty_s)}; "
            f"error rate back: {_when(back.error_rate_back_s)})."
        )

    def table(self) -> pd.DataFrame:
        """Return one row per stage: mean load and flows, whether it counts, what breaks first."""
        frame = self.frame()
        loads = [s.offered_rps if s.kind == "burst" else s.load_rps for s in self.stages]
        broken = [
            f"{s.breaks[0].request_class}: {rule_words(s.breaks[0].promise)}"
            if s.breaks
            else _growing(s)
            for s in self.stages
        ]
        return pd.DataFrame(
            {
                "stage": frame["stage"],
                "load_rps": loads,
                "goodput_rps": frame["goodput_rps"],
                "timed out_fraction": frame["timed_out_fraction"],
                "refused_fraction": frame["rejected_fraction"],
                "counts": np.where(frame["counts"], "yes", "no"),
                "first broken": broken,
                "note": frame["note"],
            }
        )

    def acceptable_table(self) -> pd.DataFrame:
        """Return the acceptable load of each class, with the interval of its limit."""
        rows = []
        for name, entry in self.acceptable().items():
            row = {
                "class": name,
                "kept up to_rps": entry["to_rps"],
                "surely broken from_rps": entry["interval"][1],
                "own requests at that load_rps": entry["class_rps"],
            }
            if self.replications is not None:
                low, high = entry["replications"]["interval"]
                row |= {"over ramps from_rps": low, "over ramps to_rps": high}
            rows.append(row)
        return pd.DataFrame(rows)

    def load_summary(self) -> str:
        """Return the planned peak, and over how many ramps the loads were found."""
        loads = self.loads
        peak = (
            f"The planned peak is {format_value(loads.peak_rps, '_rps')}; steps must hold at "
            f"{format_value(loads.needed_rps, '_rps')} ({loads.evidence['needed_rps']}). Arrivals: "
            f"{loads.evidence['arrivals']}."
        )
        if self.replications is None:
            return f"{peak} One ramp was run: how far the loads depend on its requests is unknown."
        spread, count = self.replications.first_degradation, len(self.replications.each)
        low, high = (format_value(end, "_rps") for end in spread["interval"])
        which = "other requests"
        if isinstance(self.scenario.traffic.shape, Replay):
            which = "the same trace from other places on"
        return (
            f"{peak} Over {counted(count, 'ramp')} of {which} a promise first broke at "
            f"{format_value(spread['mean_rps'], '_rps')} on average, between {low} and {high} "
            f"(found in {spread['found']} of {count})."
        )

    def action_table(self) -> pd.DataFrame:
        """Return the limits that ended, degraded or dropped attempts, and those not set."""
        rows = [
            (p.boundary.field, p.boundary.owner or "no owner", p.boundary.action, p.count,
             p.first_at_rps)
            for p in self.protections
            if p.acted or not p.boundary.is_set
        ]  # fmt: skip
        heads = ["boundary", "owner", "protective action", "attempts", "first at_rps"]
        return pd.DataFrame(rows, columns=heads)

    def check_table(self) -> pd.DataFrame:
        """Return the re-check steps after the overload with their results."""
        reasons = self.recovery.reasons if self.recovery else ()
        rows = [(r.outcome, r.evidence, r.next_action) for r in reasons]
        return pd.DataFrame(rows, columns=["result", "re-check", "next action"])

    def rule_table(self) -> pd.DataFrame:
        """Return every rule of the verdict, the worst first, and the rules that do not apply."""
        rules = reason_table(self.verdict.reasons, passed=True)
        silent = [
            {"outcome": "does not apply", "rule": rule_words(rule), "evidence": why}
            for rule, why in not_applicable(self).items()
        ]
        return pd.concat([rules, pd.DataFrame(silent, columns=rules.columns)]).fillna("")

    def chart(self) -> Any:
        """Return the chart of throughput and goodput by load; None if no ramp was run."""
        from capplan import charts

        if self.ramp is None:
            return None
        return charts.flows_by_load(self.ramp.flows(), marked=self.ramp.kept_rps)

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
        tried = None if self.candidate is None else self.candidate.after
        more = () if self.within_error is None else self.within_error.stages
        for s in (*self.stages, *more, *(cut.again for cut in self.cuts), tried):
            if s is not None and s.run_id not in written:
                written.add(s.run_id)
                write_run(s.run, s.verdict, Path(folder) / "stages" / folder_name(s))
        return record


def _when(after_s: float) -> str:
    """Return how long after the overload something was back; NaN: it was not seen."""
    if not math.isfinite(after_s):
        return "not seen"
    return f"after {format_value(after_s, '_s')}" if after_s else "at once"


def _growing(stage: Stage) -> str:
    """Return the classes whose backlog grows without end in a stage that breaks no promise yet."""
    names = [c.name for c in stage.scenario.classes if stage.grows(c.name)]
    return f"{listed(names)}: the backlog grows" if names else ""


def folder_name(stage: Stage) -> str:
    """Return the name of a stage's run folder: what it is, then its run id."""
    return f"{stage.name.replace(' ', '-')}-{stage.run_id}"
