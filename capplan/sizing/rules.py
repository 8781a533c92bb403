"""Rules of thumb that a simulation stands beside: Erlang-C, and the peak times 1.2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.budget import allocate
from capplan.encoding import plain
from capplan.queueing import servers_for_wait
from capplan.scenario import Scenario
from capplan.scenario.pools import Pool
from capplan.sizing.points import busiest_minute

if TYPE_CHECKING:
    from capplan.budget.results import ClassBudget
    from capplan.traffic.trace import Trace

HEADROOM = 1.2
"""The usual headroom on the peak; a habit of the trade, with no derivation. That is why it stands
here: to be compared, not to be used."""
LEAST_GAPS = 10
MOST_SERVERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """A number of replicas without simulation; ``replicas`` None if the rule gives none.

    ``lose`` is how many replicas the rule expects to be lost, ``holds`` whether that
    number holds in simulation under that loss, None if it was not tried.
    """

    name: str
    lose: int
    replicas: int | None
    evidence: str
    holds: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain values."""
        return {name: plain(getattr(self, name)) for name in self.__slots__}


def rules_of_thumb(
    scenario: Scenario, pool: Pool, trace: Trace, *, lose: Sequence[int] = (0,)
) -> tuple[RuleOfThumb, ...]:
    """Return Erlang-C's and the peak rule's number of replicas for a pool, for each loss.

    A replica counts as one server that serves at the rate the wait budget derives when it is full.
    Erlang-C adds the lost replicas; the peak rule ignores losses.
    """
    budget = allocate(scenario, trace=trace)
    own = [c for c in budget.classes if c.pool == pool.name]
    full_rps = sum(c.drain_rps for c in own) / pool.replicas
    rate, peak = _rates(trace, scenario, [c.request_class for c in own])
    one = _erlang_c(scenario, own, rate=rate, full_rps=full_rps)
    other = _peak_rule(peak, full_rps)
    found = []
    for count in lose:
        servers = None if one.replicas is None else one.replicas + count
        more = f", plus {count} lost" if count else ""
        found += [
            replace(one, lose=count, replicas=servers, evidence=one.evidence + more),
            replace(other, lose=count),
        ]
    return tuple(found)


def _erlang_c(
    scenario: Scenario, budgets: Sequence[ClassBudget], *, rate: float, full_rps: float
) -> RuleOfThumb:
    """Return the fewest servers of M/M/c whose wait stays in the strictest queueing budget.

    Source: Erlang 1917; see :func:`capplan.queueing.servers_for_wait`.
    """
    waits = [
        (c.remaining_s, scenario.request_class(c.request_class).promises.quantile, c.request_class)
        for c in budgets
        if not math.isnan(c.remaining_s)
    ]
    if not waits or not _usable(rate, full_rps):
        return _unknown("erlang_c", "no wait budget, rate or capacity")
    wait, quantile, name = min(waits)
    if wait <= 0:
        return _unknown("erlang_c", f"{name} has no time to wait: serving alone breaks the promise")
    evidence = (
        f"M/M/c at {rate:.3g}/s, {full_rps:.3g}/s a replica, wait ≤ {wait:.3g} s ({name}) "
        f"at p{100 * quantile:g}"
    )
    servers = servers_for_wait(rate, 1 / full_rps, wait, quantile=quantile)
    return RuleOfThumb(name="erlang_c", lose=0, replicas=servers, evidence=evidence)


def _peak_rule(peak_rps: float, full_rps: float) -> RuleOfThumb:
    if not _usable(peak_rps, full_rps):
        return _unknown("peak_times_1.2", "no rate or capacity")
    servers = max(1, math.ceil(HEADROOM * peak_rps / full_rps - 1e-9))
    evidence = f"{HEADROOM} × {peak_rps:.3g}/s (busiest minute) / {full_rps:.3g}/s a replica"
    return RuleOfThumb(name="peak_times_1.2", lose=0, replicas=servers, evidence=evidence)


def _unknown(name: str, why: str) -> RuleOfThumb:
    return RuleOfThumb(name=name, lose=0, replicas=None, evidence=why)


def _usable(rate_rps: float, full_rps: float) -> bool:
    return rate_rps > 0 and full_rps > 0 and rate_rps / full_rps < MOST_SERVERS


def _rates(trace: Trace, scenario: Scenario, names: list[str]) -> tuple[float, float]:
    """Return mean rate and rate of the busiest minute of the requests of some classes."""
    frame = trace.frame
    classes = frame.get("request_class")
    default = scenario.request_class().name
    own = frame if classes is None else frame[classes.fillna(default).isin(names)]
    start = own["arrival_s"].to_numpy(np.float64)
    if start.size < LEAST_GAPS:
        return math.nan, math.nan
    mean, peak, _ = busiest_minute(start)
    return mean, peak
