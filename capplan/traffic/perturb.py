"""Perturbations of drawn requests: bursts above the planned peak, and very long outputs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from capplan.formatting import counted, does
from capplan.scenario import Scenario
from capplan.scenario.traffic import Bursts, LongOutputs, Poisson
from capplan.traffic.arrivals import arrival_times_s
from capplan.traffic.curve import RateCurve, levels
from capplan.traffic.replay import occurrence, taken
from capplan.traffic.shapes import burst_windows, outside
from capplan.traffic.streams import Stream, stream

PEAK_WINDOW_S = 60.0
"""Window of the peak of a replayed trace, s."""


def with_bursts(plan: RateCurve, scenario: Scenario) -> RateCurve:
    """Return the plan with each burst of the scenario in place of the planned rate.

    The rate of a burst is its ``peak_fraction`` times the peak of the plan without bursts.
    """
    peak = plan.peak_rps
    for burst in _bursts_of(scenario):
        windows = _windows(burst, plan.end_s)
        plan = plan.times(outside(windows)).plus(windows.scaled(burst.peak_fraction * peak))
    return plan


def with_extra_requests(
    frame: pd.DataFrame,
    base: pd.DataFrame,
    scenario: Scenario,
    end_s: float,
    *,
    key: tuple[int, int],
    copies: int,
) -> tuple[pd.DataFrame, list[str]]:
    """Return a replay with Poisson requests added, so that each burst reaches its rate.

    The planned peak of a replay is its highest rate over 60 s. Rows are drawn from the base
    trace; ``copies`` is the number of copies already in use. A burst in which the replay is
    busier than the burst's rate stays unchanged, with a note.
    """
    notes: list[str] = []
    peak = _peak_rps(frame, end_s)
    for number, burst in enumerate(_bursts_of(scenario)):
        rng, row_rng = stream(*key, Stream.PERTURBATION).spawn(2 * number + 2)[-2:]
        plan, busier = _missing(frame, burst, burst.peak_fraction * peak, end_s)
        times = arrival_times_s(plan, Poisson(), rng=rng)
        rows = row_rng.integers(len(base), size=len(times))
        extra = taken(base, rows, occurrence(rows) + copies).assign(arrival_s=times)
        copies += int(occurrence(rows).max(initial=-1)) + 1
        notes.append(
            f"{counted(len(times), 'request')} {does(len(times), 'was', 'were')} added in "
            f"bursts to {burst.peak_fraction:g} times the "
            f"peak of {peak:.3g} requests/s over 60 s."
        )
        if busier:
            notes.append(
                f"{counted(busier, 'burst')} {does(busier, 'was', 'were')} busier than that "
                "without any addition."
            )
        frame = pd.concat([frame, extra], ignore_index=True)
    return frame.sort_values("arrival_s", kind="stable", ignore_index=True), notes


def with_long_outputs(
    frame: pd.DataFrame, scenario: Scenario, *, key: tuple[int, int]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with some outputs made long, and notes."""
    notes: list[str] = []
    output = frame["output_tokens"].to_numpy(dtype=np.int64, copy=True)
    sized = {c.name for c in scenario.classes if c.size is not None}
    for number, rule in enumerate(scenario.traffic.perturbations):
        if not isinstance(rule, LongOutputs):
            continue
        rng = stream(*key, Stream.PERTURBATION).spawn(100 + number)[-1]
        names = frame["request_class"].to_numpy(dtype=object)
        of_class = names == rule.request_class if rule.request_class else ~np.isin(names, [*sized])
        long = (rng.random(len(frame)) < rule.fraction) & of_class
        drawn = rng.integers(rule.above_tokens + 1, rule.max_tokens + 1, size=len(frame))
        output = np.where(long, drawn, output)
        notes.append(
            f"{int(long.sum()):,} of {counted(len(frame), 'request')} got an output above "
            f"{rule.above_tokens:,} tokens."
        )
    return frame.assign(output_tokens=output), notes


def _bursts_of(scenario: Scenario) -> list[Bursts]:
    return [p for p in scenario.traffic.perturbations if isinstance(p, Bursts)]


def _windows(burst: Bursts, end_s: float) -> RateCurve:
    return burst_windows(end_s, burst_s=burst.burst_s, every_s=burst.every_s, first_s=burst.first_s)


def _peak_rps(frame: pd.DataFrame, end_s: float) -> float:
    window = min(PEAK_WINDOW_S, end_s)
    counts = np.bincount((frame["arrival_s"].to_numpy() // window).astype(np.int64))
    whole = counts[: int(end_s // window)]
    return float(whole.max(initial=0)) / window


def _missing(
    frame: pd.DataFrame, burst: Bursts, target_rps: float, end_s: float
) -> tuple[RateCurve, int]:
    """Return the rate that the replay lacks in each burst, and the number without lack."""
    windows = _windows(burst, end_s)
    edges = np.append(windows.time_s[::2], windows.end_s)
    counts, _ = np.histogram(frame["arrival_s"].to_numpy(), bins=edges)
    lacking = (target_rps - counts / np.diff(edges)) * windows.rate_rps[::2]
    return levels(edges, np.maximum(lacking, 0.0)), int((lacking < 0).sum())
