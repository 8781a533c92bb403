"""Which batch window: the one that holds up to the largest load, run through peak and burst."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import counted, format_value, listed, rule_words
from capplan.grid.result import INSIDE
from capplan.progress import work
from capplan.results import per_request
from capplan.scenario.files import with_values
from capplan.simulation import simulate
from capplan.sizing.bursts import burst_outcome
from capplan.slo import judge
from capplan.stages.run_load import loads_of, step
from capplan.stages.stage_kinds import baseline, burst
from capplan.statistics import share_interval
from capplan.traffic.closed import is_closed
from capplan.traffic.replay import at_load, busiest, rate_rps
from capplan.verdict import Outcome, worst

if TYPE_CHECKING:
    import altair as alt

    from capplan.grid import PoolStudy, SweepResult
    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage

RISE = 1.25
"""Each load that is tried is so much above the one before: the error of a headroom."""
MOST_RISES = 12
"""Loads that are tried: up to 15 times the grid's."""
REQUESTS = 2000
"""Busiest requests that each load is tried with: enough for a p99 (1,000) of most classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A stage that the chosen window was run through, with the whole scenario's traffic."""

    stage: str
    load_rps: float
    outcome: Outcome
    evidence: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchChoice(Displayed):
    """The batch window of a pool with the most headroom, and the stages it was run through."""

    study: PoolStudy
    grid: SweepResult
    """With the chosen point as its own (``picked``)."""
    headroom: pd.DataFrame
    """One row for each point inside the budget: the fields, ``as_is``, ``holds_to`` (times the
    grid's load), ``load_rps`` (that load), ``next_good_fraction`` (of the load above), all NaN in a
    closed loop; the best first."""
    checks: tuple[Check, ...]

    @property
    def point(self) -> dict[str, Any] | None:
        """Return the chosen value of each field by its dotted path; None if no point is inside."""
        if self.headroom.empty:
            return None
        best = self.headroom.iloc[0]
        values = {field: float(best[field]) for field in self.study.fields}
        return {f: value if f.endswith("_s") else int(value) for f, value in values.items()}

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the stages; without a point, what the grid shows."""
        if self.headroom.empty:
            found: Outcome = self.grid.choice()["outcome"]
            return found
        return worst(check.outcome for check in self.checks)

    def summary(self) -> str:
        """Return the chosen window, its headroom against the scenario's own, and the stages."""
        if self.point is None:
            return self.grid.summary()
        best = self.headroom.iloc[0]
        own = self.headroom[self.headroom["as_is"]]
        now = "The scenario's own window is not inside the budget at this load."
        if best["as_is"]:
            now = "It is the scenario's own."
        elif not own.empty and is_closed(self.study.trace):
            now = f"The scenario's own, {self._words(own.iloc[0])}, is inside it too."
        elif not own.empty:
            now = f"The scenario's own, {self._words(own.iloc[0])}, holds up to "
            now += f"{format_value(float(own.iloc[0]['load_rps']), '_rps')}."
        runs = listed(f"{c.stage}: {c.outcome}" for c in self.checks)
        points = counted(len(self.headroom), "point")
        why = f"holds up to {format_value(float(best['load_rps']), '_rps')}, the most of {points}"
        if is_closed(self.study.trace):
            why = f"stays furthest below its promises of {points}"
            now += " How much more it holds is unknown: users who wait for answers send no faster."
        return (
            f"**Chosen for `{self.study.pool.name}`: {self._words(best)}** ({self.outcome}), which "
            f"{why} inside the budget. {now} Run through {runs}."
        )

    def table(self) -> pd.DataFrame:
        """Return each point inside the budget with its headroom, the best first."""
        return self.headroom.rename(columns=self.grid.names)

    def check_table(self) -> pd.DataFrame:
        """Return the stages that the chosen window was run through, and what each showed."""
        rows = [(c.stage, c.load_rps, c.outcome, c.evidence) for c in self.checks]
        return pd.DataFrame(rows, columns=["stage", "load_rps", "outcome", "evidence"])

    def chart(self) -> alt.LayerChart:
        """Return the goodput of each point of the grid as a heat map, the chosen one outlined."""
        return self.grid.chart(reference=self.study.reference)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain values: fields, outcome, finding, fields now, headroom."""
        return {
            **self.grid.choice(),
            "outcome": self.outcome,
            "finding": self.summary().replace("**", "").replace("`", ""),
            "headroom": plain(self.table().to_dict("records")),
            "checks": plain(list(self.checks)),
        }

    def _words(self, row: pd.Series[Any]) -> str:
        across, down = (float(row[name]) for name in self.study.fields)
        return self.study.window_words(across, down)


def choose_batching(
    scenario: Scenario, study: PoolStudy, grid: SweepResult, *, seed: int = 0
) -> BatchChoice:
    """Return the batch window of a pool that holds up to the largest load, and prove it.

    The points that the grid shows inside the budget are tried at loads that rise by a quarter,
    until each breaks a promise; what breaks last is chosen, of several the one with most good
    requests at the load above, and the scenario's own if no other is surely better. It then runs
    through the baseline, the planned peak and the bursts of the whole scenario, which decide the
    outcome for the pool's classes. In a closed loop faster arrivals load no more, so the headroom
    is unknown there, and the point furthest below its promises is chosen.

    Parameters
    ----------
    scenario
        The whole service; its pool of the study takes the chosen window in the stages.
    study, grid
        A pool alone (:func:`capplan.grid.pool_studies`), and its swept window.
    seed
        Names the drawn traces of the stages.
    """
    headroom = _headroom(study, grid)
    if headroom.empty:
        return BatchChoice(study=study, grid=grid, headroom=headroom, checks=())
    grid = replace(grid, picked=headroom.index[0])
    choice = BatchChoice(study=study, grid=grid, headroom=headroom, checks=())
    changed = with_values(scenario, choice.point or {})
    return replace(choice, checks=tuple(_checks(changed, study, seed=seed)))


def _headroom(study: PoolStudy, grid: SweepResult) -> pd.DataFrame:
    points = grid.points
    states = [state for state in INSIDE if (points["state"] == state).any()]
    inside = points[points["state"] == states[0]] if states else points.iloc[:0]
    found = inside[[*study.fields, "as_is", "latency_of_promise"]].assign(
        holds_to=1.0, next_good_fraction=float("nan")
    )
    if is_closed(study.trace):
        found = found.sort_values("latency_of_promise", kind="stable")
        unknown = {"holds_to": math.nan, "load_rps": math.nan}
        return found.drop(columns="latency_of_promise").assign(**unknown)
    alive, factor = list(found.index), RISE
    part = busiest(study.trace, REQUESTS)
    with work("headroom", total=MOST_RISES) as under_way:
        for _ in range(MOST_RISES):
            for point in list(alive):
                held, good = _tried(study, found.loc[point, list(study.fields)], part, factor)
                found.loc[point, "next_good_fraction"] = good
                if held:
                    found.loc[point, "holds_to"] = factor
                else:
                    alive.remove(point)
            under_way.step()
            if len(alive) == 0:
                break
            factor *= RISE
    found["load_rps"] = found["holds_to"] * rate_rps(study.trace)
    order = ["holds_to", "next_good_fraction", "latency_of_promise"]
    found = found.sort_values(order, ascending=[False, False, True], kind="stable")
    found = found.drop(columns="latency_of_promise")
    own = found["as_is"].astype(bool)
    if not own.any() or found["next_good_fraction"].isna().any():
        return found
    best, mine = found.iloc[0], found[own].iloc[0]
    share = share_interval(round(mine["next_good_fraction"] * len(part)), len(part))
    if mine["holds_to"] == best["holds_to"] and share.high >= best["next_good_fraction"]:
        return pd.concat([found[own], found[~own]])
    return found


def _tried(study: PoolStudy, point: pd.Series[Any], part: Any, factor: float) -> tuple[bool, float]:
    """Return whether a point breaks no promise at a load, and its share of good requests."""
    across, down = (float(value) for value in point)
    run = simulate(study.at(across, down), trace=at_load(part, factor), seed=study.seed)
    good = float(per_request(run)["good"].mean(skipna=False))
    return judge(run).outcome not in ("fail", "blocked"), good


def _checks(scenario: Scenario, study: PoolStudy, *, seed: int) -> Iterator[Check]:
    """Yield what the baseline, the planned peak and the bursts show of the pool's classes."""
    names = [c.name for c in study.scenario.classes]
    loads = loads_of(scenario, seed=seed)
    yield _check(baseline(scenario, loads, seed=seed), names)
    if scenario.traffic.shape.kind == "closed":
        return  # users who wait for their answers bring no peak of their own
    peak, _ = step(
        scenario,
        loads.peak_rps,
        before_rps=loads.planned_rps,
        name="peak",
        kind="peak",
        seed=seed,
    )
    yield _check(peak, names)
    yield _check(burst(scenario, loads, seed=seed), names)


def _check(stage: Stage, names: list[str]) -> Check:
    outcome: Outcome
    if stage.kind == "burst":
        outcome, text = burst_outcome(stage, names)
    else:
        own = stage.of(names)
        broken = [b for b in stage.breaks if b.request_class in names]
        thin = [r for r in stage.thin if r.request_class in names]
        outcome = "fail" if broken else "unknown" if thin else "pass"
        good = format_value(float(own["good"].mean(skipna=False)), "_fraction")
        text = f"{good} of {counted(len(own), 'request')} are good"
        if broken:
            text = f"{broken[0].request_class} breaks {rule_words(broken[0].promise)}; {text}"
        elif thin:
            rule = rule_words(thin[0].rule)
            text = f"too few to judge {rule} of {thin[0].request_class}; {text}"
    return Check(
        stage=stage.name,
        load_rps=stage.load_rps,
        outcome=outcome,
        evidence=text,
        run_id=stage.run_id,
    )
