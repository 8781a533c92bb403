"""Breakers as boundaries: what each would do, when it was open, and whom it touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capplan.formatting import counted, in_words
from capplan.results.breakers import open_spans as spans_of
from capplan.scenario.breaker_rules import placements
from capplan.scenario.breakers import Action, Breaker, Refuse, ShrinkBatch, Watch
from capplan.scenario.metric_names import LATENCIES
from capplan.scenario.part import origin

if TYPE_CHECKING:
    import pandas as pd

    from capplan.results import RunResult
    from capplan.scenario import Scenario


def protecting(scenario: Scenario) -> list[tuple[Breaker, str | None]]:
    """Return each rule with what it does, None where it can act in no pool."""
    able = {b.name for b, _, told in placements(scenario.breakers, scenario.pools) if told is None}
    return [(b, action_of(b) if b.name in able else None) for b in scenario.breakers]


def action_of(breaker: Breaker) -> str:
    """Return in words what a rule does, and above which limit; a default is called one.

    >>> rule = Breaker(name="full", when=Watch(metric="queue_length", above=200), then=(Refuse(),))
    >>> action_of(rule)
    '503 with Retry-After 1 s while queue length is above 200'
    """
    doing = " and ".join(_told(action) for action in breaker.then)
    return f"{doing} while {_condition(breaker.when)}"


def _condition(when: Watch) -> str:
    latency = when.metric in LATENCIES
    name = in_words(when.metric.removesuffix("_s") if latency else when.metric)
    what, unit = (f"{name} p{100 * when.quantile:g}", " s") if latency else (name, "")
    side, limit = ("above", when.above) if when.above is not None else ("below", when.below)
    mark = " (a default, not your promise)" if origin(when, side) == "default" else ""
    return f"{what} is {side} {limit:g}{unit}{mark}"


def _told(action: Action) -> str:
    limits: dict[str, float] = action.stated if isinstance(action, ShrinkBatch) else {}
    texts = {
        "greedy": "beams become greedy",
        "max_tokens": f"answers are cut after {counted(getattr(action, 'tokens', 0), 'token')}",
        "route": f"requests go to {getattr(action, 'to', '')}",
        "pause_and_compact": "admission pauses and KV is compacted",
        "start_standby": "the standby comes into service",
        "shrink_batch": "batches shrink to "
        + ", ".join(f"{name} {value:g}" for name, value in limits.items()),
    }
    if isinstance(action, Refuse):
        return f"{action.status} with Retry-After {action.retry_after_s:g} s"
    return texts[action.kind]


def open_spans(run: RunResult, rule: str) -> list[tuple[float, float]]:
    """Return from when to when a rule was open, in any pool."""
    found = spans_of(run)
    return sorted(span for (name, _), spans in found.items() if name == rule for span in spans)


def touched(run: RunResult, rule: str) -> pd.DataFrame:
    """Return the attempts that a rule refused, or that were degraded where and while it was open.

    Two rules that degrade the same class in the same pool at the same time share their attempts.
    """
    log = run.requests
    breaker = next(b for b in run.scenario.breakers if b.name == rule)
    marked = (log["reason"] == f"breaker:{rule}").to_numpy(np.bool_, copy=True)
    degraded = (log["degraded"].astype("object") == True).to_numpy(np.bool_)  # noqa: E712
    came_s = log["service_queue_in_s"].to_numpy(np.float64)
    for (name, pool), spans in spans_of(run).items():
        if name != rule:
            continue
        here = degraded & _acted_on(breaker, pool, run)
        for start, end in spans:
            marked |= here & (came_s >= start) & (came_s <= end)
    return log[marked]


def _acted_on(breaker: Breaker, pool: str, run: RunResult) -> np.ndarray:
    """Return which attempts a rule's actions on answers are for, in a pool."""
    log, scenario = run.requests, run.scenario
    pools = {c.name: scenario.pool_of(c.name).name for c in scenario.classes}
    home = log["request_class"].map(pools)
    served = log["replica"].astype("object").str.rpartition("-")[0]
    found = np.zeros(len(log), np.bool_)
    for action in breaker.then:
        if action.kind not in ("greedy", "max_tokens", "route"):
            continue
        classes = action.classes or [c.name for c in scenario.classes]
        if action.kind == "greedy" and getattr(scenario.pool(pool).batching, "beam_width", 1) == 1:
            continue
        where = home if action.kind == "route" else served.fillna(home)
        found |= (log["request_class"].isin(classes) & (where == pool)).to_numpy(np.bool_)
    return found
