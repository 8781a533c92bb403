"""Times that a source rounded down to a grid, and their spread inside its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_TIED_FRACTION = 0.2
LEAST_STEP_S = 0.1
NEAR_FRACTION = 0.01
LEAST_ON_GRID_FRACTION = 0.95
LEAST_ROWS = 50


def grid_step_s(arrival_s: npt.NDArray[np.float64]) -> float | None:
    """Return the step of the grid that sorted times stand on, or None.

    Times are on a grid when there are at least 50, at least 20 % share their time with
    another row, and at least 95 % of the gaps between distinct times are, within 1 % of the step,
    multiples of one step of 0.1 s or more.

    >>> import numpy as np
    >>> grid_step_s(np.repeat(np.arange(0.0, 90.0, 3.0), 5))
    3.0
    >>> grid_step_s(np.linspace(0.0, 90.0, 150)) is None
    True
    """
    if len(arrival_s) < LEAST_ROWS:
        return None
    gaps = np.diff(arrival_s)
    apart = np.concatenate([[True], gaps > 0, [True]])
    alone = int(np.count_nonzero(apart[:-1] & apart[1:]))
    gaps = gaps[gaps > 0]
    if not len(gaps) or len(arrival_s) - alone < LEAST_TIED_FRACTION * len(arrival_s):
        return None
    low = np.quantile(gaps, 0.05)
    step = float(np.median(gaps[gaps <= low * (1 + 2 * NEAR_FRACTION)]))
    if step < LEAST_STEP_S:
        return None
    off = np.abs(gaps / step - np.round(gaps / step))
    return step if np.mean(off <= NEAR_FRACTION) >= LEAST_ON_GRID_FRACTION else None


def spread_times(frame: Any, *, spread: bool | float | None, seed: int) -> tuple[Any, str | None]:
    """Return the frame with ties spread inside the step, and a note about it.

    Parameters
    ----------
    frame
        Rows sorted by ``arrival_s``.
    spread
        None or True: find a step; False: leave the times alone; a number: the step in seconds.
    seed
        Seed of the uniform offsets. Rows that share a time keep their order.
    """
    arrival = frame["arrival_s"].to_numpy()
    if isinstance(spread, bool):
        step = grid_step_s(arrival) if spread else None
    else:
        step = grid_step_s(arrival) if spread is None else float(spread)
    if step is None:
        return frame, None
    rng = np.random.default_rng(np.random.SeedSequence([seed]))
    group = np.concatenate([[0], np.cumsum(np.diff(arrival) > 0)])
    offsets = rng.uniform(0.0, step, len(arrival))
    offsets = offsets[np.lexsort((offsets, group))]
    spread_out = np.sort(arrival + offsets, kind="stable")
    rounded = np.round(step, 3)
    note = (
        f"Times stand on a grid of {rounded:g} s; each is spread uniformly inside its step "
        f"with seed {seed}, so gaps shorter than that are an assumption."
    )
    return frame.assign(arrival_s=spread_out), note
