"""What breakers and autoscalers read while a run goes on: by name, of a pool or of the gateway.

======================== ======================================================================
name                     of a pool
======================== ======================================================================
queue_length             requests that wait in its service queue and its scheduler queues
in_flight                requests that its replicas hold, waiting or running
in_flight_per_replica    of these, those of replicas in service, per replica in service
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

Of the gateway there are ``queue_length``, ``in_flight`` (passed on and not answered) and
``refused_rps`` (answers 4xx and 5xx).

What is not measured is NaN, never 0, so no comparison with it holds: a rate at the first reading
and where no time has passed, a level of a pool without a replica in service that has it, a
quantile of too few attempts.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from capplan.replica.contiguous import ContiguousSpace
from capplan.scenario.metric_names import LATENCIES, MOST_SAMPLES, samples_needed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from capplan.simulation.attempt import Attempt
    from capplan.simulation.caller import Callers
    from capplan.simulation.clock import Clock
    from capplan.simulation.gateway import GatewayHost
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.replica import Replica

Reading = Callable[[], float]
"""Reads a number now."""
Counts = Mapping[Hashable, float]
"""What has been counted since the start, by whoever counts."""
Value = TypeVar("Value")


def level(name: str, pool: ServingPool) -> Reading:
    """Return the reading of a pool's level; ValueError if there is none of that name."""
    read = _known(name, _LEVELS)
    return lambda: read(pool)


def rate(name: str, pool: ServingPool, clock: Clock) -> Reading:
    """Return the reading of a pool's rate since that reading's last call.

    Each reading remembers its own last call: give every rule one of its own. Raises ValueError
    if there is no rate of that name.
    """
    count = _known(name, _TOTALS)
    among = None
    if name == "busy_fraction":
        among = lambda: pool.in_service  # noqa: E731
    return Rate(lambda: count(pool), clock, among=among)


def gateway_reading(name: str, gateway: GatewayHost, clock: Clock) -> Reading:
    """Return a reading of the gateway; ValueError if there is none of that name."""
    known: dict[str, Callable[[], Reading]] = {
        "queue_length": lambda: lambda: float(len(gateway.queue.line)),
        "in_flight": lambda: lambda: float(gateway.in_flight),
        "refused_rps": lambda: Rate(lambda: {"gateway": gateway.statuses.total()}, clock),
    }
    if name not in known:
        msg = f"a reading of the gateway: one of {', '.join(known)}, got {name!r}"
        raise ValueError(msg)
    return known[name]()


class Rate:
    """How fast totals grew since the last call, per second; NaN at the first.

    Only who counts now is asked, so a replica that has gone takes what it counted since the last
    call with it, and one that has come since is compared with 0. With ``among``, the rate is the
    mean over those, each with its own total.
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
        who = list(now if self._among is None else self._among())
        grown = sum(now[one] - before.get(one, 0.0) for one in who)
        if self._among is None:
            return grown / passed_s
        return grown / passed_s / len(who) if who else math.nan


class LatencyWindow:
    """A quantile of the latency of the attempts that ended in the last seconds.

    From an attempt's intended start, as its caller saw it. An attempt that timed out or failed
    counts as +inf; one that was refused says nothing of how long service takes and does not
    count (else a rule that refuses would keep itself alive), nor does one whose caller left for
    another reason, nor the time per token of a single token.

    The quantile is the smallest observation that at least this share does not exceed. It needs
    ``min_samples`` of them; None = as many as leave one beyond it, 100 at the 99th percentile. Of
    more than ``MOST_SAMPLES`` in the window the last count.

    Watching begins when the window is made, and only then costs anything.
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
            msg = f"a latency: one of {', '.join(LATENCIES)}, got {name!r}"
            raise ValueError(msg)
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
        """How many were seen, and how many of them no longer count."""
        callers.listeners.append(self._ended)

    def __call__(self) -> float:
        """Return the quantile over the window that ends now; NaN with too few attempts."""
        import numpy as np

        self._forget()
        count = self._count - self._first
        if count < self._least:
            return math.nan
        rank = max(math.ceil(round(self._quantile * count, 9)), 1)
        return float(np.partition(self._inside(), rank - 1)[rank - 1])

    def _inside(self) -> NDArray[np.float64]:
        """Return what was seen within the window."""
        import numpy as np

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


def _of_replicas(read: Callable[[Replica], float]) -> Callable[[ServingPool], Counts]:
    return lambda pool: {replica: read(replica) for replica in pool.replicas}


def _queued(pool: ServingPool) -> float:
    return float(len(pool.queue.line) + sum(len(r.engine.waiting) for r in pool.replicas))


def _per_replica(pool: ServingPool) -> float:
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
    "queue_length": _queued,
    "in_flight": lambda pool: float(sum(replica.in_flight for replica in pool.replicas)),
    "in_flight_per_replica": _per_replica,
    "running": lambda pool: float(
        sum(r.engine.prefilling + r.engine.decoding for r in pool.replicas)
    ),
    "kv_usage_fraction": _kv_usage,
    "fragmentation_fraction": _fragmentation,
    "up": lambda pool: float(pool.up),
}

_TOTALS: Mapping[str, Callable[[ServingPool], Counts]] = {
    "busy_fraction": _of_replicas(lambda replica: replica.busy_s),
    "output_tokens_per_s": _of_replicas(lambda replica: replica.engine.output_tokens),
    "prefill_tokens_per_s": _of_replicas(lambda replica: replica.engine.prefill_tokens),
    "arrivals_rps": lambda pool: {pool: float(pool.arrived)},
    "refused_rps": _refused,
    "preemptions_per_s": _of_replicas(lambda replica: replica.engine.preemptions),
}


def _known(
    name: str, readers: Mapping[str, Callable[[ServingPool], Value]]
) -> Callable[[ServingPool], Value]:
    if name not in readers:
        msg = f"one of {', '.join(readers)}, got {name!r}"
        raise ValueError(msg)
    return readers[name]
