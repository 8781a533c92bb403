"""The cost of accelerators: money by pool, class and success, and busy time by attempt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.catalog import price
from capplan.results.requests import answered_by_gateway, outcome_is, wasted_tokens
from capplan.results.timelines import held_values
from capplan.scenario import Scenario
from capplan.scenario.pools import Pool

if TYPE_CHECKING:
    from capplan.results.run import RunResult

HOUR_S = 3600.0


def price_usd_per_accelerator_hour(pool: Pool) -> float:
    """Return a pool's price: the scenario's, else the catalogue's list price; NaN if unknown."""
    if pool.price_usd_per_accelerator_hour is not None:
        return pool.price_usd_per_accelerator_hour
    return math.nan if pool.accelerator is None else price(pool.accelerator)


def pool_cost_usd_per_hour(pool: Pool) -> float:
    """Return the cost of a pool per hour, standby included; NaN without a price.

    >>> from capplan.scenario.files import load_scenario
    >>> pool_cost_usd_per_hour(load_scenario("chat-service").pool("labelling"))
    1.0
    """
    standby = pool.standby
    warm = 0.0 if standby is None else standby.replicas * standby.price_fraction
    accelerators = pool.accelerators + warm * pool.accelerators_per_replica
    return price_usd_per_accelerator_hour(pool) * accelerators


def accelerator_hours(result: RunResult, pool: Pool) -> float:
    """Return the paid accelerator-hours of a pool over the judged part of the run.

    An elastic pool pays for each replica from its provisioning to its removal, and for standby its
    share of the price.
    """
    start_s, end_s = result.judged_from_s, result.duration_s
    if not pool.is_elastic:
        return pool.accelerators * (end_s - start_s) / HOUR_S
    rows = result.timeline
    own = rows[(rows["replica"] == pool.name) & (rows["metric"] == "replicas_paid")]
    paid, spans = held_values(own, "replicas_paid", start_s=start_s, end_s=end_s)
    return float(paid @ spans) * pool.accelerators_per_replica / HOUR_S if len(own) else math.nan


def cost_usd(result: RunResult, *, pools: tuple[Pool, ...] | None = None) -> float:
    """Return the cost of the pools (default: all) over the judged part of the run."""
    chosen = result.scenario.pools if pools is None else pools
    hours = (result.duration_s - result.judged_from_s) / HOUR_S
    fixed = sum(pool_cost_usd_per_hour(pool) for pool in chosen if not pool.is_elastic) * hours
    return fixed + sum(
        price_usd_per_accelerator_hour(pool) * accelerator_hours(result, pool)
        for pool in chosen
        if pool.is_elastic
    )


def cost_usd_per_success(result: RunResult, table: pd.DataFrame) -> float:
    """Return the cost of all pools per success; NaN unknown, +inf if no request succeeded."""
    return _per(cost_usd(result), int(table["success"].sum()), len(table))


def class_cost_usd_per_success(result: RunResult, table: pd.DataFrame, name: str) -> float:
    """Return a class's cost per success, by :func:`class_cost_usd`."""
    own = (table["request_class"] == name).to_numpy(np.bool_)
    successes = int((table["success"].to_numpy(np.bool_) & own).sum())
    return _per(class_cost_usd(result, table, name), successes, int(own.sum()))


def class_cost_usd(result: RunResult, table: pd.DataFrame, name: str) -> float:
    """Return a class's part of its pool's cost: the pool's cost, divided by tokens.

    A class's part is its share of all tokens of the pool's requests (prompt + output + wasted),
    successes or not; idle time is shared the same way. An answer of the gateway's response cache
    uses the pool only for its wasted tokens.
    """
    pool = result.scenario.pool_of(name)
    classes = served_by(result.scenario, pool)
    if classes == [name]:
        return cost_usd(result, pools=(pool,))
    tokens = table[["prompt_tokens", "output_tokens", "wasted_tokens"]].to_numpy(
        np.float64, na_value=np.nan
    )
    tokens[answered_by_gateway(table), :2] = 0.0
    work = np.nansum(tokens, axis=1)
    own = (table["request_class"] == name).to_numpy(np.bool_)
    shared = table["request_class"].isin(classes).to_numpy(np.bool_)
    if not work[shared].sum() > 0:
        return math.nan
    return cost_usd(result, pools=(pool,)) * float(work[own].sum() / work[shared].sum())


def served_by(scenario: Scenario, pool: Pool) -> list[str]:
    """Return the names of the classes that a pool serves."""
    return [c.name for c in scenario.classes if scenario.pool_of(c.name).name == pool.name]


def _per(cost: float, successes: int, requests: int) -> float:
    if math.isnan(cost) or not requests:
        return math.nan
    return cost / successes if successes else math.inf


Floats = npt.NDArray[np.float64]

METHOD = (
    "busy time of each replica, divided among the attempts it served by their share of the tokens "
    "it computed"
)


def computed_tokens(log: pd.DataFrame) -> Floats:
    """Return the tokens computed for each attempt; NaN if unknown.

    Of a success: its prompt without the cached part, and its answer; of an answer of the gateway's
    response cache, none. Of any other: its wasted tokens.
    """
    columns = ["prompt_tokens", "cached_tokens", "output_tokens"]
    prompt, cached, output = log[columns].to_numpy(np.float64, na_value=np.nan).T
    made = np.where(outcome_is(log, "succeeded"), prompt - cached + output, wasted_tokens(log))
    return np.where(answered_by_gateway(log), 0.0, made)


def accelerator_seconds(result: RunResult) -> Floats:
    """Return the accelerator time spent on each attempt of the log, s; 0 for one that never ran.

    The busy time of a replica, times its accelerators, is divided among its attempts by the tokens
    computed for each. That is an attribution, not a measurement: the time of a step is not
    proportional to its tokens, and a decoded token takes longer than one of a prompt. NaN without
    the replica's busy share in the timeline, or without tokens in the log.
    """
    log = result.requests
    tokens = computed_tokens(log)
    replica = log["replica"].astype(object)
    codes, names = pd.factorize(replica)
    served = codes >= 0
    rates = np.full(len(names) + 1, np.nan)  # the last one: no replica
    total = np.bincount(codes[served], weights=np.nan_to_num(tokens[served]), minlength=len(names))
    for code, name in enumerate(names):
        busy_s = _busy_s(result, str(name)) * _accelerators(result, str(name))
        rates[code] = busy_s / total[code] if total[code] > 0 else np.nan
    spent = tokens * rates[codes]
    return np.where(tokens == 0, 0.0, spent)


def _busy_s(result: RunResult, replica: str) -> float:
    rows = result.timeline
    rows = rows[rows["replica"] == replica]
    values, spans = held_values(rows, "busy_fraction", start_s=0.0, end_s=result.duration_s)
    known = (spans > 0) & ~np.isnan(values)
    return float(values[known] @ spans[known]) if known.any() else np.nan


def _accelerators(result: RunResult, replica: str) -> int:
    """Return the accelerators of a replica; its name is that of its pool and a number."""
    pools = {p.name: p.accelerators // p.replicas for p in result.scenario.pools}
    return pools.get(replica.rpartition("-")[0], 1)
