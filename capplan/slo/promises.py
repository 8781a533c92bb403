"""Promises as rules: what each counts, which requests break it, how many may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import format_value, rule_words
from capplan.results.requests import outcome_is, streamed
from capplan.scenario import Scenario
from capplan.scenario.classes import Promises
from capplan.scenario.part import origin

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LATENCIES = ("e2e_s", "ttft_s", "tpot_s")
ROUNDING_S = 1e-9


class ShareRule(NamedTuple):
    """How a promise on a share of the requests is judged."""

    counted: str
    """The requests that are counted, in words."""
    next_action: str
    most: bool = False
    """Whether the promise bounds the share from above."""
    needs: str = ""
    """Column without which it cannot be judged."""
    unmeasured: str = ""


SHARES: Mapping[str, ShareRule] = {
    "deadline_s": ShareRule(
        "within their deadline",
        "raise capacity or refuse earlier: late answers cost as much as timely ones",
        needs="e2e_censored_s",
        unmeasured="successes without a measured end",
    ),
    "availability_fraction": ShareRule(
        "succeed", "see which layer ends the requests (conservation table) and why"
    ),
    "error_rate_fraction": ShareRule(
        "rejected or failed",
        "see which limit rejects or which fault fails them (conservation table)",
        most=True,
    ),
    "timeout_rate_fraction": ShareRule(
        "timed out",
        "see in which queue they time out; shorten it so that it refuses",
        most=True,
    ),
    "goodput_fraction": ShareRule(
        "are good",
        "see which promise breaks first, by class and length bucket",
        needs="good",
        unmeasured="successes with a promise that can't be checked",
    ),
}
"""Promises on shares of the requests."""


def violating(requests: pd.DataFrame, promises: Promises, rule: str) -> tuple[Flags, Flags]:
    """Return to which requests a promise applies, and which break it (a failure breaks it).

    TTFT and TPOT promises are about streamed answers; an answer of one token has no TPOT. A
    request's own deadline stands before its class's.
    """
    everyone = np.ones(len(requests), dtype=np.bool_)
    succeeded = requests["success"].to_numpy(np.bool_)
    if rule == "deadline_s":
        limit = requests["deadline_s"].to_numpy(np.float64, na_value=np.nan)
        limit = np.where(np.isnan(limit), promises.deadline_s or np.nan, limit)
        return everyone, requests["e2e_censored_s"].to_numpy(np.float64) > limit + ROUNDING_S
    if rule in LATENCIES:
        applies = everyone if rule == "e2e_s" else streamed(requests)
        if rule == "tpot_s":
            tokens = requests["output_tokens"].to_numpy(np.float64, na_value=np.nan)
            applies = applies & ~(succeeded & (tokens <= 1))
        value = np.nan_to_num(requests[rule].to_numpy(np.float64), nan=-np.inf)
        return applies, ~succeeded | (value > getattr(promises, rule) + ROUNDING_S)
    if rule == "error_rate_fraction":
        return everyone, outcome_is(requests, "rejected") | outcome_is(requests, "failed")
    if rule == "timeout_rate_fraction":
        return everyone, outcome_is(requests, "timed_out")
    if rule == "goodput_fraction":
        return everyone, requests["good"].to_numpy(np.float64) == 0
    return everyone, ~succeeded


def limit_of(promises: Promises, rule: str) -> float:
    """Return the limit that a promise is judged against; a deadline is judged as a share."""
    return float(promises.quantile if rule == "deadline_s" else getattr(promises, rule))


def allowance(promises: Promises, rule: str) -> float:
    """Return the share of requests that may break a promise.

    >>> round(allowance(Promises(ttft_s=1.0, quantile=0.99), "ttft_s"), 6)
    0.01
    """
    if rule == "deadline_s" or rule in LATENCIES:
        return 1 - promises.quantile
    limit = limit_of(promises, rule)
    return limit if SHARES[rule].most else 1 - limit


def stated(promises: Promises) -> Iterable[str]:
    """Return the promises of a class that load can break, as shares of requests that break each."""
    rules = dict.fromkeys(("deadline_s", "ttft_s", "tpot_s", "e2e_s", *SHARES))
    return [rule for rule in rules if getattr(promises, rule) is not None]


def promise_table(scenario: Scenario) -> pd.DataFrame:
    """Return each promise of each class with its bound, its origin, and the samples it needs."""
    no_promise = ("quantile", "min_samples", "window_s", "origins")
    rows = []
    for c in scenario.classes:
        for name in Promises.model_fields:
            bound = getattr(c.promises, name)
            if name in no_promise or bound is None:
                continue
            at_quantile = name == "deadline_s" or name in LATENCIES
            quantile = f"P{100 * c.promises.quantile:g}"
            rows.append(
                {
                    "request_class": c.name,
                    "promise": rule_words(name),
                    "bound": format_value(bound, name),
                    "holds at": quantile if at_quantile else "all requests",
                    "samples needed": c.promises.samples_needed(),
                    "origin": origin(c.promises, name),
                }
            )
    return pd.DataFrame(rows)
