"""A second run of the same load on the same server: what a measurement differs by from itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from capplan.measured import Measured
from capplan.schema import DataError
from capplan.validation.figures import Figures, figures_json, latency_figures

SAME_SERVER = (
    "model", "accelerator", "tensor_parallel", "data_parallel", "max_num_seqs",
    "client_max_in_flight",
)  # fmt: skip
SAME_LOAD = 0.1
"""Most by which rate and mean lengths of two runs may differ: more is another load."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repeat:
    """The figures of a second run, taken as a prediction of the first."""

    name: str
    n: int
    latencies: Figures
    """``measured`` of the first run, ``predicted`` of the second."""

    def summary(self, errors: Figures) -> str:
        """Return in how many figures a prediction is as near to the first run as the second is."""
        beyond = [
            abs(errors[metric][key].error_fraction) - abs(one.error_fraction)
            for metric, figures in self.latencies.items()
            for key, one in figures.items()
        ]
        known = [one for one in beyond if not math.isnan(one)]
        near = sum(one <= 0 for one in known)
        return f"As near as the repeat `{self.name}`: {near} of {len(known)} figures."

    def to_json(self) -> dict[str, Any]:
        """Return the run and its figures, as those of a prediction."""
        return {"measured": self.name, "n": self.n, "metrics": figures_json(self.latencies)}


def repeat_of(first: Measured, second: Measured) -> Repeat:
    """Return the figures of a second run; :class:`DataError` if server or load are others."""
    for field in SAME_SERVER:
        wanted, got = (getattr(run.server, field) for run in (first, second))
        if wanted != got:
            raise _other(second, field, wanted, got)
    for field, wanted in _load(first).items():
        got = _load(second)[field]
        if not abs(got - wanted) <= SAME_LOAD * wanted:
            raise _other(second, field, f"{wanted:.4g} ± {100 * SAME_LOAD:.0f} %", got)
    return Repeat(
        name=second.name,
        n=len(second.succeeded),
        latencies=latency_figures(first.succeeded, second.succeeded),
    )


def _load(run: Measured) -> dict[str, float]:
    rows = run.requests
    span_s = float(rows["start_s"].max()) or float("nan")
    means = {name: float(rows[name].mean()) for name in ("prompt_tokens", "output_tokens")}
    return {"rate_rps": (len(rows) - 1) / span_s, **means}


def _other(second: Measured, field: str, wanted: object, got: object) -> DataError:
    rule = f"{wanted}, as of the first run (a second one is a repeat of it)"
    return DataError(rule, where=second.name, field=field, value=got)
