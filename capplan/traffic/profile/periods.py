"""Normal, peak and burst periods of a trace, found from its counts.

- *burst*: seconds (bins) with more requests than the 99.9 % quantile of a Poisson count at the
  rate of the minute (window) around them, and at least three. A Poisson stream shows about one such
  bin in a thousand; bursts are distinct above three times that.
- *peak*: of the remaining time, the windows in the top tenth by rate, if above the median window.
- *normal*: the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NAMES = ("normal", "peak", "burst")
NORMAL, PEAK, BURST = 0, 1, 2
WINDOW_S = 60.0
BINS_PER_WINDOW = 60
LEAST_WINDOWS = 10
MOST_BINS = 20_000_000
PEAK_FRACTION = 0.1
CHANCE = 0.001
DISTINCT_TIMES = 3
LEAST_IN_BURST = 3
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Periods:
    """The period of every bin and of every request."""

    window_s: float
    bin_s: float
    """Width of the windows that separate peak from normal, and of the bins that show bursts."""
    of_bin: npt.NDArray[np.int8]
    """Period (0 normal, 1 peak, 2 burst) of each bin from the start of the trace."""
    of_request: npt.NDArray[np.int8]
    """Period of each request."""
    bin_seconds: npt.NDArray[np.float64]
    """Length of each bin; the end of the trace may cut the last one."""
    bin_of_request: Ints
    """Bin of each request."""

    def seconds(self, period: int) -> float:
        """Return the time spent in a period."""
        return float(self.bin_seconds[self.of_bin == period].sum())

    def requests(self, period: int) -> npt.NDArray[np.bool_]:
        """Return which requests arrived in a period."""
        mask: npt.NDArray[np.bool_] = self.of_request == period
        return mask

    def runs(self, period: int) -> Iterator[tuple[float, float]]:
        """Yield start and end of each unbroken stretch of a period, in seconds."""
        inside = np.concatenate([[False], self.of_bin == period, [False]])
        edges = np.flatnonzero(np.diff(inside.astype(np.int8)))
        ends = np.concatenate([[0.0], np.cumsum(self.bin_seconds)])
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            yield float(ends[first]), float(ends[last])

    def gaps(self, period: int, arrival_s: npt.NDArray[np.float64], mask: Bools) -> Floats:
        """Return the gaps between masked requests that lie in one stretch of a period."""
        chosen = mask & self.requests(period)
        stretch = np.cumsum(np.diff(self.of_bin, prepend=self.of_bin[:1]) != 0)
        of_request = stretch[self.bin_of_request[chosen]]
        gaps: Floats = np.diff(arrival_s[chosen])[np.diff(of_request) == 0]
        return gaps

    def counts(self, period: int, mask: Bools) -> Ints:
        """Return the masked requests of each whole bin of a period."""
        whole = (self.of_bin == period) & (self.bin_seconds > (1 - 1e-9) * self.bin_s)
        counts: Ints = np.bincount(self.bin_of_request[mask], minlength=len(self.of_bin))[whole]
        return counts

    def distinct_bursts(self) -> bool:
        """Return whether bursts fill more than three times the time that chance explains."""
        return self.seconds(BURST) > DISTINCT_TIMES * CHANCE * float(self.bin_seconds.sum())

    def how(self, period: int) -> str:
        """Return in one sentence how the period is found."""
        if period == BURST:
            return (
                f"Bins of {self.bin_s:g} s with more requests than the 99.9 % quantile of a "
                f"Poisson count at the rate of their {self.window_s:g} s window."
            )
        if period == PEAK:
            return f"Windows of {self.window_s:g} s in the top tenth by rate, without bursts."
        return "What is neither peak nor burst."


def find_periods(arrival_s: npt.NDArray[np.float64], duration_s: float) -> Periods:
    """Return the periods of a trace whose arrivals lie in ``[0, duration_s]``, sorted."""
    window_s, bin_s = _widths(duration_s)
    n_bins = max(1, int(np.ceil(duration_s / bin_s - 1e-9)))
    at = np.minimum((arrival_s / bin_s).astype(np.intp), n_bins - 1)
    counts = np.bincount(at, minlength=n_bins)
    seconds = np.full(n_bins, bin_s)
    if duration_s > 0:
        seconds[-1] = duration_s - bin_s * (n_bins - 1)
    window = np.arange(n_bins) // BINS_PER_WINDOW
    rate = np.bincount(window, counts) / np.bincount(window, np.maximum(seconds, 1e-12))
    complete = np.bincount(window, seconds) > window_s / 2
    label = np.full(n_bins, NORMAL, np.int8)
    label[_peaks(rate, complete)[window]] = PEAK
    label[_bursts(counts, rate[window] * seconds)] = BURST
    return Periods(
        window_s=window_s,
        bin_s=bin_s,
        of_bin=label,
        of_request=label[at],
        bin_seconds=seconds,
        bin_of_request=at,
    )


def _widths(duration_s: float) -> tuple[float, float]:
    window_s = min(WINDOW_S, duration_s / LEAST_WINDOWS) if duration_s > 0 else WINDOW_S
    bin_s = max(window_s / BINS_PER_WINDOW, duration_s / MOST_BINS)
    return bin_s * BINS_PER_WINDOW, bin_s


def _peaks(rate: npt.NDArray[np.float64], complete: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    if not complete.any():
        return np.zeros(len(rate), np.bool_)
    bound = np.quantile(rate[complete], 1 - PEAK_FRACTION)
    peak: npt.NDArray[np.bool_] = complete & (rate >= bound) & (rate > np.median(rate[complete]))
    return peak


def _bursts(counts: Ints, expected: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Source: the Poisson distribution's upper tail, P(N > n) = P(n + 1, mean) (Temme, 1996)."""
    from scipy.special import gammainc

    tail = np.where(counts > 0, gammainc(np.maximum(counts, 1), np.maximum(expected, 1e-300)), 1.0)
    found: npt.NDArray[np.bool_] = (counts >= LEAST_IN_BURST) & (tail < CHANCE)
    return found
