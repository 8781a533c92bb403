"""Does it come back: queues, errors, replicas, memory and answers after an overload has ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import counted, percent
from capplan.results.breakers import open_spans
from capplan.results.segments import SERIES
from capplan.stages.pool_levels import own_queues
from capplan.stages.scaling import FIXED, fall_back_s, replica_counts, scales
from capplan.stages.stage import resting_on
from capplan.statistics import share_interval
from capplan.verdict import Reason, checked, unknown

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.stages.stage import Stage

Floats = npt.NDArray[np.float64]

TAIL = 0.5
"""Last part of the fall-back, whose answers must be as good as the baseline's."""
SLACK_FRACTION = 0.05
"""How far above its level in the baseline a memory usage counts as back."""
PARTS = 10
"""Parts of the fall-back in which rates are compared with the baseline's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Times from the end of the overload, s; NaN = never within the fall-back, or not measured."""

    queues_empty_s: float
    error_rate_back_s: float
    replicas_stable_s: float
    memory_back_s: float
    answers_back_s: float
    converged: bool
    memory_measured: bool
    run_id: str
    window_s: tuple[float, float]
    reasons: tuple[Reason, ...]
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    """Rules that do not apply to this scenario, and why."""

    def to_json(self) -> dict[str, Any]:
        """Return the recovery as plain values; its reasons are the on-call's re-check steps."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "reasons"}
        steps = [
            {"step": r.evidence, "rule": r.rule, "outcome": r.outcome, "next_action": r.next_action}
            for r in self.reasons
        ]
        return {
            **found,
            "not_applicable": dict(self.not_applicable),
            "window_s": list(self.window_s),
            "checks": steps,
        }


def recovery_of(stage: Stage, baseline: Stage | None) -> Recovery:
    """Return how a stage that follows an overload comes back, compared with the baseline."""
    run, begin, end = stage.run, stage.start_s, stage.end_s
    queues = _queues_empty(stage)
    errors = errors_back(stage.table, begin, end, usual=_error_rate(baseline))
    replicas = _replicas_stable(run, begin, end)
    memory = _memory_back(run, begin, end, baseline)
    answers = _answers_back(stage, baseline)
    measured = _measures_memory(run)
    times = [queues, errors, replicas, answers] + ([memory] if measured else [])
    found = (
        *_back_reasons(
            stage, baseline, queues=queues, errors=errors, memory=memory, answers=answers
        ),
        *_mechanisms(stage, baseline),
    )
    reasons = tuple(resting_on([stage, *filter(None, [baseline])], found))
    settled = all(t <= fall_back_s(stage.scenario) for t in times)
    return Recovery(
        queues_empty_s=queues,
        error_rate_back_s=errors,
        replicas_stable_s=replicas,
        memory_back_s=memory,
        answers_back_s=answers,
        converged=settled and all(r.outcome != "fail" for r in reasons),
        memory_measured=measured,
        run_id=stage.run_id,
        window_s=(begin, end),
        reasons=reasons,
        not_applicable=_not_applicable(stage),
    )


def _back_reasons(
    stage: Stage,
    baseline: Stage | None,
    *,
    queues: float,
    errors: float,
    memory: float,
    answers: float,
) -> Iterator[Reason]:
    """Yield the rules on what must be back as before within the fall-back."""
    span = fall_back_s(stage.scenario)

    def back(rule: str, after_s: float, what: str, action: str) -> Reason:
        holds = after_s <= span
        when = f"after {after_s:.3g} s" if holds else f"not within {span:.4g} s"
        evidence = f"{what}: {when}"
        return checked(
            rule, holds, value=after_s, limit=span, evidence=evidence, next_action=action
        )

    drain = "shorten the queues, or expire entries before they reach the accelerator"
    yield back("backlog_drains", queues, "the queues are empty again", drain)
    yield back(
        "errors_back", errors, "the error rate is the baseline's again", "see what still fails"
    )
    if _measures_memory(stage.run):
        text = "KV usage is back at the baseline's"
        yield back("memory_back", memory, text, "find what does not return its KV")
    elif stage.run.backend != "simulated":
        yield unknown("memory_back", "no replica reports its memory")
    own = _tail(stage)
    good = float(own["good"].mean(skipna=False)) if len(own) else math.nan
    usual = math.nan if baseline is None else float(baseline.table["good"].mean(skipna=False))
    text = f"representative requests succeed again: {percent(good)} good, "
    text += f"{percent(usual)} in the baseline"
    yield back("answers_back", answers, text, "see which promise they break, and where")


def _mechanisms(stage: Stage, baseline: Stage | None) -> Iterator[Reason]:
    """Yield the rules "not recovered while …"."""
    skipped = _not_applicable(stage)
    if "no_entry_older_than_its_budget" not in skipped:
        yield _too_old(stage)
    yield _cancelled_compute(stage)
    yield _retries_go_on(stage, baseline)
    if "replicas_as_before" not in skipped:
        yield _replicas_released(stage)
    if stage.scenario.breakers:
        yield _breakers_closed(stage)
    if "same_version" not in skipped:
        yield same_version(stage, baseline)


def _measures_memory(run: RunResult) -> bool:
    return bool((run.timeline["metric"] == "kv_usage_fraction").any())


def _not_applicable(stage: Stage) -> dict[str, str]:
    why = {}
    if stage.run.requests["deadline_s"].isna().all():
        why["no_entry_older_than_its_budget"] = "no request has a deadline"
    if stage.run.backend == "simulated":
        if not _measures_memory(stage.run):
            why["memory_back"] = "no replica has KV blocks"
        if not scales(stage.scenario):
            why["replicas_as_before"] = FIXED
        if not stage.run.versions:
            why["same_version"] = "no replica reports a version"
    return why


def _too_old(stage: Stage) -> Reason:
    """Fail if entries older than their budget remain when the fall-back ends."""
    log = stage.run.requests
    here = (log["finish_s"].isna() | (log["finish_s"] > stage.end_s)) & (
        log["intended_start_s"] < stage.end_s
    )
    age = stage.end_s - log.loc[here, "intended_start_s"]
    old = int((age > log.loc[here, "deadline_s"]).sum())
    entries = counted(int(here.sum()), "entry", "entries")
    return checked(
        "no_entry_older_than_its_budget",
        old == 0,
        value=old,
        evidence=f"{old} of {entries} older than the deadline at the end",
        next_action="expire entries in the queue that holds them",
    )


def _cancelled_compute(stage: Stage) -> Reason:
    """Fail if attempts whose caller has left still compute when the fall-back ends."""
    log = stage.run.requests
    left = log["outcome"].isin(["timed_out", "cancelled"]) & log["batch_in_s"].notna()
    still = left & (log["finish_s"] < stage.end_s) & (log["decode_end_s"] > stage.end_s)
    count = int(still.sum())
    return checked(
        "no_cancelled_request_computes",
        count == 0,
        value=count,
        evidence=f"{counted(count, 'attempt')} still computed at the end whose caller left",
        next_action="set batching.cancel_frees, or cancel in the engine",
    )


def _retries_go_on(stage: Stage, baseline: Stage | None) -> Reason:
    late = _tail(stage)
    again = int((late["attempts"] > 1).sum())
    usual = 0.0
    if baseline is not None and len(baseline.table):
        usual = float((baseline.table["attempts"] > 1).mean())
    share = share_interval(again, len(late))
    return checked(
        "retries_stop",
        bool(share.low <= usual),
        value=share.value,
        evidence=f"{again} of the last {counted(len(late), 'request')} tried again "
        f"({percent(usual, 2)} in the baseline)",
        next_action="give the callers a retry budget, backoff with jitter, and honour Retry-After",
    )


def _replicas_released(stage: Stage) -> Reason:
    """Fail if replicas that the overload added are not released; flapping has its own rule."""
    counts = replica_counts(stage.run)
    if counts.empty:
        return unknown("replicas_as_before", "the timeline has no number of replicas")
    before, most, after = (float(v) for v in (counts.iloc[0], counts.max(), counts.iloc[-1]))
    return checked(
        "replicas_as_before",
        after <= before,
        value=after,
        evidence=f"{counted(before, 'replica')} of all pools before the overload, {most:g} at "
        f"most, {after:g} at the end",
        next_action="shorten the stabilisation window, release what was added",
    )


def _breakers_closed(stage: Stage) -> Reason:
    """Fail if a breaker is still open when the fall-back ends: it serves as in the overload."""
    at_s = min(stage.end_s, stage.run.duration_s)
    still = [
        f"{rule} in {pool}"
        for (rule, pool), spans in open_spans(stage.run).items()
        if any(start <= at_s <= end for start, end in spans)
    ]
    return checked(
        "breakers_closed",
        not still,
        value=len(still),
        evidence=f"open at the end: {', '.join(still) or 'no breaker'}",
        next_action="raise the limit at which it releases, or close it after a time (after_s)",
    )


def same_version(stage: Stage, baseline: Stage | None) -> Reason:
    """Return whether replicas report the versions of the baseline; unknown if neither is known.

    A simulated pool without a version in one of the two had none stated; a live one did not tell.
    """
    before = {} if baseline is None else baseline.run.versions
    after, live = stage.run.versions, stage.run.backend != "simulated"
    silent = not (before and after) if live else not (before or after)
    if baseline is None or silent:
        return unknown("same_version", "no version is known before and after")
    changed = [
        f"{name}: {before.get(name, 'not known')} before, {after.get(name, 'not known')} now"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    return checked(
        "same_version",
        not changed,
        value="another" if changed else "same",
        evidence=f"{stage.name}: {'; '.join(changed) or 'replicas report the same versions'}",
        next_action="roll back, or repeat every stage with the new version",
    )


def _error_rate(baseline: Stage | None) -> float:
    if baseline is None or not len(baseline.table):
        return 0.0
    return float((~baseline.table["success"].to_numpy(np.bool_)).mean())


def _queues_empty(stage: Stage) -> float:
    """Return when the queues on the way to each pool were empty, s; NaN if one never was."""
    return float(np.max([_empty(own_queues(stage, p), stage) for p in stage.scenario.pools]))


def _empty(rows: pd.DataFrame, stage: Stage) -> float:
    rows = rows[rows["layer"].isin(SERIES) & rows["time_s"].between(stage.start_s, stage.end_s)]
    waiting = rows.groupby("time_s")["value"].sum()
    empty = waiting.index[waiting == 0]
    return float(empty[0] - stage.start_s) if len(empty) else math.nan


def errors_back(table: pd.DataFrame, begin: float, end: float, *, usual: float = 0.0) -> float:
    """Return when the error rate was back at the usual one, from ``begin``; NaN if never, s.

    The time is cut into ten parts; one whose error rate is surely above ``usual`` is not back. It
    is back at the last failure of the last such part: 0 if there is none, NaN if that is the last
    part of all.
    """
    bad = ~table["success"].to_numpy(np.bool_)
    back = 0.0
    for low, high in pairwise(np.linspace(begin, end, PARTS + 1)):
        inside = table["intended_start_s"].between(low, high, inclusive="left").to_numpy()
        failed = bad & inside
        if not inside.any():
            continue
        if share_interval(int(failed.sum()), int(inside.sum())).low > usual:
            back = float(table.loc[failed, "intended_start_s"].max()) - begin
            last = high >= end
            back = math.nan if last else back
    return back


def _replicas_stable(run: RunResult, begin: float, end: float) -> float:
    """Return when the number of replicas last changed, from ``begin``, s; NaN if not measured."""
    counts = replica_counts(run)
    within = counts[(counts.index >= begin) & (counts.index <= end)]
    if within.empty:
        return math.nan
    moved = np.flatnonzero(np.diff(within.to_numpy(np.float64)))
    return float(within.index[moved[-1] + 1] - begin) if moved.size else 0.0


def _memory_back(run: RunResult, begin: float, end: float, baseline: Stage | None) -> float:
    """Return when mean KV usage is at most the baseline's 95th percentile again, and stays."""
    after = kv_usage(run)
    after = after[(after.index >= begin) & (after.index <= end)]
    if after.empty or baseline is None:
        return math.nan
    usual = kv_usage(baseline.run)
    usual = usual[(usual.index >= baseline.start_s) & (usual.index <= baseline.end_s)]
    limit = float(usual.max()) + SLACK_FRACTION if len(usual) else math.nan
    above = after.index[after > limit]
    if not len(above):
        return 0.0
    rest = after.index[after.index > above[-1]]
    return float(rest[0] - begin) if len(rest) else math.nan


def kv_usage(run: RunResult) -> pd.Series:
    """Return the mean KV usage of all replicas over time."""
    rows = run.timeline
    rows = rows[rows["metric"] == "kv_usage_fraction"]
    means: pd.Series = rows.groupby("time_s")["value"].mean()
    return means


def _answers_back(stage: Stage, baseline: Stage | None) -> float:
    """Return from when on the share of good requests is the baseline's; NaN if never.

    The fall-back is cut into ten; a part is back when the baseline's share lies in or below the
    interval of its own.
    """
    usual = 1.0 if baseline is None else float(baseline.table["good"].mean(skipna=False))
    edges = np.linspace(stage.start_s, stage.end_s, PARTS + 1)
    since = math.nan
    for low, high in pairwise(edges):
        own = stage.table[stage.table["intended_start_s"].between(low, high, inclusive="left")]
        good = own["good"].to_numpy(np.float64)
        if not good.size or np.isnan(good).any():
            continue
        back = share_interval(int(good.sum()), good.size).high >= usual
        since = (low if math.isnan(since) else since) if back else math.nan
    return since - stage.start_s


def _tail(stage: Stage) -> pd.DataFrame:
    begin = stage.end_s - TAIL * (stage.end_s - stage.start_s)
    return stage.table[stage.table["intended_start_s"] >= begin]
