"""What a closed loop can ask for at most: its users over their mean think time."""

import math

import pytest

from capplan.budget.loads import class_loads
from capplan.scenario.files import load_scenario

SHAPE = {
    "kind": "closed",
    "users": 50,
    "think": {"kind": "exponential", "mean_s": 20.0},
}


def rates(shape, **values):
    scenario = load_scenario(
        "mixed-modality", values={"traffic.shape": shape, "traffic.mix": [], **values}
    )
    return {name: load.rate_rps for name, load in class_loads(scenario).items()}, scenario


def test_the_rate_is_bounded_by_users_over_think_time_at_each_share():
    found, scenario = rates(SHAPE)
    assert sum(found.values()) == pytest.approx(50 / 20.0)
    shares = {c.name: c.share for c in scenario.classes}
    assert found["chat"] / found["image"] == pytest.approx(shares["chat"] / shares["image"])


def test_pauses_between_sessions_lower_the_bound():
    pause = {"session_requests": 4.0, "between_sessions": {"kind": "fixed", "seconds": 100.0}}
    found, _ = rates(SHAPE | pause)
    assert sum(found.values()) == pytest.approx(50 / (0.75 * 20.0 + 0.25 * 100.0))


def test_without_think_time_nothing_bounds_the_rate_and_it_is_unknown():
    found, _ = rates(SHAPE | {"think": {"kind": "fixed", "seconds": 0.0}}, requests=100)
    assert all(math.isnan(rate) for rate in found.values())
