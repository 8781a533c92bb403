"""Protective actions that can be moved, and what each changes in a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.scenario.batching import DynamicBatching
from capplan.scenario.rate_limits import RetryBudget

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.classes import RequestClass

UNLIMITED: Mapping[str, None] = {"length": None, "wait_limit_s": None}
PRESET = "tiered-default"
"""The bundled breakers."""
BACKOFF: Mapping[str, Any] = {
    "backoff_s": 1.0,
    "multiplier": 2.0,
    "max_backoff_s": 8.0,
    "jitter": True,
    "honour_retry_after": True,
}
"""Waits that double and are drawn evenly from 0 on, or as long as Retry-After says. The times are
defaults of this project. Source of the rule: Brooker, "Exponential Backoff And Jitter", AWS
Architecture Blog, 2015."""
AT_ONCE: Mapping[str, Any] = {"backoff_s": 0.0, "jitter": False, "honour_retry_after": False}
BUDGET = RetryBudget(fraction=0.2, min_per_s=0.1)
"""Where a class has no retry budget of its own: 20 % of first attempts, as Finagle has it, and one
in 10 s, which is less than its 10 a second, so that it acts on a small service too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectiveActions:
    """What protects a service in an overload; None leaves a part as the scenario has it."""

    attempts: int | None = None
    """Attempts of every caller."""
    backoff: bool | None = None
    """Wait before a retry (:data:`BACKOFF`), or try again at once."""
    retry_budget: bool | None = None
    """Callers have a retry budget (their own or :data:`BUDGET`), or none."""
    queue_limits: bool | None = None
    """False = every queue is unlimited, in length and in time."""
    breakers: bool | None = None
    """True = those of :data:`PRESET`, False = none."""
    autoscaler: bool | None = None
    """False = the number of replicas is what it is at the start."""


def protected(scenario: Scenario, choice: ProtectiveActions) -> Scenario:
    """Return the scenario with the chosen protective actions.

    >>> from capplan.scenario.files import load_scenario
    >>> storm = load_scenario("drills/retry-storm")
    >>> protected(storm, ProtectiveActions(attempts=1)).classes[0].retry.max_attempts
    1
    """
    from capplan.scenario.files import with_values

    changed = dict(_changes(scenario, choice))
    return with_values(scenario, changed) if changed else scenario


def _changes(scenario: Scenario, choice: ProtectiveActions) -> Iterator[tuple[str, Any]]:
    for one in scenario.classes:
        for name, value in _retry(one, choice).items():
            yield f"classes.{one.name}.retry.{name}", value
    if choice.retry_budget is False:
        yield "gateway.retry_budget", None
    if choice.queue_limits is False:
        yield from _without_limits(scenario)
    if choice.breakers is not None:
        yield "breakers", [PRESET] if choice.breakers else []
    if choice.autoscaler is False:
        for pool in (pool for pool in scenario.pools if pool.autoscaler is not None):
            yield f"pools.{pool.name}.autoscaler", None


def _retry(one: RequestClass, choice: ProtectiveActions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if choice.attempts is not None:
        found["max_attempts"] = choice.attempts
    if choice.backoff is not None:
        found |= BACKOFF if choice.backoff else AT_ONCE
    if choice.retry_budget is not None:
        own = one.retry.budget or BUDGET
        found["budget"] = own.model_dump(mode="json") if choice.retry_budget else None
    return found


def _without_limits(scenario: Scenario) -> Iterator[tuple[str, Any]]:
    """Yield every limit of a queue as none; a queue that is never full displaces no request."""
    for name, value in UNLIMITED.items():
        yield f"gateway.queue.{name}", value
        for pool in scenario.pools:
            yield f"pools.{pool.name}.queue.{name}", value
            yield f"pools.{pool.name}.batching.scheduler.{name}", value
    yield "gateway.when_full", "refuse_new"
    for pool in scenario.pools:
        if isinstance(pool.batching, DynamicBatching) and pool.batching.has_levels:
            yield f"pools.{pool.name}.batching.queue_policy", {}
            yield f"pools.{pool.name}.batching.level_policies", []


def own_attempts(scenario: Scenario) -> str:
    """Return how many attempts the callers of a scenario make: ``2``, or ``1 to 2``."""
    found = sorted({one.retry.max_attempts for one in scenario.classes})
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"
