"""Does something grow over a long run? Trends of levels, tested against zero with an interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.slo import Outcome, Reason
from capplan.statistics import Estimate

if TYPE_CHECKING:
    from capplan.stages.stage import Stage

Floats = npt.NDArray[np.float64]

BATCHES = 20
HOUR_S = 3600.0
LEVELS = {
    "memory": ("kv_usage_fraction", "memory_used_bytes"),
    "KV not returned": ("kv_usage_fraction",),
    "connections": ("connections", "in_flight"),
    "threads": ("threads",),
    "waiting": ("length",),
}
"""What may grow, and the metrics of the timeline that tell it, the best first."""
MATERIAL = 0.05
"""Growth per hour, as a share of the mean level, below which a trend is no finding; a default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The slope of a level, in its own unit an hour, with its interval."""

    what: str
    metric: str
    slope: Estimate
    mean: float

    @property
    def grows(self) -> bool:
        """Return whether the level surely grows, and enough to matter."""
        return self.slope.low > 0 and self.slope.value > MATERIAL * abs(self.mean)

    def to_json(self) -> dict[str, Any]:
        """Return the trend as plain values."""
        return {
            "what": self.what,
            "metric": self.metric,
            "slope_per_hour": self.slope.value,
            "interval": [self.slope.low, self.slope.high],
            "mean": self.mean,
            "grows": self.grows,
        }


def slope_per_hour(time_s: npt.ArrayLike, values: npt.ArrayLike) -> Estimate:
    """Return the least-squares slope of a level over time, per hour, with its 95 % interval.

    The series is cut into twenty batch means; the error is inflated for what correlation the
    residuals still have (lag one, as an autoregression of order one).
    Source: Law, "Simulation Modeling and Analysis", 5th ed., 2015, section 9.5.3 (batch means);
    Bartlett, "Some aspects of the time-correlation problem", J. Royal Statistical Society 98, 1935
    (the effective sample size (1 - r) / (1 + r)).

    >>> found = slope_per_hour(range(0, 7200, 60), [t / 3600 for t in range(0, 7200, 60)])
    >>> round(found.value, 6)
    1.0
    """
    from scipy.special import stdtrit

    time, level = _means(np.asarray(time_s, np.float64), np.asarray(values, np.float64))
    n = time.size
    if n < BATCHES:
        nothing = math.nan
        return Estimate(
            value=nothing, low=nothing, high=nothing, confidence=0.95, n=n, method="trend"
        )
    x = (time - time.mean()) / HOUR_S
    slope = float(x @ level / (x @ x))
    rest = level - level.mean() - slope * x
    spread = float(rest @ rest)
    lag = min(max(float(rest[1:] @ rest[:-1]) / spread, 0.0), 0.9) if spread > 0 else 0.0
    error = math.sqrt(spread / (n - 2) / float(x @ x) * (1 + lag) / (1 - lag))
    width = float(stdtrit(n - 2, 0.975)) * error
    return Estimate(
        value=slope,
        low=slope - width,
        high=slope + width,
        confidence=0.95,
        n=n,
        method="trend of batch means",
    )


def trends_of(stage: Stage) -> Iterator[Trend]:
    """Yield the trend of each level that the stage's timeline tells."""
    rows = stage.run.timeline
    rows = rows[rows["time_s"].between(stage.start_s, stage.end_s)]
    told = set(rows["metric"].unique())
    for what, metrics in LEVELS.items():
        metric = next((m for m in metrics if m in told), None)
        if metric is None:
            continue
        own = rows[rows["metric"] == metric]
        if what == "connections" and metric == "in_flight":
            own = own[own["layer"] == "gateway"]
        level = own.groupby("time_s")["value"].sum()
        slope = slope_per_hour(level.index.to_numpy(), level.to_numpy())
        yield Trend(what=what, metric=metric, slope=slope, mean=float(level.mean()))


def trend_reasons(stage: Stage) -> Iterator[Reason]:
    """Yield one reason for each level that may grow; unknown where no metric tells it."""
    found = {trend.what: trend for trend in trends_of(stage)}
    for what, metrics in LEVELS.items():
        trend = found.get(what)
        if trend is None or math.isnan(trend.slope.value):
            yield Reason(
                rule="no_leak",
                outcome="unknown",
                value=None,
                limit=0.0,
                evidence=f"{what}: not measured ({' or '.join(metrics)} in the timeline)",
                next_action="measure it, or run longer",
            )
            continue
        outcome: Outcome = "fail" if trend.grows else "pass"
        yield Reason(
            rule="no_leak",
            outcome=outcome,
            value=trend.slope.value,
            limit=0.0,
            evidence=f"{what}: {trend.metric} changes by {trend.slope} an hour, mean "
            f"{trend.mean:.3g} (run {stage.run_id})",
            next_action="find what is taken and not given back" if trend.grows else "",
        )


def _means(time: Floats, level: Floats) -> tuple[Floats, Floats]:
    known = ~np.isnan(level)
    time, level = time[known], level[known]
    size = time.size // BATCHES
    if size < 1:
        return time[:0], level[:0]
    kept = slice(time.size - size * BATCHES, None)
    return (
        time[kept].reshape(BATCHES, size).mean(axis=1),
        level[kept].reshape(BATCHES, size).mean(axis=1),
    )
