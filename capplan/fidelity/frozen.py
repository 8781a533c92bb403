"""How far predictions are from measured servers: the figures frozen in ``data/validation``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from capplan.bundled import SHARED_DATA_VARIABLE, data_path, shared_data_path
from capplan.calibration.result import Calibration, calibration_of
from capplan.display import Displayed
from capplan.fidelity.goals import FIGURES, GOALS, METRICS, UNCALIBRATED, goal_row, worst_error
from capplan.formatting import counted, format_value, listed
from capplan.schema import DataError, require_columns
from capplan.validation import Validation, long_series
from capplan.validation.circumstances import Circumstances, read_circumstances

if TYPE_CHECKING:
    import altair as alt

COMMAND = "make validation"
"""Computes the frozen figures again, if ``CAPPLAN_DATA`` names the measured runs."""
H100, RTX4090 = "vllm-h100-llama-2-7b-tp1-", "vllm-rtx4090-llama-3.1-8b"
LARGER = "vllm-h100-llama-2-70b-hf-tp4-", "vllm-h100-llama-2-70b-tp4-"
QWEN = "vllm-h100-qwen3-14b-w5_sweep-agg"
REPLAYED = (f"{H100}roleplay", "calibrated"), (RTX4090, "tables")
"""Runs that are replayed anew, each with its source of step times."""
KEYS = ["run", "step_times", "metric", "figure"]
SAME_FRACTION = 0.001
"""Most by which an error computed anew may differ from the frozen one, which has four digits."""

NOISE: Mapping[tuple[str, str], float] = {
    ("TTFT", "p50"): 0.020,
    ("TTFT", "p99"): 0.048,
    ("TPOT", "p50"): 0.020,
}
"""Most by which two servers of one kind differ under one seeded load: closer than that is luck.
Source: notes that come with the measured runs, 2026; of other figures it is not known."""

PUBLISHED: Mapping[tuple[str, str], float] = {
    ("E2E", "mean"): 0.067,
    ("TTFT", "mean"): 0.176,
    ("TTFT", "p99"): 0.29,
    ("TPOT", "mean"): 0.071,
}
"""Best published error of other simulators, the median over 36 to 38 runs of this kind.
Source: notes that come with the measured runs, 2026; they name 6.7 % E2E and 7.1 % ITL without the
figure, taken for the mean here, and ITL for TPOT."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenErrors(Displayed):
    """The frozen figures.

    Attributes
    ----------
    computed
        The day, as ``2026-11-29``.
    errors
        One row per run, step times, metric and figure: ``error_fraction``, predicted over measured
        minus 1; of ``success_fraction`` the difference; ``is_own_run`` if the step times were
        fitted on the run. Runs and metrics by their short names.
    calibration
        The fit that the calibrated step times of Llama-2-7B come from.
    series
        Running and waiting requests of the RTX 4090 run: ``time_s``, ``series``, ``reading``,
        ``value``.
    circumstances
        Errors of every measured run with and without what bends the comparison.
    """

    computed: str
    errors: pd.DataFrame
    calibration: Calibration
    series: pd.DataFrame
    circumstances: Circumstances

    @property
    def fitted_on(self) -> list[str]:
        """Return the runs that are judged by step times fitted on them."""
        return list(self.errors.loc[self.errors["is_own_run"], "run"].unique())

    @property
    def latencies(self) -> pd.DataFrame:
        """Return the errors of E2E, TPOT and TTFT at mean, p50 and p99, in this order."""
        rows = self.errors["metric"].isin(METRICS.values()) & self.errors["figure"].isin(FIGURES)
        kind = pd.CategoricalDtype(list(METRICS.values()), ordered=True)
        return self.errors[rows].astype({"metric": kind}).reset_index(drop=True)

    def summary(self) -> str:
        """Return how many runs and sources there are, and what was fitted on."""
        return (
            f"{self.errors['run'].nunique()} runs and {self.latencies['step_times'].nunique()} "
            f"sources, computed {self.computed} by `{COMMAND}`. Fitted on "
            f"{listed(self.fitted_on)}: those rows of calibrated step times prove nothing."
        )

    def table(self) -> pd.DataFrame:
        """Return a row per run and source of step times, a column per metric and figure."""
        rows = []
        for (run, source), group in self.latencies.groupby(["run", "step_times"], sort=False):
            own = group["is_own_run"].any()
            found = group.set_index(["metric", "figure"])["error_fraction"]
            errors = {
                f"{metric} {figure}_fraction": found.get((metric, figure), math.nan)
                for metric in METRICS.values()
                for figure in FIGURES
            }
            name = f"{source} (own run)" if own else source
            rows.append({"run": run, "step_times": name, **errors})
        return pd.DataFrame(rows)

    def chart(self) -> alt.VConcatChart:
        """Return each error as a point, beside the noise and the published errors."""
        from capplan import charts

        return charts.errors_by_run(self.latencies, noise=NOISE, published=PUBLISHED)

    def series_chart(self) -> alt.VConcatChart:
        """Return the running and waiting requests of the RTX 4090 run over time."""
        from capplan import charts

        return charts.measured_beside_predicted(self.series)

    def peers(self) -> pd.DataFrame:
        """Return published errors beside the medians of ours over the runs not fitted on."""
        known = self.latencies
        medians = (
            known[~known["is_own_run"]]
            .assign(size=known["error_fraction"].abs())
            .groupby(["metric", "figure", "step_times"], sort=False, observed=True)["size"]
            .median()
        )
        sources = list(known["step_times"].unique())
        rows = [
            {"figure": f"{metric} {figure}", "published_fraction": published}
            | {f"{s}_fraction": medians.get((metric, figure, s), math.nan) for s in sources}
            for (metric, figure), published in PUBLISHED.items()
        ]
        return pd.DataFrame(rows)

    def closer(self) -> str:
        """Return in how many figures each source is closer than the published error."""
        peers = self.peers()
        closer = peers.drop(columns="figure").lt(peers["published_fraction"], axis="index").sum()
        counts = {str(name).removesuffix("_fraction"): n for name, n in closer.iloc[1:].items()}
        return listed(f"{source} in {n} of {len(peers)}" for source, n in counts.items())

    def goals(self) -> pd.DataFrame:
        """Return each goal with the worst error found, its place, and whether it is met.

        A goal of which a figure is missing is unknown, unless another figure already misses it.
        """
        return pd.DataFrame([goal_row(goal, self.errors) for goal in GOALS])

    def implied(self) -> pd.DataFrame:
        """Return the shares of the accelerator's peaks that the fitted numbers imply, and rates."""
        from capplan.catalog import accelerator

        implied, device = (
            self.calibration.implied,
            accelerator(self.calibration.scope["accelerator"]),
        )
        bandwidth = device.memory_bandwidth_bytes_per_s
        works = (
            ("reading weights", implied.weights_bandwidth_fraction, bandwidth, "TB/s"),
            ("reading KV", implied.kv_bandwidth_fraction, bandwidth, "TB/s"),
            ("prefill", implied.compute_fraction, device.bf16_flop_per_s, "TFLOP/s"),
        )
        rows = [
            (name, share, f"{share * peak / 1e12:,.3g} {unit}") for name, share, peak, unit in works
        ]
        return pd.DataFrame(rows, columns=["work", "of_peak_fraction", "rate"])

    def trust(self) -> pd.DataFrame:
        """Return per source the worst error of each latency, and how often it was too low.

        Of all runs, at mean, p50 and p99. Too low is the dangerous side: the server is slower than
        planned for.
        """
        rows = []
        for source, group in self.latencies.groupby("step_times", sort=False):
            worst = {
                f"worst {metric}_fraction": worst_error(group[group["metric"] == metric])[0]
                for metric in METRICS.values()
            }
            too_low = float((group["error_fraction"].dropna() < 0).mean())
            runs = int(group["run"].nunique())
            rows.append({"step_times": source, "runs": runs, **worst, "too_low_fraction": too_low})
        return pd.DataFrame(rows)

    def distrusted(self, bounds: Mapping[str, float] = UNCALIBRATED) -> str:
        """Return what not to trust, a line per source: latencies that pass a bound, and where."""
        return "\n".join(
            f"- **{source}**: {_passed(group, bounds)}"
            for source, group in self.latencies.groupby("step_times", sort=False)
        )

    def recomputed(self, data: str = "") -> Recomputed:
        """Return some measured runs replayed anew, none if no folder holds them.

        ``data`` is a folder of measured runs, "" = what ``CAPPLAN_DATA`` names. Raises
        :class:`DataError` for a folder that is named and does not exist.
        """
        folder = Path(data).expanduser() if data else shared_data_path()
        if folder is None:
            return Recomputed(frozen=self, replays=())
        if not folder.is_dir():
            raise DataError("a folder of measured runs", field="data", value=data)
        return Recomputed(frozen=self, replays=tuple(self._replays(folder)))

    def _replays(self, folder: Path) -> Iterator[Validation]:
        from capplan.measured import read_measured, replay_scenario
        from capplan.replica.kernel_tables import find_profile
        from capplan.validation import validate

        for name, source in REPLAYED:
            run = read_measured(folder / "measured" / name)
            law, front_end = self.calibration.step_time, self.calibration.front_end
            if source == "tables":
                profile = find_profile(folder / "profiles", replay_scenario(run).pool())
                yield validate(run, step_time={"kind": source, "path": str(profile)}, source=source)
            else:
                yield validate(run, step_time=law, source=source, **front_end)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recomputed(Displayed):
    """Measured runs replayed anew, beside the frozen figures; no replay = no run at hand."""

    frozen: FrozenErrors
    replays: tuple[Validation, ...]

    def table(self) -> pd.DataFrame:
        """Return each error computed now beside the frozen one."""
        old = self.frozen.errors.set_index(KEYS)["error_fraction"]
        rows = []
        for one in self.replays:
            for name, metric in METRICS.items():
                for figure in FIGURES:
                    now = one.latencies[name][figure].error_fraction
                    then = old.get((short(one.name), one.source, metric, figure), math.nan)
                    rows.append((short(one.name), one.source, f"{metric} {figure}", now, then))
        columns = ["run", "step_times", "figure", "now_fraction", "frozen_fraction"]
        return pd.DataFrame(rows, columns=columns)

    def charts(self) -> list[alt.VConcatChart]:
        """Return the series of the replays that have one, measured and predicted."""
        return [one.chart() for one in self.replays if one.overlay is not None]

    def summary(self) -> str:
        """Return whether the frozen figures hold."""
        day = self.frozen.computed
        if not self.replays:
            return (
                f"**Unknown.** No measured run is at hand (neither `data` nor "
                f"`{SHARED_DATA_VARIABLE}` names a folder), so nothing was computed anew: the "
                f"figures above are those of {day}."
            )
        runs = listed(
            f"`{short(one.name)}` ({counted(one.n, 'request')}, {one.source})"
            for one in self.replays
        )
        return f"Replayed {runs}. {holding(self.table(), day)}"


def frozen_errors(folder: Path | None = None) -> FrozenErrors:
    """Return the frozen figures; raises :class:`DataError` for a missing file or column."""
    place = data_path("validation") if folder is None else folder
    table = place / "errors.csv"
    errors = pd.read_csv(table)
    require_columns(errors, [*KEYS, "error_fraction", "fitted_on"], where=table)
    pairs = zip(errors["run"], errors["fitted_on"].fillna(""), strict=True)
    errors = errors.assign(
        is_own_run=[run in fitted_on.split() for run, fitted_on in pairs],
        run=errors["run"].map(short),
        metric=errors["metric"].replace(METRICS),
    )
    latency = json.loads((place / "latency.json").read_text(encoding="utf-8"))
    return FrozenErrors(
        computed=latency["computed"],
        errors=errors,
        calibration=calibration_of(latency),
        series=long_series(pd.read_csv(place / "rtx4090-series.csv")),
        circumstances=read_circumstances(place),
    )


def short(run: str) -> str:
    """Return a measured run's short name.

    >>> short("vllm-h100-llama-2-7b-tp1-general"), short("vllm-rtx4090-llama-3.1-8b")
    ('general', 'RTX 4090')
    """
    if run == RTX4090:
        return "RTX 4090"
    for start in LARGER:
        run = run.replace(start, "70B ")
    if run.startswith(QWEN):
        return f"Qwen3-14B {run.removeprefix(QWEN)}/s"
    return run.removeprefix(H100)


def holding(compared: pd.DataFrame, day: str) -> str:
    """Return whether errors computed now are those of a day: hold, out of date or unknown."""
    apart = (compared["now_fraction"] - compared["frozen_fraction"]).abs()
    if apart.isna().any():
        return f"**Unknown**: {int(apart.isna().sum())} figures cannot be compared."
    most = f"The errors differ by at most {format_value(100 * float(apart.max()))} points"
    if apart.max() <= SAME_FRACTION:
        return f"{most} from those of {day}. **The frozen ones hold.**"
    return f"{most} from those of {day}. **They are out of date**: `{COMMAND}` computes them again."


def _passed(group: pd.DataFrame, bounds: Mapping[str, float]) -> str:
    found = []
    for metric, bound in bounds.items():
        error, place = worst_error(group[group["metric"] == metric])
        if math.isnan(error):
            found.append(f"{metric}, of which nothing is known")
        elif abs(error) > bound:
            worst = f"{'+' * (error > 0)}{format_value(error, '_fraction')} at {place}"
            found.append(f"{metric} to within {format_value(bound, '_fraction')} ({worst})")
    return f"don't trust {listed(found)}." if found else "every bound holds on these runs."
