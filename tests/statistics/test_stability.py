import math

import numpy as np
import pytest

from capplan.statistics import mser5, stability


def queue(load, *, n=10_000, servers=1, seed=1):
    """Arrivals and departures of an M/M/c queue: rate ``load * servers``, service rate 1."""
    generator = np.random.default_rng(seed)
    arrival = np.cumsum(generator.exponential(1 / (load * servers), size=n))
    service = generator.exponential(1.0, size=n)
    free = [0.0] * servers
    departure = np.empty(n)
    for i in range(n):
        first = min(range(servers), key=free.__getitem__)
        free[first] = departure[i] = max(arrival[i], free[first]) + service[i]
    return arrival, departure


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
def test_a_queue_below_capacity_is_stable(load, seed):
    assert stability(*queue(load, seed=seed)).stable is True


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [1.1, 1.3, 2.0])
def test_a_queue_above_capacity_is_unstable(load, seed):
    found = stability(*queue(load, seed=seed))
    assert found.stable is False
    true = 1 - 1 / load  # the share of arrivals that is not worked off
    assert found.drift_fraction.low <= true * 1.05
    assert found.drift_fraction.high >= true * 0.95
    assert found.completion_ratio == pytest.approx(1 / load, abs=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_near_capacity_is_never_called_stable_above_nor_unstable_well_below(seed):
    assert stability(*queue(1.05, seed=seed)).stable is not True
    assert stability(*queue(0.9, seed=seed)).stable is not False


def test_littles_law_holds_in_a_stable_queue():
    assert abs(stability(*queue(0.7)).little_residual) < 0.05


def test_few_arrivals_are_no_evidence():
    found = stability(*queue(0.5, n=100))
    assert found.stable is None
    assert found.arrivals < 200
    assert stability([], []).stable is None


def test_a_request_still_inside_leaves_littles_law_unchecked_and_no_nan_in_the_reason():
    arrival, departure = queue(0.5)
    departure[5000] = math.nan
    found = stability(arrival, departure)
    assert found.stable is None
    assert found.reason == "a request is still inside: Little's law cannot be checked"
    departure[5000] = arrival[5000] + 1
    assert stability(arrival, departure).stable is True


def test_requests_that_never_leave_make_it_unstable():
    arrival, departure = queue(0.5)
    departure = np.where(np.arange(departure.size) % 3 == 0, math.nan, departure)
    assert stability(arrival, departure).stable is False


def test_the_fill_up_and_the_drain_are_not_judged():
    arrival = np.arange(0.0, 1000.0, 0.1)
    found = stability(arrival, arrival + 90.0)  # 900 inside, reached in the first tenth
    assert found.stable is True
    assert found.completion_ratio == pytest.approx(1.0, abs=0.01)


def test_unpaired_moments_are_an_error():
    with pytest.raises(ValueError, match="pair"):
        stability([1.0, 2.0], [3.0])


def test_a_decaying_transient_is_cut_where_it_drowns_in_the_noise():
    generator = np.random.default_rng(3)
    n = np.arange(2000)
    series = 10 + 40 * np.exp(-n / 50) + generator.normal(size=n.size)
    cut = mser5(series)
    # 40 exp(-n / 50) falls below the noise at n = 184
    assert 100 <= cut <= 400


def test_a_stationary_series_loses_little():
    series = np.random.default_rng(4).normal(size=2000)
    assert mser5(series) <= 200


def test_a_series_that_only_grows_never_settles():
    assert mser5(np.arange(500.0) ** 2) is None


@pytest.mark.parametrize("series", [[], [1.0] * 19, [np.inf] * 100])
def test_too_little_to_tell_is_none(series):
    assert mser5(series) is None


def test_the_score_is_the_definitions():
    series = np.random.default_rng(8).exponential(size=300)
    means = series.reshape(60, 5).mean(axis=1)
    scores = [
        ((means[d:] - means[d:].mean()) ** 2).sum() / (60 - d) ** 2 for d in range(60 - 5 + 1)
    ]
    best = int(np.argmin(scores))
    assert mser5(series) == (best * 5 if best <= 30 else None)
