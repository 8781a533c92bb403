import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.scenario.traffic import Replay, Spike, Steady, Step
from capplan.traffic.shapes import planned_rate, rate_at


def plan(shape, duration_s=600.0, **options):
    return planned_rate(shape, duration_s=duration_s, **options)


def test_a_steady_rate_may_be_given_per_replica():
    assert plan(Steady(rate_rps=5.0)).expected == pytest.approx(3000)
    assert plan(Steady(rate_rps=5.0, per_replica=True), replicas=3).peak_rps == pytest.approx(15)
    assert plan(Steady(rate_rps=5.0), replicas=3).peak_rps == pytest.approx(5)


def test_steps_hold_each_level_ramp_between_and_end_with_the_last():
    shape = Step(start_rps=10.0, factor=2.0, steps=3, hold_s=100.0, ramp_s=20.0)
    at = [0, 99, 110, 120, 219, 230, 240, 339, 340]
    assert rate_at(shape, at, duration_s=600.0) == pytest.approx(
        [10, 10, 15, 20, 20, 30, 40, 40, 0]
    )
    assert plan(shape).end_s == pytest.approx(340)
    assert plan(shape, 150.0).end_s == pytest.approx(150)


def test_steps_without_a_ramp_jump():
    shape = Step(start_rps=1.0, factor=3.0, steps=2, hold_s=10.0)
    assert rate_at(shape, [9.99, 10], duration_s=60.0) == pytest.approx([1, 3])


def test_a_spike_bursts_for_its_time_at_its_period():
    shape = Spike(base_rps=2.0, peak_rps=8.0, burst_s=30.0, every_s=200.0, first_s=60.0)
    at = [0, 59, 60, 89, 90, 259, 260, 289, 290, 460, 489, 490]
    assert rate_at(shape, at, duration_s=600.0) == pytest.approx(
        [2, 2, 8, 8, 2, 2, 8, 8, 2, 8, 8, 2]
    )
    assert plan(shape).expected == pytest.approx(2 * 600 + 6 * 90)


def test_a_burst_at_the_start_or_cut_by_the_end_keeps_its_rate():
    shape = Spike(base_rps=1.0, peak_rps=4.0, burst_s=30.0, every_s=30.0, first_s=0.0)
    assert plan(shape, 100.0).expected == pytest.approx(400)
    late = Spike(base_rps=1.0, peak_rps=4.0, burst_s=30.0, every_s=100.0, first_s=90.0)
    assert plan(late, 100.0).expected == pytest.approx(90 + 40)


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
