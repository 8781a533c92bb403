"""How busy a pool's accelerators were, and what share of their roofline that work needed.

Busy is the share of time with any work: a step that decodes one sequence keeps a replica as busy as
a full one. Utilisation is the share of time that the same work takes at the peaks of accelerator
and model: the larger of its matrix products at the peak rate, and of the weights of each step and
the KV of each decoded token at the peak bandwidth. Source: Williams, Waterman, Patterson,
"Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from capplan.catalog import embedding_parameters
from capplan.replica.memory import accelerator_of, context_reads, model_of, weight_bytes
from capplan.replica.roofline import active_parameters
from capplan.results import RunResult
from capplan.results.timelines import held_values, time_average
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool


def utilisation_table(result: RunResult) -> pd.DataFrame:
    """Return pool, busy_fraction, utilisation_fraction of a run; NaN where it is unknown.

    Busy is averaged after the warm-up; while busy, the pool runs at the utilisation of all its
    work. It is unknown without model and accelerator, for other than continuous batching, several
    models or pipeline stages, and where a live server does not tell its steps.
    """
    rows = [(pool.name, *_of_pool(result, pool)) for pool in result.scenario.pools]
    return pd.DataFrame(rows, columns=["pool", "busy_fraction", "utilisation_fraction"])


def _of_pool(result: RunResult, pool: Pool) -> tuple[float, float]:
    names = result.timeline["replica"].astype(str)
    own = result.timeline[names.str.rpartition("-")[0] == pool.name]
    replicas = own["replica"].unique()
    busy = time_average(result, "busy_fraction", replicas=replicas) if len(replicas) else math.nan
    shares, spans = held_values(own, "busy_fraction", start_s=0.0, end_s=result.duration_s)
    lengths, _ = held_values(own, "step_time_s", start_s=0.0, end_s=result.duration_s)
    busy_s = float(np.nansum(shares * spans))
    if not busy_s > 0 or len(lengths) != len(shares):
        return busy, math.nan
    steps = float(np.nansum(shares * spans / np.where(lengths > 0, lengths, np.nan)))
    needed_s = _needed_s(pool, result.requests[result.requests["replica"].isin(replicas)], steps)
    return busy, busy * needed_s / busy_s


def _needed_s(pool: Pool, attempts: pd.DataFrame, steps: float) -> float:
    """Return the time that a pool's work takes at the peaks, over all replicas, s."""
    known = pool.accelerator is not None and (pool.model or pool.hf_config) is not None
    plain = isinstance(pool.batching, ContinuousBatching) and not pool.models
    if not (known and plain) or pool.pipeline_parallel > 1:
        return math.nan
    model, device, share = model_of(pool), accelerator_of(pool), pool.tensor_parallel
    dtype = pool.weight_dtype or model.served_dtype
    done = attempts[attempts["outcome"] == "succeeded"]
    computed = done["prompt_tokens"] - done["cached_tokens"].fillna(0)
    made = done["output_tokens"]
    tokens = float((computed + made).sum() + attempts["wasted_tokens"].fillna(0).sum())
    flop = 2 * active_parameters(model) * tokens
    flop += embedding_parameters(model) * float(made.sum())
    contexts = (done["prompt_tokens"] + made / 2).to_numpy(float)
    read = steps * weight_bytes(model, dtype=pool.weight_dtype, tensor_parallel=share)
    for each, most in context_reads(model, dtype=pool.kv_dtype, tensor_parallel=share):
        read += each * float(made.to_numpy(float) @ np.minimum(contexts, most))
    return max(flop / share / device.flop_per_s(dtype), read / device.memory_bandwidth_bytes_per_s)
