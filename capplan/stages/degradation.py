"""Where a service first degrades: the first broken promise, the layer, the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.results import queue_waits
from capplan.schema import LAYERS
from capplan.stages.crossed_limit import CrossedLimit, crossed_limit
from capplan.stages.pool_levels import own_queues
from capplan.stages.stage import interval_of
from capplan.stages.violations import Break

if TYPE_CHECKING:
    from capplan.stages.stage import Stage


SERVING = LAYERS[1:]
"""The layers beyond the caller."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Degradation:
    """Where the service first breaks a promise, with the evidence and the limit it crossed."""

    stage: Stage
    request_class: str
    promise: str
    layer: str
    layer_share_fraction: float
    low_rps: float
    """Highest load up to which every promise surely holds; NaN if none does."""
    high_rps: float
    """Lowest load at which a promise breaks beyond doubt; +inf if none does."""
    found: Break | None
    limit: CrossedLimit
    others: tuple[str, ...]

    @property
    def load_rps(self) -> float:
        """Return the load of the step that first breaks a promise."""
        return self.stage.load_rps

    def to_json(self) -> dict[str, Any]:
        """Return the point as in ``stages --json``."""
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
    """Return where steps of rising load first break; None if none does.

    ``counted`` leaves out the steps that do not count.
    """
    kept = [s for s in steps if s.counts or not counted]
    stage = next((s for s in kept if s.broken), None)
    if stage is None:
        return None
    low, high = interval_of(kept)
    found = stage.breaks[0] if stage.breaks else None
    name = found.request_class if found else _growing(stage)
    cause = blame(stage, found, baseline) if found else _backlog(stage, name)
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
        limit=crossed_limit(stage, name, cause),
        others=tuple(dict.fromkeys(others)),
    )


def _growing(stage: Stage) -> str:
    """Return the class whose backlog grows, the default class where none does alone."""
    for reason in stage.verdict.reasons:
        if reason.rule == "stability" and reason.outcome == "fail" and reason.request_class:
            return reason.request_class
    return stage.scenario.request_class().name


def _backlog(stage: Stage, name: str) -> Blame:
    """Return the queue on a class's way with the most waiting at the end of the window."""
    rows = own_queues(stage, stage.scenario.pool_of(name))
    rows = rows[rows["time_s"] <= stage.end_s]
    if rows.empty:
        return Blame(layer="unknown", share_fraction=math.nan, reason=None)
    last = rows.groupby(["layer", "replica"], observed=True)["value"].last()
    waiting = last.groupby("layer", observed=True).sum()
    total = float(waiting.sum())
    share = float(waiting.max()) / total if total else math.nan
    return Blame(layer=str(waiting.idxmax()), share_fraction=share, reason=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The layer that most of the requests of a break point at, and what ended them there."""

    layer: str
    share_fraction: float
    reason: str | None
    """``rate_limit``, ``queue_full``, ``wait_limit``, … where a limit ended them; None else."""
    promise: str = ""
    """The broken promise; empty where only a backlog grows."""


def blame(stage: Stage, found: Break, baseline: Stage | None) -> Blame:
    """Return the layer that most requests of a break were ended in, or waited longest in.

    A request that a layer's limit ended counts for that layer; any other for the layer in which
    it spent most beyond the mean of its class in the baseline.
    """
    attempts = last_attempts(stage.run.requests, found.violators["request_id"])
    if attempts.empty:
        return Blame(layer="unknown", share_fraction=math.nan, reason=None, promise=found.promise)
    only_first = found.promise == "ttft_s"
    over = time_by_layer(attempts, stage.run.duration_s, to_first_token=only_first)
    if found.promise == "tpot_s":  # no wait before the first token counts
        over = over[["decode"]]
    usual = _usual(baseline, found.request_class, to_first_token=only_first)
    excess = over - pd.Series({layer: usual.get(layer, 0.0) for layer in SERVING})
    layer = excess.fillna(-np.inf).idxmax(axis=1).astype(object)
    ended = attempts["outcome_layer"].astype(object)
    by_limit = (attempts["outcome"] != "succeeded") & ended.isin(SERVING)
    layer = layer.where(~by_limit, ended)
    counts = layer.value_counts()
    top = str(counts.index[0])
    reasons = attempts.loc[by_limit & (layer == top), "reason"].value_counts()
    many = len(reasons) and int(reasons.iloc[0]) * 2 >= int(counts.iloc[0])
    return Blame(
        layer=top,
        share_fraction=float(counts.iloc[0] / counts.sum()),
        reason=str(reasons.index[0]) if many else None,
        promise=found.promise,
    )


def last_attempts(log: pd.DataFrame, request_ids: pd.Series) -> pd.DataFrame:
    """Return the last attempt of each of the named requests."""
    own = log[log["request_id"].isin(request_ids)]
    return own.sort_values("attempt", kind="stable").drop_duplicates("request_id", keep="last")


def time_by_layer(
    attempts: pd.DataFrame, end_s: float, *, to_first_token: bool = False
) -> pd.DataFrame:
    """Return how long attempts were in each of :data:`SERVING`, until they ended, s.

    Unlike :func:`capplan.results.segments` it includes attempts that never got an answer.
    """
    waits = queue_waits(attempts, end_s=end_s)
    finish = attempts["finish_s"].fillna(end_s)
    first = attempts["prefill_end_s"].fillna(finish)
    decoded = attempts["decode_end_s"].fillna(finish) - attempts["prefill_end_s"]
    columns = {
        "network": attempts["network_s"],
        **{name: waits[name] for name in ("gateway", "service_queue", "scheduler_queue")},
        "batch_window": waits["batch_window"],
        "prefill": first - attempts["batch_in_s"],
        "decode": decoded * (0.0 if to_first_token else 1.0),
    }
    return pd.DataFrame(columns, index=attempts.index)[list(SERVING)].astype(np.float64)


def _usual(
    baseline: Stage | None, request_class: str, *, to_first_token: bool
) -> Mapping[str, float]:
    if baseline is None:
        return {}
    own = baseline.run.judged
    own = own[own["request_class"] == request_class]
    means = time_by_layer(own, baseline.run.duration_s, to_first_token=to_first_token).mean()
    return {str(name): float(value) for name, value in means.dropna().items()}
