"""The busiest stretch, more load on the same requests, a ramp."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan import pages
from capplan.pages import ramp
from capplan.pages.loads import at_load, busiest, rate_rps
from capplan.traffic.trace import from_frame


def trace(arrivals):
    n = len(arrivals)
    columns = {"arrival_s": arrivals, "prompt_tokens": [10] * n, "output_tokens": [5] * n}
    return from_frame(pd.DataFrame(columns))


@pytest.fixture(scope="module")
def page():
    return pages.open_page("chat-service", seed=1)


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


def test_more_load_never_gives_a_larger_share_of_good_requests(page):
    found = ramp.raise_load(page, [0.5, 6.0], requests=1200)
    low, high = found.steps
    assert high.load_rps == pytest.approx(12 * low.load_rps)
    shares = found.flows().query("figure == 'goodput'")
    share = (shares["flow_rps"] / shares["load_rps"]).tolist()
    assert share[0] > share[1]
    assert found.first_degradation.load_rps == high.load_rps
    assert found.acceptable_rps == low.load_rps
    flows = found.flows()
    assert (flows["low"] <= flows["flow_rps"] + 1e-9).all()
    assert (flows["flow_rps"] <= flows["high"] + 1e-9).all()
    assert found.outcomes().groupby("load_rps")["share_fraction"].sum().tolist() == pytest.approx(
        [1, 1]
    )


def test_ttft_is_told_of_streamed_answers_only(page):
    found = ramp.raise_load(page, [0.5], requests=600)
    streaming = {c.name for c in page.scenario.classes if c.streaming}
    assert set(found.latencies("ttft")["request_class"]) == streaming
    assert set(found.latencies("e2e")["request_class"]) > streaming


def test_steps_are_even_multiples():
    assert ramp.even_steps(0.5, 2.0, 3) == [0.5, 1.0, 2.0]
    with pytest.raises(ValueError, match="0 < lowest"):
        ramp.even_steps(2.0, 1.0, 3)
