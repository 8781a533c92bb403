"""Frames of the sizing page: share of good requests by number of replicas, rules, rejections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.display import once
from capplan.formatting import counted, does, format_value, listed, rule_words

if TYPE_CHECKING:
    from capplan.pages.page import Page
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.sizing import Sizing

RULE_NAMES = {"erlang_c": "Erlang C", "peak_times_1.2": "peak × 1.2"}


def goodput_frame(sizing: Sizing) -> pd.DataFrame:
    """Return the share of good requests of the pool by replicas and replicas lost.

    Columns: replicas, lost, goodput_fraction, low, high (95 % interval). A number of which the run
    cannot tell whether its requests were good has no row.
    """
    from capplan.statistics import share_interval

    served = {name for point in sizing.points for name in point.classes}
    frame = sizing.frame()
    frame = frame[frame["request_class"].isin(served)]
    own = frame.assign(good=frame["good_fraction"] * frame["offered"])
    sums = own.groupby(["replicas", "lost"])[["offered", "good"]].sum(min_count=1).reset_index()
    rows = []
    for row in sums.dropna().to_dict("records"):
        share = share_interval(round(row["good"]), int(row["offered"]))
        rows.append((row["replicas"], row["lost"], share.value, share.low, share.high))
    return pd.DataFrame(rows, columns=["replicas", "lost", "goodput_fraction", "low", "high"])


def promised_fraction(sizing: Sizing) -> float | None:
    """Return the strictest promised share of good requests of the pool's classes."""
    served = {name for point in sizing.points for name in point.classes}
    promises = [sizing.scenario.request_class(name).promises for name in sorted(served)]
    stated = [p.goodput_fraction for p in promises if p.goodput_fraction is not None]
    return max(stated, default=None)


def rule_marks(sizing: Sizing, lost: int) -> dict[str, float]:
    """Return the rules of thumb's numbers of replicas for a loss, by name."""
    return {
        RULE_NAMES.get(rule.name, rule.name): float(rule.replicas)
        for rule in sizing.rules
        if rule.lose == lost and rule.replicas is not None
    }


def answer_table(sizing: Sizing) -> pd.DataFrame:
    """Return how many replicas each way of counting asks for, and whether that number holds."""
    rows = [
        {
            "counted by": "simulation",
            "replicas lost": lose.count,
            "replicas": "none holds" if point is None else str(point.replicas),
            "holds when simulated": "" if point is None else "not shown" if point.open else "yes",
            "how": "the fewest that keep every promise",
        }
        for lose, point in sizing.chosen.items()
    ]
    rows += [
        {
            "counted by": RULE_NAMES.get(rule.name, rule.name),
            "replicas lost": rule.lose,
            "replicas": "unknown" if rule.replicas is None else str(rule.replicas),
            "holds when simulated": {True: "yes", False: "no", None: "unknown"}[rule.holds],
            "how": rule.evidence,
        }
        for rule in sizing.rules
    ]
    return pd.DataFrame(rows)


def rejection_table(sizing: Sizing) -> pd.DataFrame:
    """Return each number of replicas that does not do, with its reason."""
    return pd.DataFrame(
        [
            {
                "replicas": r.replicas,
                "lost": r.lose.count,
                "outcome": r.outcome,
                "rule": rule_words(r.rule),
                "reason": r.reason,
            }
            for r in sizing.rejected
        ],
        columns=["replicas", "lost", "outcome", "rule", "reason"],
    )


def capacity_frame(sizing: Sizing) -> pd.DataFrame:
    """Return the capacity table as a page shows it."""
    columns = ["row", "class_group", "load_rps", "replicas", "protective_action", "evidence"]
    table = sizing.capacity_table[columns]
    return table.assign(protective_action=once(table["protective_action"]))


def margin_frame(sizing: Sizing) -> pd.DataFrame:
    """Return the failure margin as a page shows it: what each loss costs and who is kept."""
    rows = sizing.failure_margin.to_dict("records")
    return pd.DataFrame(
        [
            {
                "lost": row["lose"]["count"],
                "replicas": row["replicas"],
                "protected": listed(row["protected"]),
                "shed": listed(row["shed"]),
                "cost_usd_per_hour": row["cost_usd_per_hour"],
            }
            for row in rows
        ]
    )


def said(sizing: Sizing) -> str:
    """Return the answer in a sentence."""
    parts = []
    for lose, point in sizing.chosen.items():
        what = "nothing lost" if lose.count == 0 else str(lose)
        number = f"no number up to {sizing.n_max}" if point is None else f"**{point.replicas}**"
        if point is not None and point.open:
            number = f"not shown (nothing broken at {point.replicas})"
        parts.append(f"{number} with {what}")
    return f"Replicas of `{sizing.pool}` that keep every promise: {listed(parts)}."


def crash(page: Page, replicas: int, *, lost: int, requests: int) -> tuple[Scenario, RunResult]:
    """Return a run in which replicas crash in the middle and come back after a cold start.

    Where the pool's cold start is unknown they stay away.
    """
    from capplan.scenario.files import with_values
    from capplan.simulation import simulate
    from capplan.traffic.stretch import busiest

    trace = busiest(page.draw(), requests)
    pool = page.scenario.pool()
    fault = {
        "kind": "crash",
        "pool": pool.name,
        "at_s": float(trace.frame["arrival_s"].iloc[-1]) / 3,
        "count": min(lost, replicas),
        "down_s": pool.cold_start_s or None,
    }
    values = {f"pools.{pool.name}.replicas": replicas, "warmup_s": 0.0, "faults": [fault]}
    scenario = with_values(page.scenario, values)
    return scenario, simulate(scenario, trace=trace, seed=page.seed)


def crash_parts(page: Page, sizing: Sizing, *, lost: int, requests: int) -> list[Any]:
    """Return how requests end around a crash of the chosen number, and what it cost."""
    from capplan import charts
    from capplan.results import per_request
    from capplan.scenario.faults import Crash

    if sizing.replicas.get(lost) is None:
        return [f"No number of replicas holds with {lost} lost, so there is none to crash."]
    replicas = int(sizing.replicas[lost] or 0)
    scenario, result = crash(page, replicas, lost=lost, requests=requests)
    fault = next(f for f in scenario.faults if isinstance(f, Crash))
    table = per_request(result)
    hit = table[table["intended_start_s"].between(fault.begins_s, fault.ends_s, inclusive="left")]
    away = f"for {format_value(fault.down_s, '_s')} (a cold start)"
    away = away if fault.down_s else "on, for good (no cold start is stated)"
    lost_work = int((table["outcome"] != "succeeded").sum())
    window = max(1.0, round(result.duration_s / 60))
    return [
        charts.outcomes_over_time(table, window_s=window),
        f"With {counted(replicas, 'replica')}, {fault.count} of them down from "
        f"{format_value(fault.begins_s, '_s')} {away}, {lost_work:,} of "
        f"{counted(len(table), 'request')} "
        f"{does(lost_work, 'does', 'do')} not succeed; "
        f"{format_value(float(hit['good'].mean()), '_fraction')} of those sent meanwhile keep "
        "every promise.",
    ]
