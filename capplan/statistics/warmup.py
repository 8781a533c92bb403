"""Where the start-up transient of a run ends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BATCH = 5


def mser5(values: npt.ArrayLike) -> int | None:
    """Return how many leading values to discard as warm-up, or None if the series never settles.

    The truncation point minimises the squared standard error of the mean of what is kept, over
    means of batches of five; a minimum in the second half of the run means that the run is too
    short to tell.
    Source: White, Cobb and Spratt, "A Comparison of Five Steady-State Truncation Heuristics for
    Simulation", Proc. Winter Simulation Conference, 2000 (MSER-5).

    >>> mser5([40.0, 30.0, 20.0, 10.0, 5.0] + [1.0, 2.0] * 50)
    5
    >>> mser5(range(100)) is None
    True
    """
    series = np.asarray(values, dtype=np.float64)
    count = series.size // BATCH
    if count < 4 or not np.isfinite(series).all():  # noqa: PLR2004  (too few batches for a minimum)
        return None
    means = series[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    kept = np.arange(count, 0, -1)  # batches kept when the first 0, 1, … are cut
    totals = np.cumsum(means[::-1])[::-1]
    centred = means - means.mean()
    squares = np.cumsum((centred**2)[::-1])[::-1]
    spread = squares - kept * (totals / kept - means.mean()) ** 2
    scores = (np.maximum(spread, 0.0) / kept.astype(np.float64) ** 2)[: count - BATCH + 1]
    if scores.size < 2:  # noqa: PLR2004
        return None
    cut = int(np.argmin(scores))
    return None if cut > count // 2 else cut * BATCH
