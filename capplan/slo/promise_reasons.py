"""Reasons about the promises of a class: latencies, shares and cost, over its requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import counted
from capplan.results import RunResult
from capplan.results.cost import class_cost_usd
from capplan.scenario.classes import Promises, RequestClass
from capplan.scenario.part import origin
from capplan.slo.causes import by_cause
from capplan.slo.promises import LATENCIES, SHARES, allowance, limit_of, violating
from capplan.statistics import Estimate, quantile_interval, round_to, share_interval
from capplan.verdict import Outcome, Reason, unknown

Floats = npt.NDArray[np.float64]

NEXT_LATENCY = "find the layer with the longest wait (segments), then add replicas or shed load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The requests of one class over all runs that are judged together."""

    request_class: RequestClass
    runs: Sequence[RunResult]
    tables: Sequence[pd.DataFrame]
    """Per run, the requests of every class (a pool's cost is shared among them)."""
    requests: pd.DataFrame
    """The requests of this class, all runs together."""

    @property
    def promises(self) -> Promises:
        """Return what the class was promised."""
        return self.request_class.promises

    def reason(
        self, rule: str, outcome: Outcome, *, value: float | None, evidence: str, next_action: str
    ) -> Reason:
        """Return a reason about one promise of the class."""
        return Reason(
            rule=rule,
            outcome=outcome,
            value=value,
            limit=limit_of(self.promises, rule),
            evidence=evidence,
            next_action=next_action,
            request_class=self.request_class.name,
            origin=origin(self.promises, rule),
        )


def promise_reasons(judged: Judged) -> Iterator[Reason]:
    """Yield one reason for each promise of a class; one if there is no promise or no request."""
    if judged.requests.empty:
        yield _no_requests(judged)
        return
    rules: dict[str, Callable[[Judged], Iterator[Reason]]] = {
        "deadline_s": partial(_share, rule="deadline_s"),
        **{name: partial(_latency, rule=name) for name in LATENCIES},
        **{name: partial(_share, rule=name) for name in SHARES if name != "deadline_s"},
        "cost_usd_per_success": _cost,
    }
    stated = [name for name in rules if getattr(judged.promises, name) is not None]
    if not stated:
        yield _nothing(judged, "no_promise", "nothing was promised, so nothing can hold or break")
    for name in stated:
        for reason in rules[name](judged):
            yield _by_cause(judged, reason)


def _by_cause(judged: Judged, reason: Reason) -> Reason:
    """Return the reason; where the cause is no lack of replicas, its action names it."""
    if reason.outcome != "fail" or reason.rule not in {*SHARES, *LATENCIES}:
        return reason
    applies, breaks = violating(judged.requests, judged.promises, reason.rule)
    allowed = allowance(judged.promises, reason.rule) * float(applies.sum())
    return by_cause(reason, judged.requests[applies & breaks], judged.runs, allowed=allowed)


def _no_requests(judged: Judged) -> Reason:
    """Return that no request of the class is judged, and whether the warm-up holds all of them."""
    name = judged.request_class.name
    ran = sum(int((run.requests["request_class"] == name).sum()) for run in judged.runs)
    if not ran:
        return _nothing(judged, "no_requests", "no request of the class ran")
    warmup_s = judged.runs[0].judged_from_s
    found = _nothing(
        judged, "no_requests", f"all requests of the class start within the warm-up, {warmup_s:g} s"
    )
    return replace(found, next_action="shorten warmup_s, or run longer")


def _nothing(judged: Judged, rule: str, evidence: str) -> Reason:
    action = "send some and state what they are promised, or leave the class out"
    return unknown(rule, evidence, next_action=action, request_class=judged.request_class.name)


def _latency(judged: Judged, rule: str) -> Iterator[Reason]:
    """Judge a latency at the promised quantile, failures as +inf."""
    requests = judged.requests
    succeeded = requests["success"].to_numpy(np.bool_)
    applies, _ = violating(requests, judged.promises, rule)
    value = requests[rule].to_numpy(np.float64)
    censored = np.where(succeeded, value, np.inf)[applies]
    if not applies.any():
        yield _unmeasured(judged, rule, "no answer is streamed")
    elif np.isnan(censored).any():
        yield _unmeasured(judged, rule, "successes without a measured value")
    else:
        yield from _latency_reasons(judged, rule, censored, value[applies & succeeded])


def _latency_reasons(
    judged: Judged, rule: str, censored: Floats, served: Floats
) -> Iterator[Reason]:
    probability = judged.promises.quantile
    limit: float = getattr(judged.promises, rule)
    found = quantile_interval(censored, probability)
    if not found.low > limit and (thin := _thin(judged, rule, censored.size)):
        yield thin
        return
    name = f"{rule.removesuffix('_s').upper()} p{100 * probability:g}"
    if origin(judged.promises, "quantile") == "default":
        name += " (the quantile is a default)"
    text = f"{name} {_interval(found)} promised {limit:g} s, of {found.n:,} with failures as +inf"
    outcome = _upper(found, limit)
    yield judged.reason(
        rule, outcome, value=found.value, evidence=text, next_action=_next(outcome, NEXT_LATENCY)
    )
    if outcome == "pass" or not served.size:
        return
    alone = quantile_interval(served, probability)
    if found.value > limit >= alone.value:
        yield Reason(
            rule="success_only",
            outcome="fail",
            value=alone.value,
            limit=limit,
            evidence=f"{name} of successes alone, {_interval(alone)} would hide "
            f"{counted(found.n - alone.n, 'request')} that did not succeed",
            next_action="quote success-only latency only beside the success share",
            request_class=judged.request_class.name,
            origin=origin(judged.promises, rule),
        )


def _share(judged: Judged, rule: str) -> Iterator[Reason]:
    """Judge a share of the class's requests against its least or greatest value."""
    requests, how, limit = judged.requests, SHARES[rule], limit_of(judged.promises, rule)
    n = len(requests)
    if how.needs and requests[how.needs].isna().any():
        yield _unmeasured(judged, rule, how.unmeasured)
        return
    bad = int(violating(requests, judged.promises, rule)[1].sum())
    count = bad if how.most else n - bad
    found = share_interval(count, n)
    outcome = _upper(found, limit) if how.most else _lower(found, limit)
    surely_broken = found.low > limit if how.most else found.high < limit
    if not surely_broken and (thin := _thin(judged, rule, n)):
        yield thin
        return
    bound = f"at {'most' if how.most else 'least'} {100 * limit:.6g} %"
    evidence = f"{count:,} of {n:,} {how.counted}, {_percent(found)}, promised {bound}"
    action = _next(outcome, how.next_action)
    yield judged.reason(rule, outcome, value=found.value, evidence=evidence, next_action=action)


def _cost(judged: Judged) -> Iterator[Reason]:
    rule, name = "cost_usd_per_success", judged.request_class.name
    pairs = zip(judged.runs, judged.tables, strict=True)
    total = sum(class_cost_usd(run, table, name) for run, table in pairs)
    pool = judged.runs[0].scenario.pool_of(name)
    if thin := _thin(judged, rule, len(judged.requests)):
        yield thin
        return
    if math.isnan(total):
        yield judged.reason(
            rule,
            "unknown",
            value=None,
            evidence=f"the price of pool {pool.name} is not known",
            next_action=f"set pools.{pool.name}.price_usd_per_accelerator_hour",
        )
        return
    successes = int(judged.requests["success"].sum())
    value = total / successes if successes else math.inf
    limit = judged.promises.cost_usd_per_success or math.nan
    text = f"{value:.3g} USD per success of {successes:,}, promised {limit:g}"
    if pool.price_usd_per_accelerator_hour is None:
        text += ", at the catalogue's list price, not yours"
    outcome: Outcome = "pass" if value <= limit else "fail"
    action = "raise the load per replica, or use fewer or cheaper accelerators"
    yield judged.reason(rule, outcome, value=value, evidence=text, next_action=action)


def _thin(judged: Judged, rule: str, n: int) -> Reason | None:
    """Return that there are too few samples, None if there are enough.

    A pass needs them; a failure whose whole interval lies beyond the limit does not.
    """
    missing = judged.promises.samples_needed() - n
    if missing <= 0:
        return None
    found = judged.reason(
        rule,
        "unknown",
        value=None,
        evidence=f"insufficient evidence: {counted(n, 'sample')}, needs {missing:,} more",
        next_action="run longer, or over more replications",
    )
    return replace(found, samples_missing=missing)


def _unmeasured(judged: Judged, rule: str, why: str) -> Reason:
    return judged.reason(
        rule,
        "unknown",
        value=None,
        evidence=f"not measured: {why}",
        next_action="measure it, or drop the promise",
    )


def _upper(found: Estimate, limit: float) -> Outcome:
    """Return the outcome of a value that must not exceed a limit."""
    if found.value > limit:
        return "fail"
    return "pass" if found.high <= limit else "retest"


def _lower(found: Estimate, limit: float) -> Outcome:
    """Return the outcome of a value that must not fall below a limit."""
    if found.value < limit:
        return "fail"
    return "pass" if found.low >= limit else "retest"


def _next(outcome: Outcome, action: str) -> str:
    return "the interval still holds the limit: run longer" if outcome == "retest" else action


def _interval(found: Estimate) -> str:
    """Return an estimate and its interval; a wait without end is "never"."""
    if not math.isfinite(found.value):
        return "never,"
    return f"{str(found).replace('inf', 'no bound')} s,"


def _percent(found: Estimate) -> str:
    half = 100 * found.half_width
    low, high = (round_to(100 * end, half) for end in (found.low, found.high))
    return f"{round_to(100 * found.value, half)} % [{low}, {high}]"
