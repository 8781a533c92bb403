"""What the accelerators of a run cost, and what one success cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.catalog import price
from capplan.results.requests import answered_by_gateway
from capplan.results.timelines import held_values
from capplan.scenario import Scenario
from capplan.scenario.pools import Pool

if TYPE_CHECKING:
    from capplan.results.run import RunResult

HOUR_S = 3600.0


def price_usd_per_accelerator_hour(pool: Pool) -> float:
    """Return a pool's price: the scenario's, else the catalogue's list price; NaN unknown."""
    if pool.price_usd_per_accelerator_hour is not None:
        return pool.price_usd_per_accelerator_hour
    return math.nan if pool.accelerator is None else price(pool.accelerator)


def pool_cost_usd_per_hour(pool: Pool) -> float:
    """Return what a pool costs per hour, standby included; NaN where no price is known.

    >>> from capplan.scenario.files import load_scenario
    >>> pool_cost_usd_per_hour(load_scenario("chat-service").pool("labelling"))
    1.0
    """
    standby = pool.standby
    warm = 0.0 if standby is None else standby.replicas * standby.price_fraction
    accelerators = pool.accelerators + warm * pool.accelerators_per_replica
    return price_usd_per_accelerator_hour(pool) * accelerators


def accelerator_hours(result: RunResult, pool: Pool) -> float:
    """Return the accelerator-hours of a pool to be paid over the judged part of the run.

    Where replicas come and go, from their provisioning until they are gone, and for those of
    standby their share of the price.
    """
    start_s, end_s = result.judged_from_s, result.duration_s
    if not pool.is_elastic:
        return pool.accelerators * (end_s - start_s) / HOUR_S
    rows = result.timeline
    own = rows[(rows["replica"] == pool.name) & (rows["metric"] == "replicas_paid")]
    paid, spans = held_values(own, "replicas_paid", start_s=start_s, end_s=end_s)
    return float(paid @ spans) * pool.accelerators_per_replica / HOUR_S if len(own) else math.nan


def cost_usd(result: RunResult, *, pools: tuple[Pool, ...] | None = None) -> float:
    """Return what the pools (default: all) cost over the judged part of the run; NaN unknown."""
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
    """Return a class's cost per success, by :func:`class_cost_usd`; NaN, +inf as for all."""
    own = (table["request_class"] == name).to_numpy(np.bool_)
    successes = int((table["success"].to_numpy(np.bool_) & own).sum())
    return _per(class_cost_usd(result, table, name), successes, int(own.sum()))


def class_cost_usd(result: RunResult, table: pd.DataFrame, name: str) -> float:
    """Return a class's part of its pool's cost: the pool's cost, divided by tokens.

    A class's part is its share of all tokens that the pool's requests asked for and were given
    or wasted (prompt + output + wasted), successes or not; idle time is shared the same way. What
    the gateway's response cache answered took nothing of the pool, but for what was wasted.
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
