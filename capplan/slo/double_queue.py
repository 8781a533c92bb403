"""Requests that wait twice, in queues in series: found in the run, not in the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.budget import allocate
from capplan.budget.limits import QueueOnPath, queues_of
from capplan.formatting import in_words
from capplan.results import RunResult, queue_waits
from capplan.results.segments import SERIES, TOLERANCE_S, double_queued
from capplan.scenario import Scenario
from capplan.schema import DataError
from capplan.traffic.trace import Trace
from capplan.verdict import Reason, checked, unknown

Flags = npt.NDArray[np.bool_]

DOUBLE_QUEUED_FRACTION = 0.01
"""Share of attempts that may wait in two queues, and of a class's requests that may wait in two
for more than :data:`HALF` of what each may hold them; a default of this project."""
HALF = 0.5
"""Part of a layer's budget beyond which two layers together spend more than one of them may."""


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
    evidence = f"{value:.1%} of attempts waited in two queues"
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
        evidence = f"{twice:.1%} of requests waited in two queues without limit"
        action = "promise a latency or set wait limits, so that each queue has a budget"
        return replace(
            unknown("double_queueing", evidence, next_action=action, request_class=name),
            limit=DOUBLE_QUEUED_FRACTION,
            origin="default",
        )
    evidence = f"{twice:.1%} of requests waited in two queues, {value:.1%} in two for over half "
    evidence += "of its budget each"
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
