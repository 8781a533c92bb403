"""The profile of a trace: who calls, when, how long, and how long they will wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.traffic.buckets import Buckets, length_buckets
from capplan.traffic.ledger import Ledger
from capplan.traffic.periods import BURST, CHANCE, NAMES, Periods, find_periods
from capplan.traffic.profile import callers
from capplan.traffic.profile.arrivals import (
    Arrivals,
    arrivals,
    dispersion,
    drift,
    moment,
    time_of_day,
    variation,
)
from capplan.traffic.profile.concurrency import (
    InFlight,
    Service,
    ServiceTime,
    in_flight,
    service_times,
)
from capplan.traffic.profile.fits import Fit, gap_fits, length_fit
from capplan.traffic.profile.lengths import Lengths, correlation, flags, lengths

if TYPE_CHECKING:
    import pandas as pd

    from capplan.traffic.trace import Trace

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """What one group of requests asks for: arrivals, lengths, concurrency, patience."""

    arrivals: Arrivals
    prompt_tokens: Lengths
    output_tokens: Lengths
    correlation: Mapping[str, float | int]
    flags: tuple[Mapping[str, Any], ...]
    mean_service_s: float
    in_flight: InFlight
    streaming_fraction: float
    acceptable_wait: Mapping[str, Any]
    periods: Mapping[str, Period]
    gap_fits: tuple[Fit, ...]
    prompt_fit: Fit | None
    output_fit: Fit | None

    @property
    def concurrency(self) -> float:
        """Mean requests in flight, rate × mean service time.

        Source: Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9, 1961.
        """
        return self.arrivals.rate_rps * self.mean_service_s

    def to_json(self) -> dict[str, Any]:
        """Return plain values under the names of the command line's contract."""
        return {
            **self.arrivals.to_json(),
            "prompt_tokens": self.prompt_tokens.to_json(),
            "output_tokens": self.output_tokens.to_json(),
            "correlation": dict(self.correlation),
            "flags": [dict(flag) for flag in self.flags],
            "streaming_fraction": self.streaming_fraction,
            "acceptable_wait": dict(self.acceptable_wait),
            "concurrency": {
                "little": self.concurrency,
                "mean_service_s": self.mean_service_s,
                "in_flight": self.in_flight.to_json(),
            },
            "periods": {name: period.to_json() for name, period in self.periods.items()},
            "fits": {
                "gaps": [fit.to_json() for fit in self.gap_fits],
                "prompt_tokens": self.prompt_fit.to_json() if self.prompt_fit else None,
                "output_tokens": self.output_fit.to_json() if self.output_fit else None,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Period:
    """A kind of period: its time, its rate and what its requests ask for.

    Gaps are those inside one stretch, the index of dispersion that of the bins by which bursts are
    told; those of bursts are chosen for being full, so theirs says little.
    """

    name: str
    how: str
    seconds: float
    share_of_time: float
    stretches: int
    longest_s: float
    requests: int
    rate_rps: float
    concurrency: float
    gap_cv: float
    index_of_dispersion: Mapping[str, float]
    prompt_tokens: Lengths
    output_tokens: Lengths

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain = ("how", "seconds", "share_of_time", "stretches", "longest_s", "requests",
                 "rate_rps", "concurrency", "gap_cv", "index_of_dispersion")  # fmt: skip
        return {
            **{name: getattr(self, name) for name in plain},
            "prompt_tokens": self.prompt_tokens.to_json(),
            "output_tokens": self.output_tokens.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrafficProfile:
    """The profile of a trace, overall, per class and per period.

    ``tenants``, ``sessions``, ``priorities`` and ``prefix_reuse`` are None where the trace has no
    such column. See :meth:`to_json` for the names of the contract.
    """

    source: str
    format: str
    sha256: str | None
    start: datetime | None
    ledger: Ledger
    notes: tuple[str, ...]
    overall: Demand
    by_class: Mapping[str, Demand]
    found: Periods
    bursts_distinct: bool
    service: Service
    priorities: Mapping[str, float] | None
    tenants: Mapping[str, Any] | None
    sessions: Mapping[str, Any] | None
    prefix_reuse: Mapping[str, Any] | None
    time_of_day: Mapping[str, Any]
    drift: Mapping[str, Any]
    buckets: Mapping[str, Buckets]

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
        """Return the profile as one JSON document; what is not known is None."""
        rows = self.ledger.to_json()
        document = {
            "source": self.source,
            "format": self.format,
            "sha256": self.sha256,
            "start": self.start.isoformat() if self.start else None,
            "notes": list(self.notes),
            "rows": rows,
            **self.overall.to_json(),
            "by_class": {name: demand.to_json() for name, demand in self.by_class.items()},
            "bursts": {"distinct": self.bursts_distinct, "by_chance_fraction": CHANCE},
            "service_time": {"origin": self.service.origin, "law": self.service.told},
            "priorities": self.priorities,
            "tenants": self.tenants,
            "sessions": self.sessions,
            "prefix_reuse": self.prefix_reuse,
            "time_of_day": dict(self.time_of_day),
            "drift": dict(self.drift),
            "length_buckets": {name: b.to_json() for name, b in self.buckets.items()},
        }
        plain: dict[str, Any] = json_value(document)
        return plain


def json_value(value: Any) -> Any:
    """Return the value with NaN as None and infinities as text, down to the leaves.

    >>> json_value({"a": [math.nan, math.inf, 1]})
    {'a': [None, 'inf', 1]}
    """
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def profile(trace: Trace, *, service_time_s: ServiceTime | None = None) -> TrafficProfile:
    """Return the profile of a trace.

    Parameters
    ----------
    trace
        Requests with the books of their ingest.
    service_time_s
        How long a request is served, for concurrency and think times: one number, one per class,
        a :class:`TokenTime`, an array with one per request, or a function of the frame. None: the
        latency the source observed, else a default that the profile names as such.

    Raises
    ------
    ValueError
        For a service time that does not fit the trace.
    """
    frame = trace.frame
    service = service_times(frame, service_time_s)
    arrival = frame["arrival_s"].to_numpy()
    start_s, duration_s, rate = watched(trace)
    since = arrival - start_s
    every = np.ones(len(frame), np.bool_)
    found = find_periods(since, duration_s)
    span = (start_s, duration_s, rate)
    classes = _classes(frame)

    def demand(mask: Mask) -> Demand:
        return _demand(frame, service, mask, span, found)

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
        time_of_day=time_of_day(since, duration_s, moment(trace.start, start_s)),
        drift=drift(since, prompt, output, duration_s),
        buckets={"prompt_tokens": length_buckets(prompt), "output_tokens": length_buckets(output)},
    )


def watched(trace: Trace) -> tuple[float, float, float]:
    """Return when watching began, for how long, and the rate over that time.

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


def _demand(
    frame: pd.DataFrame,
    service: Service,
    mask: Mask,
    span: tuple[float, float, float],
    found: Periods,
) -> Demand:
    start_s, duration_s, rate = span
    rows = frame[mask]
    arrival = rows["arrival_s"].to_numpy()
    prompt, output = (rows[c].to_numpy() for c in ("prompt_tokens", "output_tokens"))
    share = len(rows) / len(frame)
    inputs, outputs = lengths(prompt), lengths(output)
    return Demand(
        arrivals=arrivals(arrival, start_s=start_s, duration_s=duration_s, rate_rps=rate * share),
        prompt_tokens=inputs,
        output_tokens=outputs,
        correlation=correlation(prompt, output),
        flags=tuple(flags(inputs, outputs)),
        mean_service_s=float(service.seconds[mask].mean()),
        in_flight=in_flight(arrival, service.seconds[mask], start_s + duration_s),
        streaming_fraction=callers.streaming_fraction(rows),
        acceptable_wait=callers.acceptable_wait(rows),
        periods={name: _period(i, found, frame, service, mask) for i, name in enumerate(NAMES)},
        gap_fits=gap_fits(arrival),
        prompt_fit=length_fit(prompt),
        output_fit=length_fit(output),
    )


def _period(
    number: int, found: Periods, frame: pd.DataFrame, service: Service, of_group: Mask
) -> Period:
    mask = found.requests(number) & of_group
    seconds = found.seconds(number)
    rate = float(mask.sum()) / seconds if seconds > 0 else math.nan
    runs = [end - begin for begin, end in found.runs(number)]
    total = float(found.bin_seconds.sum())
    return Period(
        name=NAMES[number],
        how=found.how(number),
        seconds=seconds,
        share_of_time=seconds / total if total else math.nan,
        stretches=len(runs),
        longest_s=max(runs, default=math.nan),
        requests=int(mask.sum()),
        rate_rps=rate,
        concurrency=rate * float(service.seconds[mask].mean()) if mask.any() else math.nan,
        gap_cv=variation(found.gaps(number, frame["arrival_s"].to_numpy(), of_group)),
        index_of_dispersion={f"{found.bin_s:g}": dispersion(found.counts(number, of_group))},
        prompt_tokens=lengths(frame["prompt_tokens"].to_numpy()[mask]),
        output_tokens=lengths(frame["output_tokens"].to_numpy()[mask]),
    )


__all__ = ["BURST", "Demand", "Period", "TrafficProfile", "json_value", "profile", "watched"]
