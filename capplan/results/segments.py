"""Where attempts spend their time: segments that sum to the latency, waits in each queue."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
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

    They sum to the attempt's E2E; with ``until="first_token"`` to its TTFT, of which ``decode_s``
    is zero for a streamed answer and a part for any other. The gateway's part is its queue, its
    overhead, the serialisation on the way back, and the whole stay of an answer from its response
    cache. A segment without its moments, not reached or unknown of a live server, is NaN.
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
    """Return the moment at which the replica made the token that the caller waits for."""
    if until == "last_token":
        return requests["decode_end_s"]
    whole = requests["first_token_s"] >= requests["finish_s"] - 1e-9  # one piece
    return requests["prefill_end_s"].where(~whole, requests["decode_end_s"])


def mean_segments(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the mean time of successes in each layer: request_class, layer, mean_s."""
    done = requests[requests["outcome"] == "succeeded"]
    parts = segments(done).drop(columns="send_lag_s").assign(request_class=done["request_class"])
    long = parts.melt("request_class", var_name="layer", value_name="mean_s")
    means = long.groupby(["request_class", "layer"], sort=False, observed=True)["mean_s"].mean()
    frame = means.reset_index()
    return frame.assign(layer=frame["layer"].str.removesuffix("_s")).dropna()


Floats = npt.NDArray[np.float64]

QUEUES = ("gateway", "service_queue", "scheduler_queue", "batch_window")
"""The layers in which a request waits, by their names in ``schema.LAYERS``."""

SERIES = ("gateway", "service_queue", "scheduler_queue")
"""The queues in series among them; waiting for a batch window is part of serving."""

ENTRY = {
    "gateway": ("gateway_in_s", "gateway_admitted_s"),
    "service_queue": ("service_queue_in_s", "scheduler_queue_in_s"),
    "scheduler_queue": ("scheduler_queue_in_s", "batch_in_s"),
}
"""Moments at which an attempt enters a queue and leaves it for the next layer."""

MADE_ROOM = ("displaced", "reclaimed")
"""Reasons of attempts that were rejected after their admission to a queue."""

TOLERANCE_S = 1e-6
"""Waits up to this are the rounding of moments, s."""


def queue_waits(requests: pd.DataFrame, *, end_s: float = np.nan) -> pd.DataFrame:
    """Return each attempt's wait in each queue (columns ``QUEUES``), s.

    An attempt that left a queue unserved (timed out, cancelled, failed) waited until its end at the
    caller, one still in flight until ``end_s``: without them the waits would be too short. A
    rejected attempt did not wait and is NaN, as is one that did not reach the queue; one that was
    removed to make room for another (:data:`MADE_ROOM`) waited until then.
    """
    window = _floats(requests, "batch_window_s")
    finish = _floats(requests, "finish_s")
    last = np.where(np.isnan(finish), end_s, finish)
    rejected = _refused_at_once(requests)
    waits = {}
    for layer, (entry, leave) in ENTRY.items():
        entered, left = _floats(requests, entry), _floats(requests, leave)
        unserved = np.isnan(left)
        wait = np.where(unserved, np.where(rejected, np.nan, last), left) - entered
        waits[layer] = np.where(np.isnan(entered), np.nan, wait)
    served = ~np.isnan(_floats(requests, "batch_in_s"))
    waits["scheduler_queue"] = waits["scheduler_queue"] - np.where(served, window, 0.0)
    waits["batch_window"] = np.where(served, window, np.nan)
    return pd.DataFrame(waits, index=requests.index)


def _refused_at_once(requests: pd.DataFrame) -> npt.NDArray[np.bool_]:
    rejected = requests["outcome"].eq("rejected").to_numpy(np.bool_)
    if "reason" not in requests or not rejected.any():
        return rejected
    return rejected & ~requests["reason"].isin(MADE_ROOM).to_numpy(np.bool_)


def double_queued(waits: pd.DataFrame) -> Floats:
    """Return for each attempt 1.0 if it waited in two queues or more, else 0.0; NaN unknown.

    The batch window is part of serving, not a queue. An attempt without any known wait is unknown.
    """
    queues = waits[list(SERIES)].to_numpy(np.float64)
    count = (queues > TOLERANCE_S).sum(axis=1)
    unknown = np.isnan(queues).all(axis=1)
    return np.where(unknown, np.nan, (count > 1).astype(np.float64))


def waited_twice(attempts: pd.DataFrame, waits: pd.DataFrame) -> dict[str, Any]:
    """Return the requests that waited in two queues or more, and where, over all attempts.

    ``waits`` are those of :func:`queue_waits`. Two attempts that wait in the same queue count as
    one queue.

    Returns
    -------
    dict
        ``requests`` that waited in two queues or more, their ``requests_fraction`` of those
        with a known wait, and ``wait_s``: their mean wait in each queue, over all attempts.
    """
    sums = waits[list(SERIES)].to_numpy(np.float64)
    if (attempts["attempt"].to_numpy() > 1).any():
        by_request = waits[list(SERIES)].groupby(attempts["request_id"].to_numpy(), sort=False)
        sums = by_request.sum(min_count=1).to_numpy(np.float64)
    known = ~np.isnan(sums).all(axis=1)
    twice = (np.nan_to_num(sums) > TOLERANCE_S).sum(axis=1) > 1
    means = np.nan_to_num(sums[twice]).mean(axis=0) if twice.any() else np.full(len(SERIES), np.nan)
    return {
        "requests": int(twice.sum()),
        "requests_fraction": float(twice.sum() / known.sum()) if known.any() else np.nan,
        "wait_s": dict(zip(SERIES, map(float, means), strict=True)),
    }


def _floats(frame: pd.DataFrame, column: str) -> Floats:
    return frame[column].to_numpy(np.float64, na_value=np.nan)
