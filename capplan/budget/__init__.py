"""Wait budget: backward from the caller's deadline to how long a request may wait in each layer.

What a class was promised, less the time on the network, in the gateway, in prefill and in decode
at stated quantiles of its lengths, is what it may wait. A stated rule divides that over the
gateway's queue, the service queue, the scheduler's queue and the batch window; from each share
follow a length, a timeout and a refusal. Gateway overhead is a field of the scenario
(``gateway.overhead_s``, ``gateway.overhead_fraction``): plug-ins of about 20 ms, or serialisation
of 15-25 % of E2E, are seen in practice; proxies of language models written in Python are reported
at 8-40 ms a request (Twist, "We Obsessed Over Gateway Latency for a Month", dev.to, 2026). Measure
your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.budget.applying import applied_text, apply
from capplan.budget.backward import class_budget
from capplan.budget.findings import changes, find
from capplan.budget.limits import layer_limits, settings
from capplan.budget.loads import ClassLoad, class_loads
from capplan.budget.results import ClassBudget, LayerLimit, WaitBudget
from capplan.budget.service import PoolService, pool_service
from capplan.budget.shares import WAITING, rebalance
from capplan.scenario import Scenario
from capplan.scenario.files import with_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capplan.traffic.profile import TrafficProfile
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
    "with_shares",
]


def allocate(
    scenario: Scenario,
    *,
    profile: TrafficProfile | None = None,
    trace: Trace | None = None,
) -> WaitBudget:
    """Return how long each class may wait in each layer, the limits that follow, and the findings.

    Rates and lengths come from ``trace`` (for example one that :func:`capplan.traffic.draw.draw`
    returns), else from the scenario's own trace, else from its length laws at the rate of its
    shape or of ``profile``. Service times are those at that rate, without waiting: a prompt is
    prefilled in steps that also decode the sequences then running.

    Raises :class:`capplan.schema.DataError` if a model or accelerator is unknown or does not fit.
    """
    loads = class_loads(scenario, profile=profile, trace=trace)
    services = _services(scenario, loads)
    classes = tuple(
        class_budget(scenario, c, loads[c.name], services[scenario.pool_of(c.name).name])
        for c in scenario.classes
    )
    limits = layer_limits(scenario, classes, services)
    derived = settings(limits, services)
    return WaitBudget(
        scenario=scenario.name,
        rule=scenario.budget.rule,
        classes=classes,
        limits=limits,
        settings=derived,
        changes=changes(scenario, derived),
        findings=find(scenario, classes, services, derived),
    )


def with_shares(scenario: Scenario, shares: Mapping[str, float]) -> Scenario:
    """Return the scenario with these shares of the waiting layers as its budget's weights."""
    weights = {f"budget.weights.{layer}": float(shares[layer]) for layer in WAITING}
    return with_values(scenario, {"budget.rule": "weights", **weights})


def _services(scenario: Scenario, loads: Mapping[str, ClassLoad]) -> dict[str, PoolService]:
    """Return what each pool that has a class does."""
    by_pool = {
        pool.name: [c for c in scenario.classes if scenario.pool_of(c.name).name == pool.name]
        for pool in scenario.pools
    }
    return {
        name: pool_service(scenario.pool(name), classes, [loads[c.name] for c in classes])
        for name, classes in by_pool.items()
        if classes
    }
