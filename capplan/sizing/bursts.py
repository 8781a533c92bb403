"""Bursts against a sized pool: the stages' bursts, at the number of replicas that was found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.formatting import counted, rule_words
from capplan.results.cost import served_by
from capplan.scenario.files import with_values
from capplan.sizing.points import Point
from capplan.stages.protection import ProtectiveAction, protections
from capplan.stages.run_load import loads_of
from capplan.stages.stage_kinds import burst as run_burst

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.stages.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What a pool does in bursts; ``load_rps`` (of its classes) NaN where nothing is shown."""

    load_rps: float
    evidence: str
    run_id: str | None = None


def burst_of(scenario: Scenario, pool: Pool, point: Point | None, *, seed: int) -> Burst:
    """Return whether a pool of the point's replicas keeps its promises through the plan's bursts.

    Their load, length and distance are those of ``scenario.stages``. The promises of classes that
    may be shed are not asked for.
    """
    if point is None or point.open:
        return Burst(load_rps=math.nan, evidence="not measured: no number of replicas is shown")
    if scenario.traffic.shape.kind == "closed":
        told = "not measured: users who wait for their answers bring no burst"
        return Burst(load_rps=math.nan, evidence=told)
    sized = with_values(scenario, {f"pools.{pool.name}.replicas": point.replicas})
    loads = loads_of(sized, seed=seed)
    stage = run_burst(sized, loads, seed=seed)
    names = served_by(sized, pool)
    share = sum(loads.share.get(name, 0.0) for name in names)
    return _told(stage, names, share)


def _told(stage: Stage, names: list[str], share: float) -> Burst:
    scenario = stage.scenario
    firm = [
        b
        for b in stage.breaks
        if b.request_class in names and not scenario.request_class(b.request_class).sheddable
    ]
    acted = [p for p in protections(scenario, [stage]) if p.acted and p.boundary.layer != "caller"]
    limits = ", ".join(map(_acting, acted)) or "no limit acted"
    what = f"{stage.note}, {counted(len(stage.table), 'request')} (run {stage.run_id}); {limits}"
    if firm:
        first = firm[0]
        told = (
            f"{first.request_class} breaks {rule_words(first.promise)} for {first.share.value:.2%}"
        )
        evidence = f"not shown: {told}; {what}"
        return Burst(load_rps=math.nan, evidence=evidence, run_id=stage.run_id)
    thin = [r for r in stage.thin if r.request_class in names]
    if thin:
        evidence = f"not shown: no promise broken, but too few to tell {thin[0].rule}; {what}"
        return Burst(load_rps=math.nan, evidence=evidence, run_id=stage.run_id)
    evidence = f"simulated: no promise broken of a class that may not be shed, in {what}"
    return Burst(load_rps=share * stage.load_rps, evidence=evidence, run_id=stage.run_id)


def _acting(limit: ProtectiveAction) -> str:
    opened = f" (opened {counted(limit.opened, 'time')})" if limit.opened else ""
    return f"{limit.boundary.field}{opened} acted on {counted(limit.count, 'attempt')}"
