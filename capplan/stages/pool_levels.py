"""Levels of one pool in a stage: what its replicas report, and the queues on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.results.timelines import held_values, over_time

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario.pools import Pool
    from capplan.stages.stage import Stage


def p95_of(stage: Stage, pool: Pool, metric: str, *, layer: str | None = None) -> float:
    """Return the 95th percentile over time of a metric of a pool's replicas; NaN if not known.

    ``running`` is the sum of what a replica prefills and decodes.
    """
    rows = stage.run.timeline
    rows = rows[rows["replica"].isin(served_replicas(stage, pool)) & (rows["metric"] == metric)]
    if metric == "running":
        sums = rows.groupby(["time_s", "replica"], observed=True)["value"].sum()
        rows = sums.reset_index().assign(metric="running", layer="decode")
    if layer is not None:
        rows = rows[rows["layer"] == layer]
    held = held_values(rows, metric, start_s=stage.start_s, end_s=stage.end_s)
    return over_time(*held)["p95"]


def served_replicas(stage: Stage, pool: Pool) -> list[str]:
    """Return the names of a pool's replicas in the timeline."""
    known = stage.run.timeline["replica"].unique()
    return [str(n) for n in known if str(n).rpartition("-")[0] == pool.name]


def own_queues(stage: Stage, pool: Pool) -> pd.DataFrame:
    """Return the lengths over time of the queues on the way to a pool, the gateway's included."""
    rows = stage.run.timeline
    names = (pool.name, *served_replicas(stage, pool))
    here = rows["replica"].isin(names) | (rows["layer"] == "gateway")
    return rows[(rows["metric"] == "length") & here]
