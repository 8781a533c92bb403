import numpy as np
import pytest

from capplan.statistics import mser5


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
