"""Move batch size, window and load, and see who is answered in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.formatting import counted
from capplan.pages.loads import at_load, busiest, rate_rps
from capplan.pages.pools import NO_POOL, TITLES, PoolStudy
from capplan.widgets.explorer import Control, Explorer, Values, View
from capplan.widgets.judging import broken, judged_as_shown

if TYPE_CHECKING:
    from capplan.results import RunResult

SHOWN_REQUESTS = 1000
"""Requests that are simulated anew at each point."""
RANGES = {
    "max_batch_size": (1.0, 128.0, 1.0),
    "max_queue_delay_s": (0.0, 1.0, 0.01),
    "max_num_seqs": (1.0, 256.0, 1.0),
    "max_num_batched_tokens": (256.0, 8192.0, 256.0),
}
"""Least, most and step of a slider; wider where the scenario's own value lies outside."""


def batch_window(study: PoolStudy | None) -> None:
    """Show sliders for the batch window of a pool and the load, and who is answered in time."""
    from capplan import pages

    if study is None:
        pages.show(NO_POOL)
    else:
        explore_batch_window(study).show()


def explore_batch_window(study: PoolStudy) -> Explorer:
    """Return the explorer of a pool's batch window and load; each point is simulated anew."""
    from capplan.simulation import simulate

    stretch = busiest(study.trace, SHOWN_REQUESTS)
    shown = study.alike(judged_as_shown(study.scenario))

    def look(values: Values) -> View:
        across, down = (values[field] for field in study.fields)
        scenario = shown.with_point(across, down)
        trace = at_load(stretch, values["load"])
        return _view(study, simulate(scenario, trace=trace, seed=study.seed), rate_rps(trace))

    controls = {
        field: _control(field, own) for field, own in zip(study.fields, study.point, strict=True)
    }
    controls["load"] = Control(title="load factor", value=1.0, low=0.2, high=4.0, step=0.1)
    return Explorer(controls=controls, look=look)


def _control(field: str, own: float) -> Control:
    low, high, step = RANGES[field]
    return Control(
        title=TITLES[field],
        value=own,
        low=min(low, own),
        high=max(high, own),
        step=step,
        whole=not field.endswith("_s"),
    )


def _view(study: PoolStudy, result: RunResult, load_rps: float) -> View:
    from capplan import charts
    from capplan.pages import format_value
    from capplan.results import headline, length_bucket, per_request

    requests = per_request(result)
    streaming = any(c.streaming for c in study.scenario.classes)
    latency, field = ("TTFT", "ttft_s") if streaming else ("E2E", "e2e_s")
    shown = requests[requests["streaming"].astype(bool)] if streaming else requests
    frame = shown.assign(
        latency_s=shown[field.replace("_s", "_censored_s")],
        length_bucket=length_bucket(shown["prompt_tokens"]),
    )
    bounds = [getattr(c.promises, field) for c in study.scenario.classes]
    promise_s = min((bound for bound in bounds if bound is not None), default=None)
    figures = headline(result)
    ends = charts.outcomes_over_time(requests, window_s=_window(result))
    sentence = (
        f"{counted(figures['offered'], 'request')} at {format_value(load_rps, '_rps')}: throughput "
        f"{format_value(figures['throughput_rps'], '_rps')}, goodput "
        f"{format_value(figures['goodput_rps'], '_rps')}, "
        f"{format_value(figures['timeout_fraction'], '_fraction')} timed out, "
        f"{format_value(figures['error_rate_fraction'], '_fraction')} refused or failed, "
        f"{format_value(figures['wasted_token_fraction'], '_fraction')} of the tokens computed for nobody."
    )
    return View(
        charts=(charts.latency_distribution(frame, latency=latency, promise_s=promise_s), ends),
        sentences=(sentence,),
        broken=broken(result),
    )


def _window(result: RunResult) -> float:
    """Return a window that cuts a run into about forty, s."""
    return max(1.0, round(result.duration_s / 40))
