"""How far predictions are from measured servers: the figures frozen in ``data/validation``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.bundled import data_path
from capplan.formatting import format_value, listed
from capplan.schema import require_columns

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

COMMAND = "make validation"
"""Computes the frozen figures again, where ``CAPPLAN_DATA`` names the measured runs."""

H100 = "vllm-h100-llama-2-7b-tp1-"
SHORT = {"vllm-rtx4090-llama-3.1-8b": "RTX 4090"}
METRICS = {"e2e_s": "E2E", "tpot_s": "TPOT", "ttft_s": "TTFT"}
FIGURES = ("mean", "p50", "p99")
COLUMNS = ("run", "step_times", "metric", "figure", "error_fraction")

Figure = tuple[str, str]

NOISE: Mapping[Figure, float] = {
    ("TTFT", "p50"): 0.020,
    ("TTFT", "p99"): 0.048,
    ("TPOT", "p50"): 0.020,
}
"""Most by which two servers of one kind differ under one seeded load: closer than that is luck.
Source: notes that come with the measured runs, 2026; of other figures it is not known."""

PUBLISHED: Mapping[Figure, float] = {
    ("E2E", "mean"): 0.067,
    ("TTFT", "mean"): 0.176,
    ("TTFT", "p99"): 0.29,
    ("TPOT", "mean"): 0.071,
}
"""Best published error of other simulators, the median over 36 to 38 runs of this kind.
Source: notes that come with the measured runs, 2026; they name 6.7 % E2E and 7.1 % ITL without the
figure, taken for the mean here, and ITL for TPOT."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frozen:
    """The frozen figures.

    Attributes
    ----------
    computed
        The day, as ``2026-11-29``.
    errors
        One row per run, step times, metric and figure: ``error_fraction``, predicted over measured
        minus 1; of ``success_fraction`` the difference. Runs and metrics by their short names.
    latency
        What ``capplan calibrate`` fitted: a ``latency.json``.
    series
        Running and waiting requests of the RTX 4090 run: ``time_s``, ``series``, ``reading``,
        ``value``.
    """

    computed: str
    errors: pd.DataFrame
    latency: Mapping[str, Any]
    series: pd.DataFrame

    @property
    def fitted_on(self) -> list[str]:
        """Return the runs that the calibrated step times were fitted on."""
        return [short(name) for name in self.latency["measured"]]

    @property
    def unseen(self) -> pd.DataFrame:
        """Return the errors without those of calibrated step times on the runs of their fit."""
        own = self.errors["run"].isin(self.fitted_on) & (self.errors["step_times"] == "calibrated")
        return self.errors[~own]


def read_frozen(folder: Path | None = None) -> Frozen:
    """Return the frozen figures; raises :class:`DataError` where a file or a column is missing."""
    import pandas as pd

    place = data_path("validation") if folder is None else folder
    table = place / "errors.csv"
    errors = pd.read_csv(table)
    require_columns(errors, COLUMNS, where=table)
    errors = errors.assign(
        run=errors["run"].map(short),
        metric=errors["metric"].map(lambda name: METRICS.get(name, name)),
    )
    latency = json.loads((place / "latency.json").read_text(encoding="utf-8"))
    series = pd.read_csv(place / "rtx4090-series.csv")
    return Frozen(
        computed=latency["computed"], errors=errors, latency=latency, series=long_series(series)
    )


def short(run: str) -> str:
    """Return a measured run's name as the page tells it.

    >>> short("vllm-h100-llama-2-7b-tp1-general"), short("vllm-rtx4090-llama-3.1-8b")
    ('general', 'RTX 4090')
    """
    return SHORT.get(run, run.removeprefix(H100))


def long_series(overlay: pd.DataFrame) -> pd.DataFrame:
    """Return an overlay (``running_measured``, …) with a row per time, series and reading."""
    long = overlay.melt("time_s", var_name="name")
    names = long["name"].str.rsplit("_", n=1, expand=True)
    return long.assign(series=names[0], reading=names[1]).drop(columns="name")


def latencies(errors: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of E2E, TPOT and TTFT at mean, p50 and p99, in this order."""
    import pandas as pd

    rows = errors["metric"].isin(METRICS.values()) & errors["figure"].isin(FIGURES)
    kind = pd.CategoricalDtype(list(METRICS.values()), ordered=True)
    return errors[rows].astype({"metric": kind}).reset_index(drop=True)


def error_table(frozen: Frozen) -> pd.DataFrame:
    """Return a row per run and source of step times, a column per metric and figure."""
    import pandas as pd

    rows = []
    for (run, source), group in latencies(frozen.errors).groupby(["run", "step_times"], sort=False):
        own = source == "calibrated" and run in frozen.fitted_on
        row: dict[str, Any] = {"run": run, "step_times": f"{source} (own run)" if own else source}
        found = group.set_index(["metric", "figure"])["error_fraction"]
        for metric in METRICS.values():
            for figure in FIGURES:
                row[f"{metric} {figure}_fraction"] = found.get((metric, figure), float("nan"))
        rows.append(row)
    return pd.DataFrame(rows)


def peer_table(frozen: Frozen) -> pd.DataFrame:
    """Return published errors beside the medians of ours over the runs not fitted on."""
    import pandas as pd

    known = latencies(frozen.unseen)
    rows = []
    for (metric, figure), published in PUBLISHED.items():
        same = known[(known["metric"] == metric) & (known["figure"] == figure)]
        row: dict[str, Any] = {"figure": f"{metric} {figure}", "published_fraction": published}
        for source, group in same.groupby("step_times", sort=False):
            row[f"{source}_fraction"] = float(group["error_fraction"].abs().median())
        rows.append(row)
    return pd.DataFrame(rows)


def closer_than_published(peers: pd.DataFrame) -> str:
    """Return which sources are closer than the published figures, in how many of them."""
    names = [n for n in map(str, peers) if n.endswith("_fraction") and n != "published_fraction"]
    counts = {
        name.removesuffix("_fraction"): int((peers[name] < peers["published_fraction"]).sum())
        for name in names
    }
    return listed(f"{source} in {count} of {len(peers)}" for source, count in counts.items())


def fitted_table(frozen: Frozen) -> pd.DataFrame:
    """Return the fitted numbers with their intervals."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "number": f"`{name}`",
                "value": _number(one["value"], name),
                "low": _number(one["interval"][0], name),
                "high": _number(one["interval"][1], name),
                "meaning": one["meaning"],
            }
            for name, one in frozen.latency["parameters"].items()
        ]
    )


def _number(value: float, name: str) -> str:
    return format_value(value, name) if name.endswith("_s") else f"{value:.3f}"


def implied_table(frozen: Frozen) -> pd.DataFrame:
    """Return what the fitted numbers say of the accelerator: share of its peak, and the rate."""
    import pandas as pd

    from capplan.catalog import accelerator

    implied, device = frozen.latency["implied"], accelerator(frozen.latency["scope"]["accelerator"])
    bandwidth = device.memory_bandwidth_bytes_per_s
    rows = [
        ("reading weights", implied["weights_bandwidth_fraction"], bandwidth, "TB/s"),
        ("reading KV", implied["kv_bandwidth_fraction"], bandwidth, "TB/s"),
        ("prefill", implied["compute_fraction"], device.bf16_flop_per_s, "TFLOP/s"),
    ]
    return pd.DataFrame(
        [
            {"work": name, "of_peak_fraction": share, "rate": f"{share * peak / 1e12:,.3g} {unit}"}
            for name, share, peak, unit in rows
        ]
    )


def trust_table(frozen: Frozen) -> pd.DataFrame:
    """Return per source the worst error of each latency, and how often it was too low.

    Of all runs, at mean, p50 and p99. Too low is the dangerous side: the server is slower than was
    planned for.
    """
    import pandas as pd

    known = latencies(frozen.errors)
    rows = []
    for source, group in known.groupby("step_times", sort=False):
        row: dict[str, Any] = {"step_times": source, "runs": int(group["run"].nunique())}
        for metric in METRICS.values():
            row[f"worst {metric}_fraction"] = _worst(group[group["metric"] == metric])[0]
        row["too_low_fraction"] = float((group["error_fraction"].dropna() < 0).mean())
        rows.append(row)
    return pd.DataFrame(rows)


def distrusted(frozen: Frozen, bounds: Mapping[str, float]) -> str:
    """Return what not to trust, a sentence per source: latencies that pass a bound, and where."""
    known = latencies(frozen.errors)
    return "\n".join(
        f"- **{source}**: {_passed(group, bounds)}"
        for source, group in known.groupby("step_times", sort=False)
    )


def _passed(group: pd.DataFrame, bounds: Mapping[str, float]) -> str:
    said = []
    for metric, bound in bounds.items():
        error, where = _worst(group[group["metric"] == metric])
        if math.isnan(error):
            said.append(f"{metric}, of which nothing is known")
        elif abs(error) > bound:
            sign = "+" if error > 0 else ""
            worst = f"{sign}{format_value(error, '_fraction')} {where}"
            said.append(f"{metric} to within {format_value(bound, '_fraction')} ({worst})")
    return f"don't trust {listed(said)}." if said else "every bound holds on these runs."


def _worst(group: pd.DataFrame) -> tuple[float, str]:
    """Return the error farthest from 0, with its sign, and where it was found."""
    known = group.dropna(subset="error_fraction")
    if known.empty:
        return float("nan"), "nowhere"
    row = known.iloc[int(known["error_fraction"].abs().argmax())]
    return float(row["error_fraction"]), f"at {row['figure']} of `{row['run']}`"


def scope_words(frozen: Frozen) -> str:
    """Return for what the calibrated step times were fitted, in a sentence."""
    scope = frozen.latency["scope"]
    flight, context = scope["in_flight"], scope["context_tokens"]
    return (
        f"{scope['model']} in {scope['dtype']} on {scope['accelerator']} × "
        f"{scope['tensor_parallel']}, {scope['engine']}, {format_value(flight[0])} to {format_value(flight[1])} "
        f"requests in flight, contexts of {format_value(context[0])} to {format_value(context[1])} tokens"
    )
