"""Which promises a stage breaks, how surely and how soon, and whether another class pays for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.results.cost import served_by
from capplan.scenario import Scenario
from capplan.scenario.classes import Promises
from capplan.slo.promises import ROUNDING_S, allowance, stated, violating
from capplan.statistics import Estimate, batch_means, share_interval
from capplan.verdict import Reason, checked, unknown

if TYPE_CHECKING:
    from capplan.stages.stage import Stage
    from capplan.verdict import Verdict

Flags = npt.NDArray[np.bool_]

MOST_IDS = 20
"""Requests named as evidence of one break."""
STARVED = 0.5
"""Success share of the lowest class, as a part of the highest's, below which it starves; a default
of this project."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Break:
    """A broken promise: the share of requests that break it, and which they are.

    ``used_up_s`` is when more requests had broken it than the whole stage allows: of several
    broken promises, the first to use up its allowance broke first.
    """

    request_class: str
    promise: str
    share: Estimate
    allowed_fraction: float
    used_up_s: float
    span_s: tuple[float, float]
    violators: pd.DataFrame
    in_window: bool = False
    """Whether a part of the stage surely breaks it, whatever its share over the whole stage is."""

    @property
    def proven(self) -> bool:
        """Return whether a part surely breaks it, or the whole interval is beyond the allowance."""
        return self.in_window or self.share.low > self.allowed_fraction

    @property
    def kept(self) -> bool:
        """Return whether the whole interval is within what is allowed, or no request broke it.

        An allowance of one in a thousand takes thousands of requests to prove; without any that
        broke the promise, it counts as kept.
        """
        return self.violators.empty or self.share.high <= self.allowed_fraction

    @property
    def request_ids(self) -> list[str]:
        """Return the first requests that broke it."""
        return [str(name) for name in self.violators["request_id"].iloc[:MOST_IDS]]

    def to_json(self) -> dict[str, Any]:
        """Return the break as plain values."""
        return {
            "request_class": self.request_class,
            "promise": self.promise,
            "share_fraction": self.share.value,
            "interval": [self.share.low, self.share.high],
            "allowed_fraction": self.allowed_fraction,
            "proven": self.proven,
            "span_s": list(self.span_s),
            "request_ids": self.request_ids,
        }


def breaks_of(verdict: Verdict, margins: Iterable[Break]) -> tuple[Break, ...]:
    """Return those of the promises that a verdict finds broken, the first to break first."""
    failed = {(r.request_class, r.rule): r for r in verdict.reasons if r.outcome == "fail"}
    named = ((m, failed.get((m.request_class, m.promise))) for m in margins)
    found = [replace(m, in_window=r.window is not None) for m, r in named if r is not None]
    return tuple(sorted(found, key=_first))


def margins_of(table: pd.DataFrame, scenario: Scenario) -> Iterator[Break]:
    """Yield how the requests of each class break, or do not break, each of its promises."""
    for request_class in scenario.classes:
        own = table[table["request_class"] == request_class.name]
        for rule in stated(request_class.promises):
            if len(own):
                yield broken(own, request_class.promises, rule)


def broken(own: pd.DataFrame, promises: Promises, rule: str) -> Break:
    """Return how the requests of one class break one of its promises."""
    applies, violates = violating(own, promises, rule)
    asked = own[applies]
    bad = violates[applies]
    allowed = allowance(promises, rule)
    violators = asked[bad]
    share = _share(bad)
    return Break(
        request_class=str(own["request_class"].iloc[0]),
        promise=rule,
        share=share,
        allowed_fraction=allowed,
        used_up_s=_used_up(violators, allowed * len(asked)),
        span_s=_span(violators),
        violators=violators,
    )


def _share(bad: Flags) -> Estimate:
    """Return the share of requests that break a promise, its interval wide enough for bursts.

    Near saturation successive requests wait together, and an interval for independent ones is too
    short; so it is at least that of the batch means.
    """
    found = share_interval(int(bad.sum()), bad.size)
    by_batch = batch_means(bad)
    if not math.isfinite(by_batch.half_width):
        return found
    low, high = min(found.low, by_batch.low), max(found.high, by_batch.high)
    return replace(found, low=max(low, 0.0), high=min(high, 1.0))


def _used_up(violators: pd.DataFrame, allowed: float) -> float:
    """Return when the first request broke a promise that was one too many, s; inf if none."""
    ends = np.sort(violators["finish_s"].fillna(np.inf).to_numpy(np.float64))
    place = math.floor(allowed + ROUNDING_S)
    return float(ends[place]) if place < ends.size else math.inf


def _span(violators: pd.DataFrame) -> tuple[float, float]:
    if violators.empty:
        return math.nan, math.nan
    last = violators["finish_s"].max()
    return float(violators["intended_start_s"].min()), float(last)


def _first(found: Break) -> tuple[float, float, str]:
    return found.used_up_s, found.span_s[0], found.promise


def starvation_reasons(scenario: Scenario, stages: Sequence[Stage]) -> Iterator[Reason]:
    """Yield whether each pool serves its lowest class beside its highest."""
    for pool in scenario.pools:
        names = served_by(scenario, pool)
        order = {n: scenario.request_class(n).priority for n in names}
        if len(set(order.values())) < 2:  # noqa: PLR2004
            continue
        low, high = max(order, key=lambda n: order[n]), min(order, key=lambda n: order[n])
        if not any({low, high} <= set(s.table["request_class"]) for s in stages):
            yield unknown("starvation", f"no planned stage has requests of {low} and {high}")
            continue
        starved = [s for s in stages if starves(s.table, low, high)]
        declared = scenario.request_class(low).sheddable
        evidence = f"{low} is served beside {high} in every planned stage"
        if starved:
            stage = starved[0]
            evidence = f"{low} starves in {stage.name} at {stage.load_rps:.3g}/s"
            evidence += f" (run {stage.run_id})" + ", as declared sheddable" * declared
        yield checked(
            "starvation",
            not starved or declared,
            value=len(starved),
            limit=0,
            evidence=evidence,
            next_action="age the queue, give the class a share, or declare it sheddable",
            request_class=low,
            origin="default",
        )


def starves(table: pd.DataFrame, low: str, high: str) -> bool:
    """Return whether a class succeeds less than half as often as another, beyond doubt."""
    shares = {}
    for name in (low, high):
        own = table.loc[table["request_class"] == name, "outcome"]
        shares[name] = share_interval(int((own == "succeeded").sum()), len(own))
    return bool(shares[low].high < STARVED * shares[high].value)
