"""What a comparison of a measured run with its replay found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capplan.display import Displayed
from capplan.formatting import counted, listed
from capplan.validation.caps import Cap
from capplan.validation.figures import Figure, Figures, Subset, figures_json
from capplan.validation.repeats import Repeat
from capplan.validation.series import long_series
from capplan.validation.stalls import Stalls

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from capplan.results import RunResult


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
    without
        The latencies without some requests: ``first_60_s``, and if there are any, ``at_cap``
        (they found a limit reached) and ``stalls`` (they came during a periodic one).
    caps
        The limits that requests found reached.
    stalls
        Whether the server stalled periodically.
    repeat
        The same figures of a second run of the same load, None without one.
    """

    name: str
    source: str
    n: int
    latencies: Figures
    throughput: Figure
    success: Figure
    in_flight: Figure
    series: Mapping[str, Figure]
    overlay: pd.DataFrame | None
    result: RunResult
    without: Mapping[str, Subset]
    caps: tuple[Cap, ...]
    stalls: Stalls
    repeat: Repeat | None = None
    notes: tuple[str, ...] = field(default=())

    def summary(self) -> str:
        """Return the run, the source of step times, and what bends the comparison."""
        lines = [
            f"`{self.name}`: {counted(self.n, 'success', 'successes')}, step times: {self.source}."
        ]
        if self.caps:
            lines.append(
                f"**At a limit**: {listed(map(str, self.caps))}. There requests wait for one "
                "another, and a small error of TPOT becomes a large one of TTFT."
            )
        lines.append(f"{self.stalls}.")
        if self.repeat is not None:
            lines.append(self.repeat.summary(self.latencies))
        return "\n\n".join(lines)

    def table(self) -> pd.DataFrame:
        """Return each figure as it was measured and predicted, and the error.

        Beside it the error without some requests (``without``), and what the figure differs by in a
        second run (``repeat``); NaN where neither is known.
        """
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
        table = pd.DataFrame(rows, columns=columns)
        beside = {f"error_without_{name}": one.latencies for name, one in self.without.items()}
        if self.repeat is not None:
            beside["repeat_differs"] = self.repeat.latencies
        for name, latencies in beside.items():
            table[f"{name}_fraction"] = [
                latencies[metric][figure].error_fraction if metric in latencies else float("nan")
                for metric, figure in figures
            ]
        return table

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
        metrics = figures_json(self.latencies)
        flow = self.throughput.to_json()
        metrics["throughput_tokens_per_s"] = flow | {"mean": flow}
        return {
            "n": self.n,
            "metrics": metrics,
            "success_fraction": self.success.to_json(),
            "in_flight": self.in_flight.to_json(),
            "series": {name: figure.to_json() for name, figure in self.series.items()},
            "without": {name: one.to_json() for name, one in self.without.items()},
            "caps": [one.to_json() for one in self.caps],
            "stalls": self.stalls.to_json(),
            "repeat": None if self.repeat is None else self.repeat.to_json(),
            "measured": self.name,
            "source": self.source,
            "notes": list(self.notes),
        }
