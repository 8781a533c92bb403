"""How far a prediction is from a measured run.

The measured requests are replayed as they were sent, and the same figures are taken of both: over
the requests that succeeded, and beside them the share that did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.display import Displayed
from capplan.formatting import counted
from capplan.measured import REQUEST_OVERHEAD_S, Measured, replay_scenario, replay_trace
from capplan.measured.server import assumed_settings
from capplan.scenario.files import with_values
from capplan.simulation import simulate

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from capplan.results import RunResult
    from capplan.scenario import Scenario

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, measured and predicted."""

    measured: float
    predicted: float

    @property
    def error_fraction(self) -> float:
        """Return by how much the prediction is too high, as a share of what was measured.

        >>> round(Figure(measured=2.0, predicted=2.1).error_fraction, 3)
        0.05
        """
        if not self.measured:
            return float("nan")
        return self.predicted / self.measured - 1.0

    def to_json(self) -> dict[str, float]:
        """Return the three numbers."""
        return {
            "measured": self.measured,
            "predicted": self.predicted,
            "error_fraction": self.error_fraction,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation(Displayed):
    """A measured run against its replay.

    Attributes
    ----------
    name
        Of the measured run.
    source
        Where step times came from.
    n
        Measured requests that succeeded.
    latencies
        By latency and figure: ``mean``, ``p50``, ``p90``, ``p99``.
    throughput
        Output tokens per second of what succeeded, from the first start to the last answer.
    success
        Share of the requests that succeeded.
    in_flight
        Mean requests in flight.
    series
        By name (``running``, ``waiting``) the mean of a measured series, where there is one.
    overlay
        The series themselves: ``time_s``, and each name measured and predicted.
    result
        The replay.
    """

    name: str
    source: str
    n: int
    latencies: Mapping[str, Mapping[str, Figure]]
    throughput: Figure
    success: Figure
    in_flight: Figure
    series: Mapping[str, Figure]
    overlay: pd.DataFrame | None
    result: RunResult
    notes: tuple[str, ...] = field(default=())

    def summary(self) -> str:
        """Return the run, how many of its requests succeeded, and the source of step times."""
        return (
            f"`{self.name}`: {counted(self.n, 'success', 'successes')}, step times: {self.source}."
        )

    def table(self) -> pd.DataFrame:
        """Return each figure as it was measured and predicted, and the error."""
        import pandas as pd

        figures = {
            (n, key): one for n, found in self.latencies.items() for key, one in found.items()
        }
        figures |= {
            ("throughput_tokens_per_s", ""): self.throughput,
            ("success_fraction", ""): self.success,
            ("in_flight", ""): self.in_flight,
        }
        figures |= {(name, ""): one for name, one in self.series.items()}
        rows = [(*key, *one.to_json().values()) for key, one in figures.items()]
        columns = ["metric", "figure", "measured", "predicted", "error_fraction"]
        return pd.DataFrame(rows, columns=columns)

    def chart(self) -> alt.VConcatChart:
        """Return the measured series over time with the predicted ones.

        Raises :class:`ValueError` for a run without series.
        """
        from capplan import charts

        if self.overlay is None:
            msg = f"{self.name} has no measured series"
            raise ValueError(msg)
        return charts.measured_beside_predicted(long_series(self.overlay))

    def to_json(self) -> dict[str, Any]:
        """Return the validation as ``capplan validate --json`` prints it."""
        metrics: dict[str, Any] = {
            name: {key: figure.to_json() for key, figure in figures.items()}
            for name, figures in self.latencies.items()
        }
        flow = self.throughput.to_json()
        metrics["throughput_tokens_per_s"] = flow | {"mean": flow}
        return {
            "n": self.n,
            "metrics": metrics,
            "success_fraction": self.success.to_json(),
            "in_flight": self.in_flight.to_json(),
            "series": {name: figure.to_json() for name, figure in self.series.items()},
            "measured": self.name,
            "source": self.source,
            "notes": list(self.notes),
        }


def long_series(overlay: pd.DataFrame) -> pd.DataFrame:
    """Return an overlay (``running_measured``, …) with a row per time, series and reading."""
    long = overlay.melt("time_s", var_name="name")
    names = long["name"].str.rsplit("_", n=1, expand=True)
    return long.assign(series=names[0], reading=names[1]).drop(columns="name")


def validate(
    measured: Measured,
    *,
    scenario: Scenario | None = None,
    step_time: Mapping[str, Any] | None = None,
    request_overhead_s: float | None = None,
    source: str = "roofline",
    seed: int = 0,
) -> Validation:
    """Return a measured run against its replay.

    Parameters
    ----------
    measured
        The run.
    scenario
        What is simulated; None = built from what is known of the server.
    step_time, request_overhead_s
        Of that scenario: fields of a pool's ``step_time``, and what each request takes besides;
        None = what it takes of the usual server (``REQUEST_OVERHEAD_S``).
    source
        Names where step times come from.
    seed
        Of what the scenario leaves to chance.
    """
    notes: list[str] = []
    if scenario is None:
        notes = assumed_settings(measured.server)
        if request_overhead_s is None and measured.origin != "scheduler_queue_in_s":
            took = f"{REQUEST_OVERHEAD_S * 1e3:.0f} ms a request before the engine"
            notes.append(f"Assumed: {took} (HTTP, tokenizer).")
        overhead_s = REQUEST_OVERHEAD_S if request_overhead_s is None else request_overhead_s
        scenario = replay_scenario(measured, step_time=step_time, request_overhead_s=overhead_s)
    result = simulate(scenario, trace=replay_trace(measured, scenario), seed=seed)
    found = compare(measured, result, source=source)
    return replace(found, notes=(*found.notes, *notes))


def with_step_time(
    scenario: Scenario, step_time: Mapping[str, Any], *, request_overhead_s: float = 0.0
) -> Scenario:
    """Return a scenario whose primary pool has another step time, and its requests an overhead."""
    values: dict[str, Any] = {f"pools.{scenario.pool().name}.batching.step_time": dict(step_time)}
    if request_overhead_s:
        values["gateway.overhead_s"] = scenario.gateway.overhead_s + request_overhead_s
    return with_values(scenario, values)


def compare(measured: Measured, result: RunResult, *, source: str) -> Validation:
    """Return a measured run against a run of its replay."""
    seen, replayed = measured.requests, predicted_requests(measured, result)
    return Validation(
        name=measured.name,
        source=source,
        n=len(measured.succeeded),
        latencies={
            name: _figures(measured.succeeded[name], replayed[name].dropna()) for name in LATENCIES
        },
        throughput=Figure(measured=_tokens_per_s(seen), predicted=_tokens_per_s(replayed)),
        success=Figure(measured=_success(seen), predicted=_success(replayed)),
        in_flight=Figure(
            measured=_in_flight(seen, measured.server.client_timeout_s),
            predicted=_in_flight(replayed, measured.server.client_timeout_s),
        ),
        series=_series_means(overlay := _overlay(measured, result)),
        overlay=overlay,
        result=result,
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


def _figures(seen: pd.Series[float], replayed: pd.Series[float]) -> dict[str, Figure]:
    seen = seen.dropna()
    figures = {"mean": Figure(measured=_mean(seen), predicted=_mean(replayed))}
    for name, quantile in QUANTILES.items():
        figures[name] = Figure(
            measured=_quantile(seen, quantile), predicted=_quantile(replayed, quantile)
        )
    return figures


def _mean(values: pd.Series[float]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _quantile(values: pd.Series[float], quantile: float) -> float:
    return float(np.quantile(values, quantile)) if len(values) else float("nan")


def _tokens_per_s(requests: pd.DataFrame) -> float:
    ok = requests[requests["outcome"] == "succeeded"]
    if ok.empty:
        return 0.0
    ends = ok["start_s"] + ok["e2e_s"].fillna(ok["ttft_s"])
    return float(ok["output_tokens"].sum() / (ends.max() - requests["start_s"].min()))


def _success(requests: pd.DataFrame) -> float:
    return float((requests["outcome"] == "succeeded").mean())


def _in_flight(requests: pd.DataFrame, timeout_s: float | None) -> float:
    """Return the mean requests in flight while requests came, by Little's law; NaN if unknown."""
    span_s = float(requests["start_s"].max() - requests["start_s"].min())
    stays = requests["e2e_s"].copy()
    stays[requests["outcome"] == "timed_out"] = np.nan if timeout_s is None else timeout_s
    if stays.isna().any() or span_s <= 0:
        return float("nan")
    left = (requests["start_s"].min() + span_s - requests["start_s"]).clip(lower=0.0)
    return float(np.minimum(stays, left).sum() / span_s)


def _overlay(measured: Measured, result: RunResult) -> pd.DataFrame | None:
    """Return the measured series with the predicted ones at the same times."""
    if measured.series is None:
        return None
    import pandas as pd

    log = result.requests
    times = measured.series["time_s"].to_numpy(dtype=float)
    came, began = log["scheduler_queue_in_s"].to_numpy(), log["batch_in_s"].to_numpy()
    left = log["decode_end_s"].fillna(log["finish_s"]).to_numpy()
    replayed = {
        "running": _between(began, left, times),
        "waiting": _between(came, np.where(np.isnan(began), left, began), times),
    }
    frame = pd.DataFrame({"time_s": times})
    for name, values in replayed.items():
        frame[f"{name}_measured"] = measured.series[name].to_numpy(dtype=float)
        frame[f"{name}_predicted"] = values
    return frame


def _between(start: Any, end: Any, times: Any) -> Any:
    """Return how many intervals each time lies in."""
    known = ~np.isnan(start)
    began = np.searchsorted(np.sort(start[known]), times, side="right")
    return began - np.searchsorted(np.sort(end[known]), times, side="right")


def _series_means(overlay: pd.DataFrame | None) -> dict[str, Figure]:
    if overlay is None:
        return {}
    return {
        name: Figure(
            measured=float(overlay[f"{name}_measured"].mean()),
            predicted=float(overlay[f"{name}_predicted"].mean()),
        )
        for name in ("running", "waiting")
    }
