"""Fairness: whether a low class starves, and whether a tenant over its share costs others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from capplan.formatting import rule_words
from capplan.results.cost import served_by
from capplan.stages.violations import broken, stated
from capplan.statistics import share_interval
from capplan.verdict import Reason, checked, unknown

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage

STARVED = 0.5
"""Success share of the lowest class, as a part of the highest's, below which it starves; a default
of this project."""
OVER_SHARE = 1.1
"""Part of its share of the requests above which a tenant counts as over it; a default."""


def starvation_reasons(scenario: Scenario, stages: Sequence[Stage]) -> Iterator[Reason]:
    """Yield whether each pool serves its lowest class beside its highest."""
    for pool in scenario.pools:
        names = served_by(scenario, pool)
        order = {n: scenario.request_class(n).priority for n in names}
        if len(set(order.values())) < 2:  # noqa: PLR2004
            continue
        low, high = max(order, key=lambda n: order[n]), min(order, key=lambda n: order[n])
        if not any({low, high} <= set(s.table["request_class"]) for s in stages):
            yield unknown("starvation", f"no planned stage has requests of {low} and {high}")
            continue
        starved = [s for s in stages if starves(s.table, low, high)]
        declared = scenario.request_class(low).sheddable
        evidence = f"{low} is served beside {high} in every planned stage"
        if starved:
            stage = starved[0]
            evidence = f"{low} starves in {stage.name} at {stage.load_rps:.3g}/s"
            evidence += f" (run {stage.run_id})" + ", as declared sheddable" * declared
        yield checked(
            "starvation",
            not starved or declared,
            value=len(starved),
            limit=0,
            evidence=evidence,
            next_action="age the queue, give the class a share, or declare it sheddable",
            request_class=low,
            origin="default",
        )


def starves(table: pd.DataFrame, low: str, high: str) -> bool:
    """Return whether a class succeeds less than half as often as another, beyond doubt."""
    shares = {}
    for name in (low, high):
        own = table.loc[table["request_class"] == name, "outcome"]
        shares[name] = share_interval(int((own == "succeeded").sum()), len(own))
    return bool(shares[low].high < STARVED * shares[high].value)


def isolation_reasons(scenario: Scenario, stages: Sequence[Stage]) -> Iterator[Reason]:
    """Yield whether a tenant sends more than its share while another's promises break."""
    if len(scenario.tenants) < 2:  # noqa: PLR2004
        return
    if all(len(s.table["tenant"].unique()) < 2 for s in stages):  # noqa: PLR2004
        action = "measure it: run stages with the requests of every tenant"
        why = "no planned stage has requests of two tenants"
        yield unknown("tenant_isolation", why, next_action=action)
        return
    loud: tuple[str, Stage] | None = None
    for stage in stages:
        over = tenants_over_share(scenario, stage.table)
        victim = _hurt(scenario, stage.table, over) if over else None
        if victim is not None:
            broken_too = f"{over[0]} sends more than its share while {victim} is broken"
            yield _isolation(False, over[0], broken_too, stage)
            return
        if over and loud is None:
            loud = over[0], stage
    if loud is None:
        yield _isolation(True, None, "no tenant sends more than its share")
        return
    name, stage = loud
    yield _isolation(True, name, f"{name} sends more than its share; no other's breaks", stage)


def _isolation(
    holds: bool, tenant: str | None, evidence: str, stage: Stage | None = None
) -> Reason:
    where = "" if stage is None else f", in {stage.name} (run {stage.run_id})"
    return checked(
        "tenant_isolation",
        holds,
        value=tenant,
        evidence=evidence + where,
        next_action="limit each tenant at the gateway, or queue fairly by tenant",
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
