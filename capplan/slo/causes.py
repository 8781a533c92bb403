"""The next action on a broken promise, where its cause is no lack of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.replica.capacity import Mix, ReplicaModel
from capplan.replica.step_time import step_time
from capplan.results import RunResult
from capplan.results.segments import segments
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.verdict import Reason

Floats = npt.NDArray[np.float64]
HALF = 0.5
TOO_LONG = ContinuousBatching.too_long.reason


def by_cause(
    reason: Reason, broken: pd.DataFrame, runs: Sequence[RunResult], *, allowed: float
) -> Reason:
    """Return the reason; its action names what most of the requests that broke it ran into.

    ``broken`` holds the requests that broke the promise, ``allowed`` is how many may.
    """
    pool = runs[0].scenario.pool_of(reason.request_class or broken["request_class"].iloc[0])
    refused = int((broken["reason"] == TOO_LONG).sum())
    if 2 * refused > len(broken):
        field = f"pools.{pool.name}.batching.max_model_len"
        action = (
            f"raise {field} as far as the KV memory allows, or shorten the requests: it refuses "
            f"{refused:,} of the {len(broken):,} that break the promise, which no replica would "
            "serve"
        )
        return replace(reason, field=field, next_action=action)
    if reason.rule == "ttft_s" and isinstance(pool.batching, ContinuousBatching):
        return _of_prefill(reason, broken, runs, pool, allowed=allowed)
    return reason


def _of_prefill(
    reason: Reason, broken: pd.DataFrame, runs: Sequence[RunResult], pool: Pool, *, allowed: float
) -> Reason:
    """Return the reason; if prefill makes most first tokens late, its action says so.

    More prompts than allowed whose steps alone pass the promise ask for parallelism; prompts that
    spend more than half of their TTFT in prefill, beside others, for fewer tokens a step.
    """
    served = broken[broken["success"].astype(bool)]
    path, limit = f"pools.{pool.name}", float(reason.limit or np.inf)
    computed = served["prompt_tokens"] - served["cached_tokens"].fillna(0)
    alone = int((_alone_s(pool, computed.to_numpy(np.float64)) > limit).sum())
    if alone > allowed:
        field = f"{path}.tensor_parallel"
        action = (
            f"raise {field}, or shorten the prompts: prefill alone takes longer than promised for "
            f"{alone:,} requests, and at most {allowed:.0f} may be late; replicas do not help"
        )
        return replace(reason, field=field, next_action=action)
    ids = set(served["request_id"])
    rows = pd.concat([r.requests[r.requests["request_id"].isin(ids)] for r in runs])
    rows = rows[rows["outcome"] == "succeeded"]
    prefill_s = segments(rows, until="first_token")["prefill_s"]
    share = prefill_s / (rows["first_token_s"] - rows["intended_start_s"])
    if 2 * int((share > HALF).sum()) > len(broken):
        field = f"{path}.batching.max_num_batched_tokens"
        action = (
            f"lower {field}, or raise {path}.tensor_parallel or {path}.replicas: most late first "
            "tokens spend more than half of their time in prefill, beside other prompts"
        )
        return replace(reason, field=field, next_action=action)
    return reason


def _alone_s(pool: Pool, prompt_tokens: Floats) -> Floats:
    """Return how long each prompt's prefill takes in a replica that is free otherwise, s."""
    batching = pool.batching
    if not isinstance(batching, ContinuousBatching) or pool.models:
        return np.full(len(prompt_tokens), np.nan)
    nothing = Mix(prompt_tokens=0.0, output_tokens=1.0, context_tokens=0.0, size=0.0)
    one = ReplicaModel(step_time(pool), batching, nothing, 0.0)
    return np.array([one.prefill_s(tokens, 0.0) for tokens in prompt_tokens])
