"""The batching page's grid: each batch window simulated, judged, and one of them chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.formatting import counted, does
from capplan.pages.pools import NO_POOL, TITLES, PoolStudy

if TYPE_CHECKING:
    from capplan.sweep import SweepResult

STATES = {"pass": "inside the budget", "retest": "inside, not proven", "fail": "failed"}
"""State of a point by the outcome of its verdict; any other outcome is unknown. Not proven: every
estimate keeps its promise, and some interval still reaches beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """A swept batch window and what was made of it.

    ``points`` has one row per point: ``across``, ``down``, ``goodput_rps``, ``goodput_fraction``,
    ``throughput_rps``, ``tail_of_promise`` (worst latency ÷ its promise), ``timeout_fraction``,
    ``error_rate_fraction``, ``wasted_token_fraction``, ``kv_usage_fraction``, ``state``, ``why``.
    """

    study: PoolStudy
    result: SweepResult
    points: pd.DataFrame
    reference: tuple[float, float] | None

    @property
    def chosen(self) -> tuple[float, float] | None:
        """Return the point with most goodput inside the budget; the shortest tail breaks a tie.

        Points that are not proven count only where none is.
        """
        for state in (STATES["pass"], STATES["retest"]):
            inside = self.points[self.points["state"] == state]
            if not inside.empty and not self.study.equal_lengths:
                order = ["goodput_fraction", "tail_of_promise"]
                best = inside.sort_values(order, ascending=[False, True]).iloc[0]
                return float(best["across"]), float(best["down"])
        return None

    @property
    def outcome(self) -> str:
        """Return the verdict on the choice: that of the chosen point, unknown without one."""
        if self.study.equal_lengths:
            return "unknown"
        for outcome in ("pass", "retest"):
            if (self.points["state"] == STATES[outcome]).any():
                return outcome
        return "fail" if (self.points["state"] == STATES["fail"]).all() else "unknown"

    def heatmap(self) -> Any:
        """Return the goodput of each point, failed ones marked."""
        from capplan import charts

        across, down = (TITLES[field] for field in self.study.fields)
        known = _in_grid(self.points, self.reference)
        return charts.goodput_by_batch(
            self.points, across=across, down=down, reference=known, chosen=self.chosen
        )

    def tradeoff(self) -> Any:
        """Return throughput against the tail."""
        from capplan import charts

        return charts.throughput_against_tail(self.points)

    def said(self) -> str:
        """Return what the grid says in sentences."""
        states = self.points["state"].value_counts()
        points = ", ".join(f"{states.get(s, 0)} {s}" for s in (*STATES.values(), "unknown"))
        if self.study.equal_lengths:
            return (
                f"All requests are equally long, so **nothing follows for other lengths: the "
                f"conclusion is unknown.** ({points})"
            )
        if self.chosen is None:
            pool = self.study.pool
            count = counted(pool.replicas, "replica")
            return f"No point of `{pool.name}` keeps every promise with {count}: {points}."
        return (
            f"**Chosen for `{self.study.pool.name}`: {self.study.told(self.chosen)}** "
            f"({self.outcome}), the most goodput inside the budget, then the shortest tail "
            f"({points}). The scenario has {self.study.told()}."
        )

    def failures_said(self) -> str:
        """Return how many points bought throughput with broken promises."""
        more = self.points[self.points["why"].str.startswith("throughput up")]
        return (
            f"{len(more)} of {counted(len(self.points), 'point')} "
            f"{does(len(more), 'has', 'have')} more throughput than the best point "
            "inside the budget, or than the scenario's own, and yet a promise broken: **failed**, "
            "whatever their accelerators deliver."
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the points with the pool's name and the names of the two fields."""
        across, down = self.study.fields
        named = self.points.assign(pool=self.study.pool.name, across_field=across, down_field=down)
        chosen = self.chosen or (np.nan, np.nan)
        is_chosen = (named["across"] == chosen[0]) & (named["down"] == chosen[1])
        return named.assign(chosen=is_chosen)

    def to_json(self) -> dict[str, Any]:
        """Return the chosen point as the pages after this one read it."""
        across, down = self.study.fields
        chosen = self.chosen or (None, None)
        return {
            "pool": self.study.pool.name,
            "fields": {across: chosen[0], down: chosen[1]},
            "outcome": self.outcome,
            "said": self.said().replace("**", ""),
            "now": dict(zip(self.study.fields, self.study.point, strict=True)),
        }


def sweep_window(
    study: PoolStudy | None,
    *,
    across: Sequence[float],
    down: Sequence[float],
    reference: tuple[float, float] | None = None,
    jobs: int = 1,
) -> Grid | None:
    """Return the swept batch window of a pool, the scenario's own point included."""
    from capplan.pages.frontend import has_reader
    from capplan.sweep import sweep

    if study is None:
        return None
    fields = study.fields
    values = [sorted({float(v) for v in (*given, own)})
              for given, own in zip((across, down), study.point, strict=True)]  # fmt: skip
    vary = {
        study.path(field): [float(v) if field.endswith("_s") else int(v) for v in column]
        for field, column in zip(fields, values, strict=True)
    }
    result = sweep(
        study.scenario,
        vary,
        seed=study.seed,
        jobs=jobs,
        trace=study.trace,
        progress=has_reader() or None,
    )
    return Grid(study=study, result=result, points=_points(study, result), reference=reference)


def _points(study: PoolStudy, result: SweepResult) -> pd.DataFrame:
    frame = result.frame
    across, down = (frame[study.path(field)].astype(float) for field in study.fields)
    state = frame["outcome"].map(STATES).fillna("unknown")
    if study.equal_lengths:
        state = state.where(state == STATES["fail"], "unknown")
    points = pd.DataFrame(
        {
            "across": across,
            "down": down,
            "goodput_rps": frame["goodput_rps"],
            "goodput_fraction": frame["goodput_fraction"],
            "throughput_rps": frame["throughput_rps"],
            "tail_of_promise": frame["latency_of_promise"],
            "timeout_fraction": frame["timeout_fraction"],
            "error_rate_fraction": frame["error_rate_fraction"],
            "wasted_token_fraction": frame["wasted_token_fraction"],
            "kv_usage_fraction": frame.get("kv_usage_mean", pd.Series(np.nan, frame.index)),
            "state": state,
        }
    )
    return points.assign(why=_why(points, study))


def _why(points: pd.DataFrame, study: PoolStudy) -> pd.Series:
    """Return why a point failed; first of all that it bought throughput with broken promises."""
    inside = points.loc[points["state"] == STATES["pass"], "throughput_rps"]
    own = points.loc[
        (points["across"] == study.point[0]) & (points["down"] == study.point[1]), "throughput_rps"
    ]
    bar = inside.max() if len(inside) else own.max()
    failed = points["state"] == STATES["fail"]
    more = failed & (points["throughput_rps"] > bar)
    late = np.where(points["tail_of_promise"] > 1, "tail over", "a promise broken")
    late = np.where(points["timeout_fraction"] > 0, "timeouts", late)
    why = np.where(failed, late, "")
    return pd.Series(np.where(more, "throughput up, " + why, why), index=points.index)


def _in_grid(points: pd.DataFrame, point: tuple[float, float] | None) -> tuple[float, float] | None:
    if point is None:
        return None
    there = (points["across"] == point[0]) & (points["down"] == point[1])
    return point if there.any() else None


def grid_parts(grid: Grid | None) -> list[Any]:
    """Return the heat map of a grid and what it says; one sentence where there is no pool."""
    return [NO_POOL] if grid is None else [grid.heatmap(), grid.said()]


def tradeoff_parts(grid: Grid | None) -> list[Any]:
    """Return throughput against the tail and what it says."""
    return [NO_POOL] if grid is None else [grid.tradeoff(), grid.failures_said()]
