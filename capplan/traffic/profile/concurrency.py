"""Concurrency: requests in flight, by Little's law and over time, for a service time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
LEAST_OBSERVED_FRACTION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTime:
    """Service time that grows with the tokens: base + prompt tokens · a + output tokens · b."""

    base_s: float
    prompt_s_per_token: float
    output_s_per_token: float

    def __call__(self, frame: pd.DataFrame) -> Floats:
        """Return the service time of every request of a trace."""
        prompt = frame["prompt_tokens"].to_numpy() * self.prompt_s_per_token
        output = frame["output_tokens"].to_numpy() * self.output_s_per_token
        seconds: Floats = self.base_s + prompt + output
        return seconds


DEFAULT_SERVICE_TIME = TokenTime(base_s=0.032, prompt_s_per_token=6.1e-5, output_s_per_token=0.0307)
"""Llama-2-70B on 8 H100, one request at a time, without queueing.

Source: Patel et al., "Splitwise", ISCA 2024, data/perf_model.csv of Mutinifni/splitwise-sim: prompt
of 512 and 2,048 tokens 63 and 157 ms (medians), 30.7 ms an output token.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Service:
    """The service time of each request, its origin and its law in words."""

    seconds: Floats
    origin: str
    law: str


ServiceTime = (
    float
    | Mapping[str, float]
    | TokenTime
    | npt.NDArray[Any]
    | Callable[["pd.DataFrame"], Floats]
    | Service
)
"""One time for all, one per class, a law of the tokens, one per request, a function, or all of it:
the times with their origin, as ``capplan.budget.service_time`` returns them for a scenario."""


def service_times(frame: pd.DataFrame, service_time_s: ServiceTime | None) -> Service:
    """Return the service time of every request.

    None: the latency that the source observed, waiting included, if at least 95 % of the rows have
    it, else :data:`DEFAULT_SERVICE_TIME`.
    Raises ValueError for a class without a time, a wrong number of times, or a time that is not
    positive.
    """
    if service_time_s is None:
        return _unstated(frame)
    if isinstance(service_time_s, Service):
        seconds = service_time_s.seconds
    elif isinstance(service_time_s, Mapping):
        seconds = _by_class(frame, service_time_s)
    elif callable(service_time_s):
        seconds = np.asarray(service_time_s(frame), dtype=np.float64)
    else:
        seconds = np.asarray(service_time_s, dtype=np.float64)
        seconds = np.full(len(frame), float(seconds)) if seconds.ndim == 0 else seconds
    if seconds.shape != (len(frame),) or not (seconds > 0).all():
        raise ValueError(f"service_time_s: one positive time per request, got {service_time_s!r}")
    if isinstance(service_time_s, Service):
        return service_time_s
    return Service(seconds=seconds, origin="stated", law=_law(service_time_s))


def _law(service_time_s: ServiceTime) -> str:
    if isinstance(service_time_s, int | float):
        return f"{service_time_s:g} s each"
    if isinstance(service_time_s, TokenTime):
        return (
            f"{service_time_s.base_s:g} s + {service_time_s.prompt_s_per_token:g} s per prompt "
            f"token + {service_time_s.output_s_per_token:g} s per output token"
        )
    return "stated per class" if isinstance(service_time_s, Mapping) else "stated per request"


def _unstated(frame: pd.DataFrame) -> Service:
    if "observed_e2e_s" in frame:
        observed = frame["observed_e2e_s"].to_numpy(dtype=np.float64)
        known = np.isfinite(observed) & (observed > 0)
        if known.mean() >= LEAST_OBSERVED_FRACTION:
            middle = float(np.median(observed[known]))
            return Service(
                seconds=np.where(known, observed, middle),
                origin="measured",
                law="latency observed by the source, waiting included",
            )
    law = _law(DEFAULT_SERVICE_TIME)
    return Service(seconds=DEFAULT_SERVICE_TIME(frame), origin="default", law=law)


def _by_class(frame: pd.DataFrame, times: Mapping[str, float]) -> Floats:
    if "request_class" not in frame:
        raise ValueError("service_time_s: one time for a trace without classes, got one per class")
    missing = sorted(set(frame["request_class"].dropna()) - set(times))
    if missing or frame["request_class"].isna().any():
        msg = f"service_time_s: a time for every class, none for {missing or 'rows without one'}"
        raise ValueError(msg)
    seconds = frame["request_class"].map(dict(times)).astype("float64")
    return np.asarray(seconds, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InFlight:
    """The time spent at each number of requests in flight."""

    levels: npt.NDArray[np.int64]
    """Numbers in flight, ascending."""
    seconds: Floats
    """Time spent at each."""

    @property
    def mean(self) -> float:
        """Time-weighted mean; NaN for no time."""
        total = float(self.seconds.sum())
        return float((self.levels * self.seconds).sum() / total) if total else math.nan

    @property
    def max(self) -> float:
        """Largest number reached."""
        return float(self.levels[-1]) if len(self.levels) else math.nan

    def quantile(self, probability: float) -> float:
        """Return the level not exceeded for that share of the time."""
        total = float(self.seconds.sum())
        if not total:
            return math.nan
        at = int(np.searchsorted(np.cumsum(self.seconds) / total, probability - 1e-12))
        return float(self.levels[min(at, len(self.levels) - 1)])

    def share_above(self, n: float) -> float:
        """Return the share of time with more than ``n`` in flight."""
        total = float(self.seconds.sum())
        return float(self.seconds[self.levels > n].sum() / total) if total else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return mean, quantiles, maximum and the share of time above round numbers."""
        marks = [m * 10**e for e in range(9) for m in (1, 2, 5)]
        shown = [n for n in marks if n <= self.max]
        return {
            "mean": self.mean,
            "p50": self.quantile(0.5),
            "p95": self.quantile(0.95),
            "p99": self.quantile(0.99),
            "max": self.max,
            "share_of_time_above": {str(n): self.share_above(n) for n in shown},
        }


def in_flight(start_s: Floats, service_s: Floats, end_s: float) -> InFlight:
    """Return the time at each number in flight, from the first start to ``end_s``.

    Every request is served at once, without waiting: the demand, not what a server with limits
    reaches. The trace starts empty, so the level is low for the first service times.
    """
    moments = np.concatenate([start_s, start_s + service_s])
    steps = np.repeat(np.array([1, -1]), len(start_s))
    order = np.argsort(moments, kind="stable")
    times, level = moments[order], np.cumsum(steps[order])
    inside = times < end_s
    times, level = times[inside], level[inside]
    seconds = np.diff(np.append(times, end_s))
    levels, at = np.unique(level, return_inverse=True)
    spent = np.bincount(at, seconds, len(levels)).astype(np.float64)
    held = spent > 0
    return InFlight(levels=levels[held], seconds=spent[held])
