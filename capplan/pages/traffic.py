"""Frames of the traffic page: the books of the ingest, demand and lengths by class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from capplan.traffic.profile import Demand, TrafficProfile
    from capplan.traffic.trace import Trace

EVERYBODY = "all"
QUANTILES = ("p50", "p95", "p99")


def ledger_table(profile: TrafficProfile) -> pd.DataFrame:
    """Return the books of the ingest: rows read = rows kept + rows dropped, by reason."""
    ledger = profile.ledger
    rows = [("read", "", ledger.read), ("kept", "", ledger.kept)]
    rows += [("dropped", reason, count) for reason, count in ledger.dropped.items()]
    rows += [("kept, but changed", reason, count) for reason, count in ledger.changed.items()]
    return pd.DataFrame(rows, columns=["rows", "reason", "count"])


def demand_table(profile: TrafficProfile) -> pd.DataFrame:
    """Return how each class and all together arrive, and how many are in flight at once."""
    return pd.DataFrame(
        [
            {
                "request_class": name,
                "requests": demand.arrivals.requests,
                "rate_rps": demand.arrivals.rate_rps,
                "gap CV": demand.arrivals.gap_cv,
                "dispersion, 1 s": demand.arrivals.index_of_dispersion["1"],
                "dispersion, 60 s": demand.arrivals.index_of_dispersion["60"],
                "peak / mean, 60 s": demand.arrivals.peak_to_mean_60s,
                "service_s": demand.mean_service_s,
                "in flight (Little)": demand.concurrency,
            }
            for name, demand in _each(profile)
        ]
    )


def dispersion_frame(profile: TrafficProfile) -> pd.DataFrame:
    """Return the index of dispersion by window and class, windows the trace is too short for out.

    Columns: window_s, index_of_dispersion, request_class.
    """
    rows = [
        (float(window), value, name)
        for name, demand in _each(profile)
        for window, value in demand.arrivals.index_of_dispersion.items()
    ]
    columns = ["window_s", "index_of_dispersion", "request_class"]
    frame = pd.DataFrame(rows, columns=columns).dropna()
    return frame[frame["index_of_dispersion"] > 0]


def length_table(profile: TrafficProfile) -> pd.DataFrame:
    """Return quantiles of the lengths by class; the last column is the 95 % interval of p99."""
    rows = []
    for name, demand in _each(profile):
        for what in ("prompt", "output"):
            lengths = getattr(demand, f"{what}_tokens")
            tail = lengths.quantiles["p99"]
            rows.append(
                {
                    "request_class": name,
                    "length of": what,
                    "samples": lengths.n,
                    "mean_tokens": lengths.mean,
                    **{f"{q}_tokens": lengths[q] for q in QUANTILES},
                    "max_tokens": lengths.max,
                    "p99 between": f"{tail.low:,.0f} and {tail.high:,.0f}",
                }
            )
    return pd.DataFrame(rows)


def periods_table(profile: TrafficProfile) -> pd.DataFrame:
    """Return the kinds of period: how much of the time, which rate, which lengths."""
    return pd.DataFrame(
        [
            {
                "period": period.name,
                "share_of_time_fraction": period.share_of_time,
                "stretches": period.stretches,
                "longest_s": period.longest_s,
                "requests": period.requests,
                "rate_rps": period.rate_rps,
                "p95 prompt_tokens": period.prompt_tokens["p95"],
                "p95 output_tokens": period.output_tokens["p95"],
            }
            for period in profile.periods.values()
        ]
    )


def lifetimes(trace: Trace, profile: TrafficProfile) -> pd.DataFrame:
    """Return when each request starts and, if it never waits, ends.

    Columns: intended_start_s, finish_s, request_class.
    """
    start = trace.frame["arrival_s"]
    return pd.DataFrame(
        {
            "intended_start_s": start,
            "finish_s": start + profile.service.seconds,
            "request_class": trace.frame["request_class"],
        }
    )


def _each(profile: TrafficProfile) -> Iterator[tuple[str, Demand]]:
    if len(profile.by_class) > 1:
        yield from profile.by_class.items()
    yield EVERYBODY, profile.overall
