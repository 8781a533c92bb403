"""Whether the load generator, not the service, was the limit of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from capplan.results import RunResult
from capplan.scenario.classes import RequestClass
from capplan.verdict import Reason

LAG_OF_PROMISE = 0.05
"""Send lag (p99), as a share of the tightest latency promise, above which the client is the limit;
a default of this project."""
ACHIEVED = 0.98
"""Share of the asked rate that must have been sent; a default of this project."""
LATENCIES = ("deadline_s", "e2e_s", "ttft_s")


def sent(first: pd.DataFrame, end_s: float) -> tuple[float, float]:
    """Return which share of first attempts was sent by ``end_s``, and the send lag's p99, s.

    NaN without any; the lag is of those that were sent.
    """
    at_s = first["sent_s"].to_numpy(np.float64)
    lag = at_s - first["intended_start_s"].to_numpy(np.float64)
    known = lag[~np.isnan(lag)]
    share = float((at_s <= end_s).mean()) if lag.size else math.nan
    return share, float(np.quantile(known, 0.99)) if known.size else math.nan


def most_lag_s(classes: Iterable[RequestClass]) -> float:
    """Return the longest send lag that the smallest latency promise allows, s; inf without one."""
    promised = [getattr(c.promises, name) for c in classes for name in LATENCIES]
    return LAG_OF_PROMISE * min((p for p in promised if p is not None), default=math.inf)


def client_reasons(result: RunResult) -> Iterator[Reason]:
    """Yield ``client_limited`` where the load generator was late: the service had another load."""
    log = result.requests
    first = log[(log["attempt"] == 1) & (log["intended_start_s"] >= result.judged_from_s)]
    most_s = most_lag_s(result.scenario.classes)
    share, lag_s = sent(first, float(first["intended_start_s"].max()) + min(most_s, 1.0))
    told = result.backend == "simulated" or first["sent_s"].notna().any()
    if not told or not (share < ACHIEVED or lag_s > most_s):
        return
    yield Reason(
        rule="client_limited",
        outcome="blocked",
        value=share,
        limit=ACHIEVED,
        evidence=f"the load generator sent {share:.1%} of the requests in time, those it sent "
        f"with a p99 lag of {lag_s:.3g} s: latencies and failures are its own, and the "
        "service had less load",
        next_action="repeat it with a load generator that keeps up, or at a load that it can send",
        origin="default",
    )
