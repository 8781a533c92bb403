import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.traffic.curve import RateCurve, curve, levels

RATE = st.floats(0, 50)


@st.composite
def curves(draw, min_rate=0.0):
    n = draw(st.integers(2, 8))
    widths = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0, 40.0]), min_size=n - 1, max_size=n - 1))
    if not any(widths):
        widths[0] = 1.0
    rates = draw(st.lists(st.floats(min_rate, 50), min_size=n, max_size=n))
    return curve(np.concatenate([[0.0], np.cumsum(widths)]), rates)


@given(plan=curves(min_rate=0.01), share=st.floats(0, 1))
def test_the_inverse_undoes_the_integral(plan, share):
    count = share * plan.expected
    assert plan.expected_by(plan.time_of(count)) == pytest.approx(count, rel=1e-9, abs=1e-9)


@given(plan=curves(), share=st.floats(0, 1))
def test_the_inverse_holds_where_the_rate_touches_zero(plan, share):
    count = share * plan.expected
    time = plan.time_of(count)
    assert 0 <= time <= plan.end_s
    assert plan.expected_by(time) == pytest.approx(count, rel=1e-6, abs=1e-6)


@given(plan=curves())
def test_the_expected_number_is_the_area_under_the_rate(plan):
    inner = np.unique(np.concatenate([plan.time_s, np.linspace(0, plan.end_s, 50)]))
    middles = (inner[1:] + inner[:-1]) / 2
    area = np.cumsum(np.diff(inner) * plan.rate_at(middles))
    assert plan.expected_by(inner[1:]) == pytest.approx(area, rel=1e-9, abs=1e-9)


@given(plan=curves(), share=st.floats(0.01, 1))
def test_cutting_a_plan_keeps_what_came_before(plan, share):
    end = share * plan.end_s
    cut = plan.until(end)
    assert cut.end_s == pytest.approx(end)
    assert cut.expected == pytest.approx(float(plan.expected_by(end)), rel=1e-9, abs=1e-9)


@given(a=curves(), b=curves())
def test_the_sum_of_two_plans_expects_the_sum(a, b):
    both = a.plus(b)
    t = np.linspace(0, both.end_s, 20)
    assert both.expected_by(t) == pytest.approx(
        a.expected_by(t) + b.expected_by(t), rel=1e-9, abs=1e-7
    )


def test_a_product_with_levels_scales_each_part():
    ramp = curve([0, 10], [0, 10])
    both = ramp.times(levels([0, 5, 10], [1, 3]))
    assert both.expected_by([5, 10]) == pytest.approx([12.5, 12.5 + 3 * 37.5])


def test_a_product_of_two_slopes_is_an_error():
    ramp = curve([0, 10], [0, 10])
    with pytest.raises(ValueError, match="constant in each piece"):
        ramp.times(ramp)


def test_a_jump_belongs_to_what_follows_and_nothing_lies_outside():
    plan = levels([0, 10, 20], [1, 5])
    assert plan.rate_at([-1, 0, 9.99, 10, 19.9, 20]) == pytest.approx([0, 1, 1, 5, 5, 0])
    assert plan.expected_by([-5, 30]) == pytest.approx([0, 60])
    assert np.isnan(plan.time_of([-1, 61])).all()


@pytest.mark.parametrize(
    ("time", "rate"),
    [([0], [1]), ([0, 1], [1]), ([1, 0], [1, 1]), ([0, 1], [-1, 1]), ([0, 1], [np.nan, 1])],
)
def test_knots_that_break_a_rule_are_an_error(time, rate):
    with pytest.raises(ValueError, match="rate curve"):
        RateCurve(time_s=np.array(time, float), rate_rps=np.array(rate, float))


def test_plans_that_share_no_time_cannot_be_combined():
    with pytest.raises(ValueError, match="share no time"):
        curve([0, 1], [1, 1]).plus(curve([2, 3], [1, 1]))
