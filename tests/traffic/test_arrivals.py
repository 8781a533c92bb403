import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from capplan.scenario.traffic import Even, GammaGaps, Modulated, Poisson, WeibullGaps
from capplan.traffic.arrivals import arrival_times_s, first_gap, gaps, modulated, weibull_shape
from capplan.traffic.curve import curve, levels
from capplan.traffic.streams import stream

LAWS = [
    Poisson(),
    GammaGaps(cv=0.4),
    GammaGaps(cv=3.0),
    Even(),
    WeibullGaps(cv=2.0),
    WeibullGaps(cv=0.5),
]
SEEDS = range(200)


def times(plan, law, seed=1, **options):
    return arrival_times_s(plan, law, rng=stream(seed, 0, 0), **options)


def assert_mean(values, expected):
    """Check that the expected value lies in the 99.9 % interval of the values' mean."""
    half = 3.29 * np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values) - expected) <= half + 1e-9


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_rate_is_unbiased_over_200_seeds_from_the_first_second(law):
    plan = levels([0, 10, 40, 60], [2.0, 10.0, 1.0])
    drawn = [times(plan, law, seed) for seed in SEEDS]
    assert_mean([len(t) for t in drawn], plan.expected)
    assert_mean([np.count_nonzero(t < 10) for t in drawn], 20.0)
    assert_mean([np.count_nonzero((t >= 10) & (t < 40)) for t in drawn], 300.0)


def test_poisson_gaps_of_a_draw_have_their_law_uncut():
    t = times(curve([0, 20_000], [1.0, 1.0]), Poisson())
    assert stats.kstest(np.diff(t), stats.expon().cdf).pvalue > 0.001


@pytest.mark.parametrize("cv", [0.4, 1.0, 3.0])
def test_gamma_gaps_have_their_law_uncut(cv):
    drawn = gaps(GammaGaps(cv=cv), 20_000, stream(1, 0, 0))
    assert stats.kstest(drawn, stats.gamma(cv**-2, scale=cv**2).cdf).pvalue > 0.001


def test_gaps_on_the_clock_of_a_ramp_are_exponential():
    plan = curve([0, 2000], [1.0, 9.0])
    counted = plan.expected_by(times(plan, Poisson()))
    assert stats.kstest(np.diff(counted), stats.expon().cdf).pvalue > 0.001


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_first_gap_is_the_rest_of_a_gap(law):
    first = [first_gap(law, stream(seed, 0, 0)) for seed in range(2000)]
    cv = {"poisson": 1.0, "even": 0.0}.get(law.kind) or getattr(law, "cv", 0.0)
    assert_mean(first, (1 + cv**2) / 2)


@pytest.mark.parametrize("cv", [0.4, 1.0, 2.5])
def test_the_cv_of_gaps_comes_back(cv):
    plan = curve([0, 2000], [5.0, 5.0])
    runs = [np.diff(times(plan, GammaGaps(cv=cv), seed)) for seed in range(30)]
    second_moment = [np.mean(g**2) * 25 for g in runs]
    assert_mean(second_moment, 1 + cv**2)


@pytest.mark.parametrize("cv", [0.05, 0.5, 1.0, 2.0, 20.0])
def test_weibull_gaps_have_mean_one_and_their_cv(cv):
    k = weibull_shape(cv)
    law = stats.weibull_min(k)
    assert law.std() / law.mean() == pytest.approx(cv, rel=1e-6)
    drawn = gaps(WeibullGaps(cv=cv), 20_000, stream(1, 0, 0))
    assert stats.kstest(drawn * law.mean(), law.cdf).pvalue > 0.001


MODULATED = Modulated(ratio=6.0, busy_s=20.0, calm_s=60.0)


def test_modulated_arrivals_have_the_planned_rate_over_200_seeds():
    plan = curve([0, 300], [4.0, 8.0])
    plans = [modulated(plan, MODULATED, rng=stream(seed, 0, 7)) for seed in SEEDS]
    drawn = [times(p, MODULATED, seed) for seed, p in zip(SEEDS, plans, strict=True)]
    assert_mean([len(t) for t in drawn], plan.expected)
    assert_mean([np.count_nonzero(t < 10) for t in drawn], float(plan.expected_by(10)))


def test_modulated_rates_alternate_in_their_ratio_for_their_times():
    found = modulated(curve([0, 50_000], [1.0, 1.0]), MODULATED, rng=stream(3, 0, 7))
    calm, busy = np.unique(found.rate_rps.round(12))
    assert busy / calm == pytest.approx(6)
    starts = found.time_s[::2]
    lasting = np.diff(np.append(starts, found.end_s))
    is_busy = found.rate_rps[::2] > 1
    assert np.all(is_busy[1:] != is_busy[:-1])
    assert_mean(lasting[is_busy][1:-1], 20.0)
    assert_mean(lasting[~is_busy][1:-1], 60.0)


def test_modulated_arrivals_are_more_dispersed_than_poisson():
    plan = modulated(curve([0, 5000], [5.0, 5.0]), MODULATED, rng=stream(3, 0, 7))
    counts = np.histogram(times(plan, MODULATED), bins=np.arange(0, 5001, 10))[0]
    assert counts.var() / counts.mean() > 5


def test_even_arrivals_are_evenly_spaced():
    t = times(curve([0, 100], [4.0, 4.0]), Even())
    assert len(t) == 400
    assert np.diff(t) == pytest.approx(0.25)


@given(limit=st.integers(1, 40_000), law=st.sampled_from(LAWS))
def test_fewer_requests_are_the_first_of_more(limit, law):
    plan = curve([0, 30_000], [1.0, 1.0])
    every, some = times(plan, law), times(plan, law, limit=limit)
    assert len(some) == min(limit, len(every))
    assert np.array_equal(some, every[:limit])


@given(law=st.sampled_from(LAWS), rate=st.floats(0, 30), seed=st.integers(0, 50))
def test_arrivals_are_in_order_and_inside_the_plan(law, rate, seed):
    plan = levels([0, 5, 10, 30], [rate, 0.0, rate])
    t = times(plan, law, seed)
    assert np.all(np.diff(t) >= 0)
    assert np.all((t >= 0) & (t <= 30) & ((t <= 5) | (t >= 10)))


def test_a_limit_below_one_is_an_error():
    with pytest.raises(ValueError, match="limit"):
        times(curve([0, 1], [1, 1]), Poisson(), limit=0)
