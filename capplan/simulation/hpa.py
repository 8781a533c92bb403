"""The algorithm of the HorizontalPodAutoscaler (``autoscaling/v2``), without a cluster.

First each metric proposes a number of replicas, the largest proposal is taken, then it is
stabilised over the recent recommendations, and last the policies limit how far the number moves.

Sources: Kubernetes, "Horizontal Pod Autoscaling", sections "Algorithm details" and "Configurable
scaling behavior"; where these leave it open, Kubernetes 1.34,
``pkg/controller/podautoscaler/replica_calculator.go`` (missing and unready pods, a whole number of
thousandths) and ``horizontal.go`` (order of stabilisation and policies, start of a period).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capplan.scenario.autoscaling import (
    ScaleDownRules,
    ScaleUpRules,
    ScalingBehavior,
    ScalingPolicy,
)

MILLI = 1000


def milli(value: float) -> int:
    """Return a quantity in whole thousandths, rounded up as Kubernetes does.

    >>> milli(0.2), milli(0.0001)
    (200, 1)
    """
    return math.ceil(round(value * MILLI, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What is known of a target's pods: values of those that show the metric, and the others.

    ``missing`` run and show nothing, ``unready`` have not started; pods that are being deleted
    are in neither.
    """

    values: Sequence[float]
    missing: int = 0
    unready: int = 0


def by_pods(
    current: int, pods: Pods, *, target: float, tolerance: float, is_percent: bool = False
) -> int | None:
    """Return the replicas that the mean over the pods asks for; None if no pod shows it.

    A pod that shows nothing counts as being at the target where that holds back a scale-down, and
    as 0 where it holds back a scale-up; so does a pod that is not ready for a scale-up. If this
    turns the direction, nothing changes. ``is_percent``: values are shares of 1 and ``target`` is
    in percent; their mean is cut to whole percents.

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
    """Return the replicas for a metric of the whole, divided by their number (AverageValue).

    >>> by_total(2, 30.0, target=10.0, tolerance=0.1)
    3
    """
    total_milli, target_milli = milli(total), milli(target)
    if current and _is_near(total_milli / (target_milli * current), tolerance):
        return current
    return -(-total_milli // target_milli)


def by_value(current: int, value: float, *, ready: int, target: float, tolerance: float) -> int:
    """Return the replicas for a metric of the whole, as it is (Value); ``ready`` of them serve.

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
    """Stabilises recommendations and holds changes within the policies; remembers both."""

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
    """Return a number without the last digits, in which rounding errors live."""
    return round(value, 9)
