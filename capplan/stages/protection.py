"""The protective action at each boundary, and proof that it acted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.stages.breaks import MOST_IDS

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Queue, Scenario
    from capplan.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One limit of the scenario: where it stands, what it does, who owns it."""

    field: str
    layer: str
    reason: str
    action: str
    owner: str
    classes: tuple[str, ...]
    is_set: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """A boundary, and the requests of the stages that it ended: the proof that it acted."""

    boundary: Boundary
    count: int
    first_at_rps: float
    run_id: str | None
    span_s: tuple[float, float]
    request_ids: tuple[str, ...]

    @property
    def acted(self) -> bool:
        """Return whether it ended a request in any of the stages."""
        return self.count > 0

    def to_json(self) -> dict[str, Any]:
        """Return the protective action as it stands in ``stages --json``."""
        return {
            "boundary": self.boundary.field,
            "layer": self.boundary.layer,
            "owner": self.boundary.owner,
            "action": self.boundary.action,
            "acted": self.acted,
            "requests": self.count,
            "first_at_rps": self.first_at_rps,
            "proof": {
                "run_id": self.run_id,
                "span_s": list(self.span_s),
                "request_ids": list(self.request_ids),
            },
        }


def protections(scenario: Scenario, stages: Sequence[Stage]) -> tuple[Protection, ...]:
    """Return every boundary of a scenario with what it did in the stages."""
    return tuple(_acted(boundary, stages) for boundary in boundaries(scenario))


def boundaries(scenario: Scenario) -> Iterator[Boundary]:
    """Yield the limits of a scenario, outermost first, those that are not set too."""
    every = tuple(c.name for c in scenario.classes)
    for c in scenario.classes:
        yield from _caller(c.name, scenario)
    gateway = scenario.gateway
    limit = gateway.rate_limit
    yield Boundary(
        field="gateway.rate_limit",
        layer="gateway",
        reason="rate_limit",
        action=f"429 beyond {limit.rate_rps:g}/s (burst {limit.burst})" if limit else "none",
        owner=gateway.owner,
        classes=every,
        is_set=limit is not None,
    )
    yield from _queue("gateway.queue", "gateway", gateway.queue, gateway.owner, every)
    for pool in scenario.pools:
        own = tuple(n for n in every if scenario.pool_of(n).name == pool.name)
        path = f"pools.{pool.name}"
        yield from _queue(f"{path}.queue", "service_queue", pool.queue, pool.owner, own)
        scheduler = pool.batching.scheduler
        field = f"{path}.batching.scheduler"
        yield from _queue(field, "scheduler_queue", scheduler, pool.owner, own)


def _caller(name: str, scenario: Scenario) -> Iterator[Boundary]:
    c = scenario.request_class(name)
    limits = {
        "deadline": (f"classes.{name}.promises.deadline_s", c.promises.deadline_s),
        "attempt_timeout": (f"classes.{name}.retry.attempt_timeout_s", c.retry.attempt_timeout_s),
    }
    for reason, (field, value) in limits.items():
        if value is None and reason == "attempt_timeout":
            continue
        yield Boundary(
            field=field,
            layer="caller",
            reason=reason,
            action="none" if value is None else f"the caller leaves after {value:g} s",
            owner=c.owner,
            classes=(name,),
            is_set=value is not None,
        )


def _queue(
    path: str, layer: str, queue: Queue, above: str, classes: tuple[str, ...]
) -> Iterator[Boundary]:
    length, wait = queue.length, queue.wait_limit_s
    refusal = f"{queue.status} with Retry-After {queue.retry_after_s:g} s"
    actions = {
        "length": ("queue_full", None if length is None else f"{refusal} beyond {length} waiting"),
        "wait_limit_s": ("wait_limit", None if wait is None else f"ends a wait of {wait:g} s"),
    }
    for field, (reason, action) in actions.items():
        yield Boundary(
            field=f"{path}.{field}",
            layer=layer,
            reason=reason,
            action=action or "none",
            owner=queue.owner or above,
            classes=classes,
            is_set=action is not None,
        )


def _acted(boundary: Boundary, stages: Sequence[Stage]) -> Protection:
    rows = [(stage, own) for stage in stages if len(own := _ended(boundary, stage))]
    seen: dict[str, int] = {stage.run_id: len(own) for stage, own in rows}
    first = min(rows, key=lambda pair: pair[0].highest_rps, default=None)
    if first is None:
        nothing = (math.nan, math.nan)
        return Protection(
            boundary=boundary, count=0, first_at_rps=math.nan, run_id=None, span_s=nothing,
            request_ids=(),
        )  # fmt: skip
    stage, own = first
    return Protection(
        boundary=boundary,
        count=sum(seen.values()),
        first_at_rps=stage.highest_rps,
        run_id=stage.run_id,
        span_s=(float(own["intended_start_s"].min()), float(own["finish_s"].max())),
        request_ids=tuple(str(name) for name in own["request_id"].iloc[:MOST_IDS]),
    )


def _ended(boundary: Boundary, stage: Stage) -> pd.DataFrame:
    log = stage.run.requests
    here = (log["outcome_layer"] == boundary.layer) & (log["reason"] == boundary.reason)
    return log[here & log["request_class"].isin(boundary.classes)]
