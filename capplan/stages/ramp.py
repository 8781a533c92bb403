"""The ramp: the load raised until a promise breaks, then closed in on, once or several times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.stages.knee import lies_beyond, loads_beside_knee
from capplan.stages.run_load import continued, step
from capplan.stages.stage import Stage, interval_of
from capplan.statistics import batch_means, quantile_interval

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.degradation import Degradation
    from capplan.stages.knee import Knee
    from capplan.stages.run_load import Loads


DOWN = 2.0
"""Factor between the steps down from a first step that breaks; this project's own."""
KNEE_STEPS = 5
"""Most steps from the first sure break on in search of the knee; this project's own."""
CLOSING = 8
"""Most halvings to the plan's factor: eight close a gap of 1.2^256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A load that one ramp found, and the interval it lies in; NaN if there is none."""

    load_rps: float
    low_rps: float
    high_rps: float

    @classmethod
    def of(cls, point: Knee | Degradation | None) -> Found:
        """Return the load of a knee or of a degradation; NaN without one."""
        if point is None:
            return cls(load_rps=math.nan, low_rps=math.nan, high_rps=math.nan)
        return cls(load_rps=point.load_rps, low_rps=point.low_rps, high_rps=point.high_rps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadRamp:
    """The steps of a ramp in order of load, and the void tries."""

    steps: tuple[Stage, ...]
    voids: tuple[Stage, ...] = ()

    @property
    def first_broken(self) -> Stage | None:
        """Return the lowest step that counts and breaks a promise."""
        return next((s for s in self.steps if s.counts and s.broken), None)

    @property
    def kept_rps(self) -> float:
        """Return the highest load that counts below the first broken one; NaN if there is none."""
        broken = self.first_broken
        limit = math.inf if broken is None else broken.load_rps
        below = [s.load_rps for s in self.steps if s.counts and s.load_rps < limit]
        return max(below, default=math.nan)

    def in_turn(self) -> Iterator[Stage]:
        """Yield the steps in order of load, void tries before what they gave way to."""
        left = list(self.voids)
        for one in self.steps:
            tries = [void for void in left if void.load_rps <= one.load_rps]
            left = [void for void in left if void.load_rps > one.load_rps]
            yield from (*tries, one)
        yield from left

    @property
    def client_limit_rps(self) -> float:
        """Return the lowest load at which the client was the limit; NaN if it never was."""
        return min((s.load_rps for s in self.steps if s.client_limited), default=math.nan)

    def acceptable(self, request_class: str) -> Found:
        """Return the highest load that keeps a class's promises, and the interval of its limit.

        NaN if no step that counts keeps them; +inf above where no step surely breaks them.
        """
        counted = [s for s in self.steps if s.counts_for(request_class)]
        broken = [s.load_rps for s in counted if s.breaks_any(request_class)]
        limit = min(broken, default=math.inf)
        kept = max((s.load_rps for s in counted if s.load_rps < limit), default=math.nan)
        low, high = interval_of(counted, request_class)
        return Found(load_rps=kept, low_rps=low, high_rps=high)

    def flows(self) -> pd.DataFrame:
        """Return throughput and goodput by load: load_rps, figure, flow_rps, low, high.

        The interval is that of the batch means.
        """
        rows = []
        for one in self.steps:
            succeeded = (one.table["outcome"] == "succeeded").to_numpy(np.float64)
            shares = {"throughput": succeeded, "goodput": one.table["good"].to_numpy(np.float64)}
            for figure, share in shares.items():
                found, load = batch_means(share), one.load_rps
                low, high = max(load * found.low, 0.0), min(load * found.high, load)
                known = math.isfinite(found.low) and math.isfinite(found.high)
                ends = (low, high) if known else (math.nan, math.nan)
                rows.append((load, figure, load * found.value, *ends))
        return pd.DataFrame(rows, columns=["load_rps", "figure", "flow_rps", "low", "high"])

    def latencies(self, name: str) -> pd.DataFrame:
        """Return a latency at each class's promised quantile by load, failures +inf.

        ``name`` is ``ttft`` (of streamed answers only: any other has its first token with its
        last) or ``e2e``. Columns: load_rps, request_class, latency_s, low, high.
        """
        rows = []
        for one in self.steps:
            for c in one.scenario.classes:
                own = one.of([c.name])
                own = own[own["streaming"].astype(bool)] if name == "ttft" else own
                if own.empty:
                    continue
                found = quantile_interval(own[f"{name}_censored_s"], c.promises.quantile)
                ends = [v if np.isfinite(v) else np.nan for v in (found.low, found.high)]
                rows.append((one.load_rps, c.name, found.value, *ends))
        return pd.DataFrame(rows, columns=["load_rps", "request_class", "latency_s", "low", "high"])

    def outcomes(self) -> pd.DataFrame:
        """Return the share of each outcome by load: load_rps, outcome, share_fraction.

        Steps at the same load count together.
        """
        columns = ["load_rps", "outcome", "share_fraction"]
        if not self.steps:
            return pd.DataFrame(columns=columns)
        every = pd.concat(
            [one.table[["outcome"]].assign(load_rps=one.load_rps) for one in self.steps]
        )
        shares = every.groupby("load_rps")["outcome"].value_counts(normalize=True)
        return shares.rename("share_fraction").reset_index()[columns]


def raise_load(
    scenario: Scenario,
    *,
    start_rps: float,
    low_rps: float | None = None,
    seed: int,
    replication: int = 0,
) -> LoadRamp:
    """Return the ramp of a scenario: up by its plan's factor until a promise surely breaks.

    It begins at ``low_rps``, goes on from ``start_rps``, and down from a first step that breaks.
    ``beyond`` further steps follow the first break, and more until the knee of the pool that breaks
    lies between steps; none where the client is the limit, since a higher load would not be sent.
    The gap between the last kept and the first broken load is halved (by ratio) to the plan's
    factor and ``refine`` times more, as are the gaps beside each knee. Pools that scale begin a
    step with the replicas that the step below ended with.
    """
    plan = scenario.stages
    steps: list[Stage] = []
    voids: list[Stage] = []

    def run(load: float, before_rps: float, name: str) -> Stage:
        below = max((s for s in steps if s.load_rps < load), key=_load, default=None)
        found, void = step(
            scenario if below is None else continued(scenario, below.run),
            load,
            before_rps=before_rps,
            name=name,
            kind="ramp",
            seed=seed,
            replication=replication,
        )
        steps.append(found)
        voids.extend(void)
        return found

    loads = [start_rps * plan.factor**n for n in range(plan.most_steps)]
    if low_rps is not None and low_rps < start_rps:
        loads = [low_rps, *loads[:-1]]
    before = loads[0] / plan.factor
    after = limited = 0
    for n, load in enumerate(loads):
        found = run(load, before, f"step {n + 1}")
        before = load
        after += int(after > 0 or (found.counts and found.surely_breaks()))
        limited += int(found.client_limited)
        if limited > plan.beyond or (
            after > plan.beyond and (after > KNEE_STEPS or not _knee_beyond(steps))
        ):
            break
    down = loads[0] / DOWN
    while _broken_from_the_start(steps) and down > loads[0] / DOWN**plan.most_steps:
        run(down, down / plan.factor, f"down to {down:.3g}/s")
        down /= DOWN
    left = plan.refine
    for turn in range(plan.refine + CLOSING):
        ramp = LoadRamp(steps=in_order(steps))
        broken, kept = ramp.first_broken, ramp.kept_rps
        if broken is None or math.isnan(kept):
            break
        left -= int(broken.load_rps <= kept * plan.factor * (1 + 1e-9))
        between = math.sqrt(kept * broken.load_rps)
        if left < 0 or any(math.isclose(s.load_rps, between) for s in steps):
            break
        run(between, kept, f"between {turn + 1}")
    for _ in range(plan.refine):
        half = math.sqrt(plan.factor)
        beside = [loads_beside_knee(in_order(steps), p, ratio=half) for p in scenario.pools]
        for load in sorted({load for one in beside for load in one}):
            run(load, load / half, f"knee {load:.3g}/s")
    return LoadRamp(steps=in_order(steps), voids=tuple(voids))


def _knee_beyond(steps: Sequence[Stage]) -> bool:
    """Return whether a pool whose promises break has its knee above the steps."""
    first = LoadRamp(steps=in_order(steps)).first_broken
    names = [] if first is None else [b.request_class for b in first.breaks]
    pools = {p.name: p for p in (steps[0].scenario.pool_of(name) for name in names)}
    return any(lies_beyond(in_order(steps), pool) for pool in pools.values())


def ramp_of(scenario: Scenario, loads: Loads, *, seed: int, replication: int = 0) -> LoadRamp:
    """Return the ramp from the baseline load on, of one replication."""
    low, start = loads.baseline_rps, loads.start_rps
    return raise_load(scenario, start_rps=start, low_rps=low, seed=seed, replication=replication)


def _broken_from_the_start(steps: Sequence[Stage]) -> bool:
    lowest = min(steps, key=_load)
    return lowest.counts and lowest.broken


def in_order(steps: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return stages by rising load."""
    return tuple(sorted(steps, key=_load))


def _load(stage: Stage) -> float:
    return stage.load_rps
