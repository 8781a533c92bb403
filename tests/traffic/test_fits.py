"""Laws fitted to gaps and lengths, and how they are told to fail."""

import numpy as np
import pytest
from scipy import stats

from capplan.traffic.arrivals import weibull_shape
from capplan.traffic.profile.fits import gap_fits, law_quantile, law_share, length_fit


def at(gaps):
    return np.concatenate([[0.0], np.cumsum(gaps)])


@pytest.mark.parametrize(
    ("law", "draw"),
    [
        ("exponential", lambda rng, n: rng.exponential(2.0, n)),
        ("gamma", lambda rng, n: rng.gamma(0.25, 8.0, n)),
        ("weibull", lambda rng, n: rng.weibull(weibull_shape(2.0), n)),
    ],
)
def test_the_law_that_was_drawn_from_comes_closest_and_holds(law, draw):
    fits = gap_fits(at(draw(np.random.default_rng(1), 20_000)))
    closest = fits[0] if law != "exponential" else next(f for f in fits if f.law == law)
    assert closest.law == law
    assert closest.holds
    assert closest.ks == min(fit.ks for fit in fits) or law == "exponential"


def test_a_law_that_does_not_fit_names_its_worst_point():
    """Gaps of 1 s and 9 s in turn: no smooth law stands at half the gaps below 5 s."""
    fits = gap_fits(at(np.tile([1.0, 9.0], 500)))
    assert not any(fit.holds for fit in fits)
    assert fits[0].worst_at in (1.0, 9.0)
    name, ratio = fits[0].worst_quantile()
    data, law = fits[0].quantiles[name]
    assert ratio == law / data != pytest.approx(1.0, rel=0.1)


def test_lognormal_lengths_give_back_their_law():
    drawn = np.ceil(np.random.default_rng(2).lognormal(np.log(300), 1.0, 50_000)).astype(np.int64)
    fit = length_fit(drawn)
    assert fit.holds
    assert fit.parameters["p50_tokens"] == pytest.approx(300, rel=0.03)
    assert fit.parameters["p95_tokens"] == pytest.approx(300 * np.exp(1.645), rel=0.03)
    assert fit.ks_bound == pytest.approx(1.358 / np.sqrt(50_000))


def test_whole_lengths_are_not_refuted_for_being_whole():
    """Rounded up, a law of few tokens has steps of 5 %; its smooth curve is not to blame."""
    drawn = np.ceil(np.random.default_rng(3).lognormal(np.log(15.5), 0.5, 20_000)).astype(np.int64)
    assert np.mean(drawn == 15) > 0.05
    assert length_fit(drawn).ks < 0.04


@pytest.mark.parametrize(
    ("law", "shape", "reference"),
    [
        ("exponential", 1.0, stats.expon(scale=3.0)),
        ("gamma", 0.4, stats.gamma(0.4, scale=3.0 / 0.4)),
        ("weibull", 0.7, stats.weibull_min(0.7, scale=3.0 / stats.weibull_min(0.7).mean())),
        ("lognormal", 0.9, stats.lognorm(0.9, scale=3.0)),
    ],
)
def test_laws_are_those_of_the_textbook(law, shape, reference):
    values, levels = np.array([0.01, 1.0, 3.0, 20.0]), np.array([0.01, 0.5, 0.99])
    assert law_share(law, 3.0, shape, values) == pytest.approx(reference.cdf(values))
    assert law_quantile(law, 3.0, shape, levels) == pytest.approx(reference.ppf(levels))


def test_too_few_or_equal_values_have_no_fit():
    assert gap_fits(np.arange(5.0)) == ()
    assert gap_fits(np.zeros(50)) == ()
    assert length_fit(np.arange(1, 10)) is None
    assert length_fit(np.full(100, 7)) is None
    assert [fit.law for fit in gap_fits(np.arange(50.0))] == ["exponential"]
