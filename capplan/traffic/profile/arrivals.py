"""Arrivals: rate, burstiness at every scale, the pattern of a day, drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

SCALES_S = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
PEAK_WINDOW_S = 60.0
SURGE_S = 5.0
"""Window of the highest rate, s: about as long as a queue takes to fill; this project's own."""
LEAST_WINDOWS = 10
LEAST_FOR_DRIFT = 20
MOST_WINDOWS = 50_000_000
KS_5_PERCENT = 1.358
"""Factor of the 5 % bound of a Kolmogorov–Smirnov distance, times the root of 1/n."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalStatistics:
    """Rate and burstiness of one stream of arrivals."""

    requests: int
    duration_s: float
    rate_rps: float
    """Requests, the observation window, and the rate in it."""
    gap_cv: float
    """Coefficient of variation of the gaps; 1 for a Poisson stream."""
    index_of_dispersion: Mapping[str, float]
    """Scale (s) → variance ÷ mean of the counts; 1 for a Poisson stream, NaN for fewer than ten
    windows of that scale."""
    peak_to_mean_60s: float
    """Fullest aligned minute ÷ mean minute; NaN for less than a minute."""
    highest_rps_5s: float
    """Requests a second of the fullest 5 s, wherever they begin; NaN for less than that."""


def arrivals(
    arrival_s: Floats, *, start_s: float, duration_s: float, rate_rps: float
) -> ArrivalStatistics:
    """Return the rate and burstiness of sorted arrivals, observed from ``start_s``."""
    since = arrival_s - start_s
    return ArrivalStatistics(
        requests=len(arrival_s),
        duration_s=duration_s,
        rate_rps=rate_rps,
        gap_cv=gap_cv(arrival_s),
        index_of_dispersion={
            f"{scale:g}": index_of_dispersion(since, scale, duration_s) for scale in SCALES_S
        },
        peak_to_mean_60s=peak_to_mean(since, PEAK_WINDOW_S, duration_s),
        highest_rps_5s=highest_rps(arrival_s, SURGE_S) if duration_s >= SURGE_S else math.nan,
    )


def gap_cv(arrival_s: Floats) -> float:
    """Return standard deviation ÷ mean of the gaps; NaN below two gaps.

    >>> gap_cv(np.array([0.0, 1.0, 2.0, 3.0]))
    0.0
    """
    return variation(np.diff(arrival_s))


def variation(gaps: Floats) -> float:
    """Return standard deviation ÷ mean; NaN below two values."""
    if len(gaps) < 2 or gaps.mean() == 0:  # noqa: PLR2004
        return math.nan
    return float(gaps.std(ddof=1) / gaps.mean())


def counts(since_s: Floats, width_s: float, duration_s: float) -> npt.NDArray[np.intp]:
    """Return requests per complete window of ``width_s`` from the start."""
    n = int(duration_s / width_s + 1e-9)
    if n < 1 or n > MOST_WINDOWS:
        return np.empty(0, np.intp)
    at = np.floor(since_s / width_s).astype(np.intp)
    return np.bincount(at[(at >= 0) & (at < n)], minlength=n)


def index_of_dispersion(since_s: Floats, width_s: float, duration_s: float) -> float:
    """Return variance ÷ mean of the counts in windows; NaN for fewer than ten windows.

    Source: Cox and Lewis, "The Statistical Analysis of Series of Events", 1966, section 4.5.
    """
    return dispersion(counts(since_s, width_s, duration_s))


def dispersion(per_window: npt.NDArray[np.intp]) -> float:
    """Return variance ÷ mean of counts; NaN for fewer than ten, or none above zero."""
    if len(per_window) < LEAST_WINDOWS or not per_window.any():
        return math.nan
    return float(per_window.var(ddof=1) / per_window.mean())


def peak_to_mean(since_s: Floats, width_s: float, duration_s: float) -> float:
    """Return the fullest window ÷ the mean window; NaN for less than one window."""
    per_window = counts(since_s, width_s, duration_s)
    if not per_window.any():
        return math.nan
    return float(per_window.max() / per_window.mean())


def highest_rps(arrival_s: Floats, width_s: float) -> float:
    """Return the requests a second of the fullest window of a width; NaN without requests.

    >>> highest_rps(np.array([0.0, 4.0, 6.0, 7.0, 8.0]), 5.0)
    0.8
    """
    inside = np.searchsorted(arrival_s, arrival_s + width_s) - np.arange(len(arrival_s))
    return float(inside.max()) / width_s if inside.size else math.nan


def time_of_day(since_s: Floats, duration_s: float, start: datetime | None) -> dict[str, Any]:
    """Return the rate per hour of the day (UTC), or per hour from the start if that is unknown.

    Keys: ``known`` and ``rate_rps`` by hour, without the hours outside the observation window.
    From two weeks on, ``weekday_rate_rps`` by weekday, Monday 0.
    """
    midnight = start or datetime(2000, 1, 1)
    offset = midnight.hour * 3600 + midnight.minute * 60 + midnight.second
    offset_s = offset + midnight.microsecond / 1e6
    found: dict[str, Any] = {
        "known": start is not None,
        "rate_rps": _cycle(since_s, duration_s, offset_s, 3600.0, 24),
    }
    if start is not None and duration_s >= 14 * 86400:
        week_s = offset_s + start.weekday() * 86400
        found["weekday_rate_rps"] = _cycle(since_s, duration_s, week_s, 86400.0, 7)
    return found


def _cycle(
    since_s: Floats, duration_s: float, offset_s: float, slot_s: float, slots: int
) -> dict[str, float]:
    hit = np.bincount(((since_s + offset_s) // slot_s).astype(np.intp) % slots, minlength=slots)
    first, last = offset_s / slot_s, (offset_s + duration_s) / slot_s
    edges = np.arange(math.floor(first), math.ceil(last) + 1)
    observed = np.minimum(edges[1:], last) - np.maximum(edges[:-1], first)
    seconds = np.bincount(edges[:-1].astype(np.intp) % slots, observed * slot_s, slots)
    return {str(i): float(hit[i] / seconds[i]) for i in range(slots) if seconds[i] > 0}


def drift(
    since_s: Floats, prompt: npt.NDArray[np.int64], output: npt.NDArray[np.int64], duration_s: float
) -> dict[str, Any]:
    """Return how the second half of the trace differs from the first.

    ``rate_ratio`` and the ratios of mean lengths are second ÷ first half. ``prompt_ks`` and
    ``output_ks`` are Kolmogorov–Smirnov distances of the lengths of the halves with their 5 %
    bound for independent values; ``lengths_drift``: whether one is above it. NaN and None for
    fewer than twenty requests in a half.

    Source: Smirnov, "Table for Estimating the Goodness of Fit of Empirical Distributions", 1948.
    """
    late = since_s >= duration_s / 2
    early_n, late_n = int((~late).sum()), int(late.sum())
    if min(early_n, late_n) < LEAST_FOR_DRIFT:
        names = ("rate_ratio", "prompt_ratio", "output_ratio", "prompt_ks", "output_ks", "ks_bound")
        return {**dict.fromkeys(names, math.nan), "lengths_drift": None}
    bound = KS_5_PERCENT * math.sqrt((early_n + late_n) / (early_n * late_n))
    distances = [ks_distance(t[~late], t[late]) for t in (prompt, output)]
    ratios = [float(t[late].mean() / t[~late].mean()) if t[~late].any() else math.nan
              for t in (prompt, output)]  # fmt: skip
    return {
        "rate_ratio": late_n / early_n,
        "prompt_ratio": ratios[0],
        "output_ratio": ratios[1],
        "prompt_ks": distances[0],
        "output_ks": distances[1],
        "ks_bound": bound,
        "lengths_drift": max(distances) > bound,
    }


def ks_distance(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    """Return the largest distance between two empirical distribution functions.

    >>> ks_distance(np.array([1, 2]), np.array([3, 4]))
    1.0
    """
    x, y = np.sort(x), np.sort(y)
    at = np.concatenate([x, y])
    left = np.searchsorted(x, at, side="right") / len(x)
    right = np.searchsorted(y, at, side="right") / len(y)
    return float(np.abs(left - right).max())
