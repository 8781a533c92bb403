"""The autoscaler of a pool: reads its metrics, asks the algorithm, and tells the fleet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from capplan.scenario.metric_names import LATENCIES, LEVELS
from capplan.simulation import hpa
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.metrics import LatencyWindow, level, rate

if TYPE_CHECKING:
    from capplan.scenario.autoscaling import Autoscaler as Rules
    from capplan.scenario.autoscaling import ScalingMetric
    from capplan.simulation.caller import Callers
    from capplan.simulation.fleet import Fleet
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.replica import Replica

Sample = float | Mapping[str, float]
"""What a metric was: a number, or one by replica."""

MOST = 1e9
"""Stands for an infinite metric, such as the latency of requests that all time out."""
SCRAPE, SYNC, POLL = Rank.CHECK, Rank.CHECK + 1, Rank.CHECK + 2

_LEVELS: Mapping[str, Callable[[Replica], float]] = {
    "queue_length": lambda replica: len(replica.engine.waiting),
    "in_flight": lambda replica: replica.in_flight,
    "running": lambda replica: replica.engine.prefilling + replica.engine.decoding,
    "kv_usage_fraction": lambda replica: replica.engine.kv_usage_fraction,
}
_TOTALS: Mapping[str, Callable[[Replica], float]] = {
    "busy_fraction": lambda replica: replica.busy_s,
    "output_tokens_per_s": lambda replica: replica.engine.output_tokens,
    "prefill_tokens_per_s": lambda replica: replica.engine.prefill_tokens,
    "preemptions_per_s": lambda replica: replica.engine.preemptions,
}


class Autoscaler:
    """Wants more or fewer replicas, every ``sync_period_s``.

    Attributes
    ----------
    seen
        What each metric was when the autoscaler last looked: the mean over the replicas that
        showed it, or the number of the pool; NaN before.
    """

    def __init__(
        self, rules: Rules, *, fleet: Fleet, pool: ServingPool, callers: Callers, clock: Clock
    ) -> None:
        self.seen = [math.nan] * len(rules.metrics)
        self._rules = rules
        self._fleet = fleet
        self._clock = clock
        self._readers = [_reader(m, pool, callers, clock) for m in rules.metrics]
        self._samples: deque[tuple[float, list[Sample]]] = deque()
        self._least = max(rules.min_replicas, 1)
        self._limiter = hpa.Limiter(rules.behavior, least=self._least, most=rules.max_replicas)
        self._active_s = 0.0
        clock.at(0.0, SCRAPE, self._scrape, None)
        clock.at(rules.sync_period_s, SYNC, self._sync, None)
        if rules.event_driven is not None:
            clock.at(rules.event_driven.polling_interval_s, POLL, self._poll, None)

    def _scrape(self, _: None) -> None:
        """Read all metrics, and forget what is older than what is known by now."""
        now_s, rules = self._clock.now, self._rules
        self._samples.append((now_s, [read() for read in self._readers]))
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - rules.metric_lag_s:
            self._samples.popleft()
        self._clock.at(now_s + rules.scrape_interval_s, SCRAPE, self._scrape, None)

    def _known(self) -> Sequence[Sample] | None:
        """Return the newest samples that have arrived; None if none has."""
        known_s = self._clock.now - self._rules.metric_lag_s
        arrived = [sample for time_s, sample in self._samples if time_s <= known_s]
        return arrived[-1] if arrived else None

    def _sync(self, _: None) -> None:
        self._clock.at(self._clock.now + self._rules.sync_period_s, SYNC, self._sync, None)
        current = self._fleet.target
        if current == 0:
            return
        if not self._least <= current <= self._rules.max_replicas:
            self._fleet.scale_to(min(max(current, self._least), self._rules.max_replicas))
        elif (samples := self._known()) is not None:
            self._scale(current, samples)

    def _scale(self, current: int, samples: Sequence[Sample]) -> None:
        pairs = list(zip(self._rules.metrics, samples, strict=True))
        self.seen[:] = [_mean(sample) for _, sample in pairs]
        wanted = hpa.largest(current, [self._proposal(current, *pair) for pair in pairs])
        if wanted is not None:
            self._fleet.scale_to(self._limiter.limited(self._clock.now, current, wanted))

    def _proposal(self, current: int, metric: ScalingMetric, sample: Sample) -> int | None:
        target, tolerance = metric.target, self._rules.tolerance
        if isinstance(sample, Mapping):
            percent = metric.target_type == "Utilization"
            pods = self._pods(sample)
            return hpa.by_pods(
                current, pods, target=target, tolerance=tolerance, is_percent=percent
            )
        if math.isnan(sample):
            return None
        value = min(sample, MOST)
        if metric.target_type == "AverageValue":
            return hpa.by_total(current, value, target=target, tolerance=tolerance)
        ready = len(self._fleet.serving)
        return hpa.by_value(current, value, ready=ready, target=target, tolerance=tolerance)

    def _pods(self, sample: Mapping[str, float]) -> hpa.Pods:
        """Return the replicas by what is known of them.

        One that has no container yet is not ready; one that loads, is down, or was not read yet
        is missing; one that drains is being deleted.
        """
        serving = [member.name for member in self._fleet.serving]
        values = [sample[name] for name in serving if not math.isnan(sample.get(name, math.nan))]
        there = self._fleet.count("loading", "up")
        unready = self._fleet.count("asked", "provisioning", "pulling")
        return hpa.Pods(values=values, missing=there - len(values), unready=unready)

    def _poll(self, _: None) -> None:
        """Wake the pool while a trigger is active, and let it idle when none has been for long."""
        rules, now_s = self._rules, self._clock.now
        if (keda := rules.event_driven) is None:
            return
        self._clock.at(now_s + keda.polling_interval_s, POLL, self._poll, None)
        low = rules.min_replicas if keda.idle_replicas is None else keda.idle_replicas
        if self._is_active():
            self._active_s = now_s
            if self._fleet.target < self._least:
                self._fleet.scale_to(self._least)
        elif self._fleet.target > low < self._least and now_s - self._active_s > keda.cooldown_s:
            self._fleet.scale_to(low)

    def _is_active(self) -> bool:
        samples = self._known()
        if samples is None:
            return False
        pairs = zip(self._rules.metrics, samples, strict=True)
        numbers = [(m, s) for m, s in pairs if not isinstance(s, Mapping)]
        return any(sample > metric.activation for metric, sample in numbers)


def _reader(
    metric: ScalingMetric, pool: ServingPool, callers: Callers, clock: Clock
) -> Callable[[], Sample]:
    name = metric.metric
    if metric.source != "external":
        if name in _LEVELS:
            read = _LEVELS[name]
            return lambda: {replica.name: read(replica) for replica in pool.in_service}
        return _PodRates(_TOTALS[name], pool, clock)
    if name in LATENCIES:
        return LatencyWindow(
            name,
            quantile=metric.quantile,
            window_s=metric.window_s,
            callers=callers,
            clock=clock,
            pool=pool,
        )
    return level(name, pool) if name in LEVELS else rate(name, pool, clock)


class _PodRates:
    """How fast a total of each replica grows between two readings; who is new has no rate yet."""

    def __init__(self, total: Callable[[Replica], float], pool: ServingPool, clock: Clock) -> None:
        self._total = total
        self._pool = pool
        self._clock = clock
        self._before: dict[str, float] = {}
        self._before_s = math.nan

    def __call__(self) -> Mapping[str, float]:
        now_s = self._clock.now
        now = {replica.name: self._total(replica) for replica in self._pool.in_service}
        before, passed_s = self._before, now_s - self._before_s
        self._before, self._before_s = now, now_s
        return {
            name: (total - before[name]) / passed_s
            for name, total in now.items()
            if name in before and passed_s > 0
        }


def _mean(sample: Sample) -> float:
    if not isinstance(sample, Mapping):
        return sample
    known = [value for value in sample.values() if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
