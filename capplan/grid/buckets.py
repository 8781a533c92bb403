"""What a batch window does to each length bucket: figures together, and the price of the long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.display import Displayed
from capplan.formatting import counted, does, format_value, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from capplan.grid.pool_study import PoolStudy
    from capplan.results import RunResult
    from capplan.traffic.trace import Trace

FEWEST = 30
"""A bucket of fewer requests has no mean worth a comparison."""
APART_GAP_S = 600.0
"""Requests sent so far apart never meet: their latency is that of an idle replica."""
FIGURES = {
    "goodput_rps": "goodput (requests/s)",
    "throughput_rps": "throughput (requests/s)",
    "ttft_p99_s": "TTFT p99 (s)",
    "e2e_p99_s": "E2E p99 (s)",
    "failures": "failures (requests)",
    "cancelled_tokens": "cancelled (tokens)",
    "held_tokens": "memory held (tokens)",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buckets(Displayed):
    """Figures by class, priority and length bucket of the points of a grid.

    ``rows`` are those over the field ``across`` with all other fields as the scenario has them,
    ``best`` those of the chosen point, which ``at`` names in words.
    """

    across: str
    title: str
    rows: pd.DataFrame
    best: pd.DataFrame
    at: str

    def summary(self) -> str:
        """Return what the chosen point answers, and the buckets without a p99 somewhere."""
        frame = self._frame()
        tail = frame[frame["figure"] == FIGURES["e2e_p99_s"]]
        worst = tail.groupby("length_bucket", sort=False)["value"].max()
        unbounded = listed(str(name) for name in worst.index[np.isinf(worst)])
        good, answered = self.best["goodput_rps"].sum(), self.best["throughput_rps"].sum()
        return (
            f"With {self.at}, {format_value(good, '_rps')} of {format_value(answered, '_rps')} "
            f"answered keep every promise. {counted(len(worst), 'bucket')} over "
            f"{counted(frame['across'].nunique(), 'value')} of {self.title}; more than one percent "
            f"fail, so that no p99 exists, at some value in: {unbounded}."
        )

    def table(self) -> pd.DataFrame:
        """Return all figures by class, priority and bucket at the chosen point."""
        first = self.best.columns.get_loc("request_class")
        return self.best.iloc[:, first:]

    def chart(self) -> alt.ConcatChart:
        """Return each figure over the first varied field, a line for each class and bucket."""
        from capplan import charts

        return charts.figures_by_bucket(self._frame())

    def _frame(self) -> pd.DataFrame:
        """Return the figures in long form: across, figure, value, length_bucket (and class)."""
        rows = self.rows.assign(
            across=self.rows[self.across],
            failures=self.rows["timeouts"] + self.rows["errors"],
            length_bucket=self.rows["request_class"].astype(str)
            + " "
            + self.rows["length_bucket"].astype(str),
        )
        measured = [name for name in FIGURES if rows[name].notna().any()]
        long = rows.melt(["across", "length_bucket"], measured, var_name="figure")
        return long.assign(figure=long["figure"].map(FIGURES))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slowdown(Displayed):
    """What long requests cost the short ones: ``frame`` as ``charts.slowdown_by_batch`` takes it.

    ``bucket`` names the short ones, ``short`` and ``long`` count both; ``title`` names the field.
    """

    frame: pd.DataFrame
    title: str
    bucket: str
    short: int
    long: int
    until: str
    """What the latency is measured to: ``first token``, or ``whole answer`` if none streams."""

    def summary(self) -> str:
        """Return the largest slowdown with and without the long requests in a sentence."""
        worst = self.frame.groupby("mix", sort=False)["slowdown"].max()
        if "with the long" not in worst:
            return "There is only one length bucket, so no request waits for a longer one."
        return (
            f"{counted(self.short, 'request')} "
            f"{does(self.short, 'has a prompt of', 'have prompts of')} {self.bucket} tokens, "
            f"{self.long:,} longer. At worst the short ones take "
            f"{format_value(worst['with the long'])} times as long to their {self.until} as on an "
            f"idle replica; without the long ones {format_value(worst['short alone'])} times."
        )

    def table(self) -> pd.DataFrame:
        """Return the slowdown of each batch size with its interval, alone and with the long."""
        return self.frame

    def chart(self) -> alt.LayerChart:
        """Return the slowdown over the batch size, with and without the long requests."""
        from capplan import charts

        return charts.slowdown_by_batch(self.frame, across=self.title)


def slowdown(study: PoolStudy, values: Sequence[float]) -> Slowdown:
    """Return the slowdown of the shortest bucket, with and without the longer requests.

    The slowdown is mean TTFT (E2E if none of them is streamed) ÷ that of the same requests far
    apart. Without the long ones, the short keep their moments of arrival.
    """
    from capplan.results import length_bucket
    from capplan.results.requests import streamed
    from capplan.simulation import simulate

    buckets = length_bucket(study.trace.frame["prompt_tokens"])
    counts = pd.Series(buckets).value_counts(sort=False)
    enough = counts[counts >= min(FEWEST, int(counts.max()))]
    shortest = str(enough.index[0])
    kept = study.trace.frame[np.asarray(buckets == shortest)]
    short = replace(study.trace, frame=kept.reset_index(drop=True))
    mixes = {"short alone": short, "with the long": study.trace}
    if len(short) == len(study.trace):
        del mixes["with the long"]
    rows = []
    for across in values:
        scenario = study.at(across)
        idle = simulate(scenario, trace=far_apart(short), seed=study.seed)
        idle_s, *_ = _mean_latency(idle, short)
        for mix, trace in mixes.items():
            found = _mean_latency(simulate(scenario, trace=trace, seed=study.seed), short)
            rows.append((int(across), mix, *(value / idle_s for value in found)))
    return Slowdown(
        frame=pd.DataFrame(rows, columns=["across", "mix", "slowdown", "low", "high"]),
        title=study.titles[0],
        bucket=shortest,
        short=len(short),
        long=len(study.trace) - len(short),
        until="first token" if streamed(idle.requests).any() else "whole answer",
    )


def far_apart(trace: Trace) -> Trace:
    """Return the same requests, :data:`APART_GAP_S` apart."""
    moments = np.arange(len(trace.frame)) * APART_GAP_S
    frame = trace.frame.assign(arrival_s=moments)
    return replace(trace, frame=frame, duration_s=float(moments[-1]))


def _mean_latency(result: RunResult, of: Trace) -> tuple[float, float, float]:
    """Return the mean TTFT of some requests (E2E if none streams) with its 95 % interval, s.

    Of successes only.
    """
    from capplan.results import per_request
    from capplan.results.requests import streamed
    from capplan.statistics import batch_means

    table = per_request(result, warmup=True)
    own = table[table["request_id"].isin(of.frame["request_id"])]
    name = "ttft_s" if streamed(own).any() else "e2e_s"
    estimate = batch_means(own[name].dropna().to_numpy())
    low, high = (v if np.isfinite(v) else np.nan for v in (estimate.low, estimate.high))
    return float(estimate.value), low, high
