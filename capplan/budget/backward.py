"""The budget of one class, counted backward from its strictest promise, and its shares by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from capplan.budget.loads import ClassLoad
from capplan.budget.results import WAITING, ClassBudget
from capplan.budget.service import PoolService
from capplan.scenario import Scenario
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.classes import RequestClass
from capplan.scenario.layers import BudgetRule
from capplan.scenario.part import Origin, origin
from capplan.scenario.step_times import LinearStep


def divide(remaining_s: float, window_s: float, rule: BudgetRule) -> dict[str, float]:
    """Return the share of each waiting layer, s; they sum to ``remaining_s``.

    ``equal`` gives each layer a quarter, ``weights`` divides by the weights, ``proportional``
    gives the batch window ``window_s`` (or all that remains, if that is less) and divides the rest
    by the weights of the queues. NaN if nothing remains or there is no promise.

    >>> divide(1.0, 0.1, BudgetRule(rule="proportional"))["batch_window"]
    0.1
    """
    if not remaining_s > 0:
        return dict.fromkeys(WAITING, math.nan)
    weights = dict.fromkeys(WAITING, 1.0)
    if rule.rule != "equal":
        weights = {layer: float(getattr(rule.weights, layer)) for layer in WAITING}
    fixed = 0.0
    if rule.rule == "proportional":
        weights["batch_window"] = 0.0
        fixed = min(window_s, remaining_s) if sum(weights.values()) > 0 else remaining_s
    rest, total = remaining_s - fixed, sum(weights.values())
    shares = {layer: rest * w / total if total > 0 else 0.0 for layer, w in weights.items()}
    shares["batch_window"] += fixed
    return shares


def rebalance(shares: Mapping[str, float], layer: str, new_s: float) -> dict[str, float]:
    """Return the shares with one set to ``new_s`` and the others scaled to keep the sum.

    Others that are all 0 get equal parts. Raises ``ValueError`` for an unknown layer and for a
    share that is negative or larger than the sum.

    >>> rebalance({"a": 1.0, "b": 1.0, "c": 2.0}, "a", 2.5)
    {'a': 2.5, 'b': 0.5, 'c': 1.0}
    """
    if layer not in shares:
        msg = f"layer must be one of {', '.join(shares)}, got {layer!r}"
        raise ValueError(msg)
    total = sum(shares.values())
    if not 0 <= new_s <= total * (1 + 1e-9):
        msg = f"new_s must lie between 0 and the sum of the shares ({total:g} s), got {new_s!r}"
        raise ValueError(msg)
    others = {name: share for name, share in shares.items() if name != layer}
    rest, held = max(total - new_s, 0.0), sum(others.values())
    moved = {
        name: rest * share / held if held > 0 else rest / len(others)
        for name, share in others.items()
    }
    return {name: new_s if name == layer else moved[name] for name in shares}


LOWEST, HIGHEST = 0.01, 0.999
"""Range of the search for a feasible quantile."""

Basis = Literal["ttft_s", "e2e_s", "deadline_s", "attempt_timeout_s", ""]


class _Side(NamedTuple):
    """One promise, and what is subtracted from it."""

    basis: Basis
    promise_s: float
    gateway_s: float
    prefill_s: float
    decode_s: float
    remaining_s: float


def class_budget(
    scenario: Scenario, request_class: RequestClass, load: ClassLoad, service: PoolService
) -> ClassBudget:
    """Return the budget of one class, counted backward from its strictest promise.

    A streaming class has a budget for TTFT (network, gateway, prefill) and for a deadline or an E2E
    promise (with decode); a class that does not stream for E2E alone. The promise that leaves least
    is the basis.
    """
    c, rule = request_class, scenario.budget

    def side(prompt_quantile: float, output_quantile: float) -> _Side:
        prefill, decode = service.work_s(
            load, prompt_quantile=prompt_quantile, output_quantile=output_quantile
        )
        return _strictest(scenario, c, prefill, decode)

    found = side(rule.prompt_quantile, rule.output_quantile)
    work_s = service.work_s(
        load, prompt_quantile=rule.prompt_quantile, output_quantile=rule.output_quantile
    )
    mean_response = mean_response_s(scenario, load, service)
    allowed = _allowed_response_s(c, load, rule.output_quantile)
    drain = class_drain_rps(load, service)
    attempt_s = 2 * scenario.network.one_way_s + found.gateway_s + sum(work_s)
    lost = _lost(scenario, c, least_s=service.of(c.name).fastest.least_s, attempt_s=attempt_s)
    return ClassBudget(
        request_class=c.name,
        owner=c.owner,
        pool=service.pool.name,
        streaming=c.streaming,
        basis=found.basis,
        promise_s=found.promise_s,
        prompt_quantile=rule.prompt_quantile,
        output_quantile=rule.output_quantile,
        prompt_tokens=load.prompt_quantile(rule.prompt_quantile),
        output_tokens=load.output_quantile(rule.output_quantile),
        rate_rps=load.rate_rps,
        samples=load.samples,
        network_s=2 * scenario.network.one_way_s,
        gateway_s=found.gateway_s,
        lost_by=lost.basis,
        longest_wait_s=lost.remaining_s,
        prefill_s=found.prefill_s,
        decode_s=found.decode_s,
        remaining_s=found.remaining_s,
        window_s=service.window_s,
        shares_s=divide(found.remaining_s, service.window_s, rule),
        tpot_s=service.of(c.name).tpot_s,
        tpot_promise_s=_number(c.promises.tpot_s if c.streaming else None),
        feasible_prompt_quantile=_feasible(
            lambda q: side(q, rule.output_quantile).remaining_s, rule.prompt_quantile
        ),
        feasible_output_quantile=_feasible(
            lambda q: side(rule.prompt_quantile, q).remaining_s, rule.output_quantile
        ),
        attempt_s=attempt_s,
        mean_response_s=mean_response,
        in_flight=load.rate_rps * mean_response,
        in_flight_upper=min(load.rate_rps, drain) * allowed,
        drain_rps=drain,
        origin=_origin(scenario, c, found.basis, load, service.of(c.name)),
    )


def _lost(scenario: Scenario, c: RequestClass, *, least_s: float, attempt_s: float) -> _Side:
    """Return after which wait even the least request of a class misses what its caller waits for.

    That is the deadline: an answer past TTFT is late, a refused one is none. Without a deadline,
    or with ``limits_from: promise``, it is the promise. An attempt must end ``attempt_s``, its
    service at the budget's quantiles, before it times out: its work would be thrown away, and its
    caller tries again.
    """
    sides = [_side(scenario, basis, promise_s, least_s, 0.0) for basis, promise_s in _promises(c)]
    if scenario.budget.limits_from == "deadline":
        sides = sides[-1:]
    if (timeout_s := c.retry.attempt_timeout_s) is not None and timeout_s > attempt_s:
        left_s = timeout_s - attempt_s
        sides.append(_Side("attempt_timeout_s", timeout_s, 0.0, 0.0, attempt_s, left_s))
    nothing = _Side("", math.nan, math.nan, math.nan, math.nan, math.nan)
    return min(sides, key=lambda side: side.remaining_s, default=nothing)


def class_drain_rps(load: ClassLoad, service: PoolService) -> float:
    """Return the class's part of its pool's drain rate, by its part of the requests."""
    if not service.rate_rps > 0:
        return math.nan
    return service.drain_rps * load.rate_rps / service.rate_rps


def _strictest(scenario: Scenario, c: RequestClass, prefill_s: float, decode_s: float) -> _Side:
    """Return the promise that leaves least time to wait; NaN without a promise."""
    sides = [
        _side(scenario, basis, promise_s, prefill_s, 0.0 if basis == "ttft_s" else decode_s)
        for basis, promise_s in _promises(c)
    ]
    nothing = _Side("", math.nan, scenario.gateway.overhead_s, prefill_s, decode_s, math.nan)
    return min(sides, key=lambda side: side.remaining_s, default=nothing)


def _side(
    scenario: Scenario, basis: Basis, promise_s: float, prefill_s: float, decode_s: float
) -> _Side:
    gateway = scenario.gateway
    overhead_s = gateway.overhead_s + gateway.overhead_fraction * promise_s
    spent_s = 2 * scenario.network.one_way_s + overhead_s + prefill_s + decode_s
    return _Side(basis, promise_s, overhead_s, prefill_s, decode_s, promise_s - spent_s)


def _promises(c: RequestClass) -> list[tuple[Basis, float]]:
    """Return the promises on a time, that of the deadline last."""
    stated: list[tuple[Basis, float | None]] = [
        ("ttft_s", c.promises.ttft_s if c.streaming else None),
        ("e2e_s", c.promises.e2e_s),
        ("deadline_s", c.promises.deadline_s),
    ]
    return [(basis, promise) for basis, promise in stated if promise is not None]


def _allowed_response_s(c: RequestClass, load: ClassLoad, output_quantile: float) -> float:
    """Return the response time that the promises allow, s; NaN if they allow any."""
    promises = c.promises
    stated = [p for p in (promises.e2e_s, promises.deadline_s) if p is not None]
    if stated:
        return min(stated)
    if not c.streaming or promises.ttft_s is None or promises.tpot_s is None:
        return math.nan
    return promises.ttft_s + promises.tpot_s * (load.output_quantile(output_quantile) - 1)


def mean_response_s(scenario: Scenario, load: ClassLoad, service: PoolService) -> float:
    """Return the response time of a mean request of a class that does not wait, s."""
    return response_s(scenario, sum(service.mean_work_s(load)))


def response_s(scenario: Scenario, work_s: float) -> float:
    """Return the response time of prefill and decode, with gateway and network, s."""
    gateway = scenario.gateway
    inside = gateway.overhead_s + work_s
    return (inside + 2 * scenario.network.one_way_s) / (1 - gateway.overhead_fraction)


def _feasible(remaining_s: Callable[[float], float], stated: float) -> float:
    """Return the largest quantile that leaves time to wait; NaN if even the lowest does not."""
    if remaining_s(stated) > 0:
        return stated
    if not remaining_s(LOWEST) > 0:
        return math.nan
    low, high = LOWEST, min(stated, HIGHEST)
    while high - low > 1e-3:  # noqa: PLR2004
        middle = (low + high) / 2
        low, high = (middle, high) if remaining_s(middle) > 0 else (low, middle)
    return low


def _origin(
    scenario: Scenario, c: RequestClass, basis: Basis, load: ClassLoad, service: PoolService
) -> Origin:
    """Return the weakest origin among the inputs of the budget."""
    found = {load.origin, origin(scenario.network, "one_way_s")}
    found |= {origin(scenario.gateway, "overhead_s")}
    if basis:
        found.add(origin(c.promises, basis))
    batching = service.pool.batching
    if isinstance(batching, ContinuousBatching) and not isinstance(batching.step_time, LinearStep):
        found |= {origin(batching.step_time, f) for f in ("compute_efficiency", "overhead_s")}
    return next(o for o in ("default", "measured", "promise") if o in found)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
