"""Frames and sentences of the traffic page: the ingest's books, demand and lengths by class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.formatting import counted, format_value

if TYPE_CHECKING:
    from capplan.traffic.profile import Demand, TrafficProfile
    from capplan.traffic.trace import Trace

EVERYBODY = "all"
QUANTILES = ("p50", "p95", "p99")
MOST_LEVELS = 400


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


def patience_table(profile: TrafficProfile, *, stated: bool) -> pd.DataFrame:
    """Return how long each class would wait, how that is known, and how many are in flight.

    ``stated`` tells whether the trace itself states deadlines; else they are the scenario's.
    """
    return pd.DataFrame(
        [
            {
                "request_class": name,
                "patience from": _patience_from(demand, stated=stated),
                "known of": demand.acceptable_wait["n"],
                "median patience_s": demand.acceptable_wait["p50_s"],
                "in flight p50": demand.in_flight.quantile(0.5),
                "in flight p99": demand.in_flight.quantile(0.99),
                "in flight max": demand.in_flight.max,
            }
            for name, demand in _each(profile)
        ]
    )


def _patience_from(demand: Demand, *, stated: bool) -> str:
    source = str(demand.acceptable_wait["source"])
    return source if stated or source != "deadline" else "promise of the class"


def patience_sentence(profile: TrafficProfile, *, stated: bool) -> str:
    """Return how many callers' patience is known, from what, and how long the median is."""
    wait = profile.overall.acceptable_wait
    if not wait["n"]:
        return "How long the callers would wait is unknown: no deadline is stated, none observed."
    source = _patience_from(profile.overall, stated=stated)
    return (
        f"The patience of {counted(wait['n'], 'request')} is known (from: {source}): half of "
        "them wait at "
        f"most {format_value(wait['p50_s'], '_s')}, the least patient {format_value(wait.get('min_s'), '_s')}."
    )


def time_above_frame(profile: TrafficProfile) -> pd.DataFrame:
    """Return the share of time with more requests in flight than each number, by class.

    Columns: in_flight, share_of_time_fraction, request_class.
    """
    rows = []
    for name, demand in _each(profile):
        if np.isnan(demand.in_flight.max):
            continue
        most = int(demand.in_flight.max)
        levels = np.unique(np.linspace(0, most, min(most + 1, MOST_LEVELS)).astype(int))
        rows += [(n, demand.in_flight.share_above(n), name) for n in levels.tolist()]
    return pd.DataFrame(rows, columns=["in_flight", "share_of_time_fraction", "request_class"])


def bucket_table(profile: TrafficProfile) -> pd.DataFrame:
    """Return the length buckets: up to how many tokens each goes and how many requests it has."""
    rows = []
    for what, buckets in profile.buckets.items():
        uppers = [*buckets.upper_tokens, getattr(profile, what).max]
        for name, upper, n in zip(buckets.names, uppers, buckets.requests, strict=True):
            rows.append(
                {
                    "length of": what.removesuffix("_tokens"),
                    "bucket": name,
                    "up to_tokens": float(upper),
                    "requests": n,
                    "share_fraction": n / sum(buckets.requests),
                }
            )
    return pd.DataFrame(rows)


def bucket_sentence(profile: TrafficProfile) -> str:
    """Return how well the buckets describe the lengths, and which lengths ask for a reserve."""
    fits = [
        f"{what.removesuffix('_tokens')} buckets explain {format_value(buckets.fit, '_fraction')} of the "
        f"variance of log length"
        for what, buckets in profile.buckets.items()
    ]
    advice = [str(flag["advice"]) for flag in profile.overall.flags]
    return f"The {' and the '.join(fits)} (80 % counts as well separated). {' '.join(advice)}"


def other_facts(profile: TrafficProfile) -> pd.DataFrame:
    """Return what else the trace tells of its callers; ``unknown`` where it says nothing."""
    drift = profile.drift
    facts = [
        ("answers streamed", format_value(profile.overall.streaming_fraction, "_fraction")),
        ("priorities", _priorities(profile.priorities)),
        ("five largest tenants", _share(profile.tenants, "top5_share")),
        ("sessions", _sessions(profile.sessions)),
        ("think time, median", _think(profile.sessions)),
        ("prompt tokens that a boundless prefix cache would hold", _reuse(profile.prefix_reuse)),
        ("fullest hour of the day / mean hour", _fullest_hour(profile.time_of_day)),
        ("rate, second half / first half", format_value(drift["rate_ratio"])),
        ("lengths differ between the halves", _drift(drift)),
    ]
    return pd.DataFrame(facts, columns=["what", "found"])


def _priorities(shares: Mapping[str, float] | None) -> str:
    if shares is None:
        return "unknown"
    return ", ".join(
        f"{name}: {format_value(share, '_fraction')}" for name, share in shares.items()
    )


def _share(found: Mapping[str, Any] | None, key: str) -> str:
    return "unknown" if found is None else format_value(found[key], "_fraction")


def _sessions(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "unknown"
    turns = found["requests_per_session"]
    return f"{found['count']:,}, with {format_value(turns['mean'])} requests each, {turns['max']:,} at most"


def _think(found: Mapping[str, Any] | None) -> str:
    return "unknown" if found is None else format_value(found["think_time_s"]["p50"], "_s")


def _reuse(found: Mapping[str, Any] | None) -> str:
    return _share(found, "reusable_token_fraction")


def _fullest_hour(pattern: Mapping[str, Any]) -> str:
    rates = pattern["rate_rps"]
    if not pattern["known"] or len(rates) < LEAST_HOURS:
        return "unknown"
    hour = max(rates, key=rates.get)
    mean = sum(rates.values()) / len(rates)
    return f"{format_value(rates[hour] / mean)}, at {hour} h UTC"


LEAST_HOURS = 24
"""Hours of the day that a trace must cover before one of them can be called the fullest."""


def _drift(drift: Mapping[str, Any]) -> str:
    found = drift["lengths_drift"]
    return "unknown" if found is None else "more than chance explains" if found else "no"


def burst_sentence(profile: TrafficProfile) -> str:
    """Return how much of the time is bursts, and whether chance alone would show as many."""
    burst, normal = profile.periods["burst"], profile.periods["normal"]
    if not burst.seconds:
        return "No second holds more requests than its minute explains: there are no bursts."
    often = "far more" if profile.bursts_distinct else "hardly more"
    return (
        f"Bursts take {format_value(burst.share_of_time, '_fraction')} of the time, {often} than the 0.1 % "
        f"that chance shows in a steady stream; the longest lasts {format_value(burst.longest_s, '_s')}. "
        f"In bursts {format_value(burst.rate_rps, '_rps')} arrive, in normal periods "
        f"{format_value(normal.rate_rps, '_rps')}."
    )


def burstiest(profile: TrafficProfile) -> str:
    """Return the CV of all gaps and, where there are several classes, the burstiest of them."""
    whole = f"The gaps of all requests have a CV of {format_value(profile.gap_cv)}"
    cvs = {name: demand.arrivals.gap_cv for name, demand in profile.by_class.items()}
    known = {name: cv for name, cv in cvs.items() if math.isfinite(cv)}
    if len(known) < 2:  # noqa: PLR2004
        return f"{whole}."
    most = max(known, key=lambda name: known[name])
    return f"{whole}; the burstiest class is {most}, with {format_value(known[most])}."


def fewest(profile: TrafficProfile) -> str:
    """Return how many requests lie beyond the p99 of the class that has the fewest."""
    name, demand = min(_each(profile), key=lambda pair: pair[1].prompt_tokens.n)
    n = demand.prompt_tokens.n
    whose = "The trace" if name == EVERYBODY else f"The smallest class, {name},"
    return f"{whose} has {counted(n, 'request')}: about {n / 100:,.0f} of them lie beyond a p99."


def rarity(profile: TrafficProfile) -> str:
    """Return for how much of the time the number in flight is near its peak or above its mean."""
    held = profile.overall.in_flight
    near, over = held.share_above(NEAR_PEAK * held.max), held.share_above(held.mean)
    if np.isnan(near):
        return "How many are in flight is unknown, and so is how rare its peak is."
    kind = "rare" if near < RARE else "normal"
    return (
        f"More than nine tenths of the peak of {format_value(held.max)} are in flight for "
        f"{format_value(near, '_fraction')} of the time, so the peak is {kind} (the bound is "
        f"{format_value(RARE, '_fraction')}, a default); above the mean of {format_value(held.mean)} it is for "
        f"{format_value(over, '_fraction')}."
    )


NEAR_PEAK = 0.9
RARE = 0.01
"""Share of the time below which the page calls a peak rare; a default of this workbook."""


def _each(profile: TrafficProfile) -> Iterator[tuple[str, Demand]]:
    if len(profile.by_class) > 1:
        yield from profile.by_class.items()
    yield EVERYBODY, profile.overall
