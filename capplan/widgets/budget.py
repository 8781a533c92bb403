"""Move a share of the wait budget and see what breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.formatting import format_value, in_layer, rule_words
from capplan.widgets.explorer import Control, Explorer, Values, View
from capplan.widgets.rerun import SHOWN_REQUESTS, broken, flow_sentence, judged_as_shown

if TYPE_CHECKING:
    import pandas as pd

    from capplan.budget import ClassBudget, WaitBudget
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

PERCENT = 100.0


def wait_budget(scenario: Scenario, *, trace: Trace) -> None:
    """Show a slider per waiting layer, the sum kept, and what a division breaks."""
    explore_wait_budget(scenario, trace=trace).show()


def explore_wait_budget(scenario: Scenario, *, trace: Trace) -> Explorer:
    """Return the explorer of the division of the wait budget.

    The sliders are percentages of what each class may wait. For each division the limits that
    follow are put into the scenario and the busiest stretch of the trace is simulated anew: a
    layer whose wait passes its share is red, and so is a finding that fails.
    """
    from capplan.budget import WAITING, allocate, apply, rebalance, with_shares
    from capplan.simulation import simulate
    from capplan.traffic.replay import busiest

    own = allocate(scenario, trace=trace)
    start = whole(_percentages(own.tightest))
    stretch = busiest(trace, SHOWN_REQUESTS)

    def look(values: Values) -> View:
        divided = scenario if values == start else with_shares(scenario, values)
        limited = apply(divided, allocate(divided, trace=trace))
        budget = allocate(limited, trace=trace)
        result = simulate(judged_as_shown(limited), trace=stretch)
        return _view(budget, budget.tail_waits(result), result)

    def couple(moved: str, values: Values) -> Values:
        before = {**values, moved: PERCENT - sum(v for n, v in values.items() if n != moved)}
        return whole(rebalance(before, moved, values[moved]), keep=moved)

    controls = {
        layer: Control(
            title=f"{layer.replace('_', ' ')} (%)",
            value=start[layer],
            low=0.0,
            high=PERCENT,
            step=1.0,
            whole=True,
        )
        for layer in WAITING
    }
    return Explorer(controls=controls, look=look, couple=couple)


def whole(values: Values, *, keep: str | None = None) -> Values:
    """Return whole numbers with the same sum, the largest remainders rounded up; ``keep`` stays.

    A slider shows whole steps only; a value between two would be moved by the page itself.

    >>> whole({"a": 33.3, "b": 33.3, "c": 33.4})
    {'a': 33, 'b': 33, 'c': 34}
    """
    floors: Values = {name: int(value) for name, value in values.items()}
    missing = round(sum(values.values()) - sum(floors.values()))
    order = sorted(values, key=lambda name: floors[name] - values[name])
    for name in [name for name in order if name != keep][:missing]:
        floors[name] += 1
    return floors


def _percentages(budget: ClassBudget) -> Values:
    total = sum(budget.shares_s.values())
    if not total > 0:
        return {layer: PERCENT / len(budget.shares_s) for layer in budget.shares_s}
    return {layer: PERCENT * share / total for layer, share in budget.shares_s.items()}


def _view(budget: WaitBudget, waits: pd.DataFrame, result: RunResult) -> View:
    from capplan import charts

    over = waits[waits["over"]]
    breaks = [
        f"{row['request_class']} waits {format_value(row['wait_s'], '_s')} "
        f"{in_layer(row['layer'])}, more than its {format_value(row['share_s'], '_s')}"
        for row in over.to_dict("records")
    ]
    breaks += [
        f"{rule_words(f.rule)}, {f.field}: {f.next_action}"
        for f in budget.findings
        if f.outcome in ("fail", "blocked")
    ]
    of = "of the busiest stretch, simulated with the limits that follow"
    return View(
        charts=(charts.waits_against_shares(waits),),
        sentences=(flow_sentence(result, of),),
        broken=(*breaks, *broken(result)),
    )
