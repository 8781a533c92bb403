"""The named rules of an acceptance: each with its evidence and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from capplan.formatting import counted, in_layer, listed, percent, rule_words
from capplan.results.cost import served_by
from capplan.slo.mechanisms import retry_amplification
from capplan.stages.isolation import Cut, isolation_reasons
from capplan.stages.metrics import trend_reasons, unknown_levels
from capplan.stages.recovery import same_version
from capplan.stages.scaling import FIXED, finding_reasons, scales, scaling_reasons
from capplan.stages.stage import resting_on
from capplan.stages.violations import starvation_reasons
from capplan.verdict import Outcome, Reason, checked, unknown

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.stages.degradation import Degradation
    from capplan.stages.knee import Knee
    from capplan.stages.ramp import LoadRamp
    from capplan.stages.recovery import Recovery
    from capplan.stages.replications import Replications
    from capplan.stages.run_load import Loads
    from capplan.stages.stage import Stage
    from capplan.stages.violations import Break
    from capplan.stages.within_error import LoadsWithinError

UNOWNED = 2
"""Queues without an owner at which no load is raised any further."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Findings:
    """What the stages found: everything that the rules look at."""

    scenario: Scenario
    loads: Loads
    """The rates that the stages were run at."""
    baseline: Stage | None = None
    """The stage at low load."""
    ramp: LoadRamp | None = None
    others: Mapping[str, Stage] = field(default_factory=dict)
    """Stages beside the ramp, by kind."""
    first_degradation: Degradation | None = None
    """Where a promise first breaks; None if none does."""
    recovery: Recovery | None = None
    """How the service comes back after the fall-back; None without one."""
    knees: tuple[Knee, ...] = ()
    replications: Replications | None = None
    """What several ramps found; None if one was run."""
    within_error: LoadsWithinError | None = None
    """How far the ramp's loads move with the error of step times; None = unknown."""
    cuts: tuple[Cut, ...] = ()
    """Stages that were run again with the tenants that send too much at their share."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Stages of the plan that could not be run, and why."""

    @property
    def within(self) -> tuple[Stage, ...]:
        """Return the stages that the service is planned for: steps up to the peak, and the rest."""
        return self._around([s for s in self._steps if s.load_rps <= self.loads.needed_rps])

    @property
    def judged(self) -> tuple[Stage, ...]:
        """Return every stage without the void tries of the ramp."""
        return self._around(self._steps)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return every stage in the order of the plan, void tries before what they gave way to."""
        return self._around(() if self.ramp is None else self.ramp.in_turn())

    @property
    def _steps(self) -> tuple[Stage, ...]:
        return () if self.ramp is None else self.ramp.steps

    def _around(self, steps: Iterable[Stage]) -> tuple[Stage, ...]:
        front = () if self.baseline is None else (self.baseline,)
        return (*front, *steps, *self.others.values())

    def stage(self, kind: str) -> Stage | None:
        """Return the stage of a kind beside the ramp; None if it was not run."""
        return self.others.get(kind)


def rules(found: Findings) -> Iterator[Reason]:
    """Yield the finding of every rule."""
    scenario, within = found.scenario, found.within
    yield unowned_queues(scenario)
    yield from (unknown(f"{kind}_stage", why) for kind, why in found.left_out.items())
    yield from _planned_load(found)
    yield from _stage_promises(found)
    yield from _ttft_over(found)
    yield from resting_on(
        within,
        (
            *_double_queue(found),
            *_retries(found),
            *starvation_reasons(scenario, within),
            *isolation_reasons(scenario, within, found.cuts),
        ),
    )
    yield from _scale_out(found)
    if found.recovery is not None:
        yield from found.recovery.reasons
    retest = found.stage("retest")
    if retest is not None and retest.run.versions:
        yield same_version(retest, found.baseline)
    if "soak" in found.others:
        yield from trend_reasons(found.others["soak"])


def unowned_queues(scenario: Scenario) -> Reason:
    """Return whether at most one queue has no owner: with two, responsibility comes first."""
    queues = [b for b in scenario.limits() if b.field.endswith(".length")]
    parts = {b.field.removesuffix(".length"): b.owner for b in queues}
    loose = sorted(name for name, owner in parts.items() if not owner)
    blocked = len(loose) >= UNOWNED
    return Reason(
        rule="unowned_queues",
        outcome="blocked" if blocked else "pass",
        value=len(loose),
        limit=UNOWNED - 1,
        evidence=f"no owner: {', '.join(loose) or 'none'}",
        next_action="fix responsibility first, load no further",
    )


def _double_queue(found: Findings) -> Iterator[Reason]:
    """Yield the worst finding on waiting twice, by rule and class, of the planned stages.

    See :func:`capplan.slo.mechanisms.double_queue_reasons`.
    """
    by_rule: dict[tuple[str, str | None], list[tuple[Reason, Stage]]] = {}
    for stage in found.within:
        for r in stage.verdict.reasons:
            if r.rule in ("double_queue", "double_queueing"):
                by_rule.setdefault((r.rule, r.request_class), []).append((r, stage))
    if not by_rule:
        yield unknown("double_queue", "no stage measures the waits in its queues")
    for pairs in by_rule.values():
        worst, stage = min(pairs, key=_worst_first)
        yield replace(worst, evidence=f"{worst.evidence}, in {stage.name} (run {stage.run_id})")


def _worst_first(pair: tuple[Reason, Stage]) -> tuple[int, float, float]:
    reason, stage = pair
    value = reason.value if isinstance(reason.value, float) else 0.0
    return reason.rank, -value, -stage.load_rps


def _planned_load(found: Findings) -> Iterator[Reason]:
    """Judge the first broken load against the load that the steps must keep."""
    if found.ramp is None:
        return
    needed = found.loads.needed_rps
    kept = found.ramp.kept_rps
    point = found.first_degradation
    above = [s for s in found.ramp.steps if not s.load_rps <= kept]
    undecided = [s for s in above if not s.counts and s.load_rps <= needed]
    outcome: Outcome = "pass"
    action = ""
    if point is not None and point.load_rps <= needed:
        outcome, action = "fail", point.limit.action
    elif undecided:
        outcome = "unknown"
        action = f"{undecided[0].name}: {undecided[0].remark}"
    elif not kept >= needed:
        below = max((s.load_rps for s in found.ramp.steps), default=math.nan)
        outcome = "retest" if point is not None else "unknown"
        action = f"raise the load beyond {below:.3g}/s, in smaller steps"
        if (client := found.ramp.client_limit_rps) <= below:
            action = f"the client, not the service, was the limit at {client:.3g}/s: send the "
            action += "load from more of them"
    elif short := _short(found):
        outcome, action = "retest", f"{short}: run more replications, or smaller steps"
    elif (within := found.within_error) is not None and not within.low_rps >= needed:
        outcome = "retest"
        action = f"capplan calibrate on a run of this server: the limit lies {within}"
    first = "nothing breaks" if point is None else _point(point)
    yield Reason(
        rule="planned_load",
        outcome=outcome,
        value=kept,
        limit=needed,
        evidence=f"{first}; kept up to {kept:.3g}/s, needed {needed:.3g}/s"
        f" ({found.loads.evidence['needed_rps']})",
        next_action=action,
        request_class=point.request_class if point else None,
    )


def _short(found: Findings) -> str:
    """Return which class's acceptable load may lie below the peak by chance; empty if none."""
    if found.replications is None:
        return ""
    for c in found.scenario.classes:
        spread = found.replications.acceptable(c.name)
        low, high = spread["interval"]
        if low < found.loads.needed_rps:
            ends = f"[{low:.3g}, {high:.3g}]/s"
            count = len(found.replications.each)
            return f"over {count} replications {c.name} accepts {spread['mean_rps']:.3g} {ends}"
    return ""


def _point(point: Degradation) -> str:
    ids = point.found.request_ids[:3] if point.found else []
    return (
        f"first broken: {point.request_class}, {rule_words(point.promise)}, at "
        f"{point.load_rps:.3g}/s {in_layer(point.layer)} (run {point.stage.run_id}, requests "
        f"{', '.join(ids) or 'all'})"
    )


def _stage_promises(found: Findings) -> Iterator[Reason]:
    """Judge each stage beside the ramp: the promises of every class that may not be shed."""
    front = {} if found.baseline is None else {"baseline": found.baseline}
    for kind, stage in {**front, **found.others}.items():
        if kind == "fall_back":  # judged by its recovery
            continue
        firm = [b for b in stage.breaks if not _sheddable(found.scenario, b.request_class)]
        grown = [c.name for c in found.scenario.classes if not c.sheddable and stage.grows(c.name)]
        outcome: Outcome = "fail" if firm or grown else "pass"
        first = firm[0] if firm else None
        evidence = "no promise broken of a class that may not be shed "
        evidence += f"({counted(len(stage.table), 'request')})"
        if first is not None:
            why = _of_verdict(stage, first)
            evidence = f"{first.request_class} breaks {rule_words(first.promise)}: {why} "
            evidence += f"(run {stage.run_id}, {first.span_s[0]:.4g}–{first.span_s[1]:.4g} s)"
        elif grown:
            evidence = f"the backlog of {listed(grown)} grows (run {stage.run_id})"
        judged = Reason(
            rule=f"{kind}_promises",
            outcome=outcome,
            value=first.share.value if first else 0.0,
            limit=first.allowed_fraction if first else None,
            evidence=f"{stage.name}, {stage.load_rps:.3g}/s: {evidence}",
            next_action="see the stage's breaks: the layer that ends them is the limit to move",
            request_class=first.request_class if first else None,
        )
        yield from resting_on([stage], [judged])


def _of_verdict(stage: Stage, found: Break) -> str:
    """Return what the stage's verdict says of a broken promise, in all requests or a window."""
    named = (found.request_class, found.promise)
    return next(
        (r.evidence for r in stage.verdict.reasons if (r.request_class, r.rule) == named), ""
    )


def _sheddable(scenario: Scenario, name: str) -> bool:
    return scenario.request_class(name).sheddable


def _ttft_over(found: Findings) -> Iterator[Reason]:
    """Fail if throughput rises from one step to the next while TTFT goes over its promise."""
    if found.ramp is None or not _promises_ttft(found.scenario):
        return
    steps = [s for s in found.ramp.steps if s.counts]
    if len(steps) < 2:  # noqa: PLR2004
        yield unknown("throughput_up_ttft_over", f"{len(steps)} of 2 steps that are needed count")
        return
    first = next(
        (
            (after, b)
            for before, after in pairwise(steps)
            for b in after.breaks
            if b.promise == "ttft_s" and after.throughput_rps > before.throughput_rps
        ),
        None,
    )
    over = first is not None and first[0].load_rps <= found.loads.needed_rps
    evidence = "no step answers more while its TTFT is over"
    if first is not None:
        stage, b = first
        evidence = (
            f"at {stage.load_rps:.3g}/s throughput still rises, to {stage.throughput_rps:.3g}/s, "
            f"while {percent(b.share.value)} of {b.request_class} is over its TTFT; needed "
            f"{found.loads.needed_rps:.3g}/s"
        )
    judged = checked(
        "throughput_up_ttft_over",
        not over,
        value=first[0].load_rps if first else math.nan,
        limit=found.loads.needed_rps,
        evidence=evidence,
        next_action="refuse below that load: throughput never offsets a broken promise",
        request_class=first[1].request_class if first else None,
    )
    yield from resting_on([s for s in found.within if s.kind == "ramp"], [judged])


def _promises_ttft(scenario: Scenario) -> bool:
    return any(c.promises.ttft_s is not None and c.streaming for c in scenario.classes)


def _retries(found: Findings) -> Iterator[Reason]:
    values = [(amplification(s.table), s) for s in found.within if len(s.table)]
    if not values:
        yield unknown("retry_amplification", "no request was sent")
        return
    value, stage = max(values, key=lambda pair: pair[0])
    where = f"at worst, in {stage.name} (run {stage.run_id})"
    yield retry_amplification(value, where)


def amplification(table: pd.DataFrame) -> float:
    """Return attempts per request."""
    return float(table["attempts"].mean())


def _scale_out(found: Findings) -> Iterator[Reason]:
    """Judge what the recovery owes to replicas that were added."""
    stage = found.others.get("fall_back")
    if stage is not None and found.recovery is not None:
        yield from scaling_reasons(stage, found.recovery, found.judged)
    yield from finding_reasons(found.within)


def not_applicable(found: Findings) -> dict[str, str]:
    """Return the rules that do not apply to a scenario, and why: neither pass nor unknown."""
    scenario = found.scenario
    why = {}
    if not _promises_ttft(scenario):
        why["throughput_up_ttft_over"] = "no class that streams is promised a TTFT"
    if len(scenario.tenants) < 2:  # noqa: PLR2004
        why["tenant_isolation"] = "a single tenant"
    pools = [[scenario.request_class(n) for n in served_by(scenario, p)] for p in scenario.pools]
    if all(len({c.priority for c in classes}) < 2 for classes in pools):  # noqa: PLR2004
        why["starvation"] = "no pool serves classes of two priorities"
    if not scales(scenario):
        why |= dict.fromkeys(("recovery_by_scale_out", "protective_action"), FIXED)
    if found.recovery is not None:
        why |= found.recovery.not_applicable
    if any(s.run.versions for s in found.stages):
        why.pop("same_version", None)
    if "soak" in found.others:
        why |= unknown_levels(found.others["soak"])
    return why
