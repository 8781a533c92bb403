"""Requests that wait twice, in queues in series: found in the run, not in the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.budget import allocate
from capplan.formatting import in_words
from capplan.results import RunResult, queue_waits
from capplan.results.segments import SERIES, TOLERANCE_S, double_queued
from capplan.scenario import Scenario
from capplan.scenario.layers import Queue
from capplan.schema import DataError
from capplan.traffic.trace import Trace
from capplan.verdict import Outcome, Reason

Flags = npt.NDArray[np.bool_]

DOUBLE_QUEUED_FRACTION = 0.01
"""Share of attempts that may wait in two queues, and of a class's requests that may wait in two
for more than :data:`HALF` of what each may hold them; a default of this project."""
HALF = 0.5
"""Part of a layer's budget beyond which two layers together spend more than one of them may."""
SHARE_OF = {
    "gateway": "gateway_queue",
    "service_queue": "service_queue",
    "scheduler_queue": "scheduler_queue",
}
"""Each queue by its name in the wait budget."""


def double_queue_reasons(result: RunResult) -> Iterator[Reason]:
    """Yield both rules on waiting twice; nothing where no wait is told.

    ``double_queue`` blocks a run in which many wait twice in queues without owner or limit;
    ``double_queueing`` fails one in which two layers each hold many for over half their budget.
    """
    attempts = result.judged
    waits = queue_waits(attempts, end_s=result.duration_s)
    told = double_queued(waits)
    known = told[~np.isnan(told)]
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
    blocked = over and bool(loose)
    evidence = f"{value:.1%} of attempts waited in two queues"
    if over:
        evidence += f", most in the {' and the '.join(map(in_words, pair))}"
        evidence += f" ({'; '.join(loose)})" if loose else ", each with an owner and a wait limit"
    return Reason(
        rule="double_queue",
        outcome="blocked" if blocked else "pass",
        value=value,
        limit=DOUBLE_QUEUED_FRACTION,
        evidence=evidence,
        next_action="name the one queue that holds the wait, and limit the other"
        if blocked
        else "",
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
    outcome: Outcome = "fail" if value > DOUBLE_QUEUED_FRACTION else "pass"
    evidence = f"{twice:.1%} of requests waited in two queues, {value:.1%} in two for over half "
    evidence += "of its budget each"
    if outcome == "pass" and twice > DOUBLE_QUEUED_FRACTION and np.isnan(limits).sum() > 1:
        outcome, evidence = "unknown", f"{twice:.1%} of requests waited in two queues without limit"
    if outcome == "fail":
        pair = _most_often({layer: over[:, i] for i, layer in enumerate(SERIES)})
        told = (f"the {in_words(layer)} (half of {budget[layer]:.3g} s)" for layer in pair)
        evidence += f", most in {' and '.join(told)}"
    actions = {
        "fail": "let one queue hold the wait: shorten the other, or pass on only what can start",
        "unknown": "promise a latency or set wait limits, so that each queue has a budget",
    }
    return Reason(
        rule="double_queueing",
        outcome=outcome,
        value=value if outcome != "unknown" else None,
        limit=DOUBLE_QUEUED_FRACTION,
        evidence=evidence,
        next_action=actions.get(outcome, ""),
        request_class=name,
        origin="default",
    )


def _share(attempts: pd.DataFrame, flags: Flags) -> float:
    """Return the share of the requests that have any of the flagged attempts."""
    ids = attempts["request_id"]
    return ids[flags].nunique() / ids.nunique()


def _budgets(result: RunResult) -> dict[str, dict[str, float]]:
    """Return how long each class may wait in each queue, s; NaN where nothing says so.

    The queue's wait limit, or the class's share of its promise where that is shorter.
    """
    scenario = result.scenario
    shares = _shares(result)
    found = {}
    for c in scenario.classes:
        queues = _queues(scenario, scenario.pool_of(c.name).name)
        found[c.name] = {
            layer: _least(queue.wait_limit_s, shares.get(c.name, {}).get(SHARE_OF[layer]))
            for layer, (queue, _) in queues.items()
        }
    return found


def _shares(result: RunResult) -> dict[str, Mapping[str, float]]:
    trace = result.trace if isinstance(result.trace, Trace) else None
    try:
        budget = allocate(result.scenario, trace=trace)
    except DataError:  # a model or accelerator that nothing is known of: no service time, no share
        return {}
    return {c.request_class: c.shares_s for c in budget.classes}


def _least(limit_s: float | None, share_s: float | None) -> float:
    known = [v for v in (limit_s, share_s) if v is not None and not np.isnan(v)]
    return min(known, default=np.nan)


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
    queue, above = _queues(scenario, pool_name)[layer]
    if not (queue.owner or above):
        yield f"{layer} has no owner"
    if queue.wait_limit_s is None:
        yield f"{layer} has no wait limit"


def _queues(scenario: Scenario, pool_name: str) -> dict[str, tuple[Queue, str]]:
    """Return the queues in front of a pool's replicas, each with the owner above it."""
    pool = scenario.pool(pool_name)
    return {
        "gateway": (scenario.gateway.queue, scenario.gateway.owner),
        "service_queue": (pool.queue, pool.owner),
        "scheduler_queue": (pool.batching.scheduler, pool.owner),
    }
