"""Figures of a measured run and of its replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, measured and predicted."""

    measured: float
    predicted: float

    @property
    def error_fraction(self) -> float:
        """Return by how much the prediction is too high, as a share of what was measured.

        >>> round(Figure(measured=2.0, predicted=2.1).error_fraction, 3)
        0.05
        """
        if not self.measured:
            return float("nan")
        return self.predicted / self.measured - 1.0

    def to_json(self) -> dict[str, float]:
        """Return the three numbers."""
        return {
            "measured": self.measured,
            "predicted": self.predicted,
            "error_fraction": self.error_fraction,
        }


Figures = Mapping[str, Mapping[str, Figure]]
"""By latency and figure: ``mean``, ``p50``, ``p90``, ``p99``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """The latencies of a run without some of its requests."""

    n: int
    """Measured requests that succeeded and are left."""
    left_out_fraction: float
    """Share of the measured successes that is left out."""
    latencies: Figures

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, the latencies under ``metrics``."""
        left_out = {"n": self.n, "left_out_fraction": self.left_out_fraction}
        return {**left_out, "metrics": figures_json(self.latencies)}


def subset(seen: pd.DataFrame, replayed: pd.DataFrame, keep: Any) -> Subset:
    """Return the latencies of the rows to keep, of two tables of the same requests."""
    ok = seen["outcome"] == "succeeded"
    return Subset(
        n=int((ok & keep).sum()),
        left_out_fraction=float((ok & ~keep).sum() / max(int(ok.sum()), 1)),
        latencies=latency_figures(seen[keep], replayed[keep]),
    )


def latency_figures(seen: pd.DataFrame, replayed: pd.DataFrame) -> Figures:
    """Return the figures of each latency, over the requests of each table that have it."""
    return {name: _figures(seen[name].dropna(), replayed[name].dropna()) for name in LATENCIES}


def figures_json(latencies: Figures) -> dict[str, Any]:
    """Return the figures as JSON."""
    return {
        name: {key: figure.to_json() for key, figure in figures.items()}
        for name, figures in latencies.items()
    }


def _figures(seen: pd.Series[float], replayed: pd.Series[float]) -> dict[str, Figure]:
    found = {"mean": Figure(measured=_mean(seen), predicted=_mean(replayed))}
    for name, quantile in QUANTILES.items():
        measured, predicted = (_quantile(values, quantile) for values in (seen, replayed))
        found[name] = Figure(measured=measured, predicted=predicted)
    return found


def _mean(values: pd.Series[float]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _quantile(values: pd.Series[float], quantile: float) -> float:
    return float(np.quantile(values, quantile)) if len(values) else float("nan")


def tokens_per_s(requests: pd.DataFrame) -> float:
    """Return the output tokens of what succeeded, from the first start to the last answer."""
    ok = requests[requests["outcome"] == "succeeded"]
    if ok.empty:
        return 0.0
    ends = ok["start_s"] + ok["e2e_s"].fillna(ok["ttft_s"])
    return float(ok["output_tokens"].sum() / (ends.max() - requests["start_s"].min()))


def success_fraction(requests: pd.DataFrame) -> float:
    """Return the share of requests that succeeded."""
    return float((requests["outcome"] == "succeeded").mean())


def stays_s(requests: pd.DataFrame, timeout_s: float | None) -> pd.Series[float]:
    """Return how long each request is in flight, s; NaN if unknown."""
    stays = requests["e2e_s"].copy()
    stays[requests["outcome"] == "timed_out"] = np.nan if timeout_s is None else timeout_s
    return stays


def mean_in_flight(requests: pd.DataFrame, timeout_s: float | None) -> float:
    """Return the mean requests in flight while requests came, by Little's law; NaN if unknown."""
    span_s = float(requests["start_s"].max() - requests["start_s"].min())
    stays = stays_s(requests, timeout_s)
    if stays.isna().any() or span_s <= 0:
        return float("nan")
    left = (requests["start_s"].min() + span_s - requests["start_s"]).clip(lower=0.0)
    return float(np.minimum(stays, left).sum() / span_s)
