import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.scenario.shapes import (
    Calendar,
    Ramp,
    Replay,
    Sequence,
    Spike,
    Steady,
    Step,
    Sum,
    TimedShape,
    Wave,
    occasion,
)
from capplan.traffic.shapes import planned_rate


def plan(shape, duration_s=600.0, **options):
    return planned_rate(shape, duration_s=duration_s, **options)


def test_a_steady_rate_may_be_given_per_replica():
    assert plan(Steady(rate_rps=5.0)).expected == pytest.approx(3000)
    assert plan(Steady(rate_rps=5.0, per_replica=True), replicas=3).peak_rps == pytest.approx(15)
    assert plan(Steady(rate_rps=5.0), replicas=3).peak_rps == pytest.approx(5)


def test_steps_hold_each_level_ramp_between_and_end_with_the_last():
    shape = Step(start_rps=10.0, factor=2.0, steps=3, hold_s=100.0, ramp_s=20.0)
    at = [0, 99, 110, 120, 219, 230, 240, 339, 340]
    assert plan(shape, 600.0).rate_at(at) == pytest.approx([10, 10, 15, 20, 20, 30, 40, 40, 0])
    assert plan(shape).end_s == pytest.approx(340)
    assert plan(shape, 150.0).end_s == pytest.approx(150)


def test_steps_without_a_ramp_jump():
    shape = Step(start_rps=1.0, factor=3.0, steps=2, hold_s=10.0)
    assert plan(shape, 60.0).rate_at([9.99, 10]) == pytest.approx([1, 3])


def test_a_spike_bursts_for_its_time_at_its_period():
    shape = Spike(base_rps=2.0, peak_rps=8.0, burst_s=30.0, every_s=200.0, first_s=60.0)
    at = [0, 59, 60, 89, 90, 259, 260, 289, 290, 460, 489, 490]
    assert plan(shape, 600.0).rate_at(at) == pytest.approx([2, 2, 8, 8, 2, 2, 8, 8, 2, 8, 8, 2])
    assert plan(shape).expected == pytest.approx(2 * 600 + 6 * 90)


def test_a_burst_at_the_start_or_cut_by_the_end_keeps_its_rate():
    shape = Spike(base_rps=1.0, peak_rps=4.0, burst_s=30.0, every_s=30.0, first_s=0.0)
    assert plan(shape, 100.0).expected == pytest.approx(400)
    late = Spike(base_rps=1.0, peak_rps=4.0, burst_s=30.0, every_s=100.0, first_s=90.0)
    assert plan(late, 100.0).expected == pytest.approx(90 + 40)


@pytest.mark.parametrize("steep", [{"ramp_s": 20.0}, {"ramp_rps_per_s": 0.5}])
def test_a_ramp_rises_at_its_rate_and_holds_its_target(steep):
    shape = Ramp(start_rps=2.0, target_rps=12.0, **steep)
    assert shape.rate_of_rise() == pytest.approx(0.5)
    assert plan(shape, 60.0).rate_at([0, 10, 20, 59]) == pytest.approx([2, 7, 12, 12])
    assert plan(shape, 10.0).expected == pytest.approx(45)


def test_a_falling_ramp_falls():
    shape = Ramp(start_rps=12.0, target_rps=2.0, ramp_rps_per_s=1.0)
    assert shape.rate_of_rise() == pytest.approx(-1)
    assert plan(shape, 60.0).rate_at([5, 30]) == pytest.approx([7, 2])


@pytest.mark.parametrize("steep", [{}, {"ramp_s": 1.0, "ramp_rps_per_s": 1.0}])
def test_a_ramp_needs_one_way_to_say_how_steep_it_is(steep):
    with pytest.raises(ValueError, match="one of ramp_s and ramp_rps_per_s"):
        Ramp(start_rps=1.0, target_rps=2.0, **steep)


def test_a_wave_swings_about_its_mean():
    shape = Wave(rate_rps=10.0, amplitude_fraction=0.4, period_s=400.0)
    at = [0, 100, 200, 300]
    assert plan(shape, 800.0).rate_at(at) == pytest.approx([10, 14, 10, 6])
    assert plan(shape, 800.0).expected == pytest.approx(8000)
    half = 2000 + 4 * 400 / np.pi
    assert plan(shape, 200.0).expected == pytest.approx(half, rel=1e-3)


DAY_S = 86_400.0
OFFICE = Calendar(
    rate_rps=2.0,
    hours=(0.0,) * 8 + (3.0,) * 10 + (0.0,) * 6,
    weekdays=(1.0,) * 5 + (0.5, 0.0),
    holidays=(2, 5),
    holiday_factor=0.25,
)


def test_a_calendar_day_has_its_mean_and_its_pattern():
    day = plan(OFFICE, DAY_S)
    assert day.expected == pytest.approx(2 * DAY_S)
    hours = np.array([3, 7.5, 12, 17.5, 20]) * 3600
    assert day.rate_at(hours) == pytest.approx([0, 2.4, 4.8, 2.4, 0])


def test_weekdays_and_holidays_have_their_factors():
    week = plan(OFFICE, 7 * DAY_S)
    by_day = np.diff(week.expected_by(np.arange(8) * DAY_S)) / (2 * DAY_S)
    assert by_day == pytest.approx([1, 1, 0.25, 1, 1, 0.25, 0])


def test_a_calendar_starts_on_its_day_and_hour():
    shape = OFFICE.model_copy(update={"start_weekday": 4, "start_hour": 11.5, "holidays": (2,)})
    rates = plan(shape, 3 * DAY_S).rate_at(np.array([0, 24, 48]) * 3600.0)
    assert rates == pytest.approx([4.8, 2.4, 4.8 * 0.25])


def test_a_sequence_plays_its_parts_one_after_the_other():
    steps = Step(start_rps=1.0, factor=2.0, steps=2, hold_s=20.0)
    parts = (
        TimedShape(shape=Steady(rate_rps=5.0), duration_s=100.0),
        TimedShape(shape=steps, duration_s=50.0),
        TimedShape(shape=Steady(rate_rps=3.0), duration_s=10.0),
    )
    found = plan(Sequence(parts=parts), 600.0)
    at = [0, 99, 100, 119, 121, 139, 145, 155]
    assert found.rate_at(at) == pytest.approx([5, 5, 1, 1, 2, 2, 0, 3])
    assert found.end_s == pytest.approx(160)
    assert found.expected == pytest.approx(500 + 20 + 40 + 30)


def test_a_sum_adds_rates():
    shape = Sum(parts=(Steady(rate_rps=2.0), Wave(rate_rps=4.0), Spike(base_rps=1.0, peak_rps=9.0)))
    assert plan(shape, 600.0).rate_at([0, 65, 150]) == pytest.approx(
        [7, 2 + 4 + 2 * np.sin(2 * np.pi * 65 / 600) + 9, 2 + 6 + 1], rel=2e-3
    )


@pytest.mark.parametrize(("name", "kind"), [("promotion", "spike"), ("iteration", "wave")])
def test_an_occasion_runs_between_base_and_peak(name, kind):
    shape = occasion(name, base_rps=5.0, peak_rps=20.0)
    assert shape.kind == kind
    rates = plan(shape, 1800.0).rate_rps
    assert (rates.min(), rates.max()) == pytest.approx((5, 20), rel=0.01)


def test_a_release_goes_through_all_four_shapes():
    shape = occasion("release", base_rps=5.0, peak_rps=20.0)
    assert [part.shape.kind for part in shape.parts] == ["steady", "step", "spike", "wave"]
    found = plan(shape, 3600.0)
    assert found.end_s == pytest.approx(3600)
    assert found.peak_rps == pytest.approx(20)


@pytest.mark.parametrize(
    ("name", "peak"), [("party", 20.0), ("promotion", 5.0)], ids=["unknown", "no peak"]
)
def test_an_occasion_that_makes_no_sense_is_an_error(name, peak):
    with pytest.raises(ValueError, match=r"occasion|peak_rps"):
        occasion(name, base_rps=5.0, peak_rps=peak)


SHAPES = st.one_of(
    st.builds(Steady, rate_rps=st.floats(0.01, 100)),
    st.builds(
        Step,
        start_rps=st.floats(0.01, 20),
        factor=st.floats(0.5, 2),
        steps=st.integers(1, 6),
        hold_s=st.floats(1, 300),
        ramp_s=st.floats(0, 100),
    ),
    st.builds(
        Spike,
        base_rps=st.floats(0.01, 20),
        peak_rps=st.floats(0.01, 60),
        burst_s=st.floats(1, 30),
        every_s=st.floats(30, 300),
        first_s=st.floats(0, 300),
    ),
    st.builds(
        Ramp, start_rps=st.floats(0.1, 9), target_rps=st.floats(0.1, 9), ramp_s=st.floats(1, 900)
    ),
    st.builds(
        Wave,
        rate_rps=st.floats(0.1, 9),
        amplitude_fraction=st.floats(0.01, 0.99),
        period_s=st.floats(5, 900),
    ),
    st.builds(Calendar, rate_rps=st.floats(0.1, 9), start_hour=st.floats(0, 23.9)),
)


@given(shape=SHAPES, duration_s=st.floats(1, 1000))
def test_a_plan_ends_by_the_duration_and_stays_between_its_rates(shape, duration_s):
    found = plan(shape, duration_s)
    assert 0 < found.end_s <= duration_s
    rates = found.rate_at(np.linspace(0, found.end_s, 200, endpoint=False))
    assert np.all(rates > 0)
    assert np.all(rates <= found.peak_rps * (1 + 1e-12))


def test_a_replay_has_no_planned_rate():
    with pytest.raises(ValueError, match="replay"):
        plan(Replay())


@pytest.mark.parametrize("options", [{"duration_s": 0.0}, {"duration_s": 9.0, "replicas": 0}])
def test_a_duration_or_replicas_that_are_not_positive_are_an_error(options):
    with pytest.raises(ValueError, match="positive"):
        planned_rate(Steady(rate_rps=1.0), **options)
