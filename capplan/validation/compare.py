"""A measured run replayed, and compared with its replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capplan.measured import REQUEST_OVERHEAD_S, Measured, replay_scenario, replay_trace
from capplan.measured.server import assumed_settings
from capplan.scenario.files import with_values
from capplan.simulation import simulate
from capplan.validation.caps import caps
from capplan.validation.figures import (
    Figure,
    latency_figures,
    mean_in_flight,
    subset,
    success_fraction,
    tokens_per_s,
)
from capplan.validation.repeats import repeat_of
from capplan.validation.result import Validation
from capplan.validation.series import overlay, series_means
from capplan.validation.stalls import stalls

if TYPE_CHECKING:
    import pandas as pd

    from capplan.results import RunResult
    from capplan.scenario import Scenario

WARMUP_S = 60.0
"""Time that is left out beside the whole, s: a server's first requests meet cold caches (in
``data/validation`` the first hundred wait a quarter longer for their first token)."""


def validate(
    measured: Measured,
    *,
    scenario: Scenario | None = None,
    step_time: Mapping[str, Any] | None = None,
    request_overhead_s: float | None = None,
    overhead_per_in_flight_s: float = 0.0,
    source: str = "roofline",
    repeat: Measured | None = None,
    seed: int = 0,
) -> Validation:
    """Return a measured run against its replay.

    Parameters
    ----------
    measured
        The run.
    scenario
        What is simulated; None = built from what is known of the server.
    step_time, request_overhead_s, overhead_per_in_flight_s
        Of that scenario: fields of a pool's ``step_time``, what each request takes besides
        (None = what it takes of the usual server, ``REQUEST_OVERHEAD_S``), and for each in flight.
    source
        Names where step times come from.
    repeat
        A second run of the same load on the same server, for what a measurement differs by from
        itself.
    seed
        Of what the scenario leaves to chance.

    Raises
    ------
    DataError
        For a repeat of another server or load.
    """
    again = None if repeat is None else repeat_of(measured, repeat)
    notes: list[str] = []
    if scenario is None:
        notes = assumed_settings(measured.server)
        if request_overhead_s is None and measured.origin != "scheduler_queue_in_s":
            took = f"{REQUEST_OVERHEAD_S * 1e3:.0f} ms a request before the engine"
            notes.append(f"Assumed: {took} (HTTP, tokenizer).")
        overhead_s = REQUEST_OVERHEAD_S if request_overhead_s is None else request_overhead_s
        scenario = replay_scenario(
            measured,
            step_time=step_time,
            request_overhead_s=overhead_s,
            overhead_per_in_flight_s=overhead_per_in_flight_s,
        )
    result = simulate(scenario, trace=replay_trace(measured, scenario), seed=seed)
    found = compare(measured, result, source=source)
    return replace(found, repeat=again, notes=(*found.notes, *notes))


def with_step_time(
    scenario: Scenario,
    step_time: Mapping[str, Any],
    *,
    request_overhead_s: float = 0.0,
    overhead_per_in_flight_s: float = 0.0,
) -> Scenario:
    """Return a scenario whose primary pool has another step time, and its requests an overhead."""
    values: dict[str, Any] = {f"pools.{scenario.pool().name}.batching.step_time": dict(step_time)}
    more = {"overhead_s": request_overhead_s, "overhead_per_in_flight_s": overhead_per_in_flight_s}
    for name, seconds in more.items():
        if seconds:
            values[f"gateway.{name}"] = getattr(scenario.gateway, name) + seconds
    return with_values(scenario, values)


def compare(measured: Measured, result: RunResult, *, source: str) -> Validation:
    """Return a measured run against a run of its replay."""
    seen, replayed = measured.requests, predicted_requests(measured, result)
    timeout_s = measured.server.client_timeout_s
    limits, at_cap = caps(seen, replayed, result, timeout_s=timeout_s)
    combs, during = stalls(seen, replayed, at_cap)
    left_out = {"first_60_s": (seen["start_s"] < WARMUP_S).to_numpy()}
    if limits:
        left_out["at_cap"] = at_cap
    if combs.found:
        left_out["stalls"] = during
    return Validation(
        name=measured.name,
        source=source,
        n=len(measured.succeeded),
        latencies=latency_figures(measured.succeeded, replayed),
        throughput=Figure(measured=tokens_per_s(seen), predicted=tokens_per_s(replayed)),
        success=Figure(measured=success_fraction(seen), predicted=success_fraction(replayed)),
        in_flight=Figure(
            measured=mean_in_flight(seen, timeout_s), predicted=mean_in_flight(replayed, timeout_s)
        ),
        series=series_means(logged := overlay(measured, result)),
        overlay=logged,
        result=result,
        without={name: subset(seen, replayed, ~rows) for name, rows in left_out.items()},
        caps=limits,
        stalls=combs,
        notes=measured.notes,
    )


def predicted_requests(measured: Measured, result: RunResult) -> pd.DataFrame:
    """Return the replayed requests in the measured run's form, row by row the same requests.

    Latencies count from the moment that the measured ones count from: where the client's own
    queue comes before it, the wait in it is left out.
    """
    import pandas as pd

    log = result.requests
    log = log.set_index(log["request_id"].astype("int64")).sort_index()
    ok = log["outcome"] == "succeeded"
    start = log["intended_start_s"]
    if measured.origin != "intended_start_s" and measured.server.client_max_in_flight is not None:
        start = log["gateway_admitted_s"]
    ttft = (log["first_token_s"] - start).where(ok)
    e2e = (log["finish_s"] - start).where(ok)
    gaps = log["output_tokens"].astype("float64") - 1
    return pd.DataFrame(
        {
            "start_s": log["intended_start_s"],
            "output_tokens": log["output_tokens"],
            "ttft_s": ttft,
            "e2e_s": e2e,
            "tpot_s": ((e2e - ttft) / gaps).where(gaps > 0),
            "outcome": log["outcome"],
        }
    ).reset_index(drop=True)
