"""The rules that are no promise: what makes a run's figures worthless or its design unsound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from capplan.formatting import counted
from capplan.results import RunResult, system_stability
from capplan.results.timelines import time_average
from capplan.slo.double_queue import double_queue_reasons
from capplan.slo.load_generator import client_reasons
from capplan.slo.promises import LATENCIES
from capplan.verdict import Outcome, Reason, checked

BUSY_FRACTION = 0.85
"""Accelerators busier than this count as busy; a default of this project."""
RETRY_AMPLIFICATION = 1.1
"""Attempts per request. Source: Beyer, Jones, Petoff and Murphy (eds.), "Site Reliability
Engineering", 2016, chapter 21: a retry budget of 10 % limits the growth of load to 1.1."""
LATE = ("deadline_s", "timeout_rate_fraction", "goodput_fraction", "success_only", *LATENCIES)
"""Rules whose failure means that answers came late or not in time."""


def mechanism_reasons(
    result: RunResult, table: pd.DataFrame, broken: list[Reason]
) -> Iterator[Reason]:
    """Yield one reason for each mechanism; ``broken`` are the promises already found broken."""
    yield from _stability(result, table)
    yield from _equal_lengths(table)
    yield from _busy_but_late(result, table, broken)
    yield from _retry_amplification(table)
    yield from double_queue_reasons(result)
    yield from client_reasons(result)


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
    """Say unknown of a class whose requests are all equally long."""
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
