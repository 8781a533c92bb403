"""Whether a tenant that sends more than its share makes another's promises break.

A tenant is the cause if the other's promise holds as soon as it sends no more than its share: the
same requests run again without those beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd

from capplan.formatting import listed, rule_words
from capplan.simulation.backend import current
from capplan.slo.promises import stated
from capplan.stages.stage import Stage, stage_of
from capplan.stages.violations import Break, broken
from capplan.statistics import share_interval
from capplan.traffic.closed import is_closed
from capplan.verdict import Reason, checked, unknown

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

OVER_SHARE = 1.1
"""Part of its share of the requests above which a tenant counts as over it; a default."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A stage in which a tenant within its share is hurt, and again with the loud ones cut."""

    stage: Stage
    loud: tuple[str, ...]
    victim: str
    """The tenant that is hurt."""
    found: Break
    """The promise of a class that breaks for it."""
    again: Stage | None
    """The stage with the loud tenants at their share; None for a closed loop, whose users send as
    they are answered."""

    @property
    def cured(self) -> bool | None:
        """Return whether the victim's promise then holds; None if it was not measured."""
        own = pd.DataFrame() if self.again is None else self._own(self.again)
        if own.empty or self.again is None:
            return None
        promises = self.again.scenario.request_class(self.found.request_class).promises
        now = broken(own, promises, self.found.promise)
        return now.share.value <= now.allowed_fraction

    def _own(self, again: Stage) -> pd.DataFrame:
        """Return the victim's requests that the stage judged before, as they ended again."""
        table = again.of([self.found.request_class])
        judged = table["request_id"].isin(self.stage.table["request_id"])
        return table[judged & (table["tenant"] == self.victim)]


def cuts_of(scenario: Scenario, stages: Sequence[Stage]) -> Iterator[Cut]:
    """Yield each stage in which a loud tenant may hurt another, until one is the cause."""
    for stage in stages:
        over = tenants_over_share(scenario, stage.table)
        hurt = _hurt(scenario, stage.table, over) if over else None
        if hurt is None:
            continue
        again = _cut(scenario, stage, over)
        cut = Cut(stage=stage, loud=tuple(over), victim=hurt[0], found=hurt[1], again=again)
        yield cut
        if cut.cured:
            return


def isolation_reasons(
    scenario: Scenario, stages: Sequence[Stage], cuts: Sequence[Cut]
) -> Iterator[Reason]:
    """Yield whether a tenant that sends more than its share is why another's promise breaks."""
    if len(scenario.tenants) < 2:  # noqa: PLR2004
        return
    if all(len(s.table["tenant"].unique()) < 2 for s in stages):  # noqa: PLR2004
        action = "measure it: run stages with the requests of every tenant"
        why = "no planned stage has requests of two tenants"
        yield unknown("tenant_isolation", why, next_action=action)
        return
    first = {True: 0, None: 1, False: 2}
    for cut in sorted(cuts, key=lambda one: first[one.cured])[:1]:
        yield _of_cut(cut)
        return
    loud = [(over[0], s) for s in stages if (over := tenants_over_share(scenario, s.table))]
    if not loud:
        yield _isolation(True, None, "no tenant sends more than its share")
        return
    name, stage = loud[0]
    yield _isolation(True, name, f"{name} sends more than its share; no other's breaks", stage)


def _of_cut(cut: Cut) -> Reason:
    """Return whether the loud tenants of a cut are the cause."""
    what = f"{cut.victim}'s {cut.found.request_class} {rule_words(cut.found.promise)}"
    text = f"{listed(cut.loud)} sends more than its share while {what} is broken"
    if cut.cured is None:
        action = "cut the loud tenant to its share, run again, and see whether the other's holds"
        return unknown("tenant_isolation", f"{text}; not measured without", next_action=action)
    then = "holds" if cut.cured else "breaks all the same"
    again = "" if cut.again is None else cut.again.run_id
    text += f"; at its share (run {again}) it {then}"
    return _isolation(not cut.cured, cut.loud[0], text, cut.stage)


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
        expected = sum(
            len(own) * _shares(scenario, str(name)).get(tenant.name, 0.0)
            for name, own in table.groupby("request_class", observed=True)
        )
        sent = int((table["tenant"] == tenant.name).sum())
        limit = OVER_SHARE * expected / len(table) if len(table) else 1.0
        if len(table) and share_interval(sent, len(table)).low > limit:
            over[tenant.name] = sent / max(expected, 1.0)
    return sorted(over, key=lambda name: -over[name])


def _shares(scenario: Scenario, request_class: str) -> dict[str, float]:
    """Return the share of each tenant that uses a class of its requests."""
    users = [t for t in scenario.tenants if not t.classes or request_class in t.classes]
    total = sum(t.share for t in users)
    return {t.name: t.share / total for t in users}


def _hurt(scenario: Scenario, table: pd.DataFrame, over: Sequence[str]) -> tuple[str, Break] | None:
    """Return a tenant within its share and its promise that surely breaks; None without one."""
    others = table[~table["tenant"].isin(list(over))]
    for (tenant, name), own in others.groupby(["tenant", "request_class"], observed=True):
        promises = scenario.request_class(str(name)).promises
        for rule in stated(promises):
            if (found := broken(own, promises, rule)).proven:
                return str(tenant), found
    return None


def _cut(scenario: Scenario, stage: Stage, over: Sequence[str]) -> Stage | None:
    """Return a stage again, without the loud tenants' requests beyond their share of each class.

    What stays is spread evenly over theirs. None for a closed loop.
    """
    run, trace = stage.run, cast("Trace", stage.run.trace)
    if is_closed(trace):
        return None
    frame = trace.frame
    keeps = np.ones(len(frame), np.bool_)
    for name, own in frame.groupby("request_class", observed=True):
        shares = _shares(scenario, str(name))
        rest = 1 - sum(shares.get(tenant, 0.0) for tenant in over)
        within = int((~own["tenant"].isin(list(over))).sum())
        for tenant in over:
            at = np.flatnonzero((frame["request_class"] == name) & (frame["tenant"] == tenant))
            most = round(within * shares.get(tenant, 0.0) / rest) if rest > 0 else 0
            if len(at) > most:
                keeps[at] = False
                keeps[at[np.linspace(0, len(at), most, endpoint=False).astype(int)]] = True
    fewer = replace(trace, frame=frame[keeps].reset_index(drop=True))
    again = current().run(run.scenario, trace=fewer, seed=run.seed, replication=run.replication)
    load = stage.load_rps * keeps.mean()
    name, note = f"{stage.name} cut", f"{listed(over)} at its share"
    return stage_of(
        name, "isolation", load, again, start_s=stage.start_s, end_s=stage.end_s, note=note
    )
