"""The autoscaler of a pool: the algorithm of the HorizontalPodAutoscaler (``autoscaling/v2``).

First each metric proposes a number of replicas and the largest proposal is taken; then it is
stabilised over the recent recommendations; last, the policies limit how far the number moves. The
controller reads the metrics and sets the target of the fleet.

Sources: Kubernetes, "Horizontal Pod Autoscaling", sections "Algorithm details" and "Configurable
scaling behavior"; where these leave it open, Kubernetes 1.34,
``pkg/controller/podautoscaler/replica_calculator.go`` (missing and unready pods, a whole number of
thousandths) and ``horizontal.go`` (order of stabilisation and policies, start of a period).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from capplan.scenario.autoscaling import (
    Autoscaler,
    EventDriven,
    ScaleDownRules,
    ScaleUpRules,
    ScalingBehavior,
    ScalingMetric,
    ScalingPolicy,
)
from capplan.scenario.metric_names import LATENCIES
from capplan.simulation.attempt import Gauge
from capplan.simulation.callers import Callers
from capplan.simulation.clock import Clock, Events, Rank
from capplan.simulation.fleet import Fleet
from capplan.simulation.metrics import LatencyWindow, pool_reading, replica_reading
from capplan.simulation.pool import ServingPool

Sample = float | Mapping[str, float]
"""A reading of a metric: one number, or one by replica."""

INFINITE = 1e9
"""Stands for an infinite metric, such as the latency of requests that all time out."""
SCRAPE, SYNC, POLL = Rank.CHECK, Rank.CHECK + 1, Rank.CHECK + 2
MILLI = 1000


def milli(value: float) -> int:
    """Return a quantity in whole thousandths, rounded up as Kubernetes does.

    >>> milli(0.2), milli(0.0001)
    (200, 1)
    """
    return math.ceil(round(value * MILLI, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of a target: values of those that show the metric, and counts of the others.

    ``missing`` pods run without a value, ``unready`` ones have not started; pods that are being
    deleted count in neither.
    """

    values: Sequence[float]
    missing: int = 0
    unready: int = 0


def by_pods(
    current: int, pods: Pods, *, target: float, tolerance: float, is_percent: bool = False
) -> int | None:
    """Return the replicas that the mean over the pods asks for; None if no pod shows it.

    A missing pod counts as at the target if that limits a scale-down, and as 0 if that limits a
    scale-up; an unready pod counts as 0 for a scale-up. If this turns the direction, nothing
    changes. With ``is_percent``, values are shares of 1, ``target`` is in percent, and the mean is
    cut to whole percents.

    >>> by_pods(4, Pods(values=[0.2] * 4), target=0.1, tolerance=0.1)
    8
    >>> by_pods(4, Pods(values=[0.05] * 4), target=0.1, tolerance=0.1)
    2
    """
    if not pods.values:
        return None
    total = sum(milli(value) for value in pods.values)
    full, aim = (MILLI, target) if is_percent else (milli(target), milli(target))

    def ratio(total: int, count: int) -> float:
        return (total * 100 // (count * MILLI) if is_percent else total // count) / aim

    count = len(pods.values)
    first = ratio(total, count)
    rebalanced = pods.unready if first > 1 else 0
    if not rebalanced and not pods.missing:
        return current if _is_near(first, tolerance) else math.ceil(_clean(first * count))
    missing = 0 if first == 1 else pods.missing
    total += missing * full if first < 1 else 0
    count += missing + rebalanced
    again = ratio(total, count)
    turned = (first - 1) * (again - 1) < 0
    if _is_near(again, tolerance) or turned:
        return current
    proposed = math.ceil(_clean(again * count))
    return current if (proposed - current) * (again - 1) < 0 else proposed


def by_total(current: int, total: float, *, target: float, tolerance: float) -> int:
    """Return the replicas for a metric of the pool, divided by their number (AverageValue).

    >>> by_total(2, 30.0, target=10.0, tolerance=0.1)
    3
    """
    total_milli, target_milli = milli(total), milli(target)
    if current and _is_near(total_milli / (target_milli * current), tolerance):
        return current
    return -(-total_milli // target_milli)


def by_value(current: int, value: float, *, ready: int, target: float, tolerance: float) -> int:
    """Return the replicas for a metric of the pool, undivided (Value); ``ready`` of them serve.

    >>> by_value(3, 0.8, ready=3, target=0.4, tolerance=0.1)
    6
    """
    ratio = milli(value) / milli(target)
    if current == 0:
        return math.ceil(ratio)
    return current if _is_near(ratio, tolerance) else math.ceil(_clean(ratio * ready))


def largest(current: int, proposals: Sequence[int | None]) -> int | None:
    """Return the largest proposal; None (no change) if one is unknown and none asks for more.

    >>> largest(3, [2, 5]), largest(3, [2, None]), largest(3, [5, None])
    (5, None, 5)
    """
    known = [proposal for proposal in proposals if proposal is not None]
    if not known or (len(known) < len(proposals) and max(known) < current):
        return None
    return max(known)


class Limiter:
    """Stabilises recommendations and limits changes by the policies; remembers both."""

    def __init__(self, behavior: ScalingBehavior, *, least: int, most: int) -> None:
        self._up, self._down = behavior.scale_up, behavior.scale_down
        self._least, self._most = least, most
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def limited(self, now_s: float, current: int, desired: int) -> int:
        """Return how many replicas are wanted now, given what the metrics ask for."""
        if not self._recommended:
            self._recommended.append((now_s, current))
        wanted = self._by_policies(now_s, current, self._stabilised(now_s, current, desired))
        if wanted != current:
            self._changes.append((now_s, wanted - current))
        return wanted

    def _stabilised(self, now_s: float, current: int, desired: int) -> int:
        """Return the current number, moved no further than all of each window agree on."""
        up = down = desired
        up_s, down_s = self._up.stabilization_window_s, self._down.stabilization_window_s
        for time_s, recommended in self._recommended:
            if time_s > now_s - up_s:
                up = min(up, recommended)
            if time_s > now_s - down_s:
                down = max(down, recommended)
        self._recommended.append((now_s, desired))
        since_s = now_s - max(up_s, down_s)
        self._recommended = [one for one in self._recommended if one[0] > since_s]
        return min(max(current, up), down)

    def _by_policies(self, now_s: float, current: int, desired: int) -> int:
        longest_s = max(p.period_s for p in (*self._up.policies, *self._down.policies))
        self._changes = [one for one in self._changes if one[0] > now_s - longest_s]
        if desired > current:
            most = max(self._allowed(now_s, current, self._up, sign=1), current)
            return min(desired, most, self._most)
        if desired < current:
            least = min(self._allowed(now_s, current, self._down, sign=-1), current)
            return max(desired, least, self._least)
        return desired

    def _allowed(
        self, now_s: float, current: int, rules: ScaleUpRules | ScaleDownRules, *, sign: int
    ) -> int:
        """Return how far the policies let the number go up (``sign`` 1) or down (-1)."""
        if rules.select_policy == "Disabled":
            return current
        reached = [
            self._reached(policy, current - self._changed(now_s, policy.period_s), sign)
            for policy in rules.policies
        ]
        farthest = (rules.select_policy == "Max") == (sign > 0)
        return max(reached) if farthest else min(reached)

    def _changed(self, now_s: float, period_s: float) -> int:
        return sum(change for time_s, change in self._changes if time_s > now_s - period_s)

    @staticmethod
    def _reached(policy: ScalingPolicy, begin: int, sign: int) -> int:
        """Return where a policy ends, from the number at the beginning of its period."""
        if policy.type == "Pods":
            return begin + sign * policy.value
        reached = _clean(begin * (1 + sign * policy.value / 100))
        return math.ceil(reached) if sign > 0 else int(reached)


def _is_near(ratio: float, tolerance: float) -> bool:
    return abs(1.0 - ratio) <= tolerance + 1e-12


def _clean(value: float) -> float:
    """Return a number without its last digits, which hold rounding errors."""
    return round(value, 9)


class ScalingController:
    """Sets the target of a fleet, every ``sync_period_s``.

    Attributes
    ----------
    seen
        Each metric at the last reading: the mean over the replicas that show it, or the number of
        the pool; NaN before.
    """

    def __init__(
        self, rules: Autoscaler, *, fleet: Fleet, pool: ServingPool, callers: Callers, clock: Clock
    ) -> None:
        self.seen = [math.nan] * len(rules.metrics)
        self._rules = rules
        self._fleet = fleet
        self._clock = clock
        self._readers = [_reader(m, pool, callers, clock) for m in rules.metrics]
        self._samples: deque[tuple[float, list[Sample]]] = deque()
        self._least = max(rules.min_replicas, 1)
        self._limiter = Limiter(rules.behavior, least=self._least, most=rules.max_replicas)
        clock.process(self._scrape())
        clock.process(self._sync())
        if rules.event_driven is not None:
            clock.process(self._poll(rules.event_driven))

    def gauges(self) -> Iterable[Gauge]:
        """Yield the metrics of the timeline: name, reading, and whether it is a total."""
        for index, metric in enumerate(self._rules.metrics):
            yield f"scaling_{metric.metric}", partial(self.seen.__getitem__, index), False

    def _scrape(self) -> Events:
        """Read all metrics; drop samples that newer ones replace."""
        rules, time_s = self._rules, 0.0
        while True:
            yield self._clock.until(time_s, SCRAPE)
            self._samples.append((time_s, [read() for read in self._readers]))
            while len(self._samples) > 1 and self._samples[1][0] <= time_s - rules.metric_lag_s:
                self._samples.popleft()
            time_s += rules.scrape_interval_s

    def _known(self) -> Sequence[Sample] | None:
        """Return the newest samples that have arrived; None = none has."""
        known_s = self._clock.now - self._rules.metric_lag_s
        arrived = [sample for time_s, sample in self._samples if time_s <= known_s]
        return arrived[-1] if arrived else None

    def _sync(self) -> Events:
        """Set the target, as a running pool needs it."""
        rules, fleet = self._rules, self._fleet
        while True:
            yield self._clock.until(self._clock.now + rules.sync_period_s, SYNC)
            current = fleet.target
            if current and not self._least <= current <= rules.max_replicas:
                fleet.scale_to(min(max(current, self._least), rules.max_replicas))
            elif current and (samples := self._known()) is not None:
                self._scale(current, samples)

    def _scale(self, current: int, samples: Sequence[Sample]) -> None:
        pairs = list(zip(self._rules.metrics, samples, strict=True))
        self.seen[:] = [_mean(sample) for _, sample in pairs]
        wanted = largest(current, [self._proposal(current, *pair) for pair in pairs])
        if wanted is not None:
            self._fleet.scale_to(self._limiter.limited(self._clock.now, current, wanted))

    def _proposal(self, current: int, metric: ScalingMetric, sample: Sample) -> int | None:
        target, tolerance = metric.target, self._rules.tolerance
        if isinstance(sample, Mapping):
            percent = metric.target_type == "Utilization"
            pods = self._pods(sample)
            return by_pods(current, pods, target=target, tolerance=tolerance, is_percent=percent)
        if math.isnan(sample):
            return None
        value = min(sample, INFINITE)
        if metric.target_type == "AverageValue":
            return by_total(current, value, target=target, tolerance=tolerance)
        ready = len(self._fleet.serving)
        return by_value(current, value, ready=ready, target=target, tolerance=tolerance)

    def _pods(self, sample: Mapping[str, float]) -> Pods:
        """Return the replicas as pods.

        A replica without a container is unready; one that loads, is down or was not read yet is
        missing; a draining one is being deleted.
        """
        serving = [member.name for member in self._fleet.serving]
        values = [sample[name] for name in serving if not math.isnan(sample.get(name, math.nan))]
        there = self._fleet.count("loading", "up")
        unready = self._fleet.count("asked", "provisioning", "pulling")
        return Pods(values=values, missing=there - len(values), unready=unready)

    def _poll(self, keda: EventDriven) -> Events:
        """Activate the pool while a trigger is active; idle it after ``cooldown_s`` without."""
        fleet, active_s = self._fleet, 0.0
        low = self._rules.min_replicas if keda.idle_replicas is None else keda.idle_replicas
        while True:
            yield self._clock.until(self._clock.now + keda.polling_interval_s, POLL)
            now_s = self._clock.now
            if self._is_active():
                active_s = now_s
                if fleet.target < self._least:
                    fleet.scale_to(self._least)
            elif fleet.target > low < self._least and now_s - active_s > keda.cooldown_s:
                fleet.scale_to(low)

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
    if metric.source != "external":
        return replica_reading(metric.metric, pool, clock)
    if metric.metric in LATENCIES:
        return LatencyWindow(
            metric.metric,
            quantile=metric.quantile,
            window_s=metric.window_s,
            callers=callers,
            clock=clock,
            pool=pool,
        )
    return pool_reading(metric.metric, pool, clock)


def _mean(sample: Sample) -> float:
    if not isinstance(sample, Mapping):
        return sample
    known = [value for value in sample.values() if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
