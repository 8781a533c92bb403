"""Figures by class, tenant, length bucket and phase of the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import counted, format_value
from capplan.results.headline import LATENCIES, QUANTILES, outcome_counts, summary
from capplan.results.requests import per_request
from capplan.scenario import Scenario

if TYPE_CHECKING:
    from capplan.results.run import RunResult

BUCKET_EDGES_TOKENS = (256, 1024, 4096, 16384)
"""Upper ends of the length buckets, prompt tokens: powers of four around the Azure 2023
conversation hour's median (1020) and 95th percentile (4083)."""
BUCKETS = (*(f"≤ {edge}" for edge in BUCKET_EDGES_TOKENS), f"> {BUCKET_EDGES_TOKENS[-1]}")
BY = ("request_class", "tenant", "length_bucket", "phase")
LEAST = 30
"""Requests of a group below which its share of good ones is left out of a comparison: with
fewer its 95 % interval is wider than a third; a default of this project."""
MOST_TENANTS = 20
"""Tenants with rows of their own, the largest; the others stand together."""


def grouped(
    result: RunResult, *, by: Sequence[str] = BY, table: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the figures of each group of requests, one row a group, sorted by the keys.

    ``by`` names columns of :func:`per_request`, ``length_bucket`` (prompt tokens) or ``phase``;
    beyond :data:`MOST_TENANTS` the smaller tenants are one.

    Returns
    -------
    DataFrame
        The keys, ``requests``, one count per outcome, ``good_fraction``, and for each latency
        ``…_mean``, ``…_p50`` to ``…_p99`` before the unit (``ttft_p95_s``), s.
    """
    requests = per_request(result) if table is None else table
    keyed = requests.assign(
        length_bucket=length_bucket(requests["prompt_tokens"]),
        phase=phase(result.scenario, requests["intended_start_s"]),
        tenant=largest(requests["tenant"]),
    )
    groups = keyed.groupby(list(by), sort=True, observed=True, dropna=False)
    rows = [dict(zip(by, key, strict=True)) | _row(group) for key, group in groups]
    return pd.DataFrame(rows, columns=[*by, *_row(keyed.iloc[:0])])


def _row(group: pd.DataFrame) -> dict[str, float]:
    row: dict[str, float] = {"requests": len(group), **outcome_counts(group)}
    row["good_fraction"] = float(group["good"].mean(skipna=False)) if len(group) else np.nan
    for column in LATENCIES:
        name = column.removesuffix("_s")
        found = summary(group[column])
        row |= {f"{name}_{part}_s": found[part] for part in ("mean", *QUANTILES)}
    return row


def largest(tenant: pd.Series) -> pd.Series:
    """Return the tenants by name, all but the :data:`MOST_TENANTS` largest as "N others"."""
    order = tenant.value_counts().index
    return tenant.where(
        tenant.isin(order[:MOST_TENANTS]) | tenant.isna(), f"{len(order) - MOST_TENANTS} others"
    )


def least_good(groups: pd.DataFrame) -> str:
    """Return which of :func:`grouped` kept its promises least, in a sentence."""
    known = groups[(groups["requests"] >= LEAST) & groups["good_fraction"].notna()]
    of = f"{counted(len(groups), 'group')}, {len(known)} with at least {LEAST} requests"
    if known.empty:
        return f"{of} whose promises could be checked."
    row = known.sort_values("good_fraction", kind="stable").iloc[0]
    if row["good_fraction"] == 1:
        return f"{of}; each of these kept every promise."
    good = format_value(float(row["good_fraction"]), "_fraction")
    return (
        f"{of}. Least good is {row['request_class']} of {row['tenant']} with prompts of "
        f"{row['length_bucket']} tokens, in the phase {row['phase']}: {good} of "
        f"{counted(int(row['requests']), 'request')}."
    )


def length_bucket(prompt_tokens: pd.Series) -> pd.Categorical:
    """Return the bucket of each prompt length, ordered; missing for a missing length.

    >>> list(length_bucket(pd.Series([256, 257, 20_000])))
    ['≤ 256', '≤ 1024', '> 16384']
    """
    lengths = prompt_tokens.to_numpy(np.float64, na_value=np.nan)
    edges = [-np.inf, *BUCKET_EDGES_TOKENS, np.inf]
    return pd.Categorical(pd.cut(lengths, bins=edges, labels=list(BUCKETS)))


def phase(scenario: Scenario, start_s: pd.Series) -> npt.NDArray[np.object_]:
    """Return the phase of the load in which each request starts.

    The phase of the planned load (:meth:`capplan.scenario.traffic.Traffic.phases`), in a scenario
    with faults followed by ``before fault``, ``fault`` or ``after fault``.
    """
    time = start_s.to_numpy(np.float64)
    load = scenario.traffic.phases(time)
    if not scenario.faults:
        return load
    begin = min(fault.begins_s for fault in scenario.faults)
    end = max(fault.ends_s for fault in scenario.faults)
    stage = np.where(time < begin, "before fault", np.where(time < end, "fault", "after fault"))
    joined = [f"{one}, {other}" for one, other in zip(load, stage, strict=True)]
    return np.array(joined, dtype=object)


def by_bucket(result: RunResult) -> pd.DataFrame:
    """Return latency, flow, errors, waste and memory by class, priority and length bucket.

    ``cancelled_tokens`` were computed for requests that did not succeed; ``held_tokens`` are the
    tokens in KV cache, averaged over time: the prompt all the while, the output growing evenly.
    """
    keys = ["request_class", "priority", "length_bucket"]
    requests = per_request(result)
    table = grouped(result, by=keys, table=requests)
    span = result.duration_s - result.judged_from_s
    attempts = result.judged
    tokens = attempts["prompt_tokens"] + attempts["output_tokens"] / 2
    attempts = attempts.assign(
        length_bucket=length_bucket(attempts["prompt_tokens"]),
        held=tokens * (attempts["decode_end_s"] - attempts["batch_in_s"]),
    )
    keyed = requests.assign(length_bucket=length_bucket(requests["prompt_tokens"]))
    index = pd.MultiIndex.from_frame(table[keys])
    wasted = keyed.groupby(keys, observed=True)["wasted_tokens"].sum().reindex(index)
    held = attempts.groupby(keys, observed=True)["held"].sum(min_count=1).reindex(index)
    return table[[*keys, "requests"]].assign(
        ttft_p99_s=table["ttft_censored_p99_s"],
        e2e_p99_s=table["e2e_censored_p99_s"],
        throughput_rps=table["succeeded"] / span,
        goodput_rps=table["good_fraction"] * table["requests"] / span,
        errors=table["rejected"] + table["failed"],
        timeouts=table["timed_out"],
        cancelled_tokens=wasted.to_numpy(),
        held_tokens=held.to_numpy() / span,
    )
