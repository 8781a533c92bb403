"""Step gaps: how long an accelerator waits within a step for the host that prepares the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.replica.roofline import roofline
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import RooflineStep
from capplan.stages.limits import served_replicas

if TYPE_CHECKING:
    from capplan.stages.stage import Stage

COLUMNS = ["replica", "time_s", "span_s", "gap_s", "gap_fraction"]
METRICS = ["step_time_s", "running"]


def step_gaps(stage: Stage) -> pd.DataFrame:
    """Return the mean gap of a replica's steps between two rows of the timeline.

    Where the host's work is not hidden behind the accelerator's, a step's gap is that work: so
    much a step, and so much a decoding sequence (of :class:`~capplan.scenario.RooflineStep`).
    Hidden, there is a gap only where the host takes longer; then a step takes as long as its work,
    and how much of that is gap is not told. No other law of step times tells the host's part.

    Returns
    -------
    DataFrame
        Columns ``replica``, ``time_s``, ``span_s``, ``gap_s`` and ``gap_fraction`` (of the step);
        without rows where nothing tells a gap.
    """
    parts = [table for pool in stage.scenario.pools for table in _of_pool(stage, pool)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def _of_pool(stage: Stage, pool: Pool) -> Iterator[pd.DataFrame]:
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching) or pool.models:
        return
    if not isinstance(batching.step_time, RooflineStep):
        return
    law = roofline(pool)
    rows = stage.run.timeline
    rows = rows[(rows["layer"] == "decode") & rows["metric"].isin(METRICS)]
    rows = rows[rows["replica"].isin(served_replicas(stage, pool))]
    for name, own in rows.groupby("replica", observed=True):
        steps = own.set_index(["time_s", "metric"])["value"].unstack()  # noqa: PD010
        steps = steps.reindex(columns=METRICS).dropna(subset=["step_time_s"])
        start = steps.index.to_numpy(np.float64)
        ends = np.append(start[1:], stage.end_s)
        span = np.clip(ends, stage.start_s, stage.end_s) - np.clip(
            start, stage.start_s, stage.end_s
        )
        took = steps["step_time_s"].to_numpy(np.float64)
        work = law.host_s + law.host_per_sequence_s * steps["running"].to_numpy(np.float64)
        gap = np.where(took > work, 0.0, np.nan) if law.host_hidden else work
        told = {"replica": name, "time_s": start, "span_s": span, "gap_s": gap}
        yield pd.DataFrame(told | {"gap_fraction": gap / took})[COLUMNS]
