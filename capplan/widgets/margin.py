"""Move replicas, losses and load, and see whether the promises hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.formatting import counted
from capplan.pages.loads import at_load, busiest, rate_rps
from capplan.widgets.explorer import Control, Explorer, Values, View
from capplan.widgets.judging import broken, judged_as_shown

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

SHOWN_REQUESTS = 1000
"""Requests of the busiest stretch that are simulated anew for each number."""
MOST_REPLICAS = 16


def failure_margin(scenario: Scenario, *, trace: Trace, lost: int = 1, seed: int = 0) -> None:
    """Show sliders for replicas, losses and load of the primary pool, and what they break."""
    explore_failure_margin(scenario, trace=trace, lost=lost, seed=seed).show()


def explore_failure_margin(
    scenario: Scenario, *, trace: Trace, lost: int = 1, seed: int = 0
) -> Explorer:
    """Return the explorer of the primary pool's replicas; each number is simulated anew.

    Lost replicas crash after a third of the run and stay away. One replica is always left.
    """
    from capplan.scenario.files import with_values
    from capplan.simulation import simulate

    pool = scenario.pool()
    stretch = busiest(trace, SHOWN_REQUESTS)
    shown = judged_as_shown(scenario)

    def look(values: Values) -> View:
        replicas, gone = int(values["replicas"]), int(values["lost"])
        drawn = at_load(stretch, values["load"])
        at_s = float(drawn.frame["arrival_s"].iloc[-1]) / 3
        crash = {"kind": "crash", "pool": pool.name, "at_s": at_s, "count": gone}
        changed = {
            f"pools.{pool.name}.replicas": replicas,
            "faults": [crash] if gone else [],
        }
        result = simulate(with_values(shown, changed), trace=drawn, seed=seed)
        return _view(result, load_rps=rate_rps(drawn), at_s=at_s if gone else None)

    def couple(_moved: str, values: Values) -> Values:
        return {**values, "lost": min(values["lost"], values["replicas"] - 1)}

    most = max(MOST_REPLICAS, 2 * pool.replicas)
    start_lost = min(lost, pool.replicas - 1)
    controls = {
        "replicas": Control(
            title=f"replicas of {pool.name}",
            value=pool.replicas,
            low=1,
            high=most,
            step=1,
            whole=True,
        ),
        "lost": Control(title="replicas lost", value=start_lost, low=0, high=8, step=1, whole=True),
        "load": Control(title="load factor", value=1.0, low=0.2, high=4.0, step=0.1),
    }
    return Explorer(controls=controls, look=look, couple=couple)


def _view(result: RunResult, *, load_rps: float, at_s: float | None) -> View:
    from capplan import charts
    from capplan.pages import format_value
    from capplan.results import headline, per_request

    requests = per_request(result)
    figures = headline(result)
    window_s = max(1.0, round(result.duration_s / 40))
    ends = charts.outcomes_over_time(requests, window_s=window_s)
    waiting = charts.waiting_over_time(result.timeline)
    lost = "" if at_s is None else f" Replicas are lost after {format_value(at_s, '_s')}."
    sentence = (
        f"{counted(figures['offered'], 'request')} at {format_value(load_rps, '_rps')}: "
        f"{format_value(figures['goodput_fraction'], '_fraction')} keep every promise, "
        f"{format_value(figures['timeout_fraction'], '_fraction')} time out, "
        f"{format_value(figures['error_rate_fraction'], '_fraction')} are refused or fail.{lost}"
    )
    return View(
        charts=(ends, waiting),
        sentences=(sentence,),
        broken=broken(result),
    )
