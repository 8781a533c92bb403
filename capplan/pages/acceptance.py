"""Frames and sentences of a load acceptance: what the page on stages shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.formatting import counted, format_value, in_layer, listed, rule_words
from capplan.results import conservation_table, headline, per_request, queue_waits
from capplan.results.breakers import open_spans, rule_at
from capplan.stages.rules import not_applicable
from capplan.stages.scaling import added
from capplan.stages.stage import with_warmup
from capplan.statistics import batch_means, quantile_interval

if TYPE_CHECKING:
    from capplan.pages.page import Page
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.stages import Acceptance, Degradation, Stage

QUEUES = ("gateway", "service_queue", "scheduler_queue")
MOST_REQUESTS = 600
"""Requests drawn of a run: those that break the promise, then even ones of the others."""


def accept(page: Page, *, jobs: int = 1, **plan: Any) -> Acceptance:
    """Return the acceptance of a page's study; ``plan`` sets fields of its stage plan.

    The acceptance and each of its runs are stored in the page's run folder, in a folder named by
    its run id.
    """
    from capplan.scenario.files import with_values
    from capplan.stages import run_stages

    changes = {f"stages.{name}": value for name, value in plan.items()}
    found = run_stages(with_values(page.scenario, changes), seed=page.seed, jobs=jobs)
    found.write(page.folder / "stages" / found.run_id)
    return found


def flows(steps: Sequence[Stage]) -> pd.DataFrame:
    """Return throughput and goodput by load: load_rps, figure, flow_rps, low, high."""
    rows = []
    for step in steps:
        succeeded = (step.table["outcome"] == "succeeded").to_numpy(np.float64)
        shares = {"throughput": succeeded, "goodput": step.table["good"].to_numpy(np.float64)}
        for figure, share in shares.items():
            rows.append((step.load_rps, figure, *_flow(share, step.load_rps)))
    return pd.DataFrame(rows, columns=["load_rps", "figure", "flow_rps", "low", "high"])


def _flow(share: np.ndarray, load_rps: float) -> tuple[float, float, float]:
    """Return a share of the requests as a rate, with the interval of its batch means."""
    found = batch_means(share)
    ends = [load_rps * v if np.isfinite(v) else np.nan for v in (found.low, found.high)]
    return load_rps * found.value, max(ends[0], 0.0), min(ends[1], load_rps)


def latencies(scenario: Scenario, steps: Sequence[Stage], name: str) -> pd.DataFrame:
    """Return a latency at each class's promised quantile by load, failures +inf.

    ``name`` is ``ttft`` (of streamed answers only: any other has its first token with its last)
    or ``e2e``. Columns: load_rps, request_class, latency_s, low, high.
    """
    rows = []
    for step in steps:
        for c in scenario.classes:
            own = step.of([c.name])
            own = own[own["streaming"].astype(bool)] if name == "ttft" else own
            if own.empty:
                continue
            found = quantile_interval(own[f"{name}_censored_s"], c.promises.quantile)
            ends = [v if np.isfinite(v) else np.nan for v in (found.low, found.high)]
            rows.append((step.load_rps, c.name, found.value, *ends))
    return pd.DataFrame(rows, columns=["load_rps", "request_class", "latency_s", "low", "high"])


def outcomes(steps: Sequence[Stage]) -> pd.DataFrame:
    """Return the share of each outcome by load: load_rps, outcome, share_fraction."""
    rows = []
    for step in steps:
        shares = step.table["outcome"].value_counts(normalize=True)
        rows += [(step.load_rps, str(name), float(share)) for name, share in shares.items()]
    return pd.DataFrame(rows, columns=["load_rps", "outcome", "share_fraction"])


def promises(scenario: Scenario, field: str) -> dict[str, float]:
    """Return the classes' bounds on a latency, those that have one."""
    bounds = {c.name: getattr(c.promises, field) for c in scenario.classes}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def stage_table(found: Acceptance) -> pd.DataFrame:
    """Return one row per stage: loads and flows, whether it counts, what breaks first."""
    frame = found.frame()
    first = (
        frame["request_class"] + ": " + frame["promise"].map(lambda p: rule_words(p) if p else "")
    )
    first = first.where(frame["promise"] != "", [_growing(stage) for stage in found.stages])
    return pd.DataFrame(
        {
            "stage": frame["stage"],
            "load_rps": frame["load_rps"],
            "goodput_rps": frame["goodput_rps"],
            "timed out_fraction": frame["timed_out_fraction"],
            "refused_fraction": frame["rejected_fraction"],
            "counts": np.where(frame["counts"], "yes", "no"),
            "first broken": first,
            "to know": frame["note"],
        }
    )


def _growing(stage: Stage) -> str:
    """Return whose backlog grows without end in a stage that breaks no promise yet; "" = none."""
    grows = [r for r in stage.verdict.reasons if (r.rule, r.outcome) == ("stability", "fail")]
    names = [r.request_class for r in grows if r.request_class]
    return f"{listed(names)}: the backlog grows" if names else ""


def acceptable_table(found: Acceptance) -> pd.DataFrame:
    """Return the acceptable load of each class, with the interval of its limit."""
    rows = [
        {
            "class": name,
            "kept up to_rps": entry["to_rps"],
            "surely broken from_rps": entry["interval"][1],
            "own requests at that load_rps": entry["class_rps"],
            **_over_replications(entry.get("replications")),
        }
        for name, entry in found.acceptable().items()
    ]
    return pd.DataFrame(rows)


def _over_replications(spread: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the ends of an acceptable load over replications; nothing where one was run."""
    if spread is None:
        return {}
    low, high = spread["interval"]
    return {"over replications from_rps": low, "over replications to_rps": high}


def acceptable_said(found: Acceptance) -> str:
    """Return the planned peak, and over how many ramps the loads were found."""
    peak = f"The planned peak is {format_value(found.loads.peak_rps, '_rps')}."
    if found.replications is None:
        return f"{peak} One ramp was run: how far the loads depend on its requests is unknown."
    spread = found.replications.first_degradation
    low, high = (format_value(end, "_rps") for end in spread["interval"])
    count = len(found.replications.each)
    return (
        f"{peak} Over {counted(count, 'ramp')} of other requests a promise first broke at "
        f"{format_value(spread['mean_rps'], '_rps')} on average, between {low} and {high} "
        f"(found in {spread['found']} of {count})."
    )


def books_table(stage: Stage) -> pd.DataFrame:
    """Return what happened to all attempts of a stage's run, by class and layer.

    Layers in which nobody of a class waited and nobody ended are left out.
    """
    table = conservation_table(stage.run, by=("request_class",))
    ends = ["timed_out", "rejected", "cancelled", "failed", "in_flight"]
    some = (table[ends].sum(axis=1) > 0) | (table["wait_total_s"] > 0)
    kept = table.loc[some, ["request_class", "layer", "entered", "left", *ends]].rename(
        columns={"in_flight": "still there"}
    )
    waits = table["wait_mean_s"].map(
        lambda wait: "" if math.isnan(wait) else format_value(wait, "_s")
    )
    return kept.assign(
        **{"mean wait": waits}, wasted_accelerator_s=table["wasted_accelerator_s"]
    ).reset_index(drop=True)


def waste_said(stage: Stage) -> str:
    """Return what was computed for nobody, and how many waited in two queues."""
    figures = headline(with_warmup(stage.run, 0.0))
    twice = figures["double_queued"]
    waits = [
        f"{format_value(wait, '_s')} in the {layer.replace('_', ' ')}"
        for layer, wait in twice["wait_s"].items()
        if wait > 0
    ]
    where = f", on average {listed(waits)}" if waits else ""
    return (
        f"{format_value(figures['wasted_accelerator_fraction'], '_fraction')} of the accelerators' busy "
        f"time went to attempts that did not succeed ({format_value(figures['wasted_tokens'], '_tokens')}, "
        f"by their share of the tokens), and {format_value(twice['requests_fraction'], '_fraction')} of "
        f"the requests waited in two queues or more{where}."
    )


def acting_parts(stage: Stage | None) -> list[Any]:
    """Return what acts by itself in a stage's run: breakers, scaling, degraded answers."""
    from capplan import charts

    if stage is None:
        return ["No fall-back was run."]
    run, scenario = stage.run, stage.scenario
    parts: list[Any] = []
    if scenario.breakers:
        parts.append(charts.breakers_over_time(breaker_spans(run), end_s=run.duration_s))
    table = per_request(run, warmup=True)
    share = degraded_fraction(table)
    if share > 0:
        window = max(1.0, round(run.duration_s / 60))
        parts.append(charts.degraded_over_time(table, window_s=window))
    if any(pool.is_elastic for pool in scenario.pools):
        names = [pool.name for pool in scenario.pools if pool.is_elastic]
        rows = run.timeline
        parts.append(charts.replicas_over_time(rows[rows["replica"].isin(names)]))
    return [*parts, acting_said(stage, share)]


def breaker_spans(run: RunResult) -> pd.DataFrame:
    """Return from when to when each rule was open: rule, start_s, end_s (equal if it never was)."""
    rows = [
        (rule_at(rule, pool), *span)
        for (rule, pool), spans in open_spans(run).items()
        for span in spans or [(0.0, 0.0)]
    ]
    return pd.DataFrame(rows, columns=["rule", "start_s", "end_s"])


def degraded_fraction(table: pd.DataFrame) -> float:
    """Return the share of the answers that were degraded; NaN without an answer."""
    answered = table[table["outcome"] == "succeeded"]
    return float((answered["degraded"].astype("object") == True).mean())  # noqa: E712


def acting_said(stage: Stage, degraded: float) -> str:
    """Return what acted by itself, in sentences."""
    run, scenario = stage.run, stage.scenario
    said = []
    if scenario.breakers:
        opened = sorted({rule for (rule, _), spans in open_spans(run).items() if spans})
        of = counted(len(scenario.breakers), "breaker")
        said.append(f"{len(opened)} of {of} opened ({listed(opened)}).")
    if not math.isnan(degraded) and (scenario.breakers or degraded > 0):
        said.append(f"{format_value(degraded, '_fraction')} of the answers were degraded.")
    if any(pool.is_elastic for pool in scenario.pools):
        ready = counted(added(run), "replica")
        said.append(f"{ready} became ready after somebody asked for more.")
    nothing = "No breaker is set and no pool scales, so nothing acts but the limits of the queues."
    return " ".join(said) or nothing


def action_table(found: Acceptance) -> pd.DataFrame:
    """Return the boundaries that ended, degraded or dropped attempts, and those not set."""
    rows = [
        {
            "boundary": p.boundary.field,
            "owner": p.boundary.owner or "nobody",
            "protective action": p.boundary.action,
            "attempts": p.count,
            "first at_rps": p.first_at_rps,
        }
        for p in found.protections
        if p.acted or not p.boundary.is_set
    ]
    columns = ["boundary", "owner", "protective action", "attempts", "first at_rps"]
    return pd.DataFrame(rows, columns=columns)


def check_table(found: Acceptance) -> pd.DataFrame:
    """Return the re-check steps after the overload with their results."""
    reasons = found.recovery.reasons if found.recovery else ()
    rows = [{"result": r.outcome, "re-check": r.evidence, "next": r.next_action} for r in reasons]
    return pd.DataFrame(rows, columns=["result", "re-check", "next"])


def rule_table(found: Acceptance) -> pd.DataFrame:
    """Return every rule of the verdict with its evidence and next action, the worst first."""
    rows = [
        {
            "outcome": r.outcome,
            "rule": rule_words(r.rule) + (f": {r.request_class}" if r.request_class else ""),
            "evidence": r.evidence,
            "next": r.next_action,
        }
        for r in found.verdict.reasons
    ]
    rows += [
        {"outcome": "does not apply", "rule": rule_words(rule), "evidence": why, "next": ""}
        for rule, why in not_applicable(found).items()
    ]
    return pd.DataFrame(rows)


def degradation_said(found: Acceptance) -> str:
    """Return where it first degrades, in a sentence."""
    point = found.first_degradation
    if point is None and found.ramp is None:
        return "No ramp was run, so at which load a promise first breaks is unknown."
    if point is None:
        steps = () if found.ramp is None else found.ramp.steps
        top = max((s.load_rps for s in steps), default=math.nan)
        return f"No promise is broken up to {format_value(top, '_rps')}."
    sure = f"beyond doubt from {format_value(point.high_rps, '_rps')}"
    if math.isinf(point.high_rps):
        sure = "at no load beyond doubt"
    return (
        f"The first promise to break is **{point.request_class}: {rule_words(point.promise)}**, at "
        f"{format_value(point.load_rps, '_rps')} (surely kept up to {format_value(point.low_rps, '_rps')}, "
        f"broken {sure}). "
        f"Most of its requests lose their time **{in_layer(point.layer)}**. "
        f"`{point.limit.field}` controls that limit: {point.limit.why}."
    )


def knee_said(found: Acceptance) -> str:
    """Return where the knee is, in a sentence."""
    knee = found.knee
    if knee is None and found.ramp is None:
        return "No ramp was run, so where the knee is, is unknown."
    if knee is None or math.isnan(knee.load_rps):
        return "The curve has no knee in the range of the ramp."
    return (
        f"The knee of {knee.pool} lies at {format_value(knee.load_rps, '_rps')}, between "
        f"{format_value(knee.low_rps, '_rps')} and {format_value(knee.high_rps, '_rps')} (Kneedle on mean E2E)."
    )


def recovery_said(found: Acceptance) -> str:
    """Return whether it comes back after the overload, in a sentence."""
    back, stage = found.recovery, found.stage("fall_back")
    if back is None or stage is None:
        return "No fall-back was run."
    over = format_value(stage.highest_rps, "_rps")
    when = (
        f"after {format_value(back.error_rate_back_s, '_s')}"
        if back.error_rate_back_s
        else "at once"
    )
    word = "It comes back" if back.converged else "**It does not come back**"
    return (
        f"{word} from {over} to {format_value(stage.load_rps, '_rps')}: the queues were empty after "
        f"{format_value(back.queues_empty_s, '_s')}, the error rate was back {when}."
    )


def moments(found: Acceptance) -> pd.DataFrame:
    """Return the requests of the first degradation's run on three time series.

    Columns: those of ``charts.same_requests``. Where nothing degrades, those of the last step.
    """
    point = found.first_degradation
    stage = point.stage if point else found.stages[-1]
    return moments_of(stage.run, _broken_ids(point))


def _broken_ids(point: Degradation | None) -> list[str]:
    if point is None or point.found is None:
        return []
    return [str(name) for name in point.found.violators["request_id"]]


def moments_of(run: RunResult, marked: Sequence[str] = ()) -> pd.DataFrame:
    """Return when the first attempts of a run entered, were queued and were served."""
    log = run.requests[run.requests["attempt"] == 1]
    log = _some(log.assign(marked=log["request_id"].isin(list(marked))))
    waits = queue_waits(log, end_s=run.duration_s)[list(QUEUES)]
    end = log["decode_end_s"].fillna(log["finish_s"]).fillna(run.duration_s)
    return pd.DataFrame(
        {
            "request_id": log["request_id"].astype(str),
            "outcome": log["outcome"].astype(str),
            "marked": log["marked"],
            "entry_s": log["intended_start_s"],
            "queued_s": log["service_queue_in_s"],
            "served_s": log["batch_in_s"],
            "prompt_tokens": log["prompt_tokens"].astype(np.float64),
            "wait_s": waits.sum(axis=1, min_count=1),
            "work_s": end - log["batch_in_s"],
        }
    ).reset_index(drop=True)


def _some(log: pd.DataFrame) -> pd.DataFrame:
    first = log[log["marked"] | (log["outcome"] != "succeeded")].iloc[:MOST_REQUESTS]
    rest = log.drop(first.index)
    room = MOST_REQUESTS - len(first)
    if len(rest) > room:
        rest = rest.iloc[np.linspace(0, len(rest) - 1, room).astype(int)] if room else rest[:0]
    return pd.concat([first, rest]).sort_values("intended_start_s")
