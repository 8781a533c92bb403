"""The protective action at each boundary, and proof that it acted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.stages.boundaries import BUDGET, Boundary, boundaries
from capplan.stages.breakers import open_spans, touched
from capplan.stages.dropped_retries import dropped
from capplan.stages.violations import MOST_IDS

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage

BREAKERS = "breakers."
"""What the fields of breakers begin with."""

__all__ = ["Boundary", "Protection", "boundaries", "protections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """A boundary, and the requests that it ended or degraded: the proof that it acted."""

    boundary: Boundary
    count: int
    first_at_rps: float
    run_id: str | None
    span_s: tuple[float, float]
    request_ids: tuple[str, ...]
    opened: int = 0
    """How often a breaker opened."""

    @property
    def acted(self) -> bool:
        """Return whether it ended or degraded a request, or changed a pool, in any stage."""
        return self.count > 0 or (self.opened > 0 and self.boundary.changes_pool)

    def to_json(self) -> dict[str, Any]:
        """Return the protective action as it stands in ``stages --json``."""
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


def protections(scenario: Scenario, stages: Sequence[Stage]) -> tuple[Protection, ...]:
    """Return every boundary of a scenario with what it did in the stages."""
    return tuple(_acted(boundary, stages) for boundary in boundaries(scenario))


def _acted(boundary: Boundary, stages: Sequence[Stage]) -> Protection:
    if boundary.field.startswith(BREAKERS):
        return _tripped(boundary, stages)
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


def _tripped(boundary: Boundary, stages: Sequence[Stage]) -> Protection:
    """Return what a breaker did: how often it opened, when first, and whom it touched."""
    name = boundary.field.removeprefix(BREAKERS)
    runs = {stage.run_id: stage for stage in stages}.values()
    spans = [(stage, found) for stage in runs if (found := open_spans(stage.run, name))]
    if not spans:
        nothing = (math.nan, math.nan)
        return Protection(
            boundary=boundary, count=0, first_at_rps=math.nan, run_id=None, span_s=nothing,
            request_ids=(),
        )  # fmt: skip
    stage, first = min(spans, key=lambda pair: pair[0].highest_rps)
    own = touched(stage.run, name)
    return Protection(
        boundary=boundary,
        count=sum(len(touched(one.run, name)) for one, _ in spans),
        first_at_rps=stage.highest_rps,
        run_id=stage.run_id,
        span_s=(min(start for start, _ in first), max(end for _, end in first)),
        request_ids=tuple(str(one) for one in own["request_id"].iloc[:MOST_IDS]),
        opened=sum(len(found) for _, found in spans),
    )


def _ended(boundary: Boundary, stage: Stage) -> pd.DataFrame:
    if boundary.reason == BUDGET:
        return dropped(stage.run, boundary.classes[0])
    log = stage.run.requests
    here = (log["outcome_layer"] == boundary.layer) & (log["reason"] == boundary.reason)
    return log[here & log["request_class"].isin(boundary.classes)]
