"""The goals that predictions were to meet on the measured runs, and whether they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.pages.fidelity import FIGURES, METRICS

if TYPE_CHECKING:
    import pandas as pd

    from capplan.pages.fidelity import Frozen

UNSEEN_H100 = ("general", "roleplay")
OVERLOAD, OTHER_GPU = "reasoning", "RTX 4090"
UNCALIBRATED: Mapping[str, float] = {"E2E": 0.10, "TPOT": 0.08, "TTFT": 0.20}
"""Bounds of what was fitted to no run, at mean, p50 and p99 of every run."""
MET, MISSED, UNKNOWN = "met", "missed", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on the error of some figures with some step times; no run named = every run."""

    step_times: str
    metric: str
    figures: tuple[str, ...]
    bound_fraction: float
    runs: tuple[str, ...] = ()


def goals() -> Iterator[Goal]:
    """Yield the goals, as they were stated before the fit."""
    for metric in ("E2E", "TPOT"):
        yield _fitted(metric, ("mean", "p50"), 0.03)
        yield _fitted(metric, ("p99",), 0.06)
    yield _fitted("TTFT", ("p50",), 0.08)
    yield _fitted("TTFT", ("p99",), 0.15)
    yield _fitted("success_fraction", ("points",), 0.05, runs=(OVERLOAD,))
    for metric in METRICS.values():
        yield Goal(
            step_times="tables",
            metric=metric,
            figures=("mean",),
            bound_fraction=0.05,
            runs=(OTHER_GPU,),
        )
    for source in ("roofline", "silicon"):
        for metric, bound in UNCALIBRATED.items():
            yield Goal(step_times=source, metric=metric, figures=FIGURES, bound_fraction=bound)


def _fitted(
    metric: str, figures: tuple[str, ...], bound: float, *, runs: tuple[str, ...] = UNSEEN_H100
) -> Goal:
    return Goal(
        step_times="calibrated", metric=metric, figures=figures, bound_fraction=bound, runs=runs
    )


def goal_table(frozen: Frozen) -> pd.DataFrame:
    """Return each goal with the worst error found, where, and whether it is met.

    A goal of which a figure is missing is unknown, unless another figure already misses it.
    """
    import pandas as pd

    return pd.DataFrame([_row(goal, frozen.errors) for goal in goals()])


def _row(goal: Goal, errors: pd.DataFrame) -> dict[str, object]:
    runs = goal.runs or tuple(errors.loc[errors["step_times"] == goal.step_times, "run"].unique())
    same = (errors["step_times"] == goal.step_times) & (errors["metric"] == goal.metric)
    found = errors[same].set_index(["run", "figure"])["error_fraction"]
    wanted = [(run, figure) for run in runs for figure in goal.figures]
    values = {key: float(found[key]) for key in wanted if key in found.index}
    known = {key: value for key, value in values.items() if value == value}  # noqa: PLR0124
    worst = max(known, key=lambda key: abs(known[key]), default=None)
    error = float("nan") if worst is None else known[worst]
    return {
        "step_times": goal.step_times,
        "figures": f"{goal.metric.replace('_fraction', ' share,')} {', '.join(goal.figures)}",
        "runs": ", ".join(goal.runs) or f"all {len(runs)} it knows",
        "bound_fraction": goal.bound_fraction,
        "worst_fraction": error,
        "at": "nowhere" if worst is None else " ".join(worst),
        "goal": _state(abs(error) > goal.bound_fraction, complete=0 < len(wanted) == len(known)),
    }


def _state(missed: bool, *, complete: bool) -> str:
    if missed:
        return MISSED
    return MET if complete else UNKNOWN
