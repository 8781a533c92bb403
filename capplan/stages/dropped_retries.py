"""Requests that a retry budget kept from being tried again, as far as the log tells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.simulation.attempt import FINAL

if TYPE_CHECKING:
    import pandas as pd

    from capplan.results import RunResult
    from capplan.scenario import Scenario

METRIC = "retries_dropped_rps"


def dropped(result: RunResult, name: str) -> pd.DataFrame:
    """Return the last attempts of a class's requests that were not tried again for its budget.

    They are those that surely could have been: with attempts left, an outcome that is tried again,
    no final reason, and time for the longest backoff and the Retry-After, where the scenario tells
    it (that of a full queue; of others only who has no deadline is among them). Empty where the
    timeline tells of no dropped retry.
    """
    log = result.requests
    retry = result.scenario.request_class(name).retry
    own = log[(log["request_class"] == name).to_numpy()]
    told = result.timeline[result.timeline["metric"] == METRIC]
    if retry.budget is None or not (told["value"] > 0).any():
        return own.iloc[:0]
    requests = own.groupby("request_id", sort=False)
    last = own[own["attempt"].eq(requests["attempt"].transform("max"))]
    first_s = requests["intended_start_s"].min().reindex(last["request_id"]).to_numpy(np.float64)
    final = last["reason"].astype("object").map(lambda reason: _is_final(reason, retry.heeds_final))
    pauses_s = [_longest_pause_s(row, result.scenario, name) for row in last.itertuples()]
    leaves_s = first_s + last["deadline_s"].fillna(math.inf)
    kept: pd.DataFrame = last[
        last["outcome"].isin(retry.retry_on)
        & (last["attempt"] < retry.max_attempts)
        & ~final.astype(bool)
        & ~last["reason"].map(lambda told: isinstance(told, str) and retry.ends_on(told))
        & ((last["finish_s"] + pauses_s < leaves_s) | np.isinf(leaves_s))
    ]
    return kept


def _longest_pause_s(row: Any, scenario: Scenario, name: str) -> float:
    """Return how long the caller waited at most before it tried again, s; inf if nobody knows."""
    retry = scenario.request_class(name).retry
    backoff_s = retry.backoff_before(min(row.attempt, retry.max_attempts) + 1)
    if not retry.honour_retry_after or row.outcome != "rejected":
        return backoff_s
    pool = scenario.pool_of(name)
    queues = {
        "gateway": scenario.gateway.queue,
        "service_queue": pool.queue,
        "scheduler_queue": pool.batching.scheduler,
    }
    told_s = math.inf
    if row.reason == "queue_full" and row.outcome_layer in queues:
        told_s = queues[row.outcome_layer].retry_after_s
    most_s = math.inf if retry.max_retry_after_s is None else retry.max_retry_after_s
    return max(backoff_s, min(told_s, most_s))


def _is_final(reason: object, heeds_final: bool) -> bool:
    return heeds_final and isinstance(reason, str) and reason.partition(":")[0] in FINAL
