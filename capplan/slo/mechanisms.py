"""The rules that are no promise: what makes a run's figures worthless or its design unsound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.budget import allocate
from capplan.budget.limits import QueueOnPath, queues_of
from capplan.formatting import counted, in_words, listed, percent
from capplan.replica.utilisation import utilisation_table
from capplan.results import RunResult, queue_waits, system_stability
from capplan.results.segments import SERIES, TOLERANCE_S, double_queued
from capplan.results.timelines import time_average
from capplan.scenario import Scenario
from capplan.scenario.classes import RequestClass
from capplan.schema import DataError
from capplan.slo.promises import LATENCIES
from capplan.traffic.trace import Trace
from capplan.verdict import Outcome, Reason, checked, unknown

Flags = npt.NDArray[np.bool_]

DOUBLE_QUEUED_FRACTION = 0.01
"""Share of attempts that may wait in two queues, and of a class's requests that may wait in two
for more than :data:`HALF` of what each may hold them; a default of this project."""
HALF = 0.5
"""Part of a layer's budget beyond which two layers together spend more than one of them may."""
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
    pools = {result.scenario.pool_of(name).name for name in late}
    shares = utilisation_table(result).set_index("pool")["utilisation_fraction"].dropna()
    reached = [f"{share:.0%}" for name, share in shares.items() if name in pools]
    used = f", at {listed(reached)} of their roofline," if reached else ""
    yield Reason(
        rule="busy_but_late",
        outcome="fail",
        value=busy,
        limit=BUSY_FRACTION,
        evidence=f"accelerators are {busy:.0%} busy{used} while {percent(good)} of "
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
        evidence=f"the load generator sent {percent(share)} of the requests in time, those it sent "
        f"with a p99 lag of {lag_s:.3g} s: latencies and failures are its own, and the "
        "service had less load",
        next_action="repeat it with a load generator that keeps up, or at a load that it can send",
        origin="default",
    )


def double_queue_reasons(result: RunResult) -> Iterator[Reason]:
    """Yield both rules on waiting twice; neither if no wait is measured.

    ``double_queue`` blocks a run in which many wait twice in queues without owner or limit;
    ``double_queueing`` fails one in which two layers each hold many for over half their budget.
    """
    attempts = result.judged
    waits = queue_waits(attempts, end_s=result.duration_s)
    twice = double_queued(waits)
    known = twice[~np.isnan(twice)]
    if not known.size:
        return
    value = float(known.mean())
    yield _unowned(result.scenario, attempts, waits, value)
    yield from _half_spent(result, attempts, waits)


def _unowned(
    scenario: Scenario, attempts: pd.DataFrame, waits: pd.DataFrame, value: float
) -> Reason:
    over = value > DOUBLE_QUEUED_FRACTION
    pair, loose = _worst_pair(scenario, attempts, waits)
    evidence = f"{percent(value)} of attempts waited in two queues"
    if over:
        evidence += f", most in the {' and the '.join(map(in_words, pair))}"
        evidence += f" ({'; '.join(loose)})" if loose else ", each with an owner and a wait limit"
    return Reason(
        rule="double_queue",
        outcome="blocked" if over and loose else "pass",
        value=value,
        limit=DOUBLE_QUEUED_FRACTION,
        evidence=evidence,
        next_action="name the one queue that holds the wait, and limit the other",
        origin="default",
    )


def _half_spent(result: RunResult, attempts: pd.DataFrame, waits: pd.DataFrame) -> Iterator[Reason]:
    """Yield the rule "double queueing" for each class whose requests waited anywhere."""
    names = attempts["request_class"].to_numpy()
    some = (waits[list(SERIES)].to_numpy(np.float64) > TOLERANCE_S).sum(axis=1) > 1
    budgets = _budgets(result) if some.mean() > 0 else {}
    for c in result.scenario.classes:
        own = names == c.name
        if own.any():
            yield _half_spent_of(
                c.name, attempts[own], waits[own], budgets.get(c.name, {}), some=some[own]
            )


def _half_spent_of(
    name: str,
    attempts: pd.DataFrame,
    waits: pd.DataFrame,
    budget: Mapping[str, float],
    *,
    some: Flags,
) -> Reason:
    twice = _share(attempts, some)
    limits = np.array([budget.get(layer, np.nan) for layer in SERIES])
    over = waits[list(SERIES)].to_numpy(np.float64) > HALF * limits
    value = _share(attempts, over.sum(axis=1) > 1)
    loose = int(np.isnan(limits).sum())
    if value <= DOUBLE_QUEUED_FRACTION < twice and loose > 1:
        evidence = f"{percent(twice)} of requests waited in two queues without limit"
        action = "promise a latency or set wait limits, so that each queue has a budget"
        return replace(
            unknown("double_queueing", evidence, next_action=action, request_class=name),
            limit=DOUBLE_QUEUED_FRACTION,
            origin="default",
        )
    evidence = f"{percent(twice)} of requests waited in two queues, {percent(value)} in two for "
    evidence += "over half of its budget each"
    if value > DOUBLE_QUEUED_FRACTION:
        pair = _most_often({layer: over[:, i] for i, layer in enumerate(SERIES)})
        halves = (f"the {in_words(layer)} (half of {budget[layer]:.3g} s)" for layer in pair)
        evidence += f", most in {' and '.join(halves)}"
    return checked(
        "double_queueing",
        value <= DOUBLE_QUEUED_FRACTION,
        value=value,
        limit=DOUBLE_QUEUED_FRACTION,
        evidence=evidence,
        next_action="hold the wait in one queue: shorten the other, or pass on only what can start",
        request_class=name,
        origin="default",
    )


def _share(attempts: pd.DataFrame, flags: Flags) -> float:
    """Return the share of the requests that have any of the flagged attempts."""
    ids = attempts["request_id"]
    return ids[flags].nunique() / ids.nunique()


def _budgets(result: RunResult) -> dict[str, dict[str, float]]:
    """Return how long each class may wait in each queue, s; NaN unknown.

    The queue's wait limit, or the class's share of its promise where that is shorter.
    """
    scenario, shares = result.scenario, _shares(result)
    found = {}
    for c in scenario.classes:
        own = shares.get(c.name, {})
        found[c.name] = {
            name: _least(one.queue.wait_limit_s, own.get(one.layer))
            for name, one in _queues(scenario, scenario.pool_of(c.name).name).items()
        }
    return found


def _least(limit_s: float | None, share_s: float | None) -> float:
    known = [v for v in (limit_s, share_s) if v is not None and not np.isnan(v)]
    return min(known, default=np.nan)


def _shares(result: RunResult) -> dict[str, Mapping[str, float]]:
    trace = result.trace if isinstance(result.trace, Trace) else None
    try:
        budget = allocate(result.scenario, trace=trace)
    except DataError:  # the model or accelerator is unknown: no service time, no share
        return {}
    return {c.request_class: c.shares_s for c in budget.classes}


def _worst_pair(
    scenario: Scenario, attempts: pd.DataFrame, waits: pd.DataFrame
) -> tuple[tuple[str, str], list[str]]:
    """Return the two queues most often waited in together, and what is loose about them."""
    waited = {name: (waits[name] > TOLERANCE_S).to_numpy() for name in SERIES}
    pair = _most_often(waited)
    both = waited[pair[0]] & waited[pair[1]]
    classes = attempts.loc[both, "request_class"].unique()
    pools = {scenario.pool_of(name).name for name in classes}
    loose = {text for pool in pools for layer in pair for text in _loose(scenario, layer, pool)}
    return pair, sorted(loose)


def _most_often(waited: Mapping[str, Flags]) -> tuple[str, str]:
    pairs = list(combinations(SERIES, 2))
    return max(pairs, key=lambda two: int((waited[two[0]] & waited[two[1]]).sum()))


def _loose(scenario: Scenario, layer: str, pool_name: str) -> Iterator[str]:
    queue = _queues(scenario, pool_name)[layer]
    if not queue.owner:
        yield f"{layer} has no owner"
    if queue.queue.wait_limit_s is None:
        yield f"{layer} has no wait limit"


def _queues(scenario: Scenario, pool_name: str) -> dict[str, QueueOnPath]:
    """Return the queues in front of a pool's replicas, by their names in the log."""
    return dict(zip(SERIES, queues_of(scenario, pool_name), strict=True))
