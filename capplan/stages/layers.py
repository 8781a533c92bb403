"""In which layer the requests of a broken promise lost their time, or were ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.results import queue_waits
from capplan.stages.violations import Break

if TYPE_CHECKING:
    from capplan.stages.stage import Stage

LAYERS = (
    "network",
    "gateway",
    "service_queue",
    "scheduler_queue",
    "batch_window",
    "prefill",
    "decode",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The layer that most of the requests of a break point at, and what ended them there."""

    layer: str
    share_fraction: float
    reason: str | None
    """``rate_limit``, ``queue_full``, ``wait_limit``, … where a limit ended them; None else."""


def blame(stage: Stage, found: Break, baseline: Stage | None) -> Blame:
    """Return the layer that most requests of a break were ended in, or waited longest in.

    A request that a layer's limit ended counts for that layer; any other for the layer in which
    it spent most beyond the mean of its class in the baseline.
    """
    attempts = last_attempts(stage.run.requests, found.violators["request_id"])
    if attempts.empty:
        return Blame(layer="unknown", share_fraction=float("nan"), reason=None)
    only_first = found.promise == "ttft_s"
    over = time_by_layer(attempts, stage.run.duration_s, to_first_token=only_first)
    usual = _usual(baseline, found.request_class, to_first_token=only_first)
    excess = over - pd.Series({layer: usual.get(layer, 0.0) for layer in LAYERS})
    layer = excess.fillna(-np.inf).idxmax(axis=1).astype(object)
    ended = attempts["outcome_layer"].astype(object)
    by_limit = (attempts["outcome"] != "succeeded") & ended.isin(LAYERS)
    layer = layer.where(~by_limit, ended)
    counts = layer.value_counts()
    top = str(counts.index[0])
    reasons = attempts.loc[by_limit & (layer == top), "reason"].value_counts()
    many = len(reasons) and int(reasons.iloc[0]) * 2 >= int(counts.iloc[0])
    return Blame(
        layer=top,
        share_fraction=float(counts.iloc[0] / counts.sum()),
        reason=str(reasons.index[0]) if many else None,
    )


def last_attempts(log: pd.DataFrame, request_ids: pd.Series) -> pd.DataFrame:
    """Return the last attempt of each of the named requests."""
    own = log[log["request_id"].isin(request_ids)]
    return own.sort_values("attempt", kind="stable").drop_duplicates("request_id", keep="last")


def time_by_layer(
    attempts: pd.DataFrame, end_s: float, *, to_first_token: bool = False
) -> pd.DataFrame:
    """Return how long attempts were in each of :data:`LAYERS`, until they ended, s.

    Unlike :func:`capplan.results.segments` it tells where attempts were that never got an answer.
    """
    waits = queue_waits(attempts, end_s=end_s)
    finish = attempts["finish_s"].fillna(end_s)
    first = attempts["prefill_end_s"].fillna(finish)
    decoded = attempts["decode_end_s"].fillna(finish) - attempts["prefill_end_s"]
    columns = {
        "network": attempts["network_s"],
        **{name: waits[name] for name in ("gateway", "service_queue", "scheduler_queue")},
        "batch_window": waits["batch_window"],
        "prefill": first - attempts["batch_in_s"],
        "decode": decoded * (0.0 if to_first_token else 1.0),
    }
    return pd.DataFrame(columns, index=attempts.index)[list(LAYERS)].astype(np.float64)


def _usual(
    baseline: Stage | None, request_class: str, *, to_first_token: bool
) -> Mapping[str, float]:
    if baseline is None:
        return {}
    own = baseline.run.judged
    own = own[own["request_class"] == request_class]
    means = time_by_layer(own, baseline.run.duration_s, to_first_token=to_first_token).mean()
    return {str(name): float(value) for name, value in means.dropna().items()}
