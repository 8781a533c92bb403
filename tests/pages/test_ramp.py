"""The same requests at rising loads, and the first promise that breaks."""

import pytest

from capplan import pages
from capplan.pages import ramp


@pytest.fixture(scope="module")
def page():
    return pages.open_page("chat-service", seed=1)


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
