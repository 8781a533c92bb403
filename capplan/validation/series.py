"""Series that an engine logged, beside those of the replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.validation.figures import Figure

if TYPE_CHECKING:
    import pandas as pd

    from capplan.measured import Measured
    from capplan.results import RunResult


def long_series(overlay: pd.DataFrame) -> pd.DataFrame:
    """Return an overlay (``running_measured``, …) with a row per time, series and reading."""
    long = overlay.melt("time_s", var_name="name")
    names = long["name"].str.rsplit("_", n=1, expand=True)
    return long.assign(series=names[0], reading=names[1]).drop(columns="name")


def overlay(measured: Measured, result: RunResult) -> pd.DataFrame | None:
    """Return the measured series with the predicted ones at the same times; None without one."""
    if measured.series is None:
        return None
    import pandas as pd

    log = result.requests
    times = measured.series["time_s"].to_numpy(dtype=float)
    came, began = log["scheduler_queue_in_s"].to_numpy(), log["batch_in_s"].to_numpy()
    left = log["decode_end_s"].fillna(log["finish_s"]).to_numpy()
    replayed = {
        "running": between(began, left, times),
        "waiting": between(came, np.where(np.isnan(began), left, began), times),
    }
    frame = pd.DataFrame({"time_s": times})
    for name, values in replayed.items():
        frame[f"{name}_measured"] = measured.series[name].to_numpy(dtype=float)
        frame[f"{name}_predicted"] = values
    return frame


def between(start: Any, end: Any, times: Any) -> Any:
    """Return how many intervals each time lies in: begun by then, and not ended."""
    known = ~np.isnan(start)
    began = np.searchsorted(np.sort(start[known]), times, side="right")
    return began - np.searchsorted(np.sort(end[known]), times, side="right")


def series_means(found: pd.DataFrame | None) -> dict[str, Figure]:
    """Return the means of an overlay; empty without one."""
    if found is None:
        return {}
    return {
        name: Figure(
            measured=float(found[f"{name}_measured"].mean()),
            predicted=float(found[f"{name}_predicted"].mean()),
        )
        for name in ("running", "waiting")
    }
