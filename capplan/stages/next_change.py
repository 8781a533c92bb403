"""The single next change: the crossed limit moved, at the same load, on the same requests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from capplan.formatting import percent, rule_words
from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.stages.rules import amplification
from capplan.stages.run_load import step
from capplan.stages.scaling import readiness
from capplan.stages.violations import broken, starves
from capplan.statistics import quantile, quantile_interval
from capplan.verdict import Reason, checked, unknown, worst

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.stages.crossed_limit import CrossedLimit
    from capplan.stages.degradation import Degradation
    from capplan.stages.stage import Stage
    from capplan.stages.violations import Break
    from capplan.verdict import Outcome


HALVINGS = 5
"""How often a queue is halved until the promise holds; a choice of this project."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """The first degradation's load again, with one field changed."""

    limit: CrossedLimit
    before: Stage
    after: Stage | None
    """None if the change makes no scenario; ``reasons`` says why."""
    reasons: tuple[Reason, ...]

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the rules."""
        return worst(r.outcome for r in self.reasons)

    @property
    def mends(self) -> bool:
        """Return whether the promise holds with the change."""
        return any(r.rule == "promise_mended" and r.outcome == "pass" for r in self.reasons)

    def to_json(self) -> dict[str, Any]:
        """Return the candidate as plain values."""
        return {
            "change": self.limit.to_json(),
            "load_rps": self.before.load_rps,
            "baseline_run_id": self.before.run_id,
            "stage": None if self.after is None else self.after.to_json(),
            "verdict": {
                "outcome": self.outcome,
                "reasons": [r.to_json() for r in self.reasons],
            },
        }


def run_next(scenario: Scenario, point: Degradation, *, seed: int) -> Candidate:
    """Return the load at which a promise first broke, run with the crossed limit moved.

    The length of a queue is halved, :data:`HALVINGS` times at most, until the promise holds; if it
    never does, the first try is returned.
    """
    tries = (_run(scenario, point, limit, seed=seed) for limit in _tries(point.limit))
    first = next(tries)
    if first.mends:
        return first
    return next((one for one in tries if one.mends), first)


def _tries(limit: CrossedLimit) -> Iterator[CrossedLimit]:
    """Yield a limit, and then the shorter queues if it is the length of one."""
    yield limit
    value = limit.candidate
    for _ in range(HALVINGS if limit.field.endswith(".length") else 0):
        if not value:
            return
        value //= 2
        yield replace(limit, candidate=value)


def _run(scenario: Scenario, point: Degradation, limit: CrossedLimit, *, seed: int) -> Candidate:
    """Return the load of a degradation again, with a limit at its candidate."""
    before = point.stage
    if limit.candidate is None:
        reason = unknown("candidate_runs", f"{limit.field}: {limit.why}", next_action=limit.why)
        return Candidate(limit=limit, before=before, after=None, reasons=(reason,))
    try:
        changed = with_values(scenario, {limit.field: limit.candidate})
        after, _ = step(
            changed,
            before.load_rps,
            before_rps=before.load_rps / scenario.stages.factor,
            name="next",
            kind="next",
            seed=seed,
        )
    except DataError as err:
        reason = checked(
            "candidate_runs",
            False,
            evidence=str(err),
            next_action="move another field of the same layer",
        )
        return Candidate(limit=limit, before=before, after=None, reasons=(reason,))
    reasons = tuple(_compared(scenario, point, limit, after))
    return Candidate(limit=limit, before=before, after=after, reasons=reasons)


def _compared(
    scenario: Scenario, point: Degradation, limit: CrossedLimit, after: Stage
) -> Iterator[Reason]:
    """Yield the rules on a change: it mends, at no other's price, and not by capacity alone."""
    was = point.found.share.value if point.found else math.nan
    mended = _share(after.table, point, scenario)
    allowed = point.found.allowed_fraction if point.found else math.nan
    better = not after.broken if point.found is None else mended < was
    held = not after.broken if point.found is None else mended <= allowed
    if point.found is None:
        text = "no backlog grows and no promise breaks" if held else _still(after)
    else:
        text = f"{point.request_class} {rule_words(point.promise)}: {percent(was, 2)} broke it, "
        text += f"{percent(mended, 2)}"
    yield checked(
        "promise_mended",
        held,
        value=mended,
        limit=allowed,
        evidence=f"{text} after {limit.field} = {limit.candidate:g} "
        f"(runs {point.stage.run_id}, {after.run_id})",
        next_action="move the limit further, or look at what breaks now",
    )
    worse = list(_worse(scenario, point.stage, after))
    yield checked(
        "tail_better_at_a_price",
        not (better and worse),
        value=len(worse),
        limit=0.0,
        evidence=", ".join(worse) or "nothing got worse",
        next_action="reallocate the budget: what one layer gains another pays for",
    )
    yield _throughput_bought(scenario, point.stage, after)
    yield _linked(point, after, better=better)
    elastic = after.scenario.pool_of(point.request_class).is_elastic
    rests = point.limit.is_capacity and held and elastic
    yield _capacity_is_proven(point, after, rests=rests)


def _capacity_is_proven(point: Degradation, after: Stage, *, rests: bool) -> Reason:
    """Return *retest* if new replicas alone mend it and too few of them became ready to tell.

    Replicas are only tried where an owned resource pool holds them.
    """
    field = point.limit.field
    text = f"only more replicas mend it: {field}" if rests else f"{field} is not capacity alone"
    runs = (point.stage.run, after.run)
    return readiness("more_than_new_accelerators", runs, text, rests=rests)


def _still(after: Stage) -> str:
    """Return what still breaks where a backlog grew before."""
    rules = dict.fromkeys(f"{b.request_class} {rule_words(b.promise)}" for b in after.breaks)
    return f"broken: {', '.join(rules)}" if rules else "the backlog still grows"


def _throughput_bought(scenario: Scenario, before: Stage, after: Stage) -> Reason:
    """Return whether more is answered at no price: a tail surely longer, or a class starved."""
    up = after.throughput_rps > before.throughput_rps
    paid = [*_longer_tails(scenario, before.table, after.table)]
    paid += _starving(scenario, before.table, after.table)
    price = "; ".join(paid) or "no tail is longer, no class starves"
    return checked(
        "throughput_bought",
        not (up and paid),
        value=after.throughput_rps,
        limit=before.throughput_rps,
        evidence=f"throughput {before.throughput_rps:.4g} to {after.throughput_rps:.4g}/s; {price}",
        next_action="revert it, or split the queue",
    )


def _longer_tails(scenario: Scenario, before: pd.DataFrame, after: pd.DataFrame) -> Iterator[str]:
    """Yield the latencies whose promised quantile is beyond doubt longer than before."""
    for c in scenario.classes:
        for name in ("ttft_censored_s", "e2e_censored_s"):
            was, now = (
                quantile_interval(
                    t.loc[t["request_class"] == c.name, name].dropna(), c.promises.quantile
                )
                for t in (before, after)
            )
            if now.low > was.high:
                what = f"{name.split('_')[0].upper()} p{100 * c.promises.quantile:g} of {c.name}"
                yield f"{what}: {was.value:.3g} to {now.value:.3g} s"


def _linked(point: Degradation, after: Stage, *, better: bool) -> Reason:
    """Return whether the evidence of a change that looks better is linked; unknown if it is not.

    Evidence is linked if both runs count and each can be named: run, time span, requests.
    """
    missing = [f"{s.name}: {s.remark}" for s in (point.stage, after) if not s.counts]
    if point.found is not None:
        now = next((m for m in after.margins if _same_promise(m, point)), None)
        if not point.found.request_ids:
            missing.append("no request that broke the promise before is named")
        if now is None or now.share.high >= point.found.share.low:
            missing.append("the intervals of the two shares still meet")
    paused = better and bool(missing)
    evidence = "; ".join(missing) if paused else "runs, time spans and requests are named"
    return Reason(
        rule="linked_evidence",
        outcome="unknown" if paused else "pass",
        value=len(missing) if paused else 0,
        limit=0,
        evidence=evidence if better else "no better, so nothing to link",
        next_action="pause: run longer until the evidence can be followed" if paused else "",
    )


def _same_promise(margin: Break, point: Degradation) -> bool:
    return (margin.request_class, margin.promise) == (point.request_class, point.promise)


def _share(table: pd.DataFrame, point: Degradation, scenario: Scenario) -> float:
    if point.found is None:
        return math.nan
    own = table[table["request_class"] == point.request_class]
    promises = scenario.request_class(point.request_class).promises
    return broken(own, promises, point.promise).share.value


def _worse(scenario: Scenario, before: Stage, after: Stage) -> Iterator[str]:
    """Yield what surely got worse: promises, retries, the starvation of a class, medians.

    A refusal in place of a late answer is no price: a class pays if fewer of its requests keep one
    of its promises.
    """
    usual = {(m.request_class, m.promise): m.share for m in before.margins}
    for m in after.margins:
        was = usual.get((m.request_class, m.promise))
        if was is None or m.share.low <= was.value:
            continue
        if not scenario.request_class(m.request_class).sheddable:
            what = f"{m.request_class} {rule_words(m.promise)}"
            yield f"{what}: {percent(was.value, 2)} broke it, {percent(m.share.value, 2)} now"
    retried, now_retried = amplification(before.table), amplification(after.table)
    if now_retried > 1.01 * retried:
        yield f"attempts a request: {retried:.3f} to {now_retried:.3f}"
    yield from _starving(scenario, before.table, after.table)
    for name in (c.name for c in scenario.classes):
        tails = [quantile(s.of([name])["e2e_censored_s"], 0.5) for s in (before, after)]
        if tails[1] > 1.2 * tails[0]:
            yield f"median E2E of {name}: {tails[0]:.3g} to {tails[1]:.3g} s"


def _starving(scenario: Scenario, before: pd.DataFrame, after: pd.DataFrame) -> Iterator[str]:
    """Yield the classes that starve beside another and did not before."""
    names = [c.name for c in scenario.classes]
    for low, high in permutations(names, 2):
        if starves(after, low, high) and not starves(before, low, high):
            yield f"{low} starves"
