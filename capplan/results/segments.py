"""Where an attempt spent its time: segments that sum to its latency."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from capplan.results.requests import answered_by_gateway

SEGMENTS = (
    "send_lag_s",
    "network_s",
    "gateway_s",
    "service_queue_s",
    "scheduler_queue_s",
    "batch_window_s",
    "prefill_s",
    "decode_s",
)
"""Time in each layer, in the order a request passes them."""


def segments(
    requests: pd.DataFrame, *, until: Literal["last_token", "first_token"] = "last_token"
) -> pd.DataFrame:
    """Return one row per attempt, its time in each layer (columns ``SEGMENTS``), s.

    They sum to the attempt's E2E; with ``until="first_token"`` to its TTFT, where ``decode_s`` is
    zero for a streamed answer and belongs to the wait of one that is not. The gateway's part
    holds its queue, its overhead and what serialisation adds on the way back, and all the rest of
    what its response cache answers. A segment whose
    moments were not reached, or that a live server does not tell, is NaN.
    """
    r = requests
    start = r["batch_in_s"]
    end = r["finish_s"] if until == "last_token" else r["first_token_s"]
    made = _made_at_replica(r, until)
    back = r["network_s"] - (r["gateway_in_s"] - r["sent_s"])
    columns = {
        "send_lag_s": r["sent_s"] - r["intended_start_s"],
        "network_s": r["network_s"],
        "gateway_s": (r["service_queue_in_s"] - r["gateway_in_s"]) + (end - made - back),
        "service_queue_s": r["scheduler_queue_in_s"] - r["service_queue_in_s"],
        "scheduler_queue_s": start - r["scheduler_queue_in_s"] - r["batch_window_s"],
        "batch_window_s": r["batch_window_s"],
        "prefill_s": r["prefill_end_s"] - start,
        "decode_s": made - r["prefill_end_s"],
    }
    table = pd.DataFrame(columns, index=r.index).astype(np.float64)
    here = answered_by_gateway(r)
    if here.any():
        table.loc[here, "gateway_s"] = (end - r["gateway_in_s"] - back)[here]
        table.loc[here, list(SEGMENTS[3:])] = 0.0
    return table


def _made_at_replica(requests: pd.DataFrame, until: str) -> pd.Series:
    """Return when the token that the caller waits for was made."""
    if until == "last_token":
        return requests["decode_end_s"]
    whole = requests["first_token_s"] >= requests["finish_s"] - 1e-9  # comes in one piece
    return requests["prefill_end_s"].where(~whole, requests["decode_end_s"])


def mean_segments(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the mean time of successes in each layer: request_class, layer, mean_s."""
    done = requests[requests["outcome"] == "succeeded"]
    parts = segments(done).drop(columns="send_lag_s").assign(request_class=done["request_class"])
    long = parts.melt("request_class", var_name="layer", value_name="mean_s")
    means = long.groupby(["request_class", "layer"], sort=False, observed=True)["mean_s"].mean()
    frame = means.reset_index()
    return frame.assign(layer=frame["layer"].str.removesuffix("_s")).dropna()
