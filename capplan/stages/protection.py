"""What each limit did in the stages: the attempts that it ended or degraded prove that it acted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.results.breakers import open_spans as spans_of
from capplan.scenario.layers import Queue
from capplan.stages.violations import MOST_IDS

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.scenario.breakers import Breaker
    from capplan.scenario.ending import Limit
    from capplan.stages.stage import Stage

BREAKERS = "breakers."
"""What the fields of breakers begin with."""

Span = tuple[float, float]
NEVER: Span = (math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectiveAction:
    """A limit, and the requests that it ended or degraded: the proof that it acted."""

    boundary: Limit
    count: int = 0
    first_at_rps: float = math.nan
    run_id: str | None = None
    span_s: Span = NEVER
    request_ids: tuple[str, ...] = ()
    opened: int = 0
    """How often a breaker opened."""

    @property
    def acted(self) -> bool:
        """Return whether it ended or degraded a request, or changed a pool, in any stage."""
        return self.count > 0 or (self.opened > 0 and self.boundary.changes_pool)

    def to_json(self) -> dict[str, Any]:
        """Return the protective action as in ``stages --json``."""
        return {
            "boundary": self.boundary.field,
            "layer": self.boundary.layer,
            "owner": self.boundary.owner,
            "action": self.boundary.action,
            "acted": self.acted,
            "requests": self.count,
            "opened": self.opened,
            "first_at_rps": self.first_at_rps,
            "proof": {
                "run_id": self.run_id,
                "span_s": list(self.span_s),
                "request_ids": list(self.request_ids),
            },
        }


def limit_table(scenario: Scenario) -> pd.DataFrame:
    """Return each limit of a scenario with its layer, its owner and what it does."""
    rows = [(one.field, one.layer, one.owner, one.action) for one in scenario.limits()]
    return pd.DataFrame(rows, columns=["limit", "layer", "owner", "protective action"])


def protections(scenario: Scenario, stages: Sequence[Stage]) -> tuple[ProtectiveAction, ...]:
    """Return every limit of a scenario with what it did in the stages."""
    runs: dict[str, Stage] = {}
    for stage in sorted(stages, key=lambda one: one.highest_rps):
        runs.setdefault(stage.run_id, stage)
    return tuple(_acted(limit, runs.values()) for limit in scenario.limits())


def _acted(limit: Limit, stages: Iterable[Stage]) -> ProtectiveAction:
    """Return what a limit did in stages of rising load: how often, where first, which requests."""
    is_breaker = limit.field.startswith(BREAKERS)
    marks = _of_breaker if is_breaker else _of_ended
    found = [(stage, *marks(limit, stage.run)) for stage in stages]
    found = [(stage, own, spans) for stage, own, spans in found if spans]
    if not found:
        return ProtectiveAction(boundary=limit)
    stage, own, spans = found[0]
    return ProtectiveAction(
        boundary=limit,
        count=sum(len(attempts) for _, attempts, _ in found),
        first_at_rps=stage.highest_rps,
        run_id=stage.run_id,
        span_s=(min(start for start, _ in spans), max(end for _, end in spans)),
        request_ids=tuple(str(name) for name in own["request_id"].iloc[:MOST_IDS]),
        opened=sum(len(opened) for *_, opened in found) if is_breaker else 0,
    )


def _of_breaker(limit: Limit, run: RunResult) -> tuple[pd.DataFrame, list[Span]]:
    """Return the attempts that a breaker touched, and from when to when it was open."""
    name = limit.field.removeprefix(BREAKERS)
    spans = [span for (rule, _), own in spans_of(run).items() if rule == name for span in own]
    return touched(run, name), spans


def _of_ended(limit: Limit, run: RunResult) -> tuple[pd.DataFrame, list[Span]]:
    """Return the attempts that a limit ended, and from when to when they were there."""
    own = _ended(limit, run)
    span = float(own["intended_start_s"].min()), float(own["finish_s"].max())
    return own, [span] if len(own) else []


def _ended(limit: Limit, run: RunResult) -> pd.DataFrame:
    if not limit.reason:
        return dropped(run, limit.classes[0])
    log = run.requests
    here = (log["outcome_layer"] == limit.layer) & (log["reason"] == limit.reason)
    return log[here & log["request_class"].isin(limit.classes)]


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


def dropped(run: RunResult, name: str) -> pd.DataFrame:
    """Return the last attempts of a class's requests that its retry budget kept from a retry.

    They are those that surely could have been tried again: with attempts left, an outcome that is
    tried again, no final reason, and time for the longest backoff and the Retry-After, where the
    scenario states it (that of a full queue; for other reasons, only requests without a deadline
    are among them). Empty if the timeline shows no dropped retry.
    """
    log = run.requests
    retry = run.scenario.request_class(name).retry
    own = log[(log["request_class"] == name).to_numpy()]
    drops = run.timeline.loc[run.timeline["metric"] == "retries_dropped_rps", "value"]
    if retry.budget is None or not (drops > 0).any():
        return own.iloc[:0]
    requests = own.groupby("request_id", sort=False)
    last = own[own["attempt"].eq(requests["attempt"].transform("max"))]
    first_s = requests["intended_start_s"].min().reindex(last["request_id"]).to_numpy(np.float64)
    pauses_s = [_longest_pause_s(row, run.scenario, name) for row in last.itertuples()]
    leaves_s = first_s + last["deadline_s"].fillna(math.inf)
    kept: pd.DataFrame = last[
        last["outcome"].isin(retry.retry_on)
        & (last["attempt"] < retry.max_attempts)
        & ~last["reason"].map(lambda reason: isinstance(reason, str) and retry.ends_on(reason))
        & ((last["finish_s"] + pauses_s < leaves_s) | np.isinf(leaves_s))
    ]
    return kept


def _longest_pause_s(row: Any, scenario: Scenario, name: str) -> float:
    """Return the longest wait of the caller before it tries again, s; inf if not known."""
    retry = scenario.request_class(name).retry
    backoff_s = retry.backoff_before(min(row.attempt, retry.max_attempts) + 1)
    if not retry.honour_retry_after or row.outcome != "rejected":
        return backoff_s
    pool = scenario.pool_of(name)
    queues = {
        "gateway": scenario.gateway.queue,
        "service_queue": pool.queue,
        "scheduler_queue": pool.batching.scheduler,
    }
    is_full = row.reason == Queue.full.reason and row.outcome_layer in queues
    after_s = queues[row.outcome_layer].retry_after_s if is_full else math.inf
    most_s = math.inf if retry.max_retry_after_s is None else retry.max_retry_after_s
    return max(backoff_s, min(after_s, most_s))
