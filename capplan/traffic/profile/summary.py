"""The profile of a trace: arrivals, lengths, concurrency, callers and their patience."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import counted, does, format_value
from capplan.traffic.profile import callers
from capplan.traffic.profile.arrivals import drift, time_of_day
from capplan.traffic.profile.concurrency import Service, ServiceTime, service_times
from capplan.traffic.profile.demand import GroupDemand, Mask, Period, demand_of
from capplan.traffic.profile.lengths import LengthClasses, Lengths, length_buckets
from capplan.traffic.profile.periods import CHANCE, Periods, find_periods
from capplan.traffic.trace import Ledger, Trace

MOST_LEVELS = 400
"""Points of the chart of the time above a number in flight."""
LEAST_HOURS = 24
"""Hours of the day that a trace must cover before one of them is called the fullest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrafficProfile(Displayed):
    """The profile of a trace, overall, per class and per period.

    ``tenants``, ``sessions``, ``priorities`` and ``prefix_reuse`` are None for a trace without
    that column. See :meth:`to_json` for the names of the contract.
    """

    source: str
    format: str
    sha256: str | None
    start: datetime | None
    ledger: Ledger
    notes: tuple[str, ...]
    overall: GroupDemand
    by_class: Mapping[str, GroupDemand]
    found: Periods
    bursts_distinct: bool
    service: Service
    priorities: Mapping[str, float] | None
    tenants: Mapping[str, Any] | None
    sessions: Mapping[str, Any] | None
    prefix_reuse: Mapping[str, Any] | None
    time_of_day: Mapping[str, Any]
    drift: Mapping[str, Any]
    buckets: Mapping[str, LengthClasses]

    @property
    def rate_rps(self) -> float:
        """Requests per second over the whole trace."""
        return self.overall.arrivals.rate_rps

    @property
    def periods(self) -> Mapping[str, Period]:
        """Normal, peak and burst periods of all requests."""
        return self.overall.periods

    @property
    def duration_s(self) -> float:
        """Time the trace covers."""
        return self.overall.arrivals.duration_s

    @property
    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps."""
        return self.overall.arrivals.gap_cv

    @property
    def prompt_tokens(self) -> Lengths:
        """Prompt lengths of all requests."""
        return self.overall.prompt_tokens

    @property
    def output_tokens(self) -> Lengths:
        """Output lengths of all requests."""
        return self.overall.output_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the profile as one JSON document; an unknown value is None."""
        document = {
            "source": self.source,
            "format": self.format,
            "sha256": self.sha256,
            "start": self.start.isoformat() if self.start else None,
            "notes": list(self.notes),
            "rows": self.ledger,
            **self.overall.to_json(),
            "by_class": self.by_class,
            "bursts": {"distinct": self.bursts_distinct, "by_chance_fraction": CHANCE},
            "service_time": {"origin": self.service.origin, "law": self.service.law},
            "priorities": self.priorities,
            "tenants": self.tenants,
            "sessions": self.sessions,
            "prefix_reuse": self.prefix_reuse,
            "time_of_day": self.time_of_day,
            "drift": self.drift,
            "length_buckets": self.buckets,
        }
        found: dict[str, Any] = plain(document)
        return found

    def summary(self) -> str:
        """Return the rows read, and what decides capacity: rate, bursts, lengths, waits."""
        sentences = [
            f"{self.source}: {self.ledger.sentence()}",
            *self.notes,
            self._rate(),
            self._bursts(),
            self._tails(),
            *(str(flag["advice"]) for flag in self.overall.flags),
            self._patience(),
        ]
        return " ".join(sentences)

    def _tails(self) -> str:
        """Return where the longest percent of lengths starts, if the requests bound it."""
        both = (self.prompt_tokens, self.output_tokens)
        if all(math.isfinite(one.quantiles["p99"].high) for one in both):
            prompt, output = (format_value(one["p99"], "_tokens") for one in both)
            return f"The longest percent of prompts starts at {prompt}, of outputs at {output}."
        prompt, output = (format_value(one.max, "_tokens") for one in both)
        few = counted(self.prompt_tokens.n, "request")
        return (
            f"{few} are too few to bound a p99 of the lengths; the longest prompt has {prompt}, "
            f"the longest output {output}."
        )

    def _rate(self) -> str:
        if math.isnan(self.rate_rps):
            n = self.overall.arrivals.requests
            over = format_value(self.duration_s, "_s")
            return f"{counted(n, 'request')} over {over} {does(n, 'shows', 'show')} no rate."
        arrivals = self.overall.arrivals
        peak, surge = arrivals.peak_to_mean_60s, arrivals.highest_rps_5s
        parts = [
            f"On average {format_value(self.rate_rps, '_rps')} arrive over "
            f"{format_value(self.duration_s, '_s')}"
        ]
        if not math.isnan(peak):
            parts.append(f"the fullest minute holds {format_value(peak)} times as many as the mean")
        if not math.isnan(surge):
            parts.append(f"the fullest 5 s bring {format_value(surge, '_rps')}")
        return f"{'; '.join(parts)}."

    def _bursts(self) -> str:
        if math.isnan(self.overall.arrivals.peak_to_mean_60s):
            return "That is too short to tell a peak or a burst from the mean."
        burst = self.periods["burst"]
        if not burst.seconds:
            return "No second holds more requests than its minute explains: there are no bursts."
        often = "far more" if self.bursts_distinct else "hardly more"
        return (
            f"Bursts take {format_value(burst.share_of_time, '_fraction')} of the time, {often} "
            f"than the {format_value(CHANCE, '_fraction')} that chance shows in a steady stream; "
            f"the longest lasts {format_value(burst.longest_s, '_s')}."
        )

    def _patience(self) -> str:
        wait = self.overall.acceptable_wait
        if not wait["n"]:
            return "How long the callers would wait is unknown: no deadline is stated or observed."
        return (
            f"The patience of {counted(wait['n'], 'request')} is known (from: {wait['source']}): "
            f"half of them wait at most {format_value(wait['p50_s'], '_s')}, the least patient "
            f"{format_value(wait.get('min_s'), '_s')}."
        )

    def groups(self) -> Iterator[tuple[str, GroupDemand]]:
        """Yield the name and demand of each class, if there are several, and of ``all``."""
        if len(self.by_class) > 1:
            yield from self.by_class.items()
        yield "all", self.overall

    def table(self) -> pd.DataFrame:
        """Return how the requests of each class and of all arrive, and how many are in flight."""
        rows = [
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
            for name, demand in self.groups()
        ]
        return pd.DataFrame(rows)

    def length_table(self) -> pd.DataFrame:
        """Return quantiles of the lengths by class; the last column is the 95 % interval of p99."""
        rows = []
        for name, demand in self.groups():
            for what in ("prompt", "output"):
                lengths: Lengths = getattr(demand, f"{what}_tokens")
                tail = lengths.quantiles["p99"]
                rows.append(
                    {
                        "request_class": name,
                        "length of": what,
                        "samples": lengths.n,
                        "mean_tokens": lengths.mean,
                        **{f"{q}_tokens": lengths[q] for q in ("p50", "p95", "p99")},
                        "max_tokens": lengths.max,
                        "p99 between": " and ".join(map(_bound, (tail.low, tail.high))),
                    }
                )
        return pd.DataFrame(rows)

    def period_table(self) -> pd.DataFrame:
        """Return the kinds of period: how much of the time, which rate, which lengths."""
        rows = [
            {
                "period": name,
                "share_of_time_fraction": period.share_of_time,
                "stretches": period.stretches,
                "longest_s": period.longest_s,
                "requests": period.requests,
                "rate_rps": period.rate_rps,
                "p95 prompt_tokens": period.prompt_tokens["p95"],
                "p95 output_tokens": period.output_tokens["p95"],
            }
            for name, period in self.periods.items()
        ]
        return pd.DataFrame(rows)

    def patience_table(self) -> pd.DataFrame:
        """Return how long each class would wait, how that is known, and how many are in flight."""
        rows = [
            {
                "request_class": name,
                "patience from": demand.acceptable_wait["source"],
                "known of": demand.acceptable_wait["n"],
                "median patience_s": demand.acceptable_wait["p50_s"],
                "in flight p50": demand.in_flight.quantile(0.5),
                "in flight p99": demand.in_flight.quantile(0.99),
                "in flight max": demand.in_flight.max,
            }
            for name, demand in self.groups()
        ]
        return pd.DataFrame(rows)

    def bucket_table(self) -> pd.DataFrame:
        """Return the length buckets: the longest length and the number of requests of each."""
        rows = []
        for what, buckets in self.buckets.items():
            uppers = [*buckets.upper_tokens, getattr(self, what).max]
            for name, upper, n in zip(buckets.names, uppers, buckets.requests, strict=True):
                of = what.removesuffix("_tokens")
                rows.append((of, name, float(upper), n, buckets.fit))
        heads = ["length of", "bucket", "up to_tokens", "requests", "explained_fraction"]
        return pd.DataFrame(rows, columns=heads)

    def caller_table(self) -> pd.DataFrame:
        """Return other facts about the callers; ``unknown`` for what the trace does not state."""
        tenants, sessions, reuse = self.tenants or {}, self.sessions or {}, self.prefix_reuse or {}
        turns, drifts = sessions.get("requests_per_session"), self.drift["lengths_drift"]
        priorities = [
            f"{name}: {format_value(share, '_fraction')}"
            for name, share in (self.priorities or {}).items()
        ]
        facts = [
            ("answers streamed", format_value(self.overall.streaming_fraction, "_fraction")),
            ("priorities", ", ".join(priorities) or "unknown"),
            ("five largest tenants", format_value(tenants.get("top5_share"), "_fraction")),
            ("sessions", format_value(sessions.get("count"))),
            ("requests per session, mean", format_value(turns and turns["mean"])),
            ("think time, median", format_value(turns and sessions["think_time_s"]["p50"], "_s")),
            (
                "prompt tokens that a boundless prefix cache would hold",
                format_value(reuse.get("reusable_token_fraction"), "_fraction"),
            ),
            ("fullest hour of the day / mean hour", self._fullest_hour()),
            ("rate, second half / first half", format_value(self.drift["rate_ratio"])),
            (
                "lengths differ between the halves more than by chance",
                format_value(None if drifts is None else bool(drifts)),
            ),
        ]
        return pd.DataFrame(facts, columns=["what", "found"])

    def _fullest_hour(self) -> str:
        rates = self.time_of_day["rate_rps"]
        if not self.time_of_day["known"] or len(rates) < LEAST_HOURS:
            return "unknown"
        hour = max(rates, key=rates.get)
        return f"{format_value(rates[hour] * len(rates) / sum(rates.values()))}, at {hour} h UTC"

    def dispersion_by_window(self) -> pd.DataFrame:
        """Return the index of dispersion by window and class, without windows that are too long.

        Columns: window_s, index_of_dispersion, request_class.
        """
        rows = [
            (float(window), value, name)
            for name, demand in self.groups()
            for window, value in demand.arrivals.index_of_dispersion.items()
        ]
        columns = ["window_s", "index_of_dispersion", "request_class"]
        frame = pd.DataFrame(rows, columns=columns).dropna()
        return frame[frame["index_of_dispersion"] > 0]

    def time_above(self) -> pd.DataFrame:
        """Return the share of time with more requests in flight than each number, by class.

        Columns: in_flight, share_of_time_fraction, request_class.
        """
        rows = []
        for name, demand in self.groups():
            if math.isnan(demand.in_flight.max):
                continue
            most = int(demand.in_flight.max)
            levels = np.unique(np.linspace(0, most, min(most + 1, MOST_LEVELS)).astype(int))
            rows += [(n, demand.in_flight.share_above(n), name) for n in levels.tolist()]
        return pd.DataFrame(rows, columns=["in_flight", "share_of_time_fraction", "request_class"])

    def lifetimes(self, trace: Trace) -> pd.DataFrame:
        """Return when each request of the trace starts and, if it never waits, ends.

        Columns: intended_start_s, finish_s, request_class.
        """
        start = trace.frame["arrival_s"]
        return pd.DataFrame(
            {
                "intended_start_s": start,
                "finish_s": start + self.service.seconds,
                "request_class": trace.frame["request_class"],
            }
        )

    def chart(self) -> Any:
        """Return the chart of the index of dispersion by window."""
        from capplan import charts

        return charts.dispersion_by_window(self.dispersion_by_window())


def _bound(tokens: float) -> str:
    return f"{tokens:,.0f}" if math.isfinite(tokens) else format_value(abs(tokens))


def profile(trace: Trace, *, service_time_s: ServiceTime | None = None) -> TrafficProfile:
    """Return the profile of a trace.

    Parameters
    ----------
    trace
        Requests with the ledger of their ingest.
    service_time_s
        Service time, for concurrency and think times: one number, one per class, a
        :class:`TokenTime`, an array with one per request, a function of the frame, or a
        :class:`Service`, for example that of a scenario (``cp.service_time``). None: the latency
        that the source observed, else a default, named as such.

    Raises ValueError for a service time that does not fit the trace.
    """
    frame = trace.frame
    service = service_times(frame, service_time_s)
    arrival = frame["arrival_s"].to_numpy()
    start_s, duration_s, rate = observed(trace)
    since = arrival - start_s
    every = np.ones(len(frame), np.bool_)
    found = find_periods(since, duration_s)
    span = (start_s, duration_s, rate)
    began = None if trace.start is None else trace.start + timedelta(seconds=start_s)
    classes = _classes(frame)

    def demand(mask: Mask) -> GroupDemand:
        return demand_of(frame, service, mask, span, found)

    prompt, output = (frame[c].to_numpy() for c in ("prompt_tokens", "output_tokens"))
    return TrafficProfile(
        source=trace.source,
        format=trace.format,
        sha256=trace.sha256,
        start=trace.start,
        ledger=trace.ledger,
        notes=trace.notes,
        overall=demand(every),
        by_class={name: demand(mask) for name, mask in classes.items()},
        found=found,
        bursts_distinct=found.distinct_bursts(),
        service=service,
        priorities=callers.priorities(frame),
        tenants=callers.tenants(frame, rate),
        sessions=callers.sessions(frame, service.seconds, service.origin),
        prefix_reuse=callers.prefix_reuse(frame, trace.prefix_block_tokens),
        time_of_day=time_of_day(since, duration_s, began),
        drift=drift(since, prompt, output, duration_s),
        buckets={"prompt_tokens": length_buckets(prompt), "output_tokens": length_buckets(output)},
    )


def observed(trace: Trace) -> tuple[float, float, float]:
    """Return the start and the length of the observation window, and the rate in it.

    With a known observation window the rate is requests ÷ window. Without, the window runs from
    the first to the last arrival and holds one gap less than requests; NaN for one request.
    """
    arrival = trace.frame["arrival_s"].to_numpy()
    n = len(arrival)
    if trace.duration_s is not None:
        return 0.0, trace.duration_s, n / trace.duration_s
    first, span = float(arrival[0]), float(arrival[-1] - arrival[0])
    return first, span, (n - 1) / span if span > 0 else math.nan


def _classes(frame: pd.DataFrame) -> dict[str, Mask]:
    if "request_class" not in frame:
        return {}
    named = frame["request_class"]
    return {str(name): (named == name).to_numpy(bool) for name in sorted(named.dropna().unique())}
