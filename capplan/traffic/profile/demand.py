"""The demand of one group of requests: arrivals, lengths, concurrency, patience, periods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import format_value, in_words
from capplan.traffic.profile import callers
from capplan.traffic.profile.arrivals import ArrivalStatistics, arrivals, dispersion, variation
from capplan.traffic.profile.concurrency import InFlight, Service, in_flight
from capplan.traffic.profile.fits import Fit, gap_fits, length_fit
from capplan.traffic.profile.lengths import Lengths, correlation, flags, lengths
from capplan.traffic.profile.periods import NAMES, Periods

Mask = npt.NDArray[np.bool_]
STEPS = np.concatenate([np.linspace(0.005, 0.98, 90), np.linspace(0.982, 0.999, 10)])
"""Quantiles at which a law is drawn beside the data."""
SHORTEST_SHOWN = 1e-6
"""Shortest gap of the chart, s: a logarithmic axis has no zero."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupDemand:
    """What one group of requests asks for: arrivals, lengths, concurrency, patience."""

    arrivals: ArrivalStatistics
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

    @property
    def fits(self) -> Mapping[str, Fit | None]:
        """The law closest to the gaps and to each length; None without a fitted law."""
        gaps = self.gap_fits[0] if self.gap_fits else None
        return {"gap_s": gaps, "prompt_tokens": self.prompt_fit, "output_tokens": self.output_fit}

    def fit_table(self) -> pd.DataFrame:
        """Return the law closest to the gaps and to each length, and where it is farthest off.

        ``off by up to`` is the largest distance of the distribution functions, in requests.
        """
        rows = []
        for name, fit in self.fits.items():
            if fit is not None:
                worst, ratio = fit.worst_quantile()
                at = format_value(fit.worst_at, name)
                rows.append((in_words(name), fit.law, fit.ks, at, fit.holds, worst, ratio))
        heads = ["law of", "law", "off by up to_fraction", "at", "chance explains it",
                 "worst quantile", "law / data there"]  # fmt: skip
        return pd.DataFrame(rows, columns=heads)

    def fit_frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return quantiles of a trace's gaps and lengths beside those of the closest laws.

        Columns: quantity, source, value, share_fraction.
        """
        gaps = np.diff(np.sort(frame["arrival_s"].to_numpy()))
        data = {"gap_s": gaps, **{name: frame[name].to_numpy() for name in list(self.fits)[1:]}}
        parts = []
        for name, fit in self.fits.items():
            quantity = name.replace("_s", " (s)").replace("_tokens", " (tokens)")
            if len(data[name]):
                found = np.quantile(data[name], STEPS, method="inverted_cdf")
                parts.append((quantity, "data", found))
            if fit is not None:
                drawn = fit.quantile(STEPS)
                parts.append((quantity, "law", drawn if name == "gap_s" else np.ceil(drawn)))
        quantities, sources, values = zip(*parts, strict=True)
        shown = pd.DataFrame(
            {
                "quantity": np.repeat(quantities, len(STEPS)),
                "source": np.repeat(sources, len(STEPS)),
                "value": np.concatenate(values),
                "share_fraction": np.tile(STEPS, len(parts)),
            }
        )
        return shown[shown["value"] > SHORTEST_SHOWN]

    def to_json(self) -> dict[str, Any]:
        """Return the values under the names of the command line's contract."""
        return {
            **asdict(self.arrivals),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "correlation": self.correlation,
            "flags": self.flags,
            "streaming_fraction": self.streaming_fraction,
            "acceptable_wait": self.acceptable_wait,
            "concurrency": {
                "little": self.concurrency,
                "mean_service_s": self.mean_service_s,
                "in_flight": self.in_flight,
            },
            "periods": self.periods,
            "fits": {
                "gaps": self.gap_fits,
                "prompt_tokens": self.prompt_fit,
                "output_tokens": self.output_fit,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Period:
    """A kind of period: its time, its rate and what its requests ask for.

    Gaps are those inside one stretch; the index of dispersion is that of the bins that show bursts.
    The bins of a burst are selected for being full, so their index means little.
    """

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


def demand_of(
    frame: pd.DataFrame,
    service: Service,
    mask: Mask,
    span: tuple[float, float, float],
    found: Periods,
) -> GroupDemand:
    """Return what the requests of a mask ask for; ``span`` is start, duration and rate of all."""
    start_s, duration_s, rate = span
    rows = frame[mask]
    arrival = rows["arrival_s"].to_numpy()
    prompt, output = (rows[c].to_numpy() for c in ("prompt_tokens", "output_tokens"))
    share = len(rows) / len(frame)
    inputs, outputs = lengths(prompt), lengths(output)
    return GroupDemand(
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
