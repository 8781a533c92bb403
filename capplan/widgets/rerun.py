"""A short run simulated anew for each setting: the batch window of a pool, replicas and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.formatting import counted, format_value, rule_words
from capplan.traffic.replay import at_load, busiest, rate_rps
from capplan.widgets.explorer import Control, Explorer, Values, View

if TYPE_CHECKING:
    from capplan.grid import PoolStudy
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

SHOWN_REQUESTS = 1000
"""Requests of the busiest stretch that are simulated anew for each setting."""
RANGES = {
    "max_batch_size": (1.0, 128.0, 1.0),
    "max_queue_delay_s": (0.0, 1.0, 0.01),
    "max_num_seqs": (1.0, 256.0, 1.0),
    "max_num_batched_tokens": (256.0, 8192.0, 256.0),
}
"""Least, most and step of a slider; wider if the scenario's own value lies outside."""
MOST_REPLICAS, MOST_LOST = 16, 8
LOAD = Control(title="load factor", value=1.0, low=0.2, high=4.0, step=0.1)


def batch_window(study: PoolStudy) -> None:
    """Show sliders for the batch window of a pool and the load, and how many requests succeed."""
    explore_batch_window(study).show()


def failure_margin(scenario: Scenario, *, trace: Trace, lost: int = 1, seed: int = 0) -> None:
    """Show sliders for replicas, losses and load of the primary pool, and what they break."""
    explore_failure_margin(scenario, trace=trace, lost=lost, seed=seed).show()


def explore_batch_window(study: PoolStudy) -> Explorer:
    """Return the explorer of a pool's batch window and load."""
    from dataclasses import replace

    from capplan.simulation import simulate

    stretch = busiest(study.trace, SHOWN_REQUESTS)
    shown = replace(study, scenario=judged_as_shown(study.scenario))

    def look(values: Values) -> View:
        across, down, load = values.values()
        trace = at_load(stretch, load)
        result = simulate(shown.at(across, down), trace=trace, seed=study.seed)
        return _latency_view(study, result, rate_rps(trace))

    controls = {}
    for field, title, own in zip(study.fields, study.titles, study.point, strict=True):
        name = field.rpartition(".")[2]
        low, high, step = RANGES[name]
        whole = not name.endswith("_s")
        controls[name] = Control(title=title, value=float(own), low=min(low, own),
                                 high=max(high, own), step=step, whole=whole)  # fmt: skip
    return Explorer(controls={**controls, "load": LOAD}, look=look)


def explore_failure_margin(
    scenario: Scenario, *, trace: Trace, lost: int = 1, seed: int = 0
) -> Explorer:
    """Return the explorer of the primary pool's replicas.

    Lost replicas crash after a third of the run and stay away. One replica is always left.
    """
    from capplan.scenario.files import with_values
    from capplan.simulation import simulate

    pool = scenario.pool()
    stretch = busiest(trace, SHOWN_REQUESTS)
    shown = judged_as_shown(scenario)

    def look(values: Values) -> View:
        drawn = at_load(stretch, values["load"])
        at_s = float(drawn.frame["arrival_s"].iloc[-1]) / 3
        count = int(values["lost"])
        crash = {"kind": "crash", "pool": pool.name, "at_s": at_s, "count": count}
        changed = {
            f"pools.{pool.name}.replicas": int(values["replicas"]),
            "faults": [crash] if count else [],
        }
        result = simulate(with_values(shown, changed), trace=drawn, seed=seed)
        return _queue_view(result, rate_rps(drawn), lost_at_s=at_s if count else None)

    def couple(_moved: str, values: Values) -> Values:
        return {**values, "lost": min(values["lost"], values["replicas"] - 1)}

    most = max(MOST_REPLICAS, 2 * pool.replicas)
    start_lost = min(lost, pool.replicas - 1)
    controls = {
        "replicas": Control(title=f"replicas of {pool.name}", value=pool.replicas, low=1,
                            high=most, step=1, whole=True),
        "lost": Control(title="replicas lost", value=start_lost, low=0, high=MOST_LOST, step=1,
                        whole=True),
        "load": LOAD,
    }  # fmt: skip
    return Explorer(controls=controls, look=look, couple=couple)


def judged_as_shown(scenario: Scenario) -> Scenario:
    """Return the scenario with promises that may be judged on however few requests are shown.

    A slider says at once what breaks in the stretch it shows; that is a hint, and no verdict on
    the service, for which the promises' own sample counts stand.
    """
    from capplan.scenario.files import with_values

    few = {f"classes.{c.name}.promises.min_samples": 1 for c in scenario.classes}
    return with_values(scenario, {**few, "warmup_s": 0.0})


def broken(result: RunResult) -> tuple[str, ...]:
    """Return what a run breaks beyond doubt, one sentence each."""
    from capplan.slo import judge

    return tuple(
        f"{reason.request_class or 'all'}, {rule_words(reason.rule)}: {reason.evidence}"
        for reason in judge(result).reasons
        if reason.outcome in ("fail", "blocked")
    )


def flow_sentence(result: RunResult, of: str) -> str:
    """Return how the requests of a run end, in a sentence; ``of`` says which requests they are."""
    from capplan.results import headline

    figures = headline(result)
    shares = {
        "keep every promise": "goodput_fraction",
        "time out": "timeout_fraction",
        "are refused or fail": "error_rate_fraction",
    }
    ends = ", ".join(f"{format_value(figures[n], n)} {text}" for text, n in shares.items())
    wasted = format_value(figures["wasted_token_fraction"], "_fraction")
    return (
        f"{counted(figures['offered'], 'request')} {of}: {ends}; throughput "
        f"{format_value(figures['throughput_rps'], '_rps')}, goodput "
        f"{format_value(figures['goodput_rps'], '_rps')}, {wasted} of the tokens computed in vain."
    )


def _latency_view(study: PoolStudy, result: RunResult, load_rps: float) -> View:
    from capplan import charts
    from capplan.results import length_bucket, per_request

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
    return View(
        charts=(
            charts.latency_distribution(frame, latency=latency, promise_s=promise_s),
            charts.outcomes_over_time(requests),
        ),
        sentences=(flow_sentence(result, f"at {format_value(load_rps, '_rps')}"),),
        broken=broken(result),
    )


def _queue_view(result: RunResult, load_rps: float, *, lost_at_s: float | None) -> View:
    from capplan import charts
    from capplan.results import per_request

    at = format_value(lost_at_s, "_s")
    lost = () if lost_at_s is None else (f"Replicas are lost after {at}.",)
    return View(
        charts=(
            charts.outcomes_over_time(per_request(result)),
            charts.waiting_over_time(result.timeline),
        ),
        sentences=(flow_sentence(result, f"at {format_value(load_rps, '_rps')}"), *lost),
        broken=broken(result),
    )
