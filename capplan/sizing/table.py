"""The capacity table: operating limits, each with its protective action and its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pandas as pd

from capplan.catalog import accelerator
from capplan.display import once
from capplan.formatting import counted, percent, rule_words
from capplan.results import pool_cost_usd_per_hour
from capplan.results.cost import served_by
from capplan.scenario import Scenario
from capplan.scenario.breaker_rules import placements
from capplan.scenario.classes import Promises
from capplan.scenario.layers import Queue
from capplan.scenario.pools import Pool
from capplan.sizing.bursts import burst_outcome, burst_run, promised_fractions
from capplan.sizing.loss import Loss, Outage, missed, recovery_s, with_loss
from capplan.sizing.points import Evaluator, Point
from capplan.stages.run_load import loads_of
from capplan.stages.stage_kinds import burst
from capplan.statistics import share_interval
from capplan.verdict import PRECEDENCE, Outcome, Reason

ROWS = ("stable load", "acceptable peak", "burst protection", "failure degradation")
COLUMNS = (
    "row",
    "class_group",
    "outcome",
    "load_rps",
    "judged_rps",
    "replicas",
    "accelerators",
    "memory_bytes",
    "promises",
    "protective_action",
    "evidence",
)
NONE_HOLDS = "no number of replicas that was tried keeps the promises"
PROMISED = tuple(
    n for n in Promises.model_fields if n not in ("origins", "min_samples", "window_s")
)


DOES_NOT_APPLY: Final = "does not apply"
"""Outcome of a row that asks for what the scenario cannot bring."""
NOT_ASKED: Final = "not asked"
"""Outcome of a row about a loss, if the question is about no loss; it does not decide."""
NEXT_ACTIONS = {
    "stable load": "see the rejections: the promise that broke names its cause",
    "acceptable peak": "add replicas, or limit what the gateway admits, and run it again",
    "burst protection": "add replicas, limit or shed what may be shed, or state smaller bursts",
    "failure degradation": "add replicas, or shed classes that may be shed, and run it again",
}
MEASURE = {
    "failure degradation": "judge the loss over more requests",
    "burst protection": "judge more or longer bursts (stages.bursts, stages.burst_s)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """What the runs showed about one row: its outcome, and the load it was judged at."""

    outcome: Outcome | Literal["does not apply", "not asked"]
    evidence: str
    judged_rps: float = math.nan

    @property
    def load_rps(self) -> float:
        """Return the load that is carried; NaN if that is not shown."""
        return self.judged_rps if self.outcome == "pass" else math.nan


def capacity_table(
    scenario: Scenario,
    pool: Pool,
    normal: Point | None,
    lossy: Point | None,
    *,
    lost: bool,
    outages: Sequence[Outage],
    seed: int,
) -> pd.DataFrame:
    """Return the capacity table (columns ``COLUMNS``), one row for each of ``ROWS``.

    ``normal`` is a point with nothing lost, ``lossy`` the one with the most lost; None if no number
    of replicas keeps the promises, or, for ``lossy``, if no loss was asked for (``lost``).
    ``outages`` says when it strikes in each of its runs.
    ``load_rps`` is the load that is carried, NaN unless the outcome is *pass*; ``judged_rps`` the
    load of the run that decided it.
    """
    group = ", ".join(served_by(scenario, pool))
    stated = {
        c.name: {n: getattr(c.promises, n) for n in PROMISED if getattr(c.promises, n) is not None}
        for c in map(scenario.request_class, served_by(scenario, pool))
    }
    entries = (
        (ROWS[0], normal, _stable(normal)),
        (ROWS[1], normal, _peak(normal, scenario)),
        (ROWS[2], normal, _burst(scenario, pool, normal, seed=seed)),
        (ROWS[3], lossy, _degraded(lossy, outages, asked=lost)),
    )
    rows = [
        {
            "row": row,
            "class_group": group,
            "outcome": found.outcome,
            "load_rps": found.load_rps,
            "judged_rps": found.judged_rps,
            **_size(pool, point),
            "promises": stated,
            "protective_action": protective_action(scenario, pool, point),
            "evidence": found.evidence,
        }
        for row, point, found in entries
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def row_outcome(row: Mapping[Any, Any]) -> str:
    """Return the outcome of a row of the capacity table, also of one written without it."""
    if not pd.isna(stated := row.get("outcome")):
        return str(stated)
    return "unknown" if pd.isna(row.get("load_rps")) else "pass"


def unknown_rows(rows: Iterable[Mapping[Any, Any]]) -> list[str]:
    """Return the names of the rows that no run decided."""
    return [row["row"] for row in rows if row_outcome(row) == "unknown"]


def row_reasons(rows: pd.DataFrame) -> list[Reason]:
    """Return what each row of the capacity table adds to the verdict; the rule is its name."""
    return [_row_reason(row) for row in rows.to_dict("records") if row["outcome"] in PRECEDENCE]


def _row_reason(row: Mapping[Any, Any]) -> Reason:
    name = row["row"]
    broken = row["outcome"] == "fail"
    measure = MEASURE.get(name, "judge more requests")
    return Reason(
        rule=name.replace(" ", "_"),
        outcome=row["outcome"],
        value=None if math.isnan(row["judged_rps"]) else row["judged_rps"],
        evidence=f"{name}: {row['evidence']}",
        next_action=NEXT_ACTIONS[name] if broken else measure,
    )


def operating_limits(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the capacity table as it is shown: what a row limits, where, and what protects it."""
    shown = [
        "row",
        "class_group",
        "outcome",
        "judged_rps",
        "replicas",
        "protective_action",
        "evidence",
    ]
    loads = rows.reindex(columns=["judged_rps", "load_rps"]).apply(pd.to_numeric)
    table = rows.assign(
        outcome=[row_outcome(row) for row in rows.to_dict("records")],
        judged_rps=loads["judged_rps"].fillna(loads["load_rps"]),
    ).reindex(columns=shown)
    table = table.rename(columns={"judged_rps": "load_rps"})
    return table.assign(protective_action=once(table["protective_action"]))


def _stable(point: Point | None) -> RowOutcome:
    if point is None:
        return RowOutcome(outcome="fail", evidence=NONE_HOLDS)
    if point.open:
        return RowOutcome(outcome="unknown", evidence=_not_shown(point), judged_rps=point.mean_rps)
    text = f"simulated: {_kept(point)} at this mean rate, {_samples(point)}"
    return RowOutcome(outcome="pass", evidence=text, judged_rps=point.mean_rps)


def _peak(point: Point | None, scenario: Scenario) -> RowOutcome:
    """Return the busiest minute's rate, and whether its own requests kept the promises."""
    if point is None:
        return RowOutcome(outcome="unknown", evidence=f"not measured: {NONE_HOLDS}")
    if point.open:
        return RowOutcome(outcome="unknown", evidence=_not_shown(point), judged_rps=point.peak_rps)
    least = min(promised_fractions(scenario, point.classes))
    share = point.peak_good_fraction
    if math.isnan(share):
        text = "not measured: unknown whether the busiest minute's requests are good"
        return RowOutcome(outcome="unknown", evidence=text, judged_rps=point.peak_rps)
    requests = counted(point.peak_requests, "request")
    text = f"{percent(share, 2)} of the busiest minute's {requests} are good"
    if share >= least:
        text = f"simulated: {text}, {_samples(point)} in all"
        return RowOutcome(outcome="pass", evidence=text, judged_rps=point.peak_rps)
    high = share_interval(round(share * point.peak_requests), point.peak_requests).high
    outcome: Outcome = "fail" if high < least else "unknown"
    front = "broken" if outcome == "fail" else "too few to tell"
    text = f"{front}: {text}, asked {percent(least, 2)}"
    return RowOutcome(outcome=outcome, evidence=text, judged_rps=point.peak_rps)


def _burst(scenario: Scenario, pool: Pool, point: Point | None, *, seed: int) -> RowOutcome:
    """Return the load of the plan's bursts, and whether the point's replicas get through them.

    Their load, length and distance are those of ``scenario.stages``. The promises of classes that
    may be shed are not asked for.
    """
    if scenario.traffic.shape.kind == "closed":
        text = "does not apply: users who wait for their answers bring no burst"
        return RowOutcome(outcome=DOES_NOT_APPLY, evidence=text)
    if point is None or point.open:
        return RowOutcome(
            outcome="unknown", evidence="not measured: no number of replicas is shown"
        )
    sized = with_loss(scenario, pool, point.replicas, Loss(count=0))
    loads = loads_of(sized, seed=seed)
    stage = burst(sized, loads, seed=seed)
    share = sum(loads.share.get(name, 0.0) for name in point.classes)
    outcome, found = burst_outcome(stage, point.classes)
    evidence = f"{found}; {burst_run(stage)}"
    return RowOutcome(outcome=outcome, evidence=evidence, judged_rps=share * stage.load_rps)


def _degraded(point: Point | None, outages: Sequence[Outage], *, asked: bool) -> RowOutcome:
    """Return the load of the part around the loss, and whether the promises are kept there."""
    if not asked:
        return RowOutcome(
            outcome=NOT_ASKED, evidence="no loss was asked for (--lose 1 asks for one)"
        )
    if point is None:
        return RowOutcome(outcome="fail", evidence=NONE_HOLDS)
    rate = point.rate_rps(outages)
    if point.open:
        return RowOutcome(outcome="unknown", evidence=_not_shown(point), judged_rps=rate)
    found = missed(point.served, outages, point.classes)
    samples = counted(sum(own["offered"] for own in found.values()), "request")
    text = f"simulated: {_kept(point)} with {point.lose} from {outages[0].at_s:.4g} s on, "
    text += f"{samples} around it"
    return RowOutcome(outcome="pass", evidence=text, judged_rps=rate)


def _not_shown(point: Point) -> str:
    return (
        f"not shown: no promise broken at {point.replicas} with {point.lose}, "
        f"but {_samples(point)} are too few to judge {point.open[0].rule}"
    )


def _kept(point: Point) -> str:
    outcome = point.verdict.outcome
    if outcome == "pass":
        return "every promise kept"
    broken = next((r for r in point.verdict.reasons if r.outcome in ("blocked", "fail")), None)
    mended = "" if broken is None else f" that replicas could mend, {rule_words(broken.rule)} aside"
    return f"no promise broken{mended} ({outcome})"


def _samples(point: Point) -> str:
    return counted(int(point.figures["offered"].sum()), "request")


def _size(pool: Pool, point: Point | None) -> dict[str, float | None]:
    if point is None or point.open:
        return {"replicas": None, "accelerators": None, "memory_bytes": math.nan}
    count = point.replicas * pool.accelerators_per_replica
    memory = math.nan if pool.accelerator is None else accelerator(pool.accelerator).memory_bytes
    return {"replicas": point.replicas, "accelerators": count, "memory_bytes": count * memory}


def protective_action(scenario: Scenario, pool: Pool, point: Point | None) -> str:
    """Return what protects a pool, in words: each limit and what happens at it.

    Limits that the budget derives are those at the replicas of ``point``.
    """
    itself = _by_itself(scenario, pool)
    if point is not None and not point.open:
        scenario = with_loss(scenario, pool, point.replicas, Loss(count=0))
        pool = scenario.pool(pool.name)
    gateway = scenario.gateway
    parts = [f"gateway: {limit.action}" for limit in gateway.limits() if limit.is_set]
    if gateway.concurrency is not None:
        parts.append(f"gateway: {gateway.concurrency:,} open at once, then {_queue(gateway.queue)}")
    parts.append(f"{pool.name} service queue: {_queue(pool.queue)}")
    parts.append(f"{pool.name} scheduler queue: {_queue(pool.batching.scheduler)}")
    return "; ".join([*parts, *itself])


def _by_itself(scenario: Scenario, pool: Pool) -> list[str]:
    """Return what breakers and the autoscaler do for a pool, in words."""
    parts = [
        f"breaker {rule.name}: {rule.limit().action}"
        for rule, own, wrong in placements(scenario.breakers, scenario.pools)
        if own.name == pool.name and wrong is None
    ]
    if (scaler := pool.autoscaler) is not None:
        most = counted(scaler.max_replicas, "replica")
        parts.append(f"{pool.name} autoscaler: {scaler.min_replicas} to {most}")
    if (standby := pool.standby) is not None:
        parts.append(f"{pool.name} standby: {counted(standby.replicas, 'replica')}")
    return parts


def _queue(queue: Queue) -> str:
    limits = []
    if queue.length is not None:
        limits.append(f"{queue.status} beyond {queue.length} waiting")
    if queue.wait_limit_s is not None:
        limits.append(f"timeout after {queue.wait_limit_s:g} s")
    return " and ".join(limits) or "no limit"


def margin_row(evaluate: Evaluator, lose: Loss, point: Point | None) -> dict[str, Any]:
    """Return one row of the failure margin: what surviving a loss takes, and which classes pay.

    ``recovery_s``, ``missed`` (with the loss) and ``missed_without`` come from the runs of the
    number found, with the loss and without it.
    """
    scenario, pool = evaluate.scenario, evaluate.pool
    names = served_by(scenario, pool)
    shown = point if point is not None and not point.open else None
    hour = sum(
        pool_cost_usd_per_hour(
            other
            if other.name != pool.name
            else pool.model_copy(update={"replicas": shown.replicas if shown else 1})
        )
        for other in scenario.pools
    )
    row = {
        "lose": {"kind": lose.kind, "count": lose.count},
        "replicas": shown.replicas if shown else None,
        "protected": [n for n in names if point and n in point.kept],
        "shed": [n for n in names if not point or n not in point.kept],
        "recovery_s": 0.0 if lose.count == 0 else math.nan,
        "cost_usd_per_hour": hour if shown else math.nan,
        "at_s": [],
        "down_s": lose.down_s,
        "missed": {},
        "missed_without": {},
    }
    if point is None or lose.count == 0:
        return row
    outages, whole = evaluate.outages(lose), evaluate.point(point.replicas, Loss(count=0))
    allowed = 1.0 - max(promised_fractions(scenario, names))
    return row | {
        "recovery_s": recovery_s(point.served, whole.served, outages, allowed=allowed),
        "at_s": [one.at_s for one in outages],
        "missed": missed(point.served, outages, names),
        "missed_without": missed(whole.served, outages, names),
    }
