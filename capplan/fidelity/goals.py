"""Bounds on the errors of predictions, and whether the frozen figures are within them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

METRICS = {"e2e_s": "E2E", "tpot_s": "TPOT", "ttft_s": "TTFT"}
FIGURES = ("mean", "p50", "p99")

UNCALIBRATED: Mapping[str, float] = {"E2E": 0.10, "TPOT": 0.08, "TTFT": 0.20}
"""Bounds of step times that are fitted to no run, at mean, p50 and p99 of every run."""


class Goal(NamedTuple):
    """A bound on the errors of some figures with some step times; no run named = every run.

    It holds for each of them, or for the median of their sizes.
    """

    step_times: str
    metric: str
    figures: tuple[str, ...]
    bound_fraction: float
    runs: tuple[str, ...] = ()
    is_median: bool = False


UNSEEN = (
    "roleplay",
    "reasoning",
    "70B roleplay",
    "70B reasoning",
    "Qwen3-14B 6/s",
    "Qwen3-14B 12/s",
)
"""Loads of servers whose step times were calibrated on others."""
GOALS = (
    Goal("calibrated", "E2E", ("mean",), 0.015, UNSEEN, is_median=True),
    Goal("calibrated", "E2E", ("mean",), 0.05, UNSEEN),
    Goal("calibrated", "TPOT", ("mean",), 0.015, UNSEEN, is_median=True),
    Goal("calibrated", "TTFT", ("p50",), 0.03, UNSEEN, is_median=True),
    Goal("calibrated", "TTFT", ("p99",), 0.08, UNSEEN, is_median=True),
    Goal("calibrated", "success_fraction", ("points",), 0.05, ("reasoning",)),
    *(Goal("tables", metric, ("mean",), 0.05, ("RTX 4090",)) for metric in METRICS.values()),
    *(
        Goal(source, metric, FIGURES, bound)
        for source in ("roofline", "silicon")
        for metric, bound in UNCALIBRATED.items()
    ),
)
"""The goals, as they were stated before the fit."""


def goal_row(goal: Goal, errors: pd.DataFrame) -> dict[str, object]:
    """Return a goal with the worst error found, its place, and whether it is met."""
    runs = goal.runs or tuple(errors.loc[errors["step_times"] == goal.step_times, "run"].unique())
    same = (errors["step_times"] == goal.step_times) & (errors["metric"] == goal.metric)
    found = errors[same & errors["run"].isin(runs) & errors["figure"].isin(goal.figures)]
    error, place = worst_error(found)
    if goal.is_median:
        error, place = float(found["error_fraction"].abs().median()), "the median of their sizes"
    complete = 0 < len(runs) * len(goal.figures) == found["error_fraction"].notna().sum()
    missed = abs(error) > goal.bound_fraction
    return {
        "step_times": goal.step_times,
        "figures": f"{goal.metric.replace('_fraction', ' share,')} {', '.join(goal.figures)}",
        "runs": ", ".join(goal.runs) or f"all {len(runs)} it knows",
        "bound_fraction": goal.bound_fraction,
        "worst_fraction": error,
        "at": place,
        "goal": "missed" if missed else "met" if complete else "unknown",
    }


def worst_error(group: pd.DataFrame) -> tuple[float, str]:
    """Return the error farthest from 0, with its sign, and its figure and run."""
    known = group.dropna(subset="error_fraction")
    if known.empty:
        return math.nan, "nowhere"
    row = known.iloc[int(known["error_fraction"].abs().argmax())]
    return float(row["error_fraction"]), f"{row['figure']} of `{row['run']}`"
