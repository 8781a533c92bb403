import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.statistics import (
    Estimate,
    batch_means,
    quantile,
    quantile_interval,
    quantiles,
    replication_mean,
    round_to,
    share_interval,
    trend,
)

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_quantiles_equal_numpys_for_finite_values(values, probability):
    expected = np.quantile(values, probability)
    assert quantile(values, probability) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=30), st.integers(0, 30), st.floats(0.0, 1.0))
def test_a_failure_as_infinity_never_lowers_a_quantile(values, failures, probability):
    censored = values + [math.inf] * failures
    assert quantile(censored, probability) >= quantile(values, probability) - 1e-6
    assert not math.isnan(quantile(censored, probability))


def test_quantiles_of_nothing_and_of_nan_are_nan():
    assert math.isnan(quantile([], 0.5))
    assert math.isnan(quantile([1.0, math.nan], 0.5))


def test_all_failures_have_infinite_quantiles():
    assert quantiles([math.inf] * 3, [0.01, 0.5]) == [math.inf, math.inf]


def test_order_statistics_interval_of_ten_values_by_the_binomial_table():
    # n = 10, p = 0.5: P(2 <= B <= 8) = 1 - 2 * 11/1024 = 0.979, ranks 2 and 9
    found = quantile_interval([float(i) for i in range(1, 11)], 0.5)
    assert (found.low, found.high) == (2.0, 9.0)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99])
def test_order_statistics_interval_covers_the_true_quantile_as_often_as_stated(probability):
    generator = np.random.default_rng(11)
    true = -math.log(1 - probability)
    runs, covered = 400, 0
    for _ in range(runs):
        found = quantile_interval(generator.exponential(size=600), probability)
        covered += found.low <= true <= found.high
    # 95 % stated, at least; three standard errors below, and not vacuously wide
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs) <= covered / runs < 1.0


def test_a_tail_quantile_from_too_few_values_has_no_upper_end():
    assert quantile_interval(range(100), 0.99).high == math.inf
    assert quantile_interval(range(1000), 0.99).high < math.inf
    assert quantile_interval(range(3), 0.01).low == -math.inf


def test_share_interval_is_clopper_pearsons():
    found = share_interval(8, 10)
    assert (found.low, found.high) == pytest.approx((0.4439, 0.9748), abs=5e-5)
    assert share_interval(0, 100).low == 0.0
    assert share_interval(0, 100).high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert share_interval(5, 5).high == 1.0
    assert math.isnan(share_interval(0, 0).value)


def test_more_successes_than_trials_is_an_error():
    with pytest.raises(ValueError, match=r"0\.\.3"):
        share_interval(4, 3)


def test_replication_interval_is_students():
    # textbook: Law 2015, example 4.27: ten values, mean 1.34, 90 % half-width 0.24
    values = [1.20, 1.50, 1.68, 1.89, 0.95, 1.49, 1.58, 1.55, 0.50, 1.09]
    found = replication_mean(values, confidence=0.90)
    assert found.value == pytest.approx(1.343, abs=1e-3)
    assert found.half_width == pytest.approx(0.24, abs=5e-3)


def test_one_replication_bounds_nothing():
    found = replication_mean([3.0])
    assert (found.value, found.low, found.high) == (3.0, -math.inf, math.inf)
    assert math.isnan(replication_mean([]).value)


def test_batch_means_widen_the_interval_of_an_autocorrelated_series():
    generator = np.random.default_rng(5)
    noise = generator.normal(size=20_000)
    series = np.empty_like(noise)
    series[0] = noise[0]
    for i in range(1, noise.size):
        series[i] = 0.9 * series[i - 1] + noise[i]
    found = batch_means(series)
    naive = replication_mean(series)
    assert found.low <= 0.0 <= found.high
    # theory: the standard error grows by sqrt((1 + 0.9) / (1 - 0.9)) = 4.4
    assert 2.5 < found.half_width / naive.half_width < 7.0


def test_too_short_a_run_bounds_nothing():
    assert batch_means([1.0] * 30).high == math.inf


def autocorrelated(generator, n, rho):
    series = generator.normal(size=n)
    for i in range(1, n):
        series[i] += rho * series[i - 1]
    return series


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_interval_of_a_trend_holds_the_true_slope_about_as_often_as_it_says(rho):
    """The inflation for lag one is approximate: at least 85 of 100 where 95 are stated."""
    generator = np.random.default_rng(7)
    x = np.arange(40.0)
    found = [trend(x, 0.3 * x + autocorrelated(generator, 40, rho)) for _ in range(200)]
    held = sum(one.low <= 0.3 <= one.high for one in found) / len(found)
    assert 0.85 <= held < 1.0


def test_two_levels_have_no_trend():
    assert math.isnan(trend([0.0, 1.0], [0.0, 1.0]).value)


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
    found = Estimate(value=1.5, low=-math.inf, high=math.inf, n=1)
    assert str(found) == "1.5 [-inf, inf]"
