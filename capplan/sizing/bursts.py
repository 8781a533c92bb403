"""Whether classes get through bursts, and the limits that acted in them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from capplan.formatting import counted, percent, rule_words
from capplan.stages.protection import ProtectiveAction, protections
from capplan.statistics import share_interval
from capplan.verdict import Outcome

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.stages.stage import Stage


def promised_fractions(scenario: Scenario, names: Iterable[str]) -> list[float]:
    """Return the share of good requests that each of these classes is promised."""
    promises = [scenario.request_class(name).promises for name in names]
    return [p.goodput_fraction or p.quantile for p in promises]


def burst_outcome(stage: Stage, names: Iterable[str]) -> tuple[Outcome, str]:
    """Return whether the classes that may not be shed get through bursts, and the evidence.

    They do not if a promise breaks in the stage, or if surely fewer of their requests in the bursts
    are good than promised.
    """
    scenario = stage.scenario
    firm = [n for n in names if not scenario.request_class(n).sheddable]
    if not firm:
        return "pass", "every class may be shed"
    good = _in_bursts(stage, firm)["good"]
    count, kept = len(good), float(good.sum(skipna=False))
    share = kept / count if count else math.nan
    text = f"{percent(share, 2)} of {counted(count, 'request')} in the bursts "
    text = "" if math.isnan(kept) or not count else f"; {text}are good"
    broken = [b for b in stage.breaks if b.request_class in firm]
    thin = [r for r in stage.thin if r.request_class in firm]
    least = min(promised_fractions(scenario, firm))
    if broken:
        first, rule = broken[0], rule_words(broken[0].promise)
        return (
            "fail",
            f"broken: {first.request_class} breaks {rule} for "
            f"{percent(first.share.value, 2)}{text}",
        )
    if text and share_interval(round(kept), count).high < least:
        return "fail", f"broken{text}, asked {percent(least, 2)}"
    if thin:
        rule = thin[0].rule
        return "unknown", f"not shown: no promise broken, but too few to judge {rule}{text}"
    return "pass", f"simulated: no promise broken of a class that may not be shed{text}"


def _in_bursts(stage: Stage, names: list[str]) -> pd.DataFrame:
    """Return the requests of some classes that start in a burst of the plan."""
    plan, own = stage.scenario.stages, stage.of(names)
    since_s = (own["intended_start_s"] - plan.every_s / 2) % plan.every_s
    return own[since_s < plan.burst_s]


def burst_run(stage: Stage) -> str:
    """Return what the bursts were, and which limits acted in them."""
    acted = [p for p in protections(stage.scenario, [stage]) if p.acted]
    limits = ", ".join(_acting(p) for p in acted if p.boundary.layer != "caller")
    requests = counted(len(stage.table), "request")
    return f"{stage.note}, {requests} (run {stage.run_id}); {limits or 'no limit acted'}"


def _acting(limit: ProtectiveAction) -> str:
    opened = f" (opened {counted(limit.opened, 'time')})" if limit.opened else ""
    return f"{limit.boundary.field}{opened} acted on {counted(limit.count, 'attempt')}"
