"""The metrics that breakers and autoscalers read during a run, by name.

======================== ======================================================================
name                     of a pool
======================== ======================================================================
queue_length             requests that wait in its service queue and its scheduler queues
in_flight                requests that its replicas hold, waiting or running
in_flight_per_replica    the same for replicas in service, per replica in service
running                  requests in the running steps or batches
kv_usage_fraction        mean over the replicas in service
fragmentation_fraction   share of the free KV outside the largest hole, of the worst replica in
                         service; only contiguous KV has any
up                       replicas in service
busy_fraction            share of the time since the last reading, mean over those in service
output_tokens_per_s      tokens made
prefill_tokens_per_s     prompt tokens computed
arrivals_rps             attempts that reached the pool
refused_rps              attempts that found its queues full
preemptions_per_s        sequences preempted
ttft_s, e2e_s, tpot_s    a quantile over the attempts that ended in a sliding window
======================== ======================================================================

The gateway has ``queue_length``, ``in_flight`` (passed on and not answered) and ``refused_rps``
(answers 4xx and 5xx).

A missing value is NaN, never 0, so no comparison with it holds: a rate at the first reading or
without time passed, a level that no replica in service has, a quantile of too few attempts.

A metric is one name in :mod:`capplan.scenario.metric_names` and one entry of the tables below: of
a replica in ``REPLICA_LEVELS`` or ``REPLICA_TOTALS``, of a pool in ``_LEVELS`` or ``_TOTALS``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from capplan.replica.kv_layouts import ContiguousSpace
from capplan.scenario.metric_names import LATENCIES, MOST_SAMPLES, samples_needed
from capplan.simulation.attempt import Attempt
from capplan.simulation.callers import Callers
from capplan.simulation.clock import Clock
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.pool import ServingPool
from capplan.simulation.replica import Replica

Reading = Callable[[], float]
"""Returns a metric now."""
Counts = Mapping[Hashable, float]
"""Totals since the start, by what counts them."""
ByReplica = Mapping[str, float]
Value = TypeVar("Value")


def pool_reading(name: str, pool: ServingPool, clock: Clock) -> Reading:
    """Return the reading of a pool's level or rate; ValueError for another name.

    Each reading of a rate remembers its own last call: give every rule its own reading.
    """
    if name in _LEVELS:
        return partial(_LEVELS[name], pool)
    among = (lambda: pool.in_service) if name == "busy_fraction" else None
    return Rate(partial(_known(name, _TOTALS), pool), clock, among=among)


def replica_reading(name: str, pool: ServingPool, clock: Clock) -> Callable[[], ByReplica]:
    """Return the reading of a level or rate of each replica in service, by its name."""
    if name in REPLICA_LEVELS:
        read = REPLICA_LEVELS[name]
        return lambda: {replica.name: read(replica) for replica in pool.in_service}
    return _ReplicaRates(_known(name, REPLICA_TOTALS), pool, clock)


def gateway_reading(name: str, gateway: GatewayHost, clock: Clock) -> Reading:
    """Return the reading of a metric of the gateway; ValueError for another name."""
    known: dict[str, Callable[[], Reading]] = {
        "queue_length": lambda: lambda: float(len(gateway.queue.line)),
        "in_flight": lambda: lambda: float(gateway.in_flight),
        "refused_rps": lambda: Rate(lambda: {"gateway": gateway.statuses.total()}, clock),
    }
    return _known(name, known)()


class Rate:
    """How fast totals grew since the last call, per second; NaN at the first.

    Only what counts now is read: a replica that has left takes its counts since the last call
    with it, and a new one is compared with 0. With ``among``, the rate is the mean over those,
    each with its own total.
    """

    def __init__(
        self,
        totals: Callable[[], Counts],
        clock: Clock,
        *,
        among: Callable[[], Iterable[Hashable]] | None = None,
    ) -> None:
        self._totals = totals
        self._clock = clock
        self._among = among
        self._before: Counts | None = None
        self._before_s = math.nan

    def __call__(self) -> float:
        """Return the rate since the last call, and remember this one."""
        now_s, now = self._clock.now, self._totals()
        before, passed_s = self._before, now_s - self._before_s
        self._before, self._before_s = now, now_s
        if before is None or not passed_s > 0:
            return math.nan
        counted = list(now if self._among is None else self._among())
        grown = sum(now[one] - before.get(one, 0.0) for one in counted)
        if self._among is None:
            return grown / passed_s
        return grown / passed_s / len(counted) if counted else math.nan


class LatencyWindow:
    """A quantile of the latency of the attempts that ended in the last seconds.

    Latencies count from the intended start, as the caller sees them. An attempt that timed out or
    failed counts as +inf. A refused one does not count, as it shows no service time (and a rule
    that refuses would keep itself open); neither does one cancelled by its caller, nor the time
    per token of a single token.

    The quantile is the smallest observation that at least this share does not exceed. It needs
    ``min_samples`` observations; None = enough to leave one beyond it, 100 at the 99th percentile.
    Beyond ``MOST_SAMPLES`` in the window, the last ones count.
    """

    def __init__(
        self,
        name: str,
        *,
        quantile: float,
        window_s: float,
        callers: Callers,
        clock: Clock,
        request_class: str | None = None,
        pool: ServingPool | None = None,
        min_samples: int | None = None,
    ) -> None:
        if name not in LATENCIES:
            raise ValueError(f"unknown latency {name!r}; known: {', '.join(LATENCIES)}")
        self._name = name
        self._quantile = quantile
        self._window_s = window_s
        self._clock = clock
        self._class = request_class
        self._pool = pool
        self._least = samples_needed(quantile, min_samples)
        self._callers = callers
        self._times = array("d", bytes(8 * MOST_SAMPLES))
        self._values = array("d", bytes(8 * MOST_SAMPLES))
        self._count = self._first = 0
        """How many attempts were observed, and how many of them have expired."""
        callers.listeners.append(self._ended)

    def __call__(self) -> float:
        """Return the quantile over the window that ends now; NaN with too few attempts."""
        self._forget()
        count = self._count - self._first
        if count < self._least:
            return math.nan
        rank = max(math.ceil(round(self._quantile * count, 9)), 1)
        return float(np.partition(self._inside(), rank - 1)[rank - 1])

    def _inside(self) -> NDArray[np.float64]:
        """Return the observations within the window."""
        values = np.frombuffer(self._values, dtype=np.float64)
        begin, end = self._first % MOST_SAMPLES, self._count % MOST_SAMPLES
        if begin < end:
            return values[begin:end]
        return np.concatenate((values[begin:], values[:end]))

    def _ended(self, attempt: Attempt) -> None:
        if self._class is not None and attempt.request.request_class != self._class:
            return
        if self._pool is not None and self._callers.gateway.pool_of(attempt) is not self._pool:
            return
        value = self._value(attempt)
        if not math.isnan(value):
            place = self._count % MOST_SAMPLES
            self._times[place], self._values[place] = attempt.finish_s, value
            self._count += 1

    def _forget(self) -> None:
        since_s, times = self._clock.now - self._window_s, self._times
        self._first = max(self._first, self._count - MOST_SAMPLES)
        while self._first < self._count and times[self._first % MOST_SAMPLES] <= since_s:
            self._first += 1

    def _value(self, attempt: Attempt) -> float:
        if attempt.outcome != "succeeded":
            return math.inf if attempt.outcome in {"timed_out", "failed"} else math.nan
        e2e_s = attempt.finish_s - attempt.intended_start_s
        if self._name == "e2e_s":
            return e2e_s
        ttft_s = self._callers.log.first_token_s(attempt) - attempt.intended_start_s
        if self._name == "ttft_s":
            return ttft_s
        more = attempt.output_tokens - 1
        return (e2e_s - ttft_s) / more if more > 0 else math.nan


class _ReplicaRates:
    """How fast a total of each replica grew since the last reading; a new replica has no rate."""

    def __init__(self, total: Callable[[Replica], float], pool: ServingPool, clock: Clock) -> None:
        self._total = total
        self._pool = pool
        self._clock = clock
        self._before: dict[str, float] = {}
        self._before_s = math.nan

    def __call__(self) -> ByReplica:
        now_s = self._clock.now
        now = {replica.name: self._total(replica) for replica in self._pool.in_service}
        before, passed_s = self._before, now_s - self._before_s
        self._before, self._before_s = now, now_s
        return {
            name: (total - before[name]) / passed_s
            for name, total in now.items()
            if name in before and passed_s > 0
        }


REPLICA_LEVELS: Mapping[str, Callable[[Replica], float]] = {
    "queue_length": lambda replica: len(replica.engine.waiting),
    "in_flight": lambda replica: replica.in_flight,
    "running": lambda replica: replica.engine.prefilling + replica.engine.decoding,
    "kv_usage_fraction": lambda replica: replica.engine.kv_usage_fraction,
}
REPLICA_TOTALS: Mapping[str, Callable[[Replica], float]] = {
    "busy_fraction": lambda replica: replica.busy_s,
    "output_tokens_per_s": lambda replica: replica.engine.output_tokens,
    "prefill_tokens_per_s": lambda replica: replica.engine.prefill_tokens,
    "preemptions_per_s": lambda replica: replica.engine.preemptions,
}


def _sum(name: str, pool: ServingPool) -> float:
    """Return the sum of a level over the replicas of a pool."""
    return float(sum(map(REPLICA_LEVELS[name], pool.replicas)))


def _totals(name: str, pool: ServingPool) -> Counts:
    """Return a total of each replica of a pool."""
    return {replica: REPLICA_TOTALS[name](replica) for replica in pool.replicas}


def _in_flight_per_replica(pool: ServingPool) -> float:
    held = [replica.in_flight for replica in pool.in_service]
    return sum(held) / len(held) if held else math.nan


def _kv_usage(pool: ServingPool) -> float:
    used = [r.engine.kv_usage_fraction for r in pool.in_service if r.engine.has_kv]
    return sum(used) / len(used) if used else math.nan


def _fragmentation(pool: ServingPool) -> float:
    spaces = [getattr(replica.engine, "kv", None) for replica in pool.in_service]
    shares = [s.external_fragmentation_fraction for s in spaces if isinstance(s, ContiguousSpace)]
    return max((share for share in shares if not math.isnan(share)), default=math.nan)


def _refused(pool: ServingPool) -> Counts:
    by_replica = {replica: float(replica.refused) for replica in pool.replicas}
    return by_replica | {pool: float(pool.queue.refused)}


_LEVELS: Mapping[str, Callable[[ServingPool], float]] = {
    "queue_length": lambda pool: float(len(pool.queue.line)) + _sum("queue_length", pool),
    "in_flight": partial(_sum, "in_flight"),
    "in_flight_per_replica": _in_flight_per_replica,
    "running": partial(_sum, "running"),
    "kv_usage_fraction": _kv_usage,
    "fragmentation_fraction": _fragmentation,
    "up": lambda pool: float(pool.up),
}
_TOTALS: Mapping[str, Callable[[ServingPool], Counts]] = {
    **{name: partial(_totals, name) for name in REPLICA_TOTALS},
    "arrivals_rps": lambda pool: {pool: float(pool.arrived)},
    "refused_rps": _refused,
}


def _known(name: str, readers: Mapping[str, Value]) -> Value:
    if name not in readers:
        raise ValueError(f"unknown metric {name!r}; known: {', '.join(readers)}")
    return readers[name]
