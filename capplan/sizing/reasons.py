"""What the found numbers mean: do the scenario's own replicas suffice, how many are needed, why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from capplan.formatting import counted, does
from capplan.scenario.pools import Pool
from capplan.sizing.fewest import WithinError
from capplan.sizing.loss import Loss
from capplan.sizing.points import COST, Evaluator, Point, Rejection
from capplan.verdict import Outcome, Reason

OWN = "own_replicas"


def own_reason(
    own: Point | Rejection,
    pool: Pool,
    fewest: Point | None,
    lose: Loss,
    *,
    within: WithinError | None = None,
) -> Reason:
    """Return whether the scenario's own replicas keep the promises under a loss.

    ``fewest`` is the point of the fewest replicas that do, None if no number does. An autoscaler
    that may reach that number leaves it open: these runs hold the number fixed. If more are needed
    ``within`` the error of step times, it is a retest.
    """
    needed = None if fewest is None else fewest.replicas
    outcome: Outcome
    replicas = f"pools.{pool.name}.replicas"
    have = f"the scenario's {counted(pool.replicas, f'{pool.name} replica')}, {lose}"
    if isinstance(own, Point) and own.open and own.holds:
        first = own.open[0]
        outcome, evidence, action = "unknown", f"{have}: {first.evidence}", first.next_action
    elif isinstance(own, Point) and own.holds and within is not None and _more(within, pool, lose):
        outcome, evidence = "retest", f"{have}: no promise is broken, but needed are {within}"
        action = f"capplan calibrate on a run of this server, or set {replicas} to {within.high}"
        if within.high is None:
            action = "capplan calibrate on a run of this server: it narrows the error"
    elif isinstance(own, Point) and own.holds:
        mended = " that replicas could mend" if own.verdict.outcome in ("blocked", "fail") else ""
        outcome, evidence, action = "pass", f"{have}: no promise is broken{mended}", ""
    elif _may_scale_to(pool, needed):
        outcome, evidence = "unknown", f"{have}, do not suffice; the autoscaler may add more"
        action = "run the stages: they show whether the autoscaler adds them in time"
    else:
        broken = own if isinstance(own, Rejection) else own.rejection()
        outcome, evidence = "fail", f"{have}: {broken.reason}"
        action = (
            f"set {replicas} to {needed}"
            if needed
            else "see the rejections: more replicas do not help"
        )
    return Reason(
        rule=OWN,
        outcome=outcome,
        value=pool.replicas,
        limit=needed,
        evidence=evidence,
        next_action=action,
        field=replicas,
        pool=pool.name,
    )


def _more(within: WithinError, pool: Pool, lose: Loss) -> bool:
    """Return whether a loss asks for more than a pool's replicas within the error."""
    return within.lose == lose and (within.high is None or within.high > pool.replicas)


def _may_scale_to(pool: Pool, needed: int | None) -> bool:
    scaler = pool.autoscaler
    return scaler is not None and needed is not None and needed <= scaler.max_replicas


def own_sentence(
    pool: Pool,
    chosen: Mapping[Loss, Point | None],
    rejected: Iterable[Rejection],
    n_max: int,
    *,
    cause: str = "",
    within: WithinError | None = None,
) -> str:
    """Return in one sentence how many replicas there are, how many are needed, and why.

    ``cause`` is why no number suffices, if that is known apart from the rejections; ``within`` how
    far the number moves with the error of step times.
    """
    verb = does(pool.replicas, "is", "are")
    have = f"There {verb} {counted(pool.replicas, 'replica')} of `{pool.name}`"
    for lose, point in chosen.items():
        if point is None:
            why = _why(rejected, lose, n_max) + (f"; {cause}" if cause else "")
            return f"{have}, and no number up to {n_max} suffices ({lose}), because {why}."
        if point.open:
            why = point.open[0].evidence
            return f"{have}, and how many are needed is not shown ({lose}), because {why}."
    found = {lose: point.replicas for lose, point in chosen.items() if point is not None}
    worst_loss = max(found, key=lambda lose: found[lose])
    most = found[worst_loss]
    why = _why(rejected, worst_loss, most - 1)
    doubts = [p.doubt for p in chosen.values() if p is not None and p.replicas == most and p.doubt]
    why = "; ".join([why, *doubts[:1]])
    needed = f"{most} ({worst_loss})" + (f", {within}" if within is not None else "")
    return f"{have}, needed {does(most, 'is', 'are')} {needed}, because {why}."


def _why(rejected: Iterable[Rejection], lose: Loss, replicas: int) -> str:
    reasons = [r.reason for r in rejected if r.lose == lose and r.replicas == replicas]
    return f"with {replicas}, {reasons[0]}" if reasons else f"{replicas} do not hold"


def margin_reason(evaluate: Evaluator, n_max: int, lose: Loss, point: Point | None) -> Reason:
    """Return how many replicas keep the promises under a loss, or why no number does."""
    pool = evaluate.pool
    if point is None:
        most, cause = evaluate.points.get((n_max, lose)), evaluate.cause
        action = most.against[0].next_action if most is not None and most.against else ""
        if pool.resource_pool:
            action = f"let resource pool {pool.resource_pool} hold more, or {action}"
        return Reason(
            rule="failure_margin",
            outcome="fail",
            limit=n_max,
            evidence=f"no number of {pool.name} replicas up to {n_max} keeps the promises, {lose}"
            + (f": {evaluate.cause_words}" if cause else ""),
            next_action=cause.next_action if cause else action,
        )
    if point.open:
        first = point.open[0]
        return Reason(
            rule="failure_margin",
            outcome="unknown",
            limit=n_max,
            evidence=f"{counted(point.replicas, f'{pool.name} replica')} "
            f"{does(point.replicas, 'breaks', 'break')} no promise, {lose}, but "
            f"{first.request_class or 'the run'} is not shown to keep {first.rule}: "
            f"{first.evidence}",
            next_action=first.next_action,
        )
    return Reason(
        rule="failure_margin",
        outcome="pass",
        value=point.replicas,
        limit=n_max,
        evidence=f"{counted(point.replicas, f'{pool.name} replica')} "
        f"{does(point.replicas, 'keeps', 'keep')} the promises, {lose} "
        f"(the scenario has {pool.replicas})" + (f"; {point.doubt}" if point.doubt else ""),
    )


def left_open(points: Iterable[Point]) -> list[Reason]:
    """Return the worst that the points' verdicts say beside pass, each rule and class once.

    What a success costs is judged with every replica there: the lost ones are paid for too.
    """
    found: dict[tuple[str, str | None], Reason] = {}
    for point in points:
        for reason in point.verdict.reasons:
            if reason.outcome != "pass" and not (reason.rule == COST and point.lose.count):
                key = reason.rule, reason.request_class
                found[key] = min(found.get(key, reason), reason, key=attrgetter("rank"))
    return list(found.values())
