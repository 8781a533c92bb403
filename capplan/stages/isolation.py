"""Isolation: whether a tenant over its share makes others pay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from capplan.formatting import rule_words
from capplan.stages.violations import broken, stated
from capplan.statistics import share_interval
from capplan.verdict import Outcome, Reason

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage

OVER_SHARE = 1.1
"""Part of its share of the requests above which a tenant counts as over it; a default."""


def isolation_reasons(scenario: Scenario, stages: Sequence[Stage]) -> Iterator[Reason]:
    """Fail where a tenant sends more than its share while another's promises break."""
    if len(scenario.tenants) < 2:  # noqa: PLR2004
        return
    if all(len(s.table["tenant"].unique()) < 2 for s in stages):  # noqa: PLR2004
        yield Reason(
            rule="tenant_isolation",
            outcome="unknown",
            value=None,
            limit=None,
            evidence="no planned stage has requests of two tenants",
            next_action="measure it: run stages with the requests of every tenant",
        )
        return
    loud: dict[str, Stage] = {}
    for stage in stages:
        over = tenants_over_share(scenario, stage.table)
        loud |= {name: stage for name in over if name not in loud}
        victim = _hurt(scenario, stage.table, over) if over else None
        if victim is not None:
            told = f"{over[0]} sends more than its share while {victim} is broken"
            yield _reason("fail", over[0], f"{told}, in {stage.name} (run {stage.run_id})")
            return
    if not loud:
        yield _reason("pass", None, "no tenant sends more than its share")
        return
    name, stage = next(iter(loud.items()))
    told = f"{name} sends more than its share and breaks nobody else's promise"
    yield _reason("pass", name, f"{told}, in {stage.name} (run {stage.run_id})")


def _reason(outcome: Outcome, tenant: str | None, evidence: str) -> Reason:
    action = "limit each tenant at the gateway, or queue fairly by tenant"
    return Reason(
        rule="tenant_isolation",
        outcome=outcome,
        value=tenant,
        limit=None,
        evidence=evidence,
        next_action="" if outcome == "pass" else action,
        origin="default",
    )


def tenants_over_share(scenario: Scenario, table: pd.DataFrame) -> list[str]:
    """Return the tenants that surely send more than 110 % of their share, the worst first.

    A tenant's share of a class is its weight among the tenants that use the class.
    """
    over = {}
    for tenant in scenario.tenants:
        expected = 0.0
        for name, own in table.groupby("request_class", observed=True):
            users = [t for t in scenario.tenants if not t.classes or name in t.classes]
            if tenant in users:
                expected += len(own) * tenant.share / sum(t.share for t in users)
        sent = int((table["tenant"] == tenant.name).sum())
        limit = OVER_SHARE * expected / len(table) if len(table) else 1.0
        if len(table) and share_interval(sent, len(table)).low > limit:
            over[tenant.name] = sent / max(expected, 1.0)
    return sorted(over, key=lambda name: -over[name])


def _hurt(scenario: Scenario, table: pd.DataFrame, over: Sequence[str]) -> str | None:
    """Return a promise that surely breaks for a tenant within its share; None if there is none."""
    others = table[~table["tenant"].isin(list(over))]
    for (tenant, name), own in others.groupby(["tenant", "request_class"], observed=True):
        promises = scenario.request_class(str(name)).promises
        for rule in stated(promises):
            if broken(own, promises, rule).proven:
                return f"{tenant}'s {name} {rule_words(rule)}"
    return None
