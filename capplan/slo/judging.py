"""From runs to a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from capplan.budget import resolved
from capplan.results import RunResult, per_request, scaling_findings
from capplan.results.scaling import KEEP_SMALL
from capplan.scenario import Scenario
from capplan.scenario.fields import effect_of
from capplan.scenario.part import Affects, Part
from capplan.slo.mechanisms import LATE, mechanism_reasons
from capplan.slo.promise_reasons import Judged, promise_reasons
from capplan.slo.windows import busiest_hour, in_windows, promise_windows, within
from capplan.statistics import quantiles
from capplan.verdict import Reason, Scope, Verdict, Window

NOT_JUDGED = (Affects.JUDGING, Affects.DESCRIBING)
"""What a field may affect without making another service or load of it."""
COST = "cost_usd_per_success"
ASK_CAPACITY = {*LATE, "stability", "busy_but_late"} - {"success_only"}
"""Rules whose next action is more capacity, which an autoscaler can hold back."""


def judge(result: RunResult | Sequence[RunResult], scenario: Scenario | None = None) -> Verdict:
    """Return the verdict on a run, or on replications of one judged together.

    ``scenario`` is the question: its promises are judged. Where it asks about another service or
    load than the one that ran, the verdict is unknown. Default: the scenario that ran.

    The overall outcome is the worst of all reasons, by :data:`~capplan.verdict.PRECEDENCE`.
    A promise holds when the estimate and its whole 95 % interval hold, over the run and over its
    busiest hour, and no window breaks it beyond doubt (:func:`promise_windows`); one whose interval
    still holds the limit is a retest; one with fewer samples than promised is unknown.
    """
    runs = [result] if isinstance(result, RunResult) else list(result)
    if not runs:
        msg = "a verdict needs at least one run"
        raise ValueError(msg)
    asked = runs[0].scenario if scenario is None else resolved(scenario)
    fields = _differences(runs[0].scenario, asked)
    if asked is not runs[0].scenario and not fields:
        runs = [replace(run, scenario=asked) for run in runs]
    tables = [per_request(run) for run in runs]
    scope = scope_of(runs[0].scenario, runs, tables)
    if fields:
        return Verdict(reasons=(), scope=scope).outside(fields)
    windows = promise_windows(runs, tables=tables)
    reasons = list(in_windows(_promises(runs, tables, asked), windows))
    found = [list(mechanism_reasons(r, t, reasons)) for r, t in zip(runs, tables, strict=True)]
    reasons = _let_scale(runs, [*reasons, *_together(found)])
    return Verdict(reasons=tuple(sorted(reasons, key=attrgetter("rank"))), scope=scope)


def _promises(
    runs: Sequence[RunResult], tables: Sequence[pd.DataFrame], asked: Scenario
) -> Iterator[Reason]:
    for c in asked.classes:
        whole = Judged(request_class=c, runs=runs, tables=tables, requests=_of(tables, c.name))
        hours = [busiest_hour(run, table, c.name) for run, table in zip(runs, tables, strict=True)]
        pairs = zip(tables, hours, strict=True)
        parts = [table if hour is None else within(table, hour) for table, hour in pairs]
        hour = next((hour for hour in hours if hour is not None), None)
        if hour is None:
            yield from promise_reasons(whole)
        else:
            busiest = replace(whole, requests=_of(parts, c.name))
            yield from _in_busiest_hour(whole, busiest, hour)


def _of(tables: Sequence[pd.DataFrame], name: str) -> pd.DataFrame:
    own = [table[table["request_class"] == name] for table in tables]
    return own[0] if len(own) == 1 else pd.concat(own, ignore_index=True)


def _in_busiest_hour(whole: Judged, busiest: Judged, hour: Window) -> Iterator[Reason]:
    """Yield the reasons over the whole run, or that of the busiest hour where that one is worse.

    An hour with too few samples decides nothing; a cost is one of the whole run.
    """
    in_hour = {r.rule: r for r in promise_reasons(busiest) if r.outcome in ("fail", "retest")}
    for reason in promise_reasons(whole):
        other = in_hour.get(reason.rule)
        if other is None or reason.rule == COST or other.rank >= reason.rank:
            yield reason
            continue
        evidence = f"{other.evidence}, in the busiest hour, from {hour.start_s:,.0f} s"
        yield replace(other, evidence=f"{evidence}; in all {reason.evidence}", window=hour)


def _together(found: Sequence[Sequence[Reason]]) -> Iterator[Reason]:
    """Yield the worst of the runs' findings by each rule on each class.

    A retest that at most half of the runs ask for gives way to what the others found.
    """
    by_rule: dict[tuple[str, str | None], list[Reason]] = {}
    for reasons in found:
        for reason in reasons:
            by_rule.setdefault((reason.rule, reason.request_class), []).append(reason)
    for reasons in by_rule.values():
        ordered = sorted(reasons, key=attrgetter("rank"))
        decided = [r for r in ordered if r.outcome != "retest"]
        yield decided[0] if len(decided) * 2 >= len(ordered) else ordered[0]


def _let_scale(runs: Sequence[RunResult], reasons: list[Reason]) -> list[Reason]:
    """Return the reasons; those that ask for capacity name what keeps the pool from scaling."""
    scenario = runs[0].scenario
    failed = [r for r in reasons if r.outcome == "fail"]
    short = [r for r in failed if r.rule in ASK_CAPACITY and not r.field]
    if not short or not any(pool.is_elastic for pool in scenario.pools):
        return reasons
    held = {f.pool: f for run in runs for f in scaling_findings(run) if f.rule in KEEP_SMALL}

    def mended(reason: Reason) -> Reason:
        name = reason.request_class
        of_pool = held.get(scenario.pool_of(name).name) if name else next(iter(held.values()), None)
        if of_pool is None:
            return reason
        return replace(reason, next_action=f"let it scale: {of_pool.field}: {of_pool.next_action}")

    return [mended(r) if r in short else r for r in reasons]


def _differences(ran: Scenario, asked: Scenario) -> list[str]:
    """Return the top-level fields in which the asked service differs from the one that ran."""
    if ran is asked:
        return []
    one, two = _behaviour(ran), _behaviour(asked)
    return sorted(name for name in one if one[name] != two[name] and name != "requests")


def _behaviour(part: Any) -> Any:
    """Return what a part states about the service and its load, as plain values."""
    if isinstance(part, tuple):
        return [_behaviour(entry) for entry in part]
    if not isinstance(part, Part):
        return part
    return {
        name: _behaviour(getattr(part, name))
        for name, field in type(part).model_fields.items()
        if effect_of(field) not in NOT_JUDGED
    }


def scope_of(
    scenario: Scenario, runs: Sequence[RunResult], tables: Sequence[pd.DataFrame]
) -> Scope:
    """Return what the runs of a scenario speak of; ``tables`` are their :func:`per_request`.

    Without a run, nothing is known of requests and loads.
    """
    import capplan

    known = Scope(
        model=tuple(dict.fromkeys(m for p in scenario.pools for m in p.model_names)),
        accelerator=tuple(dict.fromkeys(p.accelerator or "unnamed" for p in scenario.pools)),
        versions={"capplan": capplan.__version__},
        input_distribution={},
        load_range_rps=(np.nan, np.nan),
        window_s=(np.nan, np.nan),
    )
    if not runs:
        return known
    first = runs[0]
    loads = [_load_range(run, table) for run, table in zip(runs, tables, strict=True)]
    together = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
    return replace(
        known,
        versions={**known.versions, **first.versions},
        input_distribution={
            str(name): {
                "requests": len(own),
                "prompt_tokens": _lengths(own["prompt_tokens"]),
                "output_tokens": _lengths(own["output_tokens"][own["outcome"] == "succeeded"]),
            }
            for name, own in together.groupby("request_class", sort=False, observed=True)
        },
        load_range_rps=(min(low for low, _ in loads), max(high for _, high in loads)),
        window_s=(first.judged_from_s, max(run.duration_s for run in runs)),
        backend=first.backend,
    )


def _lengths(tokens: pd.Series) -> dict[str, float]:
    values = tokens.to_numpy(np.float64, na_value=np.nan)
    known = values[~np.isnan(values)]
    found = quantiles(known, [0.0, 0.5, 0.95, 1.0])
    return dict(zip(("min", "p50", "p95", "max"), found, strict=True))


def _load_range(run: RunResult, table: pd.DataFrame) -> tuple[float, float]:
    """Return the least and greatest offered load over minutes, or tenths of a shorter run."""
    start = table["intended_start_s"].to_numpy(np.float64)
    if start.size == 0:
        return np.nan, np.nan
    span = float(start.max()) - run.judged_from_s
    count = int(max(10, span // 60))
    counts, edges = np.histogram(start, bins=count, range=(run.judged_from_s, start.max()))
    width = edges[1] - edges[0]
    return (counts.min() / width, counts.max() / width) if width > 0 else (np.nan, np.nan)
