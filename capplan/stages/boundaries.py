"""The limits of a scenario: where each stands, what it does at it, and who owns it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.scenario.breakers import PerRequest, Refuse
from capplan.scenario.gateway import Allowance, TokenLimit
from capplan.stages.breakers import protecting

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.gateway import Accept, Gateway, RequestLimit
    from capplan.scenario.layers import Queue

BUDGET = "budget"
"""Reason of the boundary that is a retry budget: it ends no attempt, but what would follow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One limit of the scenario: where it stands, what it does, who owns it."""

    field: str
    layer: str
    reason: str
    action: str
    owner: str
    classes: tuple[str, ...]
    is_set: bool
    changes_pool: bool = False
    """Whether it acts without any request that would prove it."""


def boundaries(scenario: Scenario) -> Iterator[Boundary]:
    """Yield the limits of a scenario, outermost first, those that are not set too."""
    every = tuple(c.name for c in scenario.classes)
    for c in scenario.classes:
        yield from _caller(c.name, scenario)
    gateway = scenario.gateway
    limit = gateway.rate_limit
    yield Boundary(
        field="gateway.rate_limit",
        layer="gateway",
        reason="rate_limit",
        action=f"429 beyond {limit.rate_rps:g}/s (burst {limit.burst})" if limit else "none",
        owner=gateway.owner,
        classes=every,
        is_set=limit is not None,
    )
    yield from gateway_limits(scenario)
    yield from _queue("gateway.queue", "gateway", gateway.queue, gateway.owner, every)
    for pool in scenario.pools:
        own = tuple(n for n in every if scenario.pool_of(n).name == pool.name)
        path = f"pools.{pool.name}"
        yield from _queue(f"{path}.queue", "service_queue", pool.queue, pool.owner, own)
        scheduler = pool.batching.scheduler
        field = f"{path}.batching.scheduler"
        yield from _queue(field, "scheduler_queue", scheduler, pool.owner, own)
    for rule, action in protecting(scenario):
        yield Boundary(
            field=f"breakers.{rule.name}",
            layer=next((one.at for one in rule.then if isinstance(one, Refuse)), "service_queue"),
            reason=f"breaker:{rule.name}",
            action=action or "none",
            owner=rule.owner,
            classes=every,
            is_set=action is not None,
            changes_pool=any(not isinstance(one, PerRequest) for one in rule.then),
        )


def _caller(name: str, scenario: Scenario) -> Iterator[Boundary]:
    c = scenario.request_class(name)
    limits = {
        "deadline": (f"classes.{name}.promises.deadline_s", c.promises.deadline_s),
        "attempt_timeout": (f"classes.{name}.retry.attempt_timeout_s", c.retry.attempt_timeout_s),
    }
    for reason, (field, value) in limits.items():
        if value is None and reason == "attempt_timeout":
            continue
        yield Boundary(
            field=field,
            layer="caller",
            reason=reason,
            action="none" if value is None else f"the caller leaves after {value:g} s",
            owner=c.owner,
            classes=(name,),
            is_set=value is not None,
        )
    if (budget := c.retry.budget) is not None:
        yield Boundary(
            field=f"classes.{name}.retry.{BUDGET}",
            layer="caller",
            reason=BUDGET,
            action=f"drops retries beyond {budget.fraction:.0%} of first attempts plus "
            f"{budget.min_per_s:g}/s",
            owner=c.owner,
            classes=(name,),
            is_set=True,
        )


def _queue(
    path: str, layer: str, queue: Queue, above: str, classes: tuple[str, ...]
) -> Iterator[Boundary]:
    length, wait = queue.length, queue.wait_limit_s
    refusal = f"{queue.status} with Retry-After {queue.retry_after_s:g} s"
    actions = {
        "length": ("queue_full", None if length is None else f"{refusal} beyond {length} waiting"),
        "wait_limit_s": ("wait_limit", None if wait is None else f"ends a wait of {wait:g} s"),
    }
    for field, (reason, action) in actions.items():
        yield Boundary(
            field=f"{path}.{field}",
            layer=layer,
            reason=reason,
            action=action or "none",
            owner=queue.owner or above,
            classes=classes,
            is_set=action is not None,
        )


def gateway_limits(scenario: Scenario) -> Iterator[Boundary]:
    """Yield those limits of the gateway beside its queue and its one rate limit that are set."""
    gateway, every = scenario.gateway, tuple(c.name for c in scenario.classes)

    def boundary(
        field: str, reason: str, action: str, owner: str = "", only: str | None = None
    ) -> Boundary:
        return Boundary(
            field=f"gateway.{field}",
            layer="network" if field.startswith("accept") else "gateway",
            reason=reason,
            action=action,
            owner=owner or gateway.owner,
            classes=every if only is None else (only,),
            is_set=True,
        )

    for told in (*_refusals(gateway), *_displacements(gateway)):
        yield boundary(*told)
    for meter in gateway.meters:
        for field, reason, action in _metered(meter):
            yield boundary(field, reason, action, meter.owner, meter.request_class)


def _refusals(gateway: Gateway) -> Iterator[tuple[str, ...]]:
    """Yield field, reason, action and owner of what refuses at once."""
    if gateway.accept is not None:
        yield from _accept(gateway.accept)
    if gateway.drop_final_retries:
        yield "drop_final_retries", "final_retry", "drops retries of what must not be retried"
    if (longest := gateway.max_prompt_tokens) is not None:
        action = f"413 beyond {longest:,} prompt tokens, not to be retried"
        yield "max_prompt_tokens", "prompt_too_long", action
    if (budget := gateway.retry_budget) is not None:
        action = f"drops retries beyond {budget.retry_fraction:.0%} of first attempts"
        action += f" plus {budget.min_retries_rps:g}/s" if budget.min_retries_rps else ""
        yield "retry_budget", "retry_budget", action, budget.owner


def _accept(accept: Accept) -> Iterator[tuple[str, ...]]:
    if accept.rate_per_s is not None or accept.max_open is not None:
        action = f"refuses connections beyond {accept.backlog} waiting"
        yield "accept.backlog", "connection_refused", action, accept.owner
    if (each := accept.max_per_caller) is not None:
        action = f"refuses a caller's connections beyond {each}"
        yield "accept.max_per_caller", "connections_per_caller", action, accept.owner


def _displacements(gateway: Gateway) -> Iterator[tuple[str, ...]]:
    """Yield what ends requests that wait, or compute, in favour of others."""
    status = f"{gateway.queue.status} to"
    if gateway.when_full == "displace_lowest":
        action = f"{status} the least urgent that waits, for one more urgent"
        yield "when_full", "displaced", action, gateway.queue.owner
    elif gateway.quotas:
        action = f"{status} one that waits of the tenant most beyond its quota"
        yield "quotas", "displaced", action, gateway.queue.owner
    if gateway.quotas and gateway.reclaim == "cancel":
        yield "reclaim", "reclaimed", "503 to the youngest of the tenant most beyond its quota"


def _metered(meter: Allowance | RequestLimit | TokenLimit) -> Iterator[tuple[str, str, str]]:
    name = meter.name
    whose = f" of {meter.tenant}" if meter.tenant is not None else ""
    if isinstance(meter, Allowance):
        per = "" if meter.period_s is None else f" in {meter.period_s:g} s"
        action = f"429 once {meter.tokens:,} tokens{whose} are used{per}, not to be retried"
        yield f"allowances.{name}.tokens", f"quota_exhausted:{name}", action
    elif isinstance(meter, TokenLimit):
        path, burst = f"token_limits.{name}", meter.burst_tokens
        action = f"429 beyond {meter.rate_tokens_per_s:,.15g} tokens/s{whose} (burst {burst:,})"
        yield f"{path}.rate_tokens_per_s", f"token_limit:{name}", action
        action = f"413 for a request{whose} of more than {burst:,} tokens, not to be retried"
        yield f"{path}.burst_tokens", f"request_too_large:{name}", action
    else:
        action = f"429 beyond {meter.rate_rps:g}/s{whose} (burst {meter.burst})"
        yield f"rate_limits.{name}.rate_rps", f"rate_limit:{name}", action
