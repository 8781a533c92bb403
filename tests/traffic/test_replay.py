"""The busiest stretch of a trace, and more load from the same requests."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.schema import DataError
from capplan.traffic.curve import curve, levels
from capplan.traffic.replay import at_load, busiest, rate_rps, recorded_gaps
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


def test_recorded_gaps_pass_again_and_again_in_order_at_the_planned_rate():
    """Six requests, gaps 0 0 0 9 1 s, are half a request a second: at 2/s each gap is a quarter,
    and a mean gap of 0.5 s follows the last."""
    base = trace([0.0, 0.0, 0.0, 0.0, 9.0, 10.0])
    plan = curve([0.0, 30.0], [2.0, 2.0])
    times, rows = recorded_gaps(base, 6, plan, rng=np.random.default_rng(1))
    assert len(times) == pytest.approx(60, abs=6)
    assert (np.diff(rows) % 6 == 1).all()
    gaps = np.diff(times)[: 6 * 8].reshape(-1, 6)
    assert np.allclose(np.sort(gaps), np.sort([0.0, 0.0, 0.0, 2.25, 0.25, 0.5]))
    _, some = recorded_gaps(base, 5, plan, rng=np.random.default_rng(1))
    assert set(some) == {0, 1, 2, 3, 4}


def test_recorded_gaps_follow_a_rate_that_changes():
    base = trace(np.cumsum(np.random.default_rng(3).gamma(0.2, 5.0, 500)))
    plan = levels([0.0, 100.0, 200.0], [1.0, 9.0])
    counts = []
    for seed in range(40):
        times, _ = recorded_gaps(base, 500, plan, rng=np.random.default_rng(seed))
        counts.append([np.sum(times < 100), np.sum(times >= 100)])
    assert np.mean(counts, axis=0) == pytest.approx([100.0, 900.0], rel=0.1)


def test_gaps_of_one_instant_cannot_be_repeated():
    plan = curve([0.0, 30.0], [2.0, 2.0])
    with pytest.raises(DataError, match="apart in time"):
        recorded_gaps(trace([5.0, 5.0]), 10, plan, rng=np.random.default_rng(1))
