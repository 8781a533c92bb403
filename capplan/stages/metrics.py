"""Metrics of a stage: three named levels, step gaps, and trends over a long run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.replica.roofline import roofline
from capplan.results.headline import summary
from capplan.results.timelines import held_values, over_time
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import RooflineStep
from capplan.stages.pool_levels import served_replicas
from capplan.statistics import Estimate, in_batches, trend
from capplan.verdict import Reason, checked, unknown

if TYPE_CHECKING:
    from capplan.stages.stage import Stage


Floats = npt.NDArray[np.float64]
Held = tuple[Floats, Floats]
"""Values, and how long each was held, s."""


def levels(stage: Stage) -> dict[str, dict[str, Any]]:
    """Return rate, latencies and errors; then mean and 95th percentile over time of each metric.

    ``fragmentation`` is the share of the free KV outside the largest hole; ``step_gap_s`` the time
    within a step in which the accelerator waits for the host, and ``step_gap_fraction`` that as a
    share of the step; ``host_pressure`` how much longer everything takes on the host that is
    pressed most; ``host_pause_s`` is not simulated.
    """
    return {
        "1 callers": _callers(stage),
        **{
            name: {figure: _over_time(read(stage)) for figure, read in figures.items()}
            for name, figures in LEVELS.items()
        },
    }


def _callers(stage: Stage) -> dict[str, Any]:
    bad = stage.table["outcome"].isin(["rejected", "failed", "timed_out"])
    return {
        "rate_rps": stage.offered_rps,
        "e2e_censored_s": summary(stage.table["e2e_censored_s"]),
        "ttft_censored_s": summary(stage.table["ttft_censored_s"]),
        "error_fraction": float(bad.mean()) if len(bad) else math.nan,
    }


def _measured(stage: Stage, *, metric: str, layer: str | None = None) -> Held:
    rows = stage.run.timeline
    rows = rows if layer is None else rows[rows["layer"] == layer]
    return held_values(rows, metric, start_s=stage.start_s, end_s=stage.end_s)


def _fragmentation(stage: Stage) -> Held:
    """Return the free KV outside the largest hole; in blocks of which any one serves, none is."""
    found = _measured(stage, metric="kv_external_fragmentation_fraction")
    if not _paged(stage):
        return found
    usage, spans = _measured(stage, metric="kv_usage_fraction")
    return _together([found, (np.where(np.isnan(usage), np.nan, 0.0), spans)])


def _paged(stage: Stage) -> bool:
    """Return whether every pool that holds KV holds it in blocks."""
    held = [p.batching for p in stage.scenario.pools if isinstance(p.batching, ContinuousBatching)]
    return bool(held) and all(batching.kv_layout == "paged" for batching in held)


def _across(stage: Stage, *, layer: str, how: str, metric: str | None = None) -> Held:
    """Return the sum (or ``how``) over all replicas, or hosts, of a layer's metric."""
    rows = stage.run.timeline
    rows = rows[rows["layer"] == layer]
    if metric is not None:
        rows = rows[rows["metric"] == metric]
    whole = rows.groupby("time_s")["value"].agg(how).reset_index()
    whole = whole.assign(layer=layer, replica="", metric="whole")
    return held_values(whole, "whole", start_s=stage.start_s, end_s=stage.end_s)


def _gaps(stage: Stage, *, column: str) -> Held:
    gaps: pd.DataFrame = step_gaps(stage)
    return gaps[column].to_numpy(np.float64), gaps["span_s"].to_numpy(np.float64)


def _together(parts: Iterable[Held]) -> Held:
    values, spans = zip(*parts, strict=True)
    return np.concatenate(values), np.concatenate(spans)


def _over_time(held: Held) -> dict[str, float] | None:
    """Return mean and 95th percentile over time; None if no value is known."""
    found = over_time(*held)
    return None if math.isnan(found["mean"]) else {name: found[name] for name in ("mean", "p95")}


LEVELS: Mapping[str, Mapping[str, Callable[[Stage], Held]]] = {
    "2 accelerators": {
        "memory": partial(_measured, metric="kv_usage_fraction"),
        "fragmentation": _fragmentation,
        "step_gap_s": partial(_gaps, column="gap_s"),
        "step_gap_fraction": partial(_gaps, column="gap_fraction"),
        "busy": partial(_measured, metric="busy_fraction"),
    },
    "3 queues and hosts": {
        "scheduler_queue": partial(_across, layer="scheduler_queue", metric="length", how="sum"),
        "backlog": partial(_measured, metric="in_flight", layer="caller"),
        "host_pressure": partial(_across, layer="host", how="max"),
        "host_pause_s": partial(_measured, metric="host_pause_s"),
    },
}
"""Figures over time by level, and how each is read."""
COLUMNS = ["replica", "time_s", "span_s", "gap_s", "gap_fraction"]
METRICS = ["step_time_s", "running"]


def step_gaps(stage: Stage) -> pd.DataFrame:
    """Return the mean gap of a replica's steps between two rows of the timeline.

    A step's gap is the part of the host's work that the accelerator's does not hide: one part a
    step, one a decoding sequence (:class:`~capplan.scenario.step_times.RooflineStep`). Of hidden
    work, only a step that takes longer than it has a known gap: none. Other laws of step times
    have no host's part.
    """
    parts = [table for pool in stage.scenario.pools for table in _of_pool(stage, pool)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def _of_pool(stage: Stage, pool: Pool) -> Iterator[pd.DataFrame]:
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching) or pool.models:
        return
    if not isinstance(batching.step_time, RooflineStep):
        return
    law = roofline(pool)
    rows = stage.run.timeline
    rows = rows[(rows["layer"] == "decode") & rows["metric"].isin(METRICS)]
    rows = rows[rows["replica"].isin(served_replicas(stage, pool))]
    for name, own in rows.groupby("replica", observed=True):
        steps = own.set_index(["time_s", "metric"])["value"].unstack()  # noqa: PD010
        steps = steps.reindex(columns=METRICS).dropna(subset=["step_time_s"])
        start = steps.index.to_numpy(np.float64)
        ends = np.append(start[1:], stage.end_s)
        span = np.clip(ends, stage.start_s, stage.end_s) - np.clip(
            start, stage.start_s, stage.end_s
        )
        took = steps["step_time_s"].to_numpy(np.float64)
        work = law.host_s + law.host_per_sequence_s * steps["running"].to_numpy(np.float64)
        gap = np.where(took > work, 0.0, np.nan) if law.host_hidden else work
        columns = {"replica": name, "time_s": start, "span_s": span, "gap_s": gap}
        yield pd.DataFrame(columns | {"gap_fraction": gap / took})[COLUMNS]


BATCHES = 20
HOUR_S = 3600.0
GROWING = {
    "memory": "memory_used_bytes",
    "KV": "kv_usage_fraction",
    "connections": "connections",
    "threads": "threads",
}
"""What may be taken and not given back, and the metric of the timeline that shows it. A growing
backlog is judged by the stage's stability."""
MATERIAL = 0.05
"""Growth per hour, as a share of the mean level, below which a trend is no finding; a default."""
SURE = 0.99
"""Confidence of a slope's interval: of four levels, at most one soak in twenty shows a leak that is
none (Bonferroni). Of 40 seeds of the bundled chat service none did; without the requests in flight
one, and two at a confidence of 0.95."""


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


def slope_per_hour(
    time_s: npt.ArrayLike, values: npt.ArrayLike, in_flight: npt.ArrayLike | None = None
) -> Estimate:
    """Return the slope of a level over time, per hour, with its interval of :data:`SURE`.

    It is the :func:`~capplan.statistics.trend` of twenty batch means, beyond what the requests
    ``in_flight`` explain (both are regressed on these first: Frisch and Waugh, "Partial Time
    Regressions as Compared with Individual Trends", Econometrica 1(4), 1933). NaN for fewer values.

    >>> found = slope_per_hour(range(0, 7200, 60), [t / 3600 for t in range(0, 7200, 60)])
    >>> round(found.value, 6)
    1.0
    """
    time, level = np.asarray(time_s, np.float64), np.asarray(values, np.float64)
    load = np.zeros_like(level) if in_flight is None else np.asarray(in_flight, np.float64)
    known = ~(np.isnan(level) | np.isnan(load))
    if known.sum() < BATCHES:
        return trend([], [])
    hours, level, load = (in_batches(v[known], BATCHES) for v in (time / HOUR_S, level, load))
    return trend(_beyond(hours, load), _beyond(level, load), confidence=SURE)


def _beyond(values: Floats, load: Floats) -> Floats:
    """Return what of values a straight line over the load does not explain."""
    load, values = load - load.mean(), values - values.mean()
    spread = float(load @ load)
    return values - (values @ load / spread) * load if spread > 0 else values


def trends_of(stage: Stage) -> Iterator[Trend]:
    """Yield the trend of each level that the stage's timeline shows."""
    rows = stage.run.timeline
    rows = rows[rows["time_s"].between(stage.start_s, stage.end_s)]
    for what, metric in GROWING.items():
        own = rows[rows["metric"] == metric]
        if own.empty:
            continue
        how = "mean" if metric.endswith("_fraction") else "sum"  # replicas may come and go
        level = own.groupby("time_s")["value"].agg(how)
        held = rows[rows["metric"] == "in_flight"]
        beside = held["layer"].isin(own["layer"].unique())
        held = held[beside if beside.any() else held["layer"] == "caller"]
        load = held.groupby("time_s")["value"].agg(how).reindex(level.index)
        slope = slope_per_hour(level.index, level, None if load.isna().all() else load)
        yield Trend(what=what, metric=metric, slope=slope, mean=float(level.mean()))


def trend_reasons(stage: Stage) -> Iterator[Reason]:
    """Yield one reason for each level that may grow and is measured.

    Without any it is unknown, but for a simulated service, which then holds nothing that can leak.
    """
    rule, found = "no_leak", list(trends_of(stage))
    if not found and stage.run.backend != "simulated":
        yield unknown(rule, "the timeline has no level that a leak would raise")
    for one in found:
        if math.isnan(one.slope.value):
            evidence = f"{one.what}: too short for the {BATCHES} means that a slope needs"
            yield unknown(rule, evidence, next_action="run longer")
            continue
        yield checked(
            rule,
            not one.grows,
            value=one.slope.value,
            limit=0.0,
            evidence=f"{one.what}: {one.metric} changes by {one.slope} an hour, mean "
            f"{one.mean:.3g} (run {stage.run_id})",
            next_action="find what is taken and not given back",
        )


def unknown_levels(stage: Stage) -> dict[str, str]:
    """Return the levels that may grow and that no metric of a stage shows, each with why."""
    known = {one.what for one in trends_of(stage)}
    return {
        f"no_leak: {what}": f"the timeline has no {metric}"
        for what, metric in GROWING.items()
        if what not in known
    }
