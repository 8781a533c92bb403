"""The first degradation point: which promise, of which class, in which layer, at what load."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.stages.layers import Blame, blame
from capplan.stages.limits import Limit, limit_of
from capplan.stages.ramp import interval_of
from capplan.stages.violations import Break

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capplan.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Degradation:
    """Where the service first breaks a promise, with the evidence and the limit it crossed."""

    stage: Stage
    request_class: str
    promise: str
    layer: str
    layer_share_fraction: float
    low_rps: float
    """Highest load up to which every promise surely holds; NaN where none does."""
    high_rps: float
    """Lowest load at which a promise breaks beyond doubt; +inf where none does."""
    found: Break | None
    limit: Limit
    others: tuple[str, ...]

    @property
    def load_rps(self) -> float:
        """Return the load of the step that first breaks a promise."""
        return self.stage.load_rps

    def to_json(self) -> dict[str, Any]:
        """Return the point as it stands in ``stages --json``."""
        span = self.found.span_s if self.found else (self.stage.start_s, self.stage.end_s)
        return {
            "load_rps": self.load_rps,
            "interval": [self.low_rps, self.high_rps],
            "request_class": self.request_class,
            "promise": self.promise,
            "layer": self.layer,
            "layer_share_fraction": self.layer_share_fraction,
            "method": "of the promises broken at the lowest broken step, the first to use up the "
            "share of requests that may break it; the layer that ended most of them, or held them "
            "longest beyond the baseline's mean",
            "also_broken": list(self.others),
            "run_id": self.stage.run_id,
            "span_s": list(span),
            "used_up_s": self.found.used_up_s if self.found else math.nan,
            "request_ids": self.found.request_ids if self.found else [],
            "limit": self.limit.to_json(),
        }


def degradation_of(
    steps: Sequence[Stage], baseline: Stage | None, *, counted: bool = False
) -> Degradation | None:
    """Return where steps of rising load first break; None where none does.

    ``counted`` leaves out the steps that do not count.
    """
    kept = [s for s in steps if s.counts or not counted]
    stage = next((s for s in kept if s.broken), None)
    if stage is None:
        return None
    low, high = interval_of(kept)
    found = stage.breaks[0] if stage.breaks else None
    name = found.request_class if found else _growing(stage)
    cause = blame(stage, found, baseline) if found else _backlog(stage)
    others = [f"{b.request_class}: {b.promise}" for b in stage.breaks[1:]]
    return Degradation(
        stage=stage,
        request_class=name,
        promise=found.promise if found else "stability",
        layer=cause.layer,
        layer_share_fraction=cause.share_fraction,
        low_rps=low,
        high_rps=high,
        found=found,
        limit=limit_of(stage, name, cause),
        others=tuple(dict.fromkeys(others)),
    )


def _growing(stage: Stage) -> str:
    """Return the class whose backlog grows, the default class where none does alone."""
    for reason in stage.verdict.reasons:
        if reason.rule == "stability" and reason.outcome == "fail" and reason.request_class:
            return reason.request_class
    return stage.scenario.request_class().name


def _backlog(stage: Stage) -> Blame:
    """Return the queue with the most waiting at the end of the window."""
    rows = stage.run.timeline
    rows = rows[(rows["metric"] == "length") & (rows["time_s"] <= stage.end_s)]
    if rows.empty:
        return Blame(layer="unknown", share_fraction=math.nan, reason=None)
    last = rows.groupby(["layer", "replica"], observed=True)["value"].last()
    waiting = last.groupby("layer", observed=True).sum()
    total = float(waiting.sum())
    share = float(waiting.max()) / total if total else math.nan
    return Blame(layer=str(waiting.idxmax()), share_fraction=share, reason=None)
