"""What the load client of a measured run saw of itself: whether it sent what was asked, in time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from capplan.formatting import format_value
from capplan.statistics import quantile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientRecord:
    """The load client of a measured run.

    Attributes
    ----------
    exchanges
        One row per attempt, as on the wire (``capplan.live.run.exchange_table``).
    asked_rps, achieved_rps
        Rate of the trace (NaN of a closed loop, whose rate the server sets), and of what was sent.
    cpu_fraction
        CPU time of the client's process over the time of the run.
    target
        The server: ``url``, ``api`` and ``model``.
    started
        When the run began, UTC.
    partial
        Whether the run was interrupted.
    cold_start_s
        How long the server took until it answered, where it was started for the run; else NaN.
    """

    exchanges: pd.DataFrame
    asked_rps: float
    achieved_rps: float
    cpu_fraction: float
    target: Mapping[str, str | None]
    started: datetime
    partial: bool = False
    cold_start_s: float = math.nan

    @property
    def send_lag_s(self) -> pd.Series[float]:
        """Return how late each attempt was sent, s."""
        return self.exchanges["sent_s"] - self.exchanges["intended_start_s"]

    def identity(self) -> dict[str, Any]:
        """Return what makes a measured run another than one of the same inputs."""
        return {"target": dict(self.target), "started": self.started.isoformat()}

    def __str__(self) -> str:
        """Return whether the client sent what was asked, in a sentence."""
        lag_s = format_value(quantile(self.send_lag_s.dropna(), 0.99), "_s")
        cut = "; interrupted: the run is partial" if self.partial else ""
        asked = "" if math.isnan(self.asked_rps) else f" of {format_value(self.asked_rps)} asked"
        sent = f"{format_value(self.achieved_rps, '_rps')} sent{asked}"
        return f"{sent}; send lag p99 {lag_s}; {self.cpu_fraction:.0%} of a core{cut}"

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the client."""
        lag_s = self.send_lag_s.dropna()
        return {
            "asked_rps": self.asked_rps,
            "achieved_rps": self.achieved_rps,
            "send_lag_s": {f"p{100 * q:.0f}": quantile(lag_s, q) for q in (0.5, 0.99)},
            "cpu_fraction": self.cpu_fraction,
            "partial": self.partial,
            "cold_start_s": self.cold_start_s,
            **self.identity(),
        }
