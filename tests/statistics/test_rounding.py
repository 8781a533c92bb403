import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.statistics import Estimate, round_to


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e5))
def test_rounding_never_moves_a_value_by_half_its_half_width(value, half_width):
    assert abs(float(round_to(value, half_width)) - value) <= 0.5 * half_width + 1e-9


@pytest.mark.parametrize(
    ("value", "half_width", "text"),
    [(0.98765, 0.003, "0.988"), (123456.0, 2000.0, "123000"), (5.0, 0.0, "5"), (2.5, 0.1, "2.50")],
)
def test_digits_follow_the_half_width(value, half_width, text):
    assert round_to(value, half_width) == text


def test_an_unbounded_estimate_still_prints():
    found = Estimate(
        value=1.5, low=-math.inf, high=math.inf, confidence=0.95, n=1, method="replications"
    )
    assert str(found) == "1.5 [-inf, inf]"
