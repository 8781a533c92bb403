"""The record of one run: its request log and its timelines, typed, with their figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from capplan.display import Displayed
from capplan.formatting import counted, format_value, in_layer, listed
from capplan.results.breakers import open_spans, rule_at
from capplan.results.client_record import ClientRecord
from capplan.results.conservation import conservation_table
from capplan.results.groups import BY, grouped, least_good
from capplan.results.headline import headline
from capplan.results.replica_lifecycle import lead_times
from capplan.results.segments import SERIES, mean_segments, queue_waits
from capplan.scenario import Scenario
from capplan.schema import REQUESTS, TIMELINE, names, require_columns

TAILS = ("ttft_censored", "tpot", "e2e_censored")
"""Latencies whose tail is shown."""
MOST_MOMENTS = 600
"""Requests of a run that a chart of single requests shows."""


class DrawnTrace(Protocol):
    """The trace of a run; in practice a ``capplan.traffic.trace.Trace``."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per intended request, columns ``schema.TRACE``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunResult(Displayed):
    """One run of a scenario on a drawn trace, simulated or live.

    ``requests`` has one row per attempt with the columns ``schema.REQUESTS``, ``timeline`` one
    row per observation with the columns ``schema.TIMELINE``; ``duration_s`` is the end of the
    run. Times count from the start of the run, a moment not reached is NaN. ``wall_s`` is the
    computing time, which may differ between equal runs.

    A metric of the timeline keeps its value until its next row. Figures use the names ``length``
    (waiting in a queue layer), ``in_flight`` (requests in a layer or replica), ``busy_fraction``
    and ``kv_usage_fraction`` (of a replica), ``replicas`` (of a pool, in service).
    """

    scenario: Scenario
    trace: DrawnTrace
    requests: pd.DataFrame
    timeline: pd.DataFrame
    seed: int = 0
    replication: int = 0
    duration_s: float
    backend: str = "simulated"
    wall_s: float = math.nan
    versions: Mapping[str, str] = field(default_factory=dict)
    """What the replicas in service report at the end, by pool; absent = not known."""
    client: ClientRecord | None = None
    """The load client of a measured run; None of a simulated one."""
    _figures: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_columns(self.requests, names(REQUESTS), where="requests")
        require_columns(self.timeline, names(TIMELINE), where="timeline")

    @property
    def judged_from_s(self) -> float:
        """Return when the warm-up ends: requests that start earlier are not judged, s."""
        return self.scenario.warmup_s

    @property
    def judged(self) -> pd.DataFrame:
        """Return the attempts of the requests whose first intended start is past the warm-up."""
        if self.judged_from_s <= 0:
            return self.requests
        first = self.requests.groupby("request_id", sort=False, observed=True)["intended_start_s"]
        return self.requests[first.transform("min") >= self.judged_from_s]

    @property
    def figures(self) -> Mapping[str, Any]:
        """Return the :func:`headline` figures, computed once."""
        if not self._figures:
            self._figures.update(headline(self))
        return self._figures

    def table(self) -> pd.DataFrame:
        """Return how the requests of each class and of all ended, and how long they took.

        Latencies count a failure as infinite.
        """
        figures = self.figures
        classes = figures["by_class"] if len(figures["by_class"]) > 1 else {}
        return pd.DataFrame([_row(name, own) for name, own in {**classes, "all": figures}.items()])

    def summary(self) -> str:
        """Return how the requests ended, and the wasted computing and double waits."""
        figures = self.figures
        ends = [f"{n:,} {name.replace('_', ' ')}" for name, n in figures["outcomes"].items() if n]
        degraded = figures["degraded"]
        return (
            f"{counted(figures['offered'], 'request')} offered: {listed(ends)}"
            f"{f' ({degraded:,} of these degraded)' if degraded else ''}. "
            f"Goodput is {format_value(figures['goodput_rps'], '_rps')}. {_waste(figures)}"
        )

    def time_by_layer(self) -> pd.DataFrame:
        """Return the mean time of successes in each layer: request_class, layer, mean_s."""
        return mean_segments(self.judged)

    def groups(self) -> pd.DataFrame:
        """Return the figures by class, tenant, length bucket and phase, a failure as infinite.

        Columns: the keys, requests, good_fraction, rejected, failed, timed_out, and the 99th
        percentiles.
        """
        table = grouped(self)
        latencies = {f"{name}_p99_s": f"{name.partition('_')[0].upper()} p99_s" for name in TAILS}
        counts = ["requests", "good_fraction", "rejected", "failed", "timed_out"]
        return table[[*BY, *counts, *latencies]].rename(columns=latencies)

    def group_summary(self) -> str:
        """Return which of the :meth:`groups` kept its promises least, in a sentence."""
        return least_good(grouped(self))

    def conservation(self) -> pd.DataFrame:
        """Return what happened to all attempts by class and layer; layers without waits left out.

        A layer stands there if an attempt waited or ended in it.
        """
        table = conservation_table(self, by=("request_class",))
        ends = ["timed_out", "rejected", "cancelled", "failed", "in_flight"]
        some = (table[ends].sum(axis=1) > 0) | (table["wait_total_s"] > 0)
        columns = ["request_class", "layer", "entered", "left", *ends]
        kept = table.loc[some, [*columns, "wait_mean_s", "wasted_accelerator_s"]]
        return kept.rename(columns={"in_flight": "still there"}).reset_index(drop=True)

    def breaker_spans(self) -> pd.DataFrame:
        """Return when each breaker rule was open: rule, start_s, end_s (equal if it never was)."""
        rows = [
            (rule_at(rule, pool), *span)
            for (rule, pool), spans in open_spans(self).items()
            for span in spans or [(0.0, 0.0)]
        ]
        return pd.DataFrame(rows, columns=["rule", "start_s", "end_s"])

    def elastic_timeline(self) -> pd.DataFrame:
        """Return the rows of the timeline about pools that scale."""
        names = [pool.name for pool in self.scenario.pools if pool.is_elastic]
        return self.timeline[self.timeline["replica"].isin(names)]

    def acted(self) -> str:
        """Return what acted by itself, in sentences: breakers, degraded answers, autoscalers."""
        parts, figures = [], self.figures
        if self.scenario.breakers:
            opened = sorted({rule for (rule, _), spans in open_spans(self).items() if spans})
            of = counted(len(self.scenario.breakers), "breaker")
            parts.append(f"{len(opened)} of {of} opened ({listed(opened)}).")
        if self.scenario.breakers or figures["degraded"]:
            parts.append(f"{counted(figures['degraded'], 'answer')} were degraded.")
        if any(pool.is_elastic for pool in self.scenario.pools):
            parts.append(f"{counted(len(lead_times(self)), 'replica')} became ready on request.")
        nothing = "No breaker is set and no pool scales, so only the limits of the queues act."
        return " ".join(parts) or nothing

    def moments(self, marked: Collection[str] = ()) -> pd.DataFrame:
        """Return when first attempts entered, were queued and were served, ``marked`` ones first.

        At most ``MOST_MOMENTS`` rows: marked and failed requests, then evenly spaced others.
        Columns: those of ``charts.same_requests``.
        """
        log = self.requests[self.requests["attempt"] == 1]
        log = _some(log.assign(marked=log["request_id"].isin(list(marked))))
        waits = queue_waits(log, end_s=self.duration_s)[list(SERIES)]
        end = log["decode_end_s"].fillna(log["finish_s"]).fillna(self.duration_s)
        return pd.DataFrame(
            {
                "request_id": log["request_id"].astype(str),
                "outcome": log["outcome"].astype(str),
                "marked": log["marked"],
                "entry_s": log["intended_start_s"],
                "queued_s": log["service_queue_in_s"],
                "served_s": log["batch_in_s"],
                "prompt_tokens": log["prompt_tokens"].astype(np.float64),
                "wait_s": waits.sum(axis=1, min_count=1),
                "work_s": end - log["batch_in_s"],
            }
        ).reset_index(drop=True)

    def chart(self) -> Any:
        """Return the chart of the time by layer."""
        from capplan import charts

        return charts.time_by_layer(self.time_by_layer())


def _row(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    ends = figures["outcomes"]
    ttft, tpot, e2e = (figures[key] for key in ("ttft_censored_s", "tpot_s", "e2e_censored_s"))
    return {
        "request_class": name,
        "offered": figures["offered"],
        "succeeded": ends["succeeded"],
        "rejected": ends["rejected"],
        "timed_out": ends["timed_out"],
        "goodput_rps": figures["goodput_rps"],
        "TTFT p50_s": ttft["p50"],
        "TTFT p99_s": ttft["p99"],
        "TPOT p99_s": tpot["p99"],
        "E2E p50_s": e2e["p50"],
        "E2E p99_s": e2e["p99"],
    }


def _waste(figures: Mapping[str, Any]) -> str:
    twice = figures["double_queued"]
    waits = [
        f"{format_value(wait, '_s')} {in_layer(layer)}"
        for layer, wait in twice["wait_s"].items()
        if wait > 0
    ]
    where = f", on average {listed(waits)}" if waits else ""
    return (
        f"{format_value(figures['wasted_accelerator_fraction'], '_fraction')} of the accelerators' "
        f"busy time went to attempts that did not succeed "
        f"({format_value(figures['wasted_tokens'], '_tokens')}, by their share of the tokens), and "
        f"{format_value(twice['requests_fraction'], '_fraction')} of the requests waited in two "
        f"queues or more{where}."
    )


def _some(log: pd.DataFrame) -> pd.DataFrame:
    first = log[log["marked"] | (log["outcome"] != "succeeded")].iloc[:MOST_MOMENTS]
    rest = log.drop(first.index)
    room = MOST_MOMENTS - len(first)
    if len(rest) > room:
        rest = rest.iloc[np.linspace(0, len(rest) - 1, room).astype(int)] if room else rest[:0]
    return pd.concat([first, rest]).sort_values("intended_start_s")


def without_effect(result: RunResult) -> list[str]:
    """Return a sentence on each fault that was to strike at a time after the end of the run."""
    end = format_value(result.duration_s, "_s")
    return [
        f"The fault {fault.kind} at {format_value(fault.at_s, '_s')} is after the run, which ends "
        f"at {end}: it did nothing."
        for fault in result.scenario.faults
        if fault.at_s is not None and fault.at_s >= result.duration_s
    ]
