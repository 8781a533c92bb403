"""Phases say what the planned rate does; the two are written down apart and must agree."""

import numpy as np
import pytest

from capplan.scenario.files import load_scenario, with_values
from capplan.scenario.shapes import (
    Calendar,
    Ramp,
    Sequence,
    Spike,
    Steady,
    Step,
    Sum,
    TimedShape,
    Wave,
)
from capplan.scenario.traffic import Bursts, Traffic
from capplan.traffic.shapes import burst_windows, planned_rate

DAY_S = 86400.0
HOURS = (0.2,) * 8 + (1.0,) * 4 + (2.0,) * 6 + (1.0,) * 6
SPIKE = Spike(base_rps=2.0, peak_rps=9.0, first_s=40.0, burst_s=7.0, every_s=60.0)
WAVE = Wave(rate_rps=5.0, amplitude_fraction=0.4, period_s=100.0)
STEPS = Step(start_rps=1.0, factor=2.0, steps=3, hold_s=50.0, ramp_s=10.0)


def phases(shape, times, **fields):
    return Traffic(shape=shape, **fields).phases(np.asarray(times, dtype=float))


@pytest.fixture(name="times")
def _times():
    return np.linspace(0.013, 0.999, 700) * 700.0


def rates(shape, times, duration_s=700.0):
    return planned_rate(shape, duration_s=duration_s).rate_at(times)


def test_a_burst_is_where_the_planned_rate_is_the_peak(times):
    assert (rates(SPIKE, times) == 9.0).tolist() == (phases(SPIKE, times) == "burst").tolist()
    assert set(phases(SPIKE, times)) == {"base", "burst"}


def test_a_crest_is_where_the_planned_rate_is_above_the_mean(times):
    away = np.abs(rates(WAVE, times) - 5.0) > 1e-3
    crest = phases(WAVE, times) == "crest"
    assert (rates(WAVE, times) > 5.0)[away].tolist() == crest[away].tolist()
    assert 0.4 < crest.mean() < 0.6


def test_a_level_has_its_rate_and_a_ramp_has_none(times):
    times = times[times < 170]
    found = phases(STEPS, times)
    for n, rate in enumerate((1.0, 2.0, 4.0), 1):
        assert set(rates(STEPS, times)[found == f"level {n}"]) == {rate}
    between = rates(STEPS, times)[found == "ramp"]
    assert ((between > 1.0) & (between < 4.0)).all()
    assert set(found) == {"level 1", "level 2", "level 3", "ramp"}


def test_a_ramp_ends_where_the_target_is_reached(times):
    shape = Ramp(start_rps=1.0, target_rps=5.0, ramp_s=300.0)
    reached = phases(shape, times) == "steady"
    assert (rates(shape, times) == 5.0).tolist() == reached.tolist()


def test_busy_hours_are_those_at_the_mean_of_a_plain_day_or_above():
    shape = Calendar(
        rate_rps=3.0, hours=HOURS, weekdays=(1.0,) * 5 + (0.1,) * 2, start_weekday=3,
        start_hour=5.5, holidays=(5,), holiday_factor=0.0,
    )  # fmt: skip
    times = np.arange(0.0, 7 * DAY_S - 1, 613.0)
    planned = rates(shape, times, duration_s=7 * DAY_S)
    away = np.abs(planned - 3.0) > 1e-9
    busy = phases(shape, times) == "busy hours"
    assert (planned > 3.0)[away].tolist() == busy[away].tolist()
    weekend = (times > 2 * DAY_S) & (times < 3 * DAY_S)
    assert not busy[weekend].any()
    assert busy.any()


def test_a_sequence_names_its_parts_and_a_sum_those_that_do_something(times):
    parts = tuple(TimedShape(shape=s, duration_s=200.0) for s in (Steady(rate_rps=1.0), SPIKE))
    found = phases(Sequence(parts=parts), times)
    assert found[times < 200].tolist() == ["part 1: steady"] * int((times < 200).sum())
    second = (times >= 200) & (times < 400)
    own = [f"part 2: {phase}" for phase in phases(SPIKE, times[second] - 200.0)]
    assert found[second].tolist() == own
    assert set(found[times >= 400]) == {"after the plan"}
    both = phases(Sum(parts=(Steady(rate_rps=1.0), SPIKE, WAVE)), times)
    assert set(both) == {f"{a} + {b}" for a in ("base", "burst") for b in ("crest", "trough")}
    assert set(phases(Sum(parts=(Steady(rate_rps=1.0),)), times)) == {"steady"}


def test_bursts_that_perturb_a_shape_are_bursts(times):
    burst = Bursts(burst_s=20.0, every_s=150.0, first_s=30.0)
    windows = burst_windows(700.0, burst_s=20.0, every_s=150.0, first_s=30.0)
    found = phases(WAVE, times, perturbations=(burst,))
    assert (windows.rate_at(times) > 0).tolist() == (found == "burst").tolist()
    assert set(found) == {"burst", "crest", "trough"}


def test_a_replay_is_recorded_and_users_ramp_up_before_they_are_steady(times):
    chat = load_scenario("chat-service")
    assert set(chat.traffic.phases(times)) == {"recorded"}
    users = {"kind": "closed", "users": 5, "ramp_s": 90.0, "think": {"kind": "fixed", "seconds": 1}}
    closed = with_values(chat, {"traffic.shape": users})
    found = closed.traffic.phases(times)
    assert set(found[times < 90]) == {"ramp"}
    assert set(found[times >= 90]) == {"steady"}
    assert closed.traffic.phases(np.zeros(0)).tolist() == []
