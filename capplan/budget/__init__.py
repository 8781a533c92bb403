"""Wait budget: backward from the caller's deadline to the wait allowed in each layer.

The promise to a class, less the time on the network, in the gateway, in prefill and in decode at
stated quantiles of its lengths, is the time that it may wait. A rule divides that over the
gateway's queue, the service queue, the scheduler's queue and the batch window; from each share
follow a length, a timeout and a refusal. Gateway overhead is a field of the scenario
(``gateway.overhead_s``, ``gateway.overhead_fraction``): plug-ins of about 20 ms, or serialisation
of 15-25 % of E2E, are seen in practice; proxies of language models written in Python are reported
at 8-40 ms a request (Twist, "We Obsessed Over Gateway Latency for a Month", dev.to, 2026). Measure
your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from capplan.budget.applying import applied_text, apply
from capplan.budget.backward import class_budget, rebalance
from capplan.budget.findings import changes, find, value_at
from capplan.budget.limits import layer_limits, settings
from capplan.budget.loads import ClassLoad, class_loads
from capplan.budget.response import LAW, response_times
from capplan.budget.results import WAITING, ClassBudget, LayerLimit, WaitBudget
from capplan.budget.service import PoolService, pool_service
from capplan.scenario import Scenario
from capplan.scenario.fields import derived_fields
from capplan.scenario.files import with_values
from capplan.scenario.part import DERIVED
from capplan.scenario.shapes import ClosedLoop
from capplan.schema import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capplan.traffic.profile import Service, TrafficProfile
    from capplan.traffic.trace import Trace

__all__ = [
    "WAITING",
    "ClassBudget",
    "ClassLoad",
    "LayerLimit",
    "PoolService",
    "WaitBudget",
    "allocate",
    "applied_text",
    "apply",
    "class_loads",
    "rebalance",
    "resolved",
    "service_time",
    "varied",
    "with_shares",
]


def allocate(
    scenario: Scenario,
    *,
    profile: TrafficProfile | None = None,
    trace: Trace | None = None,
) -> WaitBudget:
    """Return the wait of each class in each layer, the limits that follow, and the findings.

    Rates and lengths come from ``trace`` (for example one that :func:`capplan.traffic.draw.draw`
    returns), else from the scenario's own trace, else from its length laws at the rate of its
    shape or of ``profile``. Service times are those at that rate, without waiting: a prompt is
    prefilled in steps that also decode the sequences then running.

    Limits that the scenario states as ``derived`` are the budget's own; where it derives none they
    are a finding, as unlimited.

    Raises :class:`capplan.schema.DataError` if a model or accelerator is unknown or does not fit.
    """
    plan = _plan(scenario, profile=profile, trace=trace)
    if defaults := derived_fields(scenario):
        numbers = _own_settings(scenario)
        scenario = _filled(scenario, {f: numbers.get(f, defaults[f]) for f in defaults})
    return WaitBudget(
        scenario=scenario.name,
        rule=scenario.budget.rule,
        classes=plan.classes,
        limits=plan.limits,
        settings=plan.settings,
        changes=changes(scenario, plan.settings),
        derived={field: value_at(scenario, field) for field in scenario.derived},
        findings=find(scenario, plan.classes, plan.services, plan.settings),
    )


def resolved(scenario: Scenario) -> Scenario:
    """Return the scenario with the budget's number for each word ``derived``.

    What simulates, stages, sizes or judges a scenario calls it first, so that a derived number
    follows from the scenario at hand: from its whole traffic, whatever ``requests`` are run.
    Raises :class:`capplan.schema.DataError` naming the field where no number follows.
    """
    fields = derived_fields(scenario)
    if not fields:
        return scenario
    settings = _own_settings(scenario)
    lacking = [f for f in fields if f not in settings and _queue(f) not in settings]
    if lacking:
        rule = "a number: the wait budget derives none without a promise that leaves time to wait"
        raise DataError(rule, where=scenario.name, field=lacking[0], value=DERIVED)
    return _filled(scenario, {field: settings.get(field) for field in fields})


def varied(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """Return a resolved scenario with fields changed, its derived numbers derived again.

    >>> from capplan.scenario.files import load_scenario
    >>> at_three = resolved(load_scenario("chat-service"))
    >>> at_six = varied(at_three, {"pools.llm.replicas": 6})
    >>> at_six.gateway.concurrency > at_three.gateway.concurrency
    True
    """
    return resolved(with_values(scenario, {**dict.fromkeys(scenario.derived, DERIVED), **values}))


def _own_settings(scenario: Scenario) -> dict[str, int | float]:
    """Return the settings that follow from the scenario's own traffic, all of its trace."""
    traffic = scenario.traffic
    if traffic.trace is not None and not isinstance(traffic.shape, ClosedLoop):
        scenario = scenario.model_copy(update={"requests": None})
    return _plan(scenario).settings


def _queue(field: str) -> str:
    """Return the length of the queue whose wait limit a field is: at 0 no wait needs a limit."""
    return field.replace(".wait_limit_s", ".length")


def _filled(scenario: Scenario, values: Mapping[str, float | None]) -> Scenario:
    if not values:
        return scenario
    return with_values(scenario, {**values, "derived": [*scenario.derived, *values]})


class _Plan(NamedTuple):
    """What follows from the loads of a scenario's classes, whatever its limits are."""

    classes: tuple[ClassBudget, ...]
    services: dict[str, PoolService]
    limits: tuple[LayerLimit, ...]
    settings: dict[str, int | float]


def _plan(
    scenario: Scenario, *, profile: TrafficProfile | None = None, trace: Trace | None = None
) -> _Plan:
    loads = class_loads(scenario, profile=profile, trace=trace)
    services = _services(scenario, loads)
    classes = tuple(
        class_budget(scenario, c, loads[c.name], services[scenario.pool_of(c.name).name])
        for c in scenario.classes
    )
    limits = layer_limits(scenario, classes, services)
    return _Plan(classes, services, limits, settings(limits, services))


def service_time(scenario: Scenario, trace: Trace) -> Service:
    """Return the time each request of a trace takes in the scenario's service without waiting.

    With it a profile (``cp.profile(trace, service_time_s=…)``) has as many requests in flight by
    Little's law as the budget of the same trace.
    """
    import numpy as np

    from capplan.traffic.profile import Service

    loads = class_loads(scenario, trace=trace)
    services = _services(scenario, loads)
    default = scenario.request_class().name
    names = trace.frame.get("request_class")
    named = np.array([default] * len(trace.frame)) if names is None else names.fillna(default)
    seconds = np.empty(len(trace.frame))
    for name, load in loads.items():
        own = np.asarray(named == name)
        service = services[scenario.pool_of(name).name]
        seconds[own] = response_times(scenario, load, service, trace.frame[own])
    return Service(seconds=seconds, origin="scenario", law=LAW)


def with_shares(scenario: Scenario, shares: Mapping[str, float]) -> Scenario:
    """Return the scenario with these shares of the waiting layers as its budget's weights."""
    weights = {f"budget.weights.{layer}": float(shares[layer]) for layer in WAITING}
    return with_values(scenario, {"budget.rule": "weights", **weights})


def _services(scenario: Scenario, loads: Mapping[str, ClassLoad]) -> dict[str, PoolService]:
    """Return the service of each pool with a class."""
    by_pool = {
        pool.name: [c for c in scenario.classes if scenario.pool_of(c.name).name == pool.name]
        for pool in scenario.pools
    }
    return {
        name: pool_service(scenario.pool(name), classes, [loads[c.name] for c in classes])
        for name, classes in by_pool.items()
        if classes
    }
