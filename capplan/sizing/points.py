"""Evaluate numbers of replicas: the same requests against each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import counted, format_value, rule_words
from capplan.replica.step_error import error_factors, with_step_times
from capplan.results import outcome_counts, per_request
from capplan.results.cost import served_by
from capplan.scenario import Scenario
from capplan.scenario.pools import Pool
from capplan.simulation import simulate_many
from capplan.sizing.loss import Loss, Outage, broken_by, outage_of, with_loss
from capplan.slo import judge
from capplan.statistics import quantile
from capplan.verdict import Reason, Verdict, worst

if TYPE_CHECKING:
    from capplan.budget.results import WaitBudget
    from capplan.progress import Work
    from capplan.traffic.trace import Trace

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

COST = "cost_usd_per_success"
NOT_CAPACITY = (COST, "equal_lengths", "no_promise", "no_requests", "scope")
"""Rules that more replicas cannot mend."""
PEAK_S = 60.0
SERVED = ("request_class", "intended_start_s", "outcome", "good")
AFTER = 2
"""Points that a sizing simulates after a search, in the mean."""
LEAST = 20
"""Requests below which the load of a run is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A number of replicas that does not hold, and why."""

    replicas: int
    lose: Loss
    reason: str
    rule: str = ""
    outcome: str = "fail"

    def to_json(self) -> dict[str, Any]:
        """Return the rejection as plain values."""
        return {
            "replicas": self.replicas,
            "lose": {"kind": self.lose.kind, "count": self.lose.count},
            "rule": self.rule,
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """One number of replicas under one loss, and what its simulation showed."""

    replicas: int
    lose: Loss
    classes: tuple[str, ...]
    """The classes that the pool serves; others are judged, but more replicas can't mend them."""
    verdict: Verdict
    figures: pd.DataFrame
    """One row per class: offered, succeeded, good_fraction, error and timeout share, latencies."""
    served: tuple[pd.DataFrame, ...]
    """The pool's requests of each run: columns ``SERVED``, by intended start."""
    mean_rps: float
    """Mean rate of the pool's classes, and below that of their busiest minute."""
    peak_rps: float
    peak_good_fraction: float
    """Share of the requests of the busiest minute that were good; NaN unknown."""
    peak_requests: int
    """How many requests that share is of, over all runs."""

    def rate_rps(self, outages: Sequence[Outage]) -> float:
        """Return the rate of the pool's requests in the parts that are judged for a loss."""
        spans = [one.window_s for one in outages]
        span = sum(high - low for low, high in spans)
        starts = zip((t["intended_start_s"] for t in self.served), spans, strict=True)
        count = sum(int(start.between(*ends).sum()) for start, ends in starts)
        return count / span if span > 0 else math.nan

    @property
    def missed(self) -> int:
        """Return how many requests of the pool's classes missed a promise."""
        return sum(int((table["good"] == 0).sum()) for table in self.served)

    @property
    def holds(self) -> bool:
        """Return whether no rule speaks against this number that more replicas could mend."""
        return not self.against

    @property
    def against(self) -> tuple[Reason, ...]:
        """Return the reasons against this number that more replicas could mend."""
        return tuple(
            r
            for r in self.verdict.reasons
            if r.outcome in ("blocked", "fail")
            and self._is_of_capacity(r)
            and (r.request_class is None or r.request_class in self.classes)
        )

    @property
    def open(self) -> tuple[Reason, ...]:
        """Return what the runs left open for the pool's classes; empty = the number is shown.

        Too few requests for a quantile is the usual case: nothing broke, and nothing is proven. A
        class without requests leaves nothing open, unless none of the pool's classes has any.
        """
        unknown = [r for r in self.verdict.reasons if r.outcome == "unknown"]
        idle = [r for r in unknown if r.rule == "no_requests" and r.request_class in self.classes]
        if {r.request_class for r in idle} >= set(self.classes):
            return tuple(idle)
        return tuple(
            r
            for r in unknown
            if self._is_of_capacity(r)
            and (r.request_class is None or r.request_class in self.classes)
        )

    @property
    def doubt(self) -> str:
        """Return the first promise that may be broken, by its interval; empty if there is none."""
        own = (r for r in self.verdict.reasons if r.request_class in (None, *self.classes))
        found = next((r for r in own if r.outcome == "retest" and self._is_of_capacity(r)), None)
        return "" if found is None else f"with {self.replicas} a retest is left: {found.evidence}"

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the classes of which every rule is known and none is broken."""
        not_kept = {
            r.request_class
            for r in self.verdict.reasons
            if r.outcome in ("fail", "blocked") or r in self.open
        }
        return tuple(name for name in self.figures["request_class"] if name not in not_kept)

    def _is_of_capacity(self, reason: Reason) -> bool:
        """Return whether more replicas could move what a rule found.

        They cannot serve what ``max_model_len`` refuses; if that is most of a class, the rest shows
        too little of what its promises need.
        """
        if reason.rule in NOT_CAPACITY:
            return False
        own = self.figures[self.figures["request_class"] == reason.request_class]
        served = bool((2 * own["succeeded"] > own["offered"]).all())
        return not (served and (reason.field or "").endswith(".batching.max_model_len"))

    def rejection(self) -> Rejection:
        """Return why this number does not hold; ValueError if it does."""
        if not self.against:
            msg = f"it holds: {counted(self.replicas, 'replica')}"
            raise ValueError(msg)
        first = self.against[0]
        front = f"{first.request_class}: " if first.request_class else ""
        return Rejection(
            replicas=self.replicas,
            lose=self.lose,
            reason=f"{front}{first.evidence}",
            rule=first.rule,
            outcome=worst(r.outcome for r in self.against),
        )


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """Simulates numbers of replicas on the same drawn traces, each at most once."""

    scenario: Scenario
    pool: Pool
    traces: Sequence[Trace]
    seed: int
    budget: WaitBudget
    under_way: Work
    executor: Executor | None = None
    step_factors: Mapping[str, float] = field(default_factory=dict)
    """Of the step times of pools, by name; limits that the budget derives are those without."""
    points: dict[tuple[int, Loss], Point] = field(default_factory=dict)
    _outages: dict[Loss, list[Outage]] = field(default_factory=dict)

    def __call__(self, replicas: int, lose: Loss) -> Point | Rejection:
        """Return the point, or a rejection if no replica would be left."""
        if replicas <= lose.count:
            return Rejection(
                replicas=replicas, lose=lose, reason="no replica would be left", rule="no_replica"
            )
        return self.point(replicas, lose)

    def outages(self, lose: Loss) -> list[Outage]:
        """Return when a loss strikes each of the runs, by their requests with none lost."""
        if lose.count == 0:
            return []
        if lose not in self._outages:
            none_lost = self.point(self.pool.replicas, Loss(count=0))
            needed = {
                name: self.scenario.request_class(name).promises.samples_needed()
                for name in none_lost.classes
            }
            self._outages[lose] = [outage_of(own, lose, needed) for own in none_lost.served]
        return self._outages[lose]

    def at_error(self, *, longer: bool) -> Evaluator:
        """Return the evaluator whose step times are as long or short as their errors allow."""
        return replace(self, step_factors=error_factors(self.scenario, longer=longer), points={})

    @property
    def cause(self) -> Reason | None:
        """Return the budget's finding that serving a request alone breaks a promise, or None."""
        names = served_by(self.scenario, self.pool)
        found = (r for r in self.budget.findings if r.rule == "infeasible")
        return next((r for r in found if r.request_class in names), None)

    @property
    def cause_words(self) -> str:
        """Return the cause that no number of replicas mends, in words; empty without one."""
        if self.cause is None:
            return ""
        [own] = [c for c in self.budget.classes if c.request_class == self.cause.request_class]
        taken = own.promise_s - own.remaining_s
        return (
            f"serving one request of {own.request_class} at the promised quantile takes "
            f"{format_value(taken, '_s')} of the {format_value(own.promise_s, '_s')} of its "
            f"{rule_words(own.basis)}, of which prefill {format_value(own.prefill_s, '_s')}"
        )

    def expect(self, runs: int) -> None:
        """Say how many more points are still to be simulated, so that the time left is known."""
        self.under_way.total = self.under_way.done + runs + AFTER

    def point(self, replicas: int, lose: Loss) -> Point:
        """Return the point of a number of replicas of which at least one is left."""
        key = (replicas, lose)
        if key not in self.points:
            self.points[key] = self._simulate(replicas, lose)
        return self.points[key]

    def _simulate(self, replicas: int, lose: Loss) -> Point:
        outages = self.outages(lose)
        times = [one.at_s for one in outages] or [0.0] * len(self.traces)
        scenarios = [
            with_loss(self.scenario, self.pool, replicas, lose, at_s=at_s) for at_s in times
        ]
        if self.step_factors:
            scenarios = [with_step_times(one, self.step_factors) for one in scenarios]
        self.under_way.name = f"{counted(replicas, 'replica')}, {lose}"
        runs = simulate_many(
            scenarios,
            replications=len(self.traces),
            seed=self.seed,
            traces=self.traces,
            executor=self.executor,
        )
        self.under_way.step()
        scenario, verdict = scenarios[0], judge(runs)
        if outages:
            verdict = _with(broken_by(runs, outages), verdict)
        tables = [per_request(run) for run in runs]
        classes = tuple(served_by(scenario, self.pool))
        own = [t[t["request_class"].isin(classes)] for t in tables]
        mean, peak, good, requests = _loads(own)
        return Point(
            replicas=replicas,
            lose=lose,
            classes=classes,
            verdict=verdict,
            figures=_figures(scenario, pd.concat(tables, ignore_index=True)),
            served=tuple(t[[*SERVED]].reset_index(drop=True) for t in own),
            mean_rps=mean,
            peak_rps=peak,
            peak_good_fraction=good,
            peak_requests=requests,
        )


def _with(broken: Sequence[Reason], verdict: Verdict) -> Verdict:
    """Return the verdict with the promises that break while replicas are lost."""
    known = {(r.rule, r.request_class) for r in verdict.reasons if r.outcome == "fail"}
    new = [r for r in broken if (r.rule, r.request_class) not in known]
    reasons = sorted([*new, *verdict.reasons], key=attrgetter("rank"))
    return replace(verdict, reasons=tuple(reasons))


def _figures(scenario: Scenario, table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for c in scenario.classes:
        own = table[table["request_class"] == c.name]
        n, counts = len(own), outcome_counts(own)
        shares = {
            "good_fraction": own["good"].sum(skipna=False),
            "error_rate_fraction": counts["rejected"] + counts["failed"],
            "timeout_fraction": counts["timed_out"],
        }
        latencies = {
            f"{name}_p99_s": quantile(own[f"{name}_s"].dropna(), 0.99)
            for name in ("ttft_censored", "e2e_censored")
        }
        row = {"request_class": c.name, "offered": n, "succeeded": counts["succeeded"]}
        row |= {name: amount / n if n else math.nan for name, amount in shares.items()}
        rows.append(row | latencies)
    return pd.DataFrame(rows)


def _loads(tables: Sequence[pd.DataFrame]) -> tuple[float, float, float, int]:
    """Return mean rate, rate of the busiest minute, share of good requests in it, and of how many.

    Rates and share are means over the runs, the number of requests is their sum.
    """
    found = [_load(table) for table in tables if len(table) > LEAST]
    if not found:
        return math.nan, math.nan, math.nan, 0
    sums = [sum(parts) for parts in zip(*found, strict=True)]
    mean, peak, good = (part / len(found) for part in sums[:3])
    return mean, peak, good, int(sums[3])


def _load(table: pd.DataFrame) -> tuple[float, float, float, int]:
    """Return the same of one run."""
    start = table["intended_start_s"].to_numpy(np.float64)
    mean, peak, busiest = busiest_minute(start)
    good = table["good"].to_numpy(np.float64)
    share = float(good[busiest].mean()) if busiest.any() else math.nan
    return mean, peak, share, int(busiest.sum())


def busiest_minute(start_s: Floats) -> tuple[float, float, Flags]:
    """Return the mean rate, that of the busiest minute, and which requests are in that minute.

    ``start_s`` rises; a minute is a tenth of a run shorter than ten minutes. NaN without a span.
    """
    span = float(start_s[-1] - start_s[0]) if start_s.size else 0.0
    if span <= 0:
        return math.nan, math.nan, np.zeros(start_s.size, np.bool_)
    width = min(PEAK_S, span / 10)
    minute = ((start_s - start_s[0]) // width).astype(np.int64)
    counts = np.bincount(minute)[: int(span // width)]
    busiest = int(counts.argmax())
    return (start_s.size - 1) / span, float(counts[busiest]) / width, minute == busiest
