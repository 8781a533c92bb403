"""Laws fitted to gaps and lengths: how far each is from the data, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from capplan.traffic.arrivals import weibull_shape
from capplan.traffic.laws import lognormal_sigma
from capplan.traffic.profile.arrivals import KS_5_PERCENT

LEAST_FOR_FIT = 20
SHAPE_RANGE_CV = (0.05, 50.0)
"""CVs for which shapes of gamma and Weibull laws are computed."""
COMPARED: Mapping[str, float] = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99,
                                 "p999": 0.999}  # fmt: skip
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A law fitted to data, and its distance from them."""

    law: str
    """``exponential``, ``gamma``, ``weibull`` or ``lognormal``."""
    parameters: Mapping[str, float]
    """Those of the law as a scenario states it: ``cv``, or ``p50_tokens`` and ``p95_tokens``."""
    scale: float
    shape: float
    """Mean and shape of the gaps; median and standard deviation of log lengths."""
    ks: float
    """Largest distance between the law's distribution function and the data's."""
    ks_bound: float
    """Distance that chance alone exceeds in 5 % of samples of a law stated beforehand; a law above
    it does not fit."""
    worst_at: float
    """Where that distance is."""
    quantiles: Mapping[str, tuple[float, float]]
    """Quantile → (the data's, the law's)."""

    @property
    def holds(self) -> bool:
        """Whether the distance stays within the bound."""
        return self.ks <= self.ks_bound

    def quantile(self, probability: npt.ArrayLike) -> Floats:
        """Return the law's quantiles."""
        return law_quantile(self.law, self.scale, self.shape, np.asarray(probability, np.float64))

    def worst_quantile(self) -> tuple[str, float]:
        """Return the quantile that the law misses by the largest factor, and law ÷ data there."""
        ratios = {
            name: fitted / data for name, (data, fitted) in self.quantiles.items() if data > 0
        }
        worst = max(ratios, key=lambda name: abs(math.log(max(ratios[name], 1e-300))))
        return worst, ratios[worst]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "law": self.law,
            "parameters": dict(self.parameters),
            "ks": self.ks,
            "ks_bound": self.ks_bound,
            "worst_at": self.worst_at,
            "holds": self.holds,
            "quantiles": {
                name: {"data": data, "law": law} for name, (data, law) in self.quantiles.items()
            },
        }


def gap_fits(arrival_s: Floats) -> tuple[Fit, ...]:
    """Return the gap laws that can be drawn, fitted by mean and CV, the closest first.

    Empty for fewer than twenty gaps, or if all requests come at once or in even steps.
    """
    gaps = np.sort(np.diff(arrival_s))
    if len(gaps) < LEAST_FOR_FIT or not gaps.mean() > 0:
        return ()
    mean, cv = float(gaps.mean()), float(gaps.std(ddof=1) / gaps.mean())
    laws: list[tuple[str, float, Mapping[str, float]]] = [("exponential", 1.0, {})]
    if SHAPE_RANGE_CV[0] <= cv <= SHAPE_RANGE_CV[1]:
        laws += [("gamma", cv**-2, {"cv": cv}), ("weibull", weibull_shape(cv), {"cv": cv})]
    fits = [_fit(gaps, law, mean, shape, stated) for law, shape, stated in laws]
    return tuple(sorted(fits, key=lambda fit: fit.ks))


def length_fit(tokens: npt.NDArray[np.int64]) -> Fit | None:
    """Return the lognormal law with the data's median and p95, as a class of a scenario has it.

    None for fewer than twenty requests, or if the two quantiles are equal.
    """
    ordered = np.sort(tokens)
    if len(ordered) < LEAST_FOR_FIT:
        return None
    p50, p95 = (float(np.quantile(ordered, p, method="inverted_cdf")) for p in (0.5, 0.95))
    if not 0 < p50 < p95:
        return None
    stated = {"p50_tokens": p50, "p95_tokens": p95}
    return _fit(ordered, "lognormal", p50, lognormal_sigma(p50, p95), stated)


def _fit(
    ordered: npt.NDArray[Any], law: str, scale: float, shape: float, stated: Mapping[str, float]
) -> Fit:
    """Return the fit; Source of the bound: Smirnov, Annals of Mathematical Statistics 19, 1948."""
    values, last = np.unique(ordered, return_index=True)
    n = len(ordered)
    below = last / n
    upto = np.append(below[1:], 1.0)
    # Lengths are whole and drawn ones are rounded up: the law just below k is that at k - 1.
    before = values - 1 if ordered.dtype.kind == "i" else values
    off = np.maximum(
        np.abs(law_share(law, scale, shape, values) - upto),
        np.abs(law_share(law, scale, shape, before) - below),
    )
    levels = np.array(list(COMPARED.values()))
    data = np.quantile(ordered, levels, method="inverted_cdf").tolist()
    fitted = law_quantile(law, scale, shape, levels)
    if ordered.dtype.kind == "i":
        fitted = np.ceil(fitted)
    return Fit(
        law=law,
        parameters=stated,
        scale=scale,
        shape=shape,
        ks=float(off.max()),
        ks_bound=KS_5_PERCENT / math.sqrt(n),
        worst_at=float(values[off.argmax()]),
        quantiles=dict(zip(COMPARED, zip(data, fitted.tolist(), strict=True), strict=True)),
    )


def law_share(law: str, scale: float, shape: float, values: npt.ArrayLike) -> Floats:
    """Return the share of a law at or below each value."""
    from scipy import special

    at = np.maximum(np.asarray(values, np.float64), 0.0) / scale
    if law == "lognormal":
        with np.errstate(divide="ignore"):
            return np.asarray(special.ndtr(np.log(at) / shape))
    if law == "gamma":
        return np.asarray(special.gammainc(shape, at * shape))
    shape = 1.0 if law == "exponential" else shape
    return np.asarray(-np.expm1(-((at * math.gamma(1 + 1 / shape)) ** shape)))


def law_quantile(law: str, scale: float, shape: float, probability: Floats) -> Floats:
    """Return the quantiles of a law; the inverse of :func:`law_share`.

    >>> law_quantile("lognormal", 100.0, 1.0, np.array([0.5])).tolist()
    [100.0]
    """
    from scipy import special

    if law == "lognormal":
        return np.asarray(scale * np.exp(shape * special.ndtri(probability)))
    if law == "gamma":
        return np.asarray(scale * special.gammaincinv(shape, probability) / shape)
    shape = 1.0 if law == "exponential" else shape
    return np.asarray(scale * (-np.log1p(-probability)) ** (1 / shape) / math.gamma(1 + 1 / shape))
