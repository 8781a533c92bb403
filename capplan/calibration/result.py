"""The result of a fit, and its file ``latency.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.calibration.parameters import FRONT_END, LAW, PARAMETERS
from capplan.display import Displayed
from capplan.formatting import counted, format_value, listed
from capplan.replica.step_time import Implied
from capplan.schema import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One fitted number, and its 95 % interval: what other loads of the server may give."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration(Displayed):
    """Step times fitted to measured runs."""

    base: Mapping[str, Any]
    """Fields of the step time whose terms are scaled."""
    parameters: Mapping[str, Fitted]
    """The fitted numbers by name."""
    implied: Implied
    """Shares of the accelerator's peaks that they imply."""
    measured: tuple[str, ...]
    """Names of the runs."""
    requests: int
    """Compared requests."""
    residual: Mapping[str, float]
    """Median absolute error of the logarithms after the fit, by what was compared: ``decode``,
    ``ttft``, ``ttft_slowest``."""
    scope: Mapping[str, Any]
    """Model, accelerator and load for which it was fitted."""
    notes: tuple[str, ...]
    """Assumptions and caveats."""

    @property
    def step_time(self) -> dict[str, Any]:
        """Return the fields of a pool's ``step_time``."""
        law = {one.name: self.parameters[one.name].value for one in LAW
               if one.name in self.parameters}  # fmt: skip
        return {"kind": "calibrated", "base": dict(self.base), **law}

    @property
    def front_end(self) -> dict[str, Any]:
        """Return the time of each request outside the engine, s, as ``validate`` takes it."""
        return {one.name: self.parameters[one.name].value for one in FRONT_END
                if one.name in self.parameters}  # fmt: skip

    def summary(self) -> str:
        """Return what the numbers were fitted to, and the shares of the peaks they imply."""
        implied = self.implied
        shares = (
            f"{implied.weights_bandwidth_fraction:.0%} of the bandwidth for weights, "
            f"{implied.kv_bandwidth_fraction:.0%} for KV, {implied.compute_fraction:.0%} of the "
            f"peak rate{'' if implied.plausible else ' (not plausible)'}"
        )
        return (
            f"{counted(len(self.parameters), 'number')} fitted to "
            f"{counted(self.requests, 'request')} of {listed(self.measured)}, with 95 % intervals; "
            f"they imply {shares}."
        )

    def table(self) -> pd.DataFrame:
        """Return the fitted numbers with their intervals and meanings."""
        import pandas as pd

        meanings = {one.name: one.meaning for one in PARAMETERS}
        rows = [
            (
                f"`{name}`",
                *(_digits(v, name) for v in (one.value, one.low, one.high)),
                meanings[name],
            )
            for name, one in self.parameters.items()
        ]
        return pd.DataFrame(rows, columns=["fitted", "value", "from", "to", "meaning"])

    def fitted_for(self) -> str:
        """Return the model, accelerator and load that the numbers were fitted for."""
        scope = self.scope
        flight, context = (
            " to ".join(map(format_value, scope[name])) for name in ("in_flight", "context_tokens")
        )
        return (
            f"{scope['model']} in {scope['dtype']} on {scope['accelerator']} × "
            f"{scope['tensor_parallel']}, {scope['engine']}, {flight} requests in flight, contexts "
            f"of {context} tokens"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the content of a ``latency.json``."""
        return {
            "step_time": self.step_time,
            **self.front_end,
            "fitted_numbers": len(self.parameters),
            "parameters": {
                one.name: {
                    "value": (fitted := self.parameters[one.name]).value,
                    "interval": [fitted.low, fitted.high],
                    "meaning": one.meaning,
                }
                for one in PARAMETERS
                if one.name in self.parameters
            },
            "implied": {
                "weights_bandwidth_fraction": self.implied.weights_bandwidth_fraction,
                "kv_bandwidth_fraction": self.implied.kv_bandwidth_fraction,
                "compute_fraction": self.implied.compute_fraction,
                "plausible": self.implied.plausible,
            },
            "measured": list(self.measured),
            "requests": self.requests,
            "residual": dict(self.residual),
            "scope": dict(self.scope),
            "notes": list(self.notes),
        }


def _digits(value: float, name: str) -> str:
    return format_value(value, name) if name.endswith("_s") else f"{value:.3f}"


def calibration_of(latency: Mapping[str, Any]) -> Calibration:
    """Return the calibration that wrote the content of a ``latency.json``."""
    implied = {n: v for n, v in latency["implied"].items() if n != "plausible"}
    return Calibration(
        base=latency["step_time"]["base"],
        parameters={
            name: Fitted(value=one["value"], low=one["interval"][0], high=one["interval"][1])
            for name, one in latency["parameters"].items()
        },
        implied=Implied(**implied),
        measured=tuple(latency["measured"]),
        requests=latency["requests"],
        residual=latency["residual"],
        scope=latency["scope"],
        notes=tuple(latency["notes"]),
    )


def read_latency(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the step time's fields and the front end's numbers from a ``latency.json``.

    A file of an earlier version lacks some: those are 0. Raises :class:`DataError` for a file of
    another form.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise DataError("an existing file", where=path) from err
    except (OSError, ValueError) as err:
        raise DataError(f"a readable JSON file ({err})", where=path) from err
    law = data.get("step_time") if isinstance(data, dict) else None
    if not isinstance(law, dict):
        raise DataError("the fields of a step time", where=path, field="step_time", value=law)
    front_end = {one.name: data.get(one.name, 0.0) for one in FRONT_END}
    for name, seconds in front_end.items():
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds < math.inf:
            raise DataError("seconds, not negative", where=path, field=name, value=seconds)
    return law, front_end
