"""How long attempts waited in each queue, and who waited in more than one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]

QUEUES = ("gateway", "service_queue", "scheduler_queue", "batch_window")
"""The layers in which a request waits, by their names in ``schema.LAYERS``."""

SERIES = ("gateway", "service_queue", "scheduler_queue")
"""Those of them that are queues in series; waiting for a batch window is part of serving."""

ENTRY = {
    "gateway": ("gateway_in_s", "gateway_admitted_s"),
    "service_queue": ("service_queue_in_s", "scheduler_queue_in_s"),
    "scheduler_queue": ("scheduler_queue_in_s", "batch_in_s"),
}
"""Moments at which an attempt enters a queue and leaves it for the next layer."""

MADE_ROOM = ("displaced", "reclaimed")
"""Reasons of attempts that were rejected after they had been taken."""

TOLERANCE_S = 1e-6
"""Waits up to this are none: rounding of moments."""


def queue_waits(requests: pd.DataFrame, *, end_s: float = np.nan) -> pd.DataFrame:
    """Return each attempt's wait in each queue (columns ``QUEUES``), s.

    An attempt that left a queue without being served (timed out, cancelled, failed) waited until
    its end was known at the caller, one still in flight until ``end_s``; leaving them out would
    show only the lucky. One rejected there did not wait and is NaN, as is one that never came;
    but one that was taken and had to make room for another (:data:`MADE_ROOM`) waited until then.
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

    The batch window is part of serving, not a queue. An attempt that reached no queue whose wait
    is known counts as unknown, and so does one that reached a replica with a wait untold.
    """
    queues = waits[list(SERIES)].to_numpy(np.float64)
    count = (queues > TOLERANCE_S).sum(axis=1)
    untold = np.isnan(queues).all(axis=1)
    return np.where(untold, np.nan, (count > 1).astype(np.float64))


def waited_twice(attempts: pd.DataFrame, waits: pd.DataFrame) -> dict[str, Any]:
    """Return who waited in two queues or more, and where: by request, over all its attempts.

    ``waits`` are those of :func:`queue_waits`. A wait in two attempts in the same queue is no wait
    in two queues.

    Returns
    -------
    dict
        ``requests`` that waited in two queues or more, their ``requests_fraction`` of those of
        which any wait is told, and ``wait_s``: their mean wait in each queue, over all attempts.
    """
    sums = waits[list(SERIES)].to_numpy(np.float64)
    if (attempts["attempt"].to_numpy() > 1).any():
        by_request = waits[list(SERIES)].groupby(attempts["request_id"].to_numpy(), sort=False)
        sums = by_request.sum(min_count=1).to_numpy(np.float64)
    told = ~np.isnan(sums).all(axis=1)
    twice = (np.nan_to_num(sums) > TOLERANCE_S).sum(axis=1) > 1
    means = np.nan_to_num(sums[twice]).mean(axis=0) if twice.any() else np.full(len(SERIES), np.nan)
    return {
        "requests": int(twice.sum()),
        "requests_fraction": float(twice.sum() / told.sum()) if told.any() else np.nan,
        "wait_s": dict(zip(SERIES, map(float, means), strict=True)),
    }


def _floats(frame: pd.DataFrame, column: str) -> Floats:
    return frame[column].to_numpy(np.float64, na_value=np.nan)
