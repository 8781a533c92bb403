import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.budget.loads import size_mean, size_quantile
from capplan.scenario.classes import ChoiceSize, FixedSize, LognormalSize
from capplan.traffic.laws import sizes

LAWS = [
    FixedSize(value=2.5),
    LognormalSize(p50=8.0, p95=25.0, max=30.0),
    LognormalSize(p50=8.0, p95=8.0, max=8.0),
    ChoiceSize(values=(0.26, 2.36, 1.05), weights=(30.0, 10.0, 60.0)),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_mean_and_quantiles_are_those_of_drawn_sizes(law):
    drawn = sizes(law, 40_000, np.random.default_rng(1))
    assert abs(drawn.mean() - size_mean(law)) <= 3.29 * drawn.std() / 200 + 1e-12
    for q in (0.2, 0.5, 0.95):
        at = size_quantile(law, q)
        half = 3.29 * np.sqrt(q * (1 - q) / len(drawn))
        assert np.mean(drawn < at - 1e-12) - half <= q <= np.mean(drawn <= at + 1e-12) + half


@given(law=st.sampled_from(LAWS), low=st.floats(0.01, 0.99), high=st.floats(0.01, 0.99))
def test_a_higher_quantile_is_never_smaller(law, low, high):
    assert size_quantile(law, min(low, high)) <= size_quantile(law, max(low, high))
