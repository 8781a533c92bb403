"""The rules that are no promise: what makes a run's figures worthless or its design unsound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from capplan.formatting import counted
from capplan.results import RunResult, system_stability
from capplan.results.timelines import time_average
from capplan.scenario.classes import RequestClass
from capplan.slo.double_queue import double_queue_reasons
from capplan.slo.promises import LATENCIES
from capplan.verdict import Outcome, Reason, checked

BUSY_FRACTION = 0.85
"""Accelerators busier than this count as busy; a default of this project."""
RETRY_AMPLIFICATION = 1.1
"""Attempts per request. Source: Beyer, Jones, Petoff and Murphy (eds.), "Site Reliability
Engineering", 2016, chapter 21: a retry budget of 10 % limits the growth of load to 1.1."""
LATE = ("deadline_s", "timeout_rate_fraction", "goodput_fraction", "success_only", *LATENCIES)
"""Rules whose failure means that answers came late or not in time."""
LAG_OF_PROMISE = 0.05
"""Send lag (p99), as a share of the tightest latency promise, above which the client is the limit;
a default of this project."""
ACHIEVED = 0.98
"""Share of the asked rate that must have been sent; a default of this project."""
PROMPT = ("deadline_s", "e2e_s", "ttft_s")
"""Promises that bound when an answer, or its first token, is there."""


def mechanism_reasons(
    result: RunResult, table: pd.DataFrame, broken: list[Reason]
) -> Iterator[Reason]:
    """Yield one reason for each mechanism; ``broken`` are the promises already found broken."""
    yield from _stability(result, table)
    yield from _equal_lengths(table)
    yield from _busy_but_late(result, table, broken)
    yield from _retry_amplification(table)
    yield from double_queue_reasons(result)
    yield from _client(result)


def _stability(result: RunResult, table: pd.DataFrame) -> Iterator[Reason]:
    """Judge the backlog of each class: one that grows has no latency to promise."""
    for name, own in table.groupby("request_class", sort=False, observed=True):
        found = system_stability(result, table=own)
        outcome: Outcome = {True: "pass", False: "fail", None: "retest"}[found.stable]  # type: ignore[assignment]
        action = {
            "fail": "add capacity or refuse earlier: no queue length helps a backlog that grows",
            "retest": "run longer at constant load",
        }
        yield Reason(
            rule="stability",
            outcome=outcome,
            value=found.drift_fraction.value,
            limit=0.0,
            evidence=found.reason,
            next_action=action.get(outcome, ""),
            request_class=str(name),
        )


def _equal_lengths(table: pd.DataFrame) -> Iterator[Reason]:
    """Yield an unknown for each class whose requests are all equally long."""
    for name, own in table.groupby("request_class", sort=False, observed=True):
        lengths = own[["prompt_tokens", "output_tokens"]]
        made = lengths[own["outcome"] == "succeeded"]
        if len(made) < 2 or _varies(made) or _varies(own[["size"]]):  # noqa: PLR2004
            continue
        prompt, output = made.iloc[0].tolist()
        yield Reason(
            rule="equal_lengths",
            outcome="unknown",
            value=f"{prompt:g}/{output:g} tokens",
            limit=None,
            evidence=f"every request has {prompt:g} prompt and {output:g} output tokens; "
            "other lengths are unknown",
            next_action="replay a trace, or draw lengths from a law",
            request_class=str(name),
        )


def _varies(columns: pd.DataFrame) -> bool:
    values = columns.to_numpy(np.float64, na_value=np.nan)
    return bool((values != values[0])[~np.isnan(values)].any())


def _busy_but_late(
    result: RunResult, table: pd.DataFrame, broken: list[Reason]
) -> Iterator[Reason]:
    """Fail a run whose accelerators are busy while its answers come too late."""
    late = sorted({r.request_class or "" for r in broken if r.rule in LATE and r.outcome == "fail"})
    attempts = result.requests
    served = attempts.loc[attempts["request_class"].isin(late), "replica"].dropna().unique()
    busy = time_average(result, "busy_fraction", replicas=served)
    if not late or not busy >= BUSY_FRACTION:
        return
    own = table[table["request_class"].isin(late)]
    good = float(own["good"].mean(skipna=False))
    yield Reason(
        rule="busy_but_late",
        outcome="fail",
        value=busy,
        limit=BUSY_FRACTION,
        evidence=f"accelerators are {busy:.0%} busy while {good:.1%} of "
        f"{', '.join(late)} are good: busy is not success",
        next_action="lower the load to where goodput peaks, or add capacity",
        origin="default",
    )


def _retry_amplification(table: pd.DataFrame) -> Iterator[Reason]:
    """Yield whether the run's retries multiply the load."""
    if len(table):
        yield retry_amplification(float(table["attempts"].mean()))


def retry_amplification(value: float, where: str = "") -> Reason:
    """Return whether so many attempts per request are few enough; ``where`` they were measured."""
    return checked(
        "retry_amplification",
        value <= RETRY_AMPLIFICATION,
        value=value,
        limit=RETRY_AMPLIFICATION,
        evidence=f"{counted(float(f'{value:.3g}'), 'attempt')} a request {where}".rstrip(),
        next_action="limit retries by a budget, back off with jitter, honour Retry-After",
        origin="default",
    )


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
    promised = [getattr(c.promises, name) for c in classes for name in PROMPT]
    return LAG_OF_PROMISE * min((p for p in promised if p is not None), default=math.inf)


def _client(result: RunResult) -> Iterator[Reason]:
    """Block a run whose load generator was late: the service had another load."""
    log = result.requests
    first = log[(log["attempt"] == 1) & (log["intended_start_s"] >= result.judged_from_s)]
    most_s = most_lag_s(result.scenario.classes)
    share, lag_s = sent(first, float(first["intended_start_s"].max()) + min(most_s, 1.0))
    measured = result.backend == "simulated" or first["sent_s"].notna().any()
    if not measured or not (share < ACHIEVED or lag_s > most_s):
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
