"""What a batch window does to each length bucket: figures together, and the price of the long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.formatting import counted, does, format_value, listed
from capplan.pages.pools import BATCHED, NO_POOL, TITLES, PoolStudy

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.traffic.trace import Trace

FEWEST = 30
"""A bucket of fewer requests has no mean worth a comparison."""
ALONE_GAP_S = 600.0
"""Requests sent so far apart never meet: their TTFT is that of an idle replica."""


def bucket_table(result: RunResult) -> pd.DataFrame:
    """Return latency, flow, errors, waste and memory together, by class, priority and bucket."""
    from capplan.results import grouped, length_bucket, per_request

    keys = ["request_class", "priority", "length_bucket"]
    requests = per_request(result)
    table = grouped(result, by=keys, table=requests)
    span = result.duration_s - result.judged_from_s
    keyed = requests.assign(length_bucket=length_bucket(requests["prompt_tokens"]))
    attempts = result.judged.assign(
        length_bucket=length_bucket(result.judged["prompt_tokens"]),
        held=_held_token_seconds(result.judged),
    )
    wasted = keyed.groupby(keys, observed=True)["wasted_tokens"].sum()
    held = attempts.groupby(keys, observed=True)["held"].sum(min_count=1)
    index = pd.MultiIndex.from_frame(table[keys])
    good = table["good_fraction"] * table["requests"]
    return table[[*keys, "requests"]].assign(
        ttft_p99_s=table["ttft_censored_p99_s"],
        e2e_p99_s=table["e2e_censored_p99_s"],
        throughput_rps=table["succeeded"] / span,
        goodput_rps=good / span,
        errors=table["rejected"] + table["failed"],
        timeouts=table["timed_out"],
        cancelled_tokens=wasted.reindex(index).to_numpy(),
        held_tokens=held.reindex(index).to_numpy() / span,
    )


def _held_token_seconds(attempts: pd.DataFrame) -> pd.Series:
    """Return tokens in KV cache × time: the prompt for all of it, the output growing evenly."""
    time = attempts["decode_end_s"] - attempts["batch_in_s"]
    return (attempts["prompt_tokens"] + attempts["output_tokens"] / 2) * time


FIGURES = {
    "goodput_rps": "goodput (requests/s)",
    "throughput_rps": "throughput (requests/s)",
    "ttft_p99_s": "TTFT p99 (s)",
    "e2e_p99_s": "E2E p99 (s)",
    "timeouts": "failures (requests)",
    "cancelled_tokens": "cancelled (tokens)",
    "held_tokens": "memory held (tokens)",
}


def figures_by_batch(study: PoolStudy | None, values: Sequence[float]) -> pd.DataFrame | None:
    """Return figures of each class and bucket over the batch size, the window as it is now.

    Columns: across, figure, value, length_bucket (with its class).
    """
    from capplan.simulation import simulate

    if study is None:
        return None
    rows = []
    for across in values:
        scenario = study.with_point(across, study.point[1])
        table = bucket_table(simulate(scenario, trace=study.trace, seed=study.seed))
        table = table.assign(timeouts=table["timeouts"] + table["errors"])
        named = table["request_class"].astype(str) + " " + table["length_bucket"].astype(str)
        long = table.assign(length_bucket=named).melt(
            "length_bucket", list(FIGURES), var_name="figure", value_name="value"
        )
        rows.append(long.assign(across=int(across), figure=long["figure"].map(FIGURES)))
    return pd.concat(rows, ignore_index=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slowdown:
    """What long requests cost the short ones: ``frame`` as ``charts.slowdown_by_batch`` takes it.

    ``bucket`` names the short ones, ``short`` and ``long`` count both.
    """

    frame: pd.DataFrame
    bucket: str
    short: int
    long: int

    def said(self) -> str:
        """Return the largest slowdown with and without the long requests in a sentence."""
        worst = self.frame.groupby("mix", sort=False)["slowdown"].max()
        if self.frame.empty or len(worst) < 2:  # noqa: PLR2004
            return "There is only one length bucket, so nobody is slowed down by longer requests."
        alone, together = worst["short alone"], worst["with the long"]
        return (
            f"{counted(self.short, 'request')} "
            f"{does(self.short, 'has a prompt of', 'have prompts of')} "
            f"{self.bucket} tokens, {self.long:,} longer. "
            f"At worst the short ones take {format_value(together)} times as long to their first token as "
            f"on an idle replica; without the long ones {format_value(alone)} times."
        )


def slowdown(study: PoolStudy | None, values: Sequence[float]) -> Slowdown | None:
    """Return the slowdown of the shortest bucket, with and without the longer requests.

    The slowdown is mean TTFT ÷ mean TTFT of the same requests far apart. Without the long ones,
    the short keep their moments of arrival.
    """
    from capplan.results import length_bucket
    from capplan.simulation import simulate

    if study is None:
        return None
    buckets = length_bucket(study.trace.frame["prompt_tokens"])
    counts = pd.Series(buckets).value_counts(sort=False)
    enough = counts[counts >= min(FEWEST, int(counts.max()))]
    shortest = str(enough.index[0])
    short = _part(study.trace, np.asarray(buckets == shortest))
    rows = []
    for across in values:
        scenario = study.with_point(across, study.point[1])
        idle = _mean_ttft(simulate(scenario, trace=_far_apart(short), seed=study.seed), short)[0]
        for mix, trace in (("short alone", short), ("with the long", study.trace)):
            result = simulate(scenario, trace=trace, seed=study.seed)
            rows.append((int(across), mix, *(v / idle for v in _mean_ttft(result, short))))
    frame = pd.DataFrame(rows, columns=["across", "mix", "slowdown", "low", "high"])
    if len(short) == len(study.trace):
        frame = frame[frame["mix"] == "short alone"]
    return Slowdown(
        frame=frame, bucket=shortest, short=len(short), long=len(study.trace) - len(short)
    )


def _part(trace: Trace, kept: np.ndarray) -> Trace:
    return replace(trace, frame=trace.frame[kept].reset_index(drop=True))


def _far_apart(trace: Trace) -> Trace:
    moments = np.arange(len(trace.frame)) * ALONE_GAP_S
    frame = trace.frame.assign(arrival_s=moments)
    return replace(trace, frame=frame, duration_s=float(moments[-1]))


def _mean_ttft(result: RunResult, of: Trace) -> tuple[float, float, float]:
    """Return mean TTFT of some requests with its 95 % interval, s (successes only)."""
    from capplan.results import per_request
    from capplan.statistics import batch_means

    table = per_request(result, warmup=True)
    own = table[table["request_id"].isin(of.frame["request_id"])]["ttft_s"].dropna()
    estimate = batch_means(own.to_numpy())
    bounded = [v if np.isfinite(v) else np.nan for v in (estimate.low, estimate.high)]
    return float(estimate.value), bounded[0], bounded[1]


def figure_parts(study: PoolStudy | None, values: Sequence[float]) -> list[Any]:
    """Return the figures of each bucket over the batch size, and what they say."""
    from capplan import charts

    frame = figures_by_batch(study, values)
    if study is None or frame is None:
        return [NO_POOL]
    tail = frame[frame["figure"] == FIGURES["e2e_p99_s"]]
    worst = tail.groupby("length_bucket", sort=False)["value"].max()
    unbounded = [str(name) for name in worst.index[np.isinf(worst)]]
    return [
        charts.figures_by_bucket(frame),
        f"{counted(frame['length_bucket'].nunique(), 'bucket')} at {listed(values)} "
        f"{BATCHED[study.pool.batching.kind]}. More "
        "than one percent failed, so that no p99 exists, at some batch size in: "
        f"{listed(unbounded)}.",
    ]


def slowdown_parts(study: PoolStudy | None, values: Sequence[float]) -> list[Any]:
    """Return the slowdown of the short requests over the batch size, and what it says."""
    from capplan import charts

    found = slowdown(study, values)
    if study is None or found is None:
        return [NO_POOL]
    chart = charts.slowdown_by_batch(found.frame, across=TITLES[study.fields[0]])
    return [chart, found.said()]


def table_parts(study: PoolStudy | None, point: tuple[float, float] | None) -> list[Any]:
    """Return all figures by class, priority and bucket at a point (None = the scenario's own)."""
    from capplan.display import table
    from capplan.simulation import simulate

    if study is None:
        return [NO_POOL]
    at = point or study.point
    frame = bucket_table(simulate(study.with_point(*at), trace=study.trace, seed=study.seed))
    good, offered = frame["goodput_rps"].sum(), frame["throughput_rps"].sum()
    return [
        table(frame),
        f"With {study.told(at)}, {format_value(good, '_rps')} of "
        f"{format_value(offered, '_rps')} answered keep every promise.",
    ]
