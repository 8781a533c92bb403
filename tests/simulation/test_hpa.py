"""The autoscaler's algorithm against what the Kubernetes documentation says it does."""

from itertools import pairwise

import pytest

from capplan.scenario.autoscaling import (
    ScaleDownRules,
    ScaleUpRules,
    ScalingBehavior,
    ScalingPolicy,
)
from capplan.simulation.autoscaler import Limiter, Pods, by_pods, by_total, by_value, largest


def pods(policy_type, value, period_s=60.0):
    return ScalingPolicy(type=policy_type, value=value, period_s=period_s)


def limiter(*, least=1, most=1000, up=None, down=None):
    behavior = ScalingBehavior(
        scale_up=ScaleUpRules(**(up or {})), scale_down=ScaleDownRules(**(down or {}))
    )
    return Limiter(behavior, least=least, most=most)


def play(limits, current, desired, *, every_s, until_s):
    """Return the numbers of replicas over time, when the metrics always ask for the same."""
    seen, time_s = [current], 0.0
    while time_s < until_s:
        current = limits.limited(time_s, current, desired)
        seen.append(current)
        time_s += every_s
    return seen


@pytest.mark.parametrize(
    ("current", "value", "target", "expected"),
    [
        (4, 0.200, 0.100, 8),  # "if the current value is 200m and the desired 100m, doubled"
        (4, 0.050, 0.100, 2),  # "if the current value is instead 50m, halved"
        (4, 0.110, 0.100, 4),  # within the tolerance of 0.1
        (4, 0.0901, 0.100, 4),
        (4, 0.112, 0.100, 5),
        (50, 90.0, 75.0, 60),  # Kubernetes 1.33, "Configurable tolerance": 50 x (90/75) = 60
        (3, 1.0, 3.0, 1),
    ],
)
def test_replicas_are_current_times_metric_over_target(current, value, target, expected):
    known = Pods(values=[value] * current)
    assert by_pods(current, known, target=target, tolerance=0.1) == expected


def test_the_metric_is_the_mean_over_the_pods():
    assert by_pods(3, Pods(values=[0.1, 0.3, 0.5]), target=0.1, tolerance=0.1) == 9


def test_a_smaller_tolerance_scales_where_the_default_does_not():
    known = Pods(values=[0.105] * 20)
    assert by_pods(20, known, target=0.1, tolerance=0.1) == 20
    assert by_pods(20, known, target=0.1, tolerance=0.0) == 21


def test_utilisation_is_in_whole_percents_of_what_each_pod_has():
    known = Pods(values=[0.9] * 50)
    assert by_pods(50, known, target=75.0, tolerance=0.1, is_percent=True) == 60
    cut = Pods(values=[0.829, 0.829])
    assert by_pods(2, cut, target=75.0, tolerance=0.1, is_percent=True) == 2


# Cases of Kubernetes' own tests of its replica calculator, pkg/controller/podautoscaler/
# replica_calculator_test.go, with targets and levels as there.
@pytest.mark.parametrize(
    ("current", "known", "target", "expected"),
    [
        # TestReplicaCalcScaleUp: 30, 50, 70 % of a target of 30 % with 3 ready pods
        (3, Pods(values=[0.3, 0.5, 0.7]), 30.0, 5),
        # TestReplicaCalcScaleUpUnreadyLessScale: one of three not ready
        (3, Pods(values=[0.5, 0.7], unready=1), 30.0, 4),
        # TestReplicaCalcScaleUpUnreadyNoScale: two of three not ready
        (3, Pods(values=[0.4], unready=2), 30.0, 3),
        # TestReplicaCalcMissingMetricsNoChangeEq / Gt: at or above the target
        (2, Pods(values=[1.0], missing=1), 100.0, 2),
        (2, Pods(values=[1.9], missing=1), 100.0, 2),
        # TestReplicaCalcMissingMetricsNoChangeLt: 60 %, the missing one counts as 100 %
        (2, Pods(values=[0.6], missing=1), 100.0, 2),
        # TestReplicaCalcMissingMetricsUnreadyChange: 45 % of 50 %, the missing one has all of it
        (3, Pods(values=[0.45], missing=1, unready=1), 50.0, 3),
        # TestReplicaCalcMissingMetricsUnreadyScaleUp: 200 % of 50 %, both others count as 0
        (3, Pods(values=[2.0], missing=1, unready=1), 50.0, 4),
        # TestReplicaCalcMissingMetricsUnreadyScaleDown: two show 10 %, the missing one has 100 %
        (4, Pods(values=[0.1, 0.1], missing=1, unready=1), 50.0, 3),
    ],
)
def test_pods_that_show_nothing_damp_the_change(current, known, target, expected):
    found = by_pods(current, known, target=target, tolerance=0.1, is_percent=True)
    assert found == expected


@pytest.mark.parametrize(("is_percent", "target"), [(False, 1.0), (True, 100.0)])
def test_a_scale_down_never_ends_above_the_current_number(is_percent, target):
    """Four pods, of whom one shows nothing, where two are wanted: 0.625 of the target · 4 is 3."""
    known = Pods(values=[0.5] * 3, missing=1)
    assert by_pods(2, known, target=target, tolerance=0.1, is_percent=is_percent) == 2


def test_without_any_metric_nothing_is_proposed():
    assert by_pods(3, Pods(values=[], missing=3), target=1.0, tolerance=0.1) is None


def test_an_external_metric_is_divided_by_the_replicas_or_taken_as_it_is():
    assert by_total(3, 300.0, target=30.0, tolerance=0.1) == 10
    assert by_total(10, 305.0, target=30.0, tolerance=0.1) == 10
    assert by_total(0, 1.0, target=30.0, tolerance=0.1) == 1
    assert by_value(4, 30.0, ready=4, target=10.0, tolerance=0.1) == 12
    assert by_value(4, 30.0, ready=2, target=10.0, tolerance=0.1) == 6
    assert by_value(0, 25.0, ready=0, target=10.0, tolerance=0.1) == 3


def test_no_rounding_error_adds_a_replica():
    assert by_total(1, 0.3, target=0.1, tolerance=0.1) == 3
    assert by_pods(7, Pods(values=[0.7 * 3] * 7), target=0.7, tolerance=0.1) == 21


def test_the_largest_proposal_wins_and_an_unknown_one_only_holds_back_a_scale_down():
    assert largest(4, [2, 3, 6]) == 6
    assert largest(4, [2, None]) is None
    assert largest(4, [6, None]) == 6
    assert largest(4, [None]) is None


def test_80_replicas_go_as_the_documentation_says():
    """From 80 to 10 by 4 pods or 10 % a minute: 8 first, then 7.2 rounded up to 8, at last 4."""
    both = {"policies": (pods("Pods", 4), pods("Percent", 10)), "stabilization_window_s": 0.0}
    seen = play(limiter(down=both), 80, 10, every_s=60.0, until_s=1000.0)
    assert seen[:3] == [80, 72, 64]
    steps = [a - b for a, b in pairwise(seen)]
    assert all(step == 4 for n, step in zip(seen, steps, strict=False) if 14 <= n <= 40)
    assert all(step > 4 for n, step in zip(seen, steps, strict=False) if n > 40)
    assert seen[-1] == 10


def test_the_smaller_of_two_policies_goes_no_more_than_5_a_minute():
    """The documentation's "limit scale down rate": 10 % and 5 pods, selectPolicy Min."""
    rules = {
        "policies": (pods("Percent", 10), pods("Pods", 5)),
        "select_policy": "Min",
        "stabilization_window_s": 0.0,
    }
    seen = play(limiter(down=rules), 80, 1, every_s=60.0, until_s=300.0)
    assert seen == [80, 75, 70, 65, 60, 55]


def test_disabled_scales_down_never():
    rules = {"select_policy": "Disabled", "stabilization_window_s": 0.0}
    assert set(play(limiter(down=rules), 9, 1, every_s=15.0, until_s=600.0)) == {9}


def test_by_default_replicas_double_or_grow_by_4_every_15_s():
    assert play(limiter(), 1, 100, every_s=15.0, until_s=75.0) == [1, 5, 10, 20, 40, 80]
    assert play(limiter(most=25), 1, 100, every_s=15.0, until_s=75.0)[-1] == 25


def test_a_policy_counts_what_has_changed_within_its_period():
    rules = {"policies": (pods("Pods", 2, 60.0),)}
    seen = play(limiter(up=rules), 1, 10, every_s=15.0, until_s=135.0)
    assert seen == [1, 3, 3, 3, 3, 5, 5, 5, 5, 7]


def test_scaling_down_waits_for_the_highest_recommendation_of_5_minutes():
    seen = play(limiter(), 8, 2, every_s=15.0, until_s=330.0)
    assert seen[: 1 + 300 // 15] == [8] * (1 + 300 // 15)
    assert seen[-1] == 2


def test_the_window_takes_the_highest_recommendation_within_it():
    limits = limiter()
    for time_s, desired in [(0.0, 5), (15.0, 7), (30.0, 3)]:
        assert limits.limited(time_s, 10, desired) == 10
    assert limits.limited(301.0, 10, 3) == 7
    assert limits.limited(316.0, 7, 3) == 3


def test_a_window_of_scaling_up_takes_the_lowest_recommendation():
    limits = limiter(up={"stabilization_window_s": 60.0})
    assert limits.limited(0.0, 2, 9) == 2
    assert limits.limited(30.0, 2, 4) == 2
    assert limits.limited(61.0, 2, 9) == 4


def test_the_least_and_the_most_are_kept():
    down = {"stabilization_window_s": 0.0}
    assert limiter(least=3, down=down).limited(0.0, 5, 1) == 3
    assert limiter(most=6).limited(0.0, 5, 9) == 6
