"""The busiest stretch of a trace, and more load from the same requests."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.traffic.replay import at_load, busiest, rate_rps
from capplan.traffic.trace import from_frame


def trace(arrivals):
    n = len(arrivals)
    columns = {"arrival_s": arrivals, "prompt_tokens": [10] * n, "output_tokens": [5] * n}
    return from_frame(pd.DataFrame(columns))


@given(gaps=st.lists(st.floats(0, 100), min_size=3, max_size=40), wanted=st.integers(2, 40))
def test_no_stretch_of_as_many_requests_is_shorter_than_the_busiest(gaps, wanted):
    arrivals = np.cumsum(gaps)
    found = busiest(trace(arrivals), wanted).frame["arrival_s"].to_numpy()
    n = min(wanted, len(arrivals))
    assert len(found) == n
    spans = arrivals[n - 1 :] - arrivals[: len(arrivals) - n + 1]
    assert found[-1] - found[0] <= spans.min() + 1e-9


def test_a_load_factor_multiplies_the_rate_and_changes_nothing_else():
    calm = trace(np.arange(10.0))
    fast = at_load(calm, 2.0)
    assert rate_rps(fast) == pytest.approx(2 * rate_rps(calm))
    pd.testing.assert_frame_equal(
        fast.frame.drop(columns="arrival_s"), calm.frame.drop(columns="arrival_s")
    )
    assert np.isnan(rate_rps(trace([1.0])))
    with pytest.raises(ValueError, match="must be positive"):
        at_load(calm, 0.0)
