"""Rules of thumb that a simulation stands beside: Erlang-C, and the peak times 1.2.

Of the closed forms for M/M/c, ``servers`` can be 10,000 and more: nothing here builds a factorial.
A queue that is not stable has an infinite wait, which is a value, not an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.budget import allocate
from capplan.encoding import plain
from capplan.scenario import Scenario
from capplan.scenario.pools import Pool
from capplan.sizing.points import busiest_minute

if TYPE_CHECKING:
    from capplan.budget.results import ClassBudget, WaitBudget
    from capplan.traffic.trace import Trace

HEADROOM = 1.2
"""The usual headroom on the peak; a habit of the trade without a derivation, so it is only
compared with."""
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
    scenario: Scenario,
    pool: Pool,
    trace: Trace,
    *,
    lose: Sequence[int] = (0,),
    budget: WaitBudget | None = None,
) -> tuple[RuleOfThumb, ...]:
    """Return Erlang-C's and the peak rule's number of replicas for a pool, for each loss.

    A replica counts as one server that serves at the rate the wait budget derives when it is full.
    Erlang-C adds the lost replicas; the peak rule ignores losses. ``budget`` None = derived here.
    """
    budget = budget or allocate(scenario, trace=trace)
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

    Source: Erlang 1917; see :func:`servers_for_wait`.
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


def erlang_b(servers: int, offered: float) -> float:
    """Return the share of arrivals that find all servers busy in M/G/c/c (lost calls).

    ``offered`` is λ / μ (erlangs). B(0) = 1, B(c) = a B(c-1) / (c + a B(c-1)).
    Source: Gross, Shortle, Thompson and Harris, "Fundamentals of Queueing Theory", 4th ed., 2008,
    section 2.5 (Erlang's loss formula).

    >>> round(erlang_b(10, 5.0), 6)
    0.018385
    """
    _servers(servers, least=0)
    _not_negative(offered=offered)
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Return the share of arrivals that wait in M/M/c; 1 where the queue is not stable.

    C = B / (1 - ρ (1 - B)) with ρ = a / c and Erlang's B.
    Source: Gross et al. 2008, section 2.3, rewritten in terms of Erlang's B.

    >>> round(erlang_c(10, 5.0), 6)
    0.036105
    >>> erlang_c(1, 0.7)
    0.7
    """
    _servers(servers)
    _not_negative(offered=offered)
    if offered >= servers:
        return 1.0
    blocked = erlang_b(servers, offered)
    return blocked / (1 - offered / servers * (1 - blocked))


def mmc_wait_quantile_s(
    servers: int, rate_rps: float, service_s: float, quantile: float = 0.99
) -> float:
    """Return a quantile of the wait in M/M/c, from P(W > t) = C exp(-(c μ - λ) t).

    Source: Gross et al. 2008, section 2.3, the waiting-time distribution of M/M/c.

    >>> round(mmc_wait_quantile_s(1, 0.5, 1.0, 0.75), 4), mmc_wait_quantile_s(1, 0.5, 1.0, 0.5)
    (1.3863, 0.0)
    """
    _quantile(quantile)
    offered = _offered(servers, rate_rps, service_s)
    if offered >= servers:
        return math.inf
    waiting = erlang_c(servers, offered)
    if waiting <= 1 - quantile:
        return 0.0
    return math.log(waiting / (1 - quantile)) * service_s / (servers - offered)


def servers_for_wait(
    rate_rps: float, service_s: float, wait_s: float, *, quantile: float = 0.99
) -> int:
    """Return the fewest servers whose M/M/c wait stays within ``wait_s`` at a quantile.

    >>> servers_for_wait(9.0, 1.0, 1.0, quantile=0.9)
    11
    """
    _not_negative(wait_s=wait_s)
    servers = math.floor(_offered(1, rate_rps, service_s)) + 1
    if mmc_wait_quantile_s(servers, rate_rps, service_s, quantile) <= wait_s:
        return servers
    step = 1  # gallop up, then halve: the wait falls with every server
    while mmc_wait_quantile_s(servers + step, rate_rps, service_s, quantile) > wait_s:
        step *= 2
    low, high = servers + step // 2, servers + step
    while high - low > 1:
        middle = (low + high) // 2
        enough = mmc_wait_quantile_s(middle, rate_rps, service_s, quantile) <= wait_s
        low, high = (low, middle) if enough else (middle, high)
    return high


def _offered(servers: int, rate_rps: float, service_s: float) -> float:
    _servers(servers)
    _not_negative(rate_rps=rate_rps, service_s=service_s)
    return rate_rps * service_s


def _servers(servers: int, *, least: int = 1) -> None:
    if servers < least:
        msg = f"servers must be at least {least}, got {servers}"
        raise ValueError(msg)


def _quantile(quantile: float) -> None:
    if not 0 < quantile < 1:
        msg = f"quantile must lie strictly between 0 and 1, got {quantile}"
        raise ValueError(msg)


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            msg = f"{name} must not be negative, got {value}"
            raise ValueError(msg)
