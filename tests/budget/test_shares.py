import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.budget import WAITING, rebalance
from capplan.budget.backward import divide
from capplan.budget.loads import length_moment, length_quantile
from capplan.scenario.classes import FixedLength, LognormalLength
from capplan.scenario.layers import BudgetRule, Weights

SHARE = st.floats(0.0, 100.0)


def test_equal_gives_each_layer_a_quarter():
    assert set(divide(2.0, 0.1, BudgetRule(rule="equal")).values()) == {0.5}


def test_weights_divide_by_the_weights():
    rule = BudgetRule(rule="weights", weights=Weights(gateway_queue=0, service_queue=2))
    shares = divide(4.0, 0.1, rule)
    assert [shares[layer] for layer in WAITING] == [0.0, 2.0, 1.0, 1.0]


def test_proportional_gives_the_window_its_need_first():
    rule = BudgetRule(weights=Weights(gateway_queue=1, service_queue=2, scheduler_queue=1))
    shares = divide(1.0, 0.2, rule)
    assert [shares[layer] for layer in WAITING] == pytest.approx([0.2, 0.4, 0.2, 0.2])


def test_a_window_that_needs_more_than_remains_takes_it_all():
    shares = divide(0.1, 0.5, BudgetRule())
    assert shares["batch_window"] == 0.1
    assert shares["service_queue"] == 0.0


@pytest.mark.parametrize("remaining", [0.0, -1.0, math.nan])
def test_nothing_that_remains_is_not_a_share_of_zero(remaining):
    assert all(math.isnan(share) for share in divide(remaining, 0.1, BudgetRule()).values())


@given(parts=st.lists(SHARE, min_size=4, max_size=4), fraction=st.floats(0.0, 1.0))
def test_moving_a_share_keeps_the_sum_and_the_proportions_of_the_others(parts, fraction):
    shares = dict(zip(WAITING, parts, strict=True))
    moved = rebalance(shares, "service_queue", fraction * sum(parts))
    assert sum(moved.values()) == pytest.approx(sum(parts))
    assert moved["service_queue"] == fraction * sum(parts)
    assert min(moved.values()) >= 0
    a, b = "gateway_queue", "batch_window"
    assert moved[a] * shares[b] == pytest.approx(moved[b] * shares[a], abs=1e-6)


@pytest.mark.parametrize(("layer", "new_s"), [("decode", 1.0), ("gateway_queue", -0.1),
                                              ("gateway_queue", 5.0)])  # fmt: skip
def test_a_share_that_cannot_be_is_an_error(layer, new_s):
    with pytest.raises(ValueError, match="must"):
        rebalance(dict.fromkeys(WAITING, 1.0), layer, new_s)


def test_others_of_zero_get_equal_parts():
    shares = {"a": 1.0, "b": 0.0, "c": 0.0}
    assert rebalance(shares, "a", 0.5) == {"a": 0.5, "b": 0.25, "c": 0.25}


def test_quantiles_and_moments_are_those_of_drawn_lengths():
    import numpy as np

    law = LognormalLength(p50_tokens=1000, p95_tokens=4000, max_tokens=5000)
    rng = np.random.default_rng(1)
    sigma = math.log(4) / 1.6448536
    drawn = np.exp(rng.normal(math.log(1000), sigma, 400_000))
    drawn = drawn[drawn <= 5000]
    error = 3 / math.sqrt(len(drawn))
    for order in (1, 2):
        values = drawn**order
        assert abs(values.mean() - length_moment(law, order)) < error * values.std()
    for q in (0.1, 0.5, 0.95, 0.99):
        assert (drawn <= length_quantile(law, q)).mean() == pytest.approx(q, abs=2 * error)


def test_a_law_without_spread_is_a_fixed_length():
    flat = LognormalLength(p50_tokens=70, p95_tokens=70)
    assert length_quantile(flat, 0.99) == length_quantile(FixedLength(tokens=70), 0.99) == 70
    assert length_moment(flat, 2) == 4900.0
