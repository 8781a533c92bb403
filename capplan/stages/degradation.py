"""Where a service first degrades: the knee of its latency, the first broken promise, the layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.results import queue_waits
from capplan.results.cost import served_by
from capplan.results.requests import outcome_is
from capplan.schema import LAYERS
from capplan.stages.crossed_limit import CrossedLimit, crossed_limit
from capplan.stages.pool_levels import own_queues
from capplan.stages.stage import interval_of
from capplan.stages.violations import Break
from capplan.statistics import in_batches

if TYPE_CHECKING:
    from capplan.scenario.pools import Pool
    from capplan.stages.stage import Stage


Floats = npt.NDArray[np.float64]

BATCHES = 20
RESAMPLES = 1000
FEWEST_STEPS = 4
FEWEST = 100
"""Successes of a step below which its batch means say nothing."""
SOURCE = (
    'Satopää, Albrecht, Irwin and Raghavan, "Finding a Kneedle in a Haystack: Detecting Knee '
    'Points in System Behavior", ICDCS Workshops, 2011, section III; interval: bootstrap over '
    "batch means, widened to the neighbouring steps"
)
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
class Knee:
    """Where latency begins to rise faster than the load; NaN if the curve has no knee."""

    pool: str
    load_rps: float
    low_rps: float
    high_rps: float
    found_fraction: float
    """Share of the resampled curves that have a knee."""
    steps: int
    run_id: str | None = None
    """Run of the step at the knee."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the knee as plain values."""
        return {
            "load_rps": self.load_rps,
            "interval": [self.low_rps, self.high_rps],
            "pool": self.pool,
            "run_id": self.run_id,
            "found_fraction": self.found_fraction,
            "steps": self.steps,
            "reason": self.reason,
            "method": "Kneedle on mean E2E of successes over offered load",
            "source": SOURCE,
        }


def knee_of(steps: Sequence[Stage], pool: Pool, *, rng: np.random.Generator) -> Knee:
    """Return the knee of a pool's mean end-to-end latency over the offered load.

    Steps that do not count, or where the client was the limit, are left out. The interval holds
    95 % of the knees of resampled curves (each step's batch means drawn with replacement), widened
    to the next step on either side: between two steps nothing was measured.
    """
    points = [(s, batch) for s in steps if s.counts and (batch := _batches(s, pool)) is not None]
    if len(points) < FEWEST_STEPS:
        return _none(
            pool, len(points), f"{len(points)} of {FEWEST_STEPS} steps that are needed count"
        )
    loads = np.array([s.load_rps for s, _ in points])
    table = np.stack([batch for _, batch in points])
    at = kneedle(loads, table.mean(axis=1))
    picks = rng.integers(BATCHES, size=(RESAMPLES, len(points), BATCHES))
    means = np.take_along_axis(table[None], picks, axis=2).mean(axis=2)
    found = np.array([i for curve in means if (i := kneedle(loads, curve)) is not None])
    share = len(found) / RESAMPLES
    if at is None:
        return _none(pool, len(points), "latency rises no faster than the load", share)
    ends = np.quantile(found, [0.025, 0.975]) if len(found) else np.array([at, at])
    low = max(math.floor(min(ends[0], at)) - 1, 0)
    high = min(math.ceil(max(ends[1], at)) + 1, len(points) - 1)
    return Knee(
        pool=pool.name,
        load_rps=float(loads[at]),
        low_rps=float(loads[low]),
        high_rps=float(loads[high]),
        found_fraction=share,
        steps=len(points),
        run_id=points[at][0].run_id,
    )


def kneedle(x: Floats, y: Floats) -> int | None:
    """Return the place of the knee of a convex, rising curve; None if it has none.

    Both axes are scaled to 0..1; the knee is where the curve lies farthest below its chord, if
    that is more than the mean step of x (the method's sensitivity S = 1). Source: :data:`SOURCE`.

    >>> x = np.arange(1.0, 10.0)
    >>> kneedle(x, 1 / (10 - x)), kneedle(x, 3 * x)
    (6, None)
    """
    rise = float(y[-1] - y[0])
    if not rise > 0:
        return None
    below = (x - x[0]) / (x[-1] - x[0]) - (y - y[0]) / rise
    at = int(np.argmax(below))
    return at if below[at] > 1 / (len(x) - 1) else None


def _batches(stage: Stage, pool: Pool) -> Floats | None:
    """Return the batch means of the end-to-end latency of a pool's successes; None if too few."""
    own = stage.of(served_by(stage.scenario, pool))
    latency = own.loc[outcome_is(own, "succeeded"), "e2e_s"].to_numpy(np.float64)
    if latency.size < FEWEST:
        return None
    return in_batches(latency, BATCHES)


def _none(pool: Pool, steps: int, reason: str, share: float = math.nan) -> Knee:
    return Knee(
        pool=pool.name,
        load_rps=math.nan,
        low_rps=math.nan,
        high_rps=math.nan,
        found_fraction=share,
        steps=steps,
        reason=reason,
    )


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
