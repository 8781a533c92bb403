"""Whether a measured server stalled periodically: a comb among its slow requests.

A garbage collection, a metrics export or a neighbour's job stops a server for some tens of
milliseconds every few seconds. No model of the load predicts that, so it shows as requests whose
first token comes later than predicted, a whole number of periods apart.

The statistic of a period ``P`` is the mean of ``cos(2π τ / P)`` over all lags ``τ`` between two
slow requests from half a period to :data:`CYCLES` and a half, in standard deviations: a whole
number of periods, so that lags by chance have mean 0. Lags and not phases, since the period of a
real stall wanders; slow requests in bursts count once. The cosine depends on ``log τ - log P``
alone, so the sums for all periods of an octave are one correlation over the logarithm of the lag.
The largest value over all periods is compared
with that of slow requests moved to other arrivals nearby: it keeps the arrivals and stretches
with many slow requests, and counts that many periods were tried. Where the load itself comes in
periodic bursts that the prediction misses, the comb may be the load's.

Source: Bartlett, "The spectral analysis of point processes", J. R. Stat. Soc. B 25, 1963 (the
spectrum as a sum of cosines over lags); Davison and Hinkley, "Bootstrap Methods and their
Application", 1997, section 4.2 (the p-value of a Monte Carlo test).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.formatting import counted, format_value

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LEVEL = 0.01
"""Share of runs without a comb in which one is found."""
DRAWS, ENOUGH = 999, 20
"""Draws of the test; it ends early if so many were as regular. Source: Besag and Clifford,
"Sequential Monte Carlo p-values", Biometrika 78, 1991."""
LEAST_SLOW = 15
"""Slow requests below which whether there is a comb is unknown: of 15 about 20 pairs lie within
:data:`CYCLES` periods."""
MOST_SLOW = 400
"""Slow requests that are looked at, the first ones: pairs grow with their square."""
SHORTEST_S = 0.5
LEAST_CYCLES = 20
"""Periods that a run must hold."""
CYCLES, HALF = 8, 0.5
LEAST_PAIRS = 20
"""Below it a mean of cosines is not near a normal law."""

SLOW_SPREADS = 5.0
"""Spreads above its neighbours from which on a request is slow: 3 in ten million are by chance, if
the errors are normal. Spread: 1.4826 times the median absolute deviation, the standard deviation of
a normal law (Rousseeuw and Croux, J. Am. Stat. Assoc. 88, 1993)."""
LEAST_EXCESS = 0.1
"""Share of the median TTFT that a slow request is late by, at least."""
NEIGHBOURS = 201
"""Requests whose median and spread a request is compared with: the error of a prediction drifts
with the load."""

_OCTAVE = 139
_STEP = math.log(2) / _OCTAVE
"""Of the logarithm of the lag: 0.04 cycles at the longest."""
_KERNEL = np.cos(2 * np.pi * np.exp(np.arange(math.log(HALF), math.log(CYCLES + HALF), _STEP)))
QUIET = 0.25
"""Periods without a slow request before one that counts."""
WHOLE = 0.125
"""Periods by which a lag may miss a whole number; by chance a quarter of the lags do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comb:
    """The most regular period among some moments."""

    period_s: float
    p_value: float
    """Chance of one as regular, of any period, among as many random arrivals."""
    whole_fraction: float
    """Share of the lags of up to ``CYCLES`` periods that are near a whole number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """What is known of periodic stalls of a run.

    Attributes
    ----------
    found
        Whether there are any; None if too few requests were slow to tell.
    slow
        Requests that were later than predicted, unlike their neighbours; one that follows another
        is counted with it.
    comb
        The most regular period among them, None if ``found`` is None.
    longest_s
        How much later slow requests were, at the 95th percentile; NaN without any.
    """

    found: bool | None
    slow: int
    comb: Comb | None = None
    longest_s: float = float("nan")

    def __str__(self) -> str:
        """Return what was found, in words."""
        if self.comb is None:
            return (
                f"Periodic stalls are unknown: {counted(self.slow, 'slow request')}, at least "
                f"{LEAST_SLOW} are needed"
            )
        period, p = format_value(self.comb.period_s), format_value(self.comb.p_value)
        if not self.found:
            return f"No periodic stalls ({self.slow} slow requests, p = {p})"
        whole = format_value(self.comb.whole_fraction, "_fraction")
        return (
            f"**Periodic stalls**: about every {period} s up to {1e3 * self.longest_s:.0f} ms; "
            f"{whole} of the lags between slow requests are whole periods, 25 % by chance "
            f"(p = {p})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the numbers; null where nothing is known."""
        comb = self.comb
        return {
            "found": self.found,
            "slow": self.slow,
            "period_s": None if comb is None else comb.period_s,
            "p_value": None if comb is None else comb.p_value,
            "whole_fraction": None if comb is None else comb.whole_fraction,
            "longest_s": self.longest_s,
        }


def stalls(
    seen: pd.DataFrame, replayed: pd.DataFrame, at_cap: Flags, *, seed: int = 0
) -> tuple[Stalls, Flags]:
    """Return what is known of periodic stalls, and which requests came during one.

    ``seen`` and ``replayed`` are the same requests, row by row. Requests that met a limit
    (``at_cap``) are left out: whole batches that end together are periodic too.
    """
    during = np.zeros(len(seen), dtype=bool)
    late = (seen["ttft_s"] - replayed["ttft_s"]).to_numpy(dtype=float)
    rows = np.flatnonzero(~np.isnan(late) & ~at_cap)
    start = seen["start_s"].to_numpy(dtype=float)
    excess, slow = slow_rows(late[rows], LEAST_EXCESS * float(seen["ttft_s"].median()))
    first = np.flatnonzero(slow & ~np.concatenate(([False], slow[:-1]))) if rows.size else rows
    if first.size < LEAST_SLOW:
        return Stalls(found=None, slow=int(first.size)), during
    comb = find_comb(start[rows], first, seed=seed)
    found = comb.p_value <= LEVEL
    longest = float(np.quantile(excess[slow], 0.95))
    if found:
        for end in start[rows][slow] + excess[slow]:
            during |= (start > end - longest) & (start <= end)
        during[rows[slow]] = True
    return Stalls(found=found, slow=int(first.size), comb=comb, longest_s=longest), during


def slow_rows(late: Floats, least_s: float) -> tuple[Floats, Flags]:
    """Return by how much each value is above its neighbours, and which are far above."""
    import pandas as pd

    values = pd.Series(late)
    excess = values - _local_median(values)
    spread = 1.4826 * _local_median(excess.abs())
    far = (excess > SLOW_SPREADS * spread) & (excess > least_s)
    return np.asarray(excess, dtype=np.float64), np.asarray(far, dtype=np.bool_)


def _local_median(values: pd.Series[float]) -> pd.Series[float]:
    return values.rolling(NEIGHBOURS, center=True, min_periods=1).median()


def find_comb(
    start_s: Floats, rows: npt.NDArray[np.int64], *, draws: int = DRAWS, seed: int = 0
) -> Comb:
    """Return the most regular period among some of the arrivals.

    Parameters
    ----------
    start_s
        Arrivals, rising, s.
    rows
        Which of them are looked at, at least :data:`LEAST_SLOW`.
    draws
        Of the test; the least p-value is one over one more.
    seed
        Of the draws.
    """
    rows = rows[:MOST_SLOW]
    longest_s = max(float(start_s[-1] - start_s[0]) / LEAST_CYCLES, 2 * SHORTEST_S)
    moments = start_s[rows]
    scores = regularity(moments, longest_s)
    period_s = SHORTEST_S * math.exp(_STEP * int(scores.argmax()))
    rng = np.random.default_rng(np.random.SeedSequence([seed]))
    low = np.searchsorted(start_s, moments - longest_s)
    high = np.searchsorted(start_s, moments + longest_s, side="right")
    drawn = as_regular = 0
    while drawn < draws and as_regular < ENOUGH:
        other = start_s[np.unique(rng.integers(low, high))]
        as_regular += bool(regularity(other, longest_s).max() >= scores.max())
        drawn += 1
    cycles = _lags(moments, (CYCLES + HALF) * period_s) / period_s
    near = cycles[cycles >= HALF]
    return Comb(
        period_s=period_s,
        p_value=(1 + as_regular) / (1 + drawn),
        whole_fraction=float((np.abs(near - np.round(near)) <= WHOLE).sum() / max(near.size, 1)),
    )


def regularity(moments: Floats, longest_s: float) -> Floats:
    """Return the statistic of each period from ``SHORTEST_S`` to the longest, in even ratios.

    The periods of an octave share the moments that follow a quiet quarter of its shortest: what
    comes in bursts counts once.
    """
    size = math.log(longest_s / SHORTEST_S)
    octaves = []
    for octave in range(math.ceil(size / math.log(2))):
        shortest_s = SHORTEST_S * 2.0**octave
        quiet = np.diff(moments, prepend=-math.inf) >= QUIET * shortest_s
        octaves.append(_scores(moments[quiet], shortest_s))
    return np.concatenate(octaves)[: int(size / _STEP) + 1]


def _scores(moments: Floats, shortest_s: float) -> Floats:
    """Return the statistic of each period of one octave."""
    bins = _KERNEL.size + _OCTAVE - 1
    lags = _lags(moments, shortest_s * HALF * math.exp(bins * _STEP))
    at = np.floor(np.log(lags / (HALF * shortest_s)) / _STEP).astype(np.int64)
    counts = np.bincount(at[(at >= 0) & (at < bins)], minlength=bins).astype(np.float64)
    pairs = np.correlate(counts, np.ones(_KERNEL.size), "valid")
    sums = np.correlate(counts, _KERNEL, "valid")
    return np.asarray(np.where(pairs >= LEAST_PAIRS, sums / np.sqrt(np.maximum(pairs, 1) / 2), 0.0))


def _lags(moments: Floats, longest_s: float) -> Floats:
    """Return the lags between moments, rising, up to a longest."""
    earlier = np.arange(len(moments))
    until = np.searchsorted(moments, moments + longest_s, side="right")
    counts = until - earlier - 1
    first = np.repeat(earlier, counts)
    later = first + 1 + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(moments[later] - moments[first], dtype=np.float64)
