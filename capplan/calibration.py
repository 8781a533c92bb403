"""Step times fitted to measured runs, by replaying them.

Four numbers are fitted: three scales of a base step time (see ``capplan.replica.calibrated``) and
what HTTP, tokenizer and detokenizer take of each request. Each trial replays the measured
requests and compares them request by request: the logarithm of the time per token, and that of the
TTFT. What is fitted are the medians of blocks of consecutive requests, up to 60 of them: requests
of the same seconds tell the same thing, and a single request's answer to a small change is mostly
which step it just caught. Gauss-Newton steps follow finite differences (Nocedal and Wright,
"Numerical Optimization", 2006, section 10.3), with Huber's weights against single bad blocks
(Huber, "Robust Estimation of a Location Parameter", Ann. Math. Stat. 35, 1964).

A scale that the run tells nothing of stays near 1: each has a normal prior of 30 % around it. The
intervals come from a bootstrap of the blocks (Künsch, "The Jackknife and the Bootstrap for General
Stationary Observations", Ann. Stat. 17, 1989).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.measured import Measured, replay_scenario, replay_trace
from capplan.replica.calibrated import Implied, implied
from capplan.replica.latency import step_time
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.validation import predicted_requests

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

Floats = npt.NDArray[np.float64]

SCALES = ("dense_scale", "context_scale", "prefill_scale")
PARAMETERS = (*SCALES, "request_overhead_s")
MEANINGS = {
    "dense_scale": "of the base's time of a decode step without context",
    "context_scale": "of the base's time of reading the KV",
    "prefill_scale": "of the base's time that a prefill adds",
    "request_overhead_s": "HTTP, tokenizer, detokenizer: taken of every request, s",
}

OVERHEAD_UNIT_S = 0.005
"""The overhead is fitted in these, so that all four are of order 1."""
PRIOR = 0.3
"""Standard deviation of the prior of a logarithm of a scale."""
STEP = 0.15
"""Difference at which derivatives are taken."""
FARTHEST = 0.4
"""Most that a logarithm changes in one step."""
HUBER = 1.5
LEAST_SCALE = 1e-3
"""Least spread of the logarithms: a run replayed on its own simulation fits to the last digit."""
BLOCKS = 60
BLOCK_REQUESTS = 10
FIRST_REQUESTS = 1500
"""The first rounds take the beginning of a run only."""
MOST_REQUESTS = 10_000
ROUNDS = (FIRST_REQUESTS, MOST_REQUESTS, MOST_REQUESTS)
BOOTSTRAPS = 400
LEAST_REQUESTS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One fitted number, and the interval that holds 95 % of its bootstrap."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Step times fitted to measured runs.

    Attributes
    ----------
    base
        Fields of the step time whose terms are scaled.
    parameters
        The four numbers by name.
    implied
        What they say of the accelerator.
    measured
        Names of the runs.
    requests
        Requests that were compared.
    residual
        Median absolute error of the logarithms after the fit: ``decode``, ``ttft``.
    scope
        Model, accelerator and load for which it was fitted.
    notes
        What was assumed, and what to beware of.
    """

    base: Mapping[str, Any]
    parameters: Mapping[str, Fitted]
    implied: Implied
    measured: tuple[str, ...]
    requests: int
    residual: Mapping[str, float]
    scope: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def step_time(self) -> dict[str, Any]:
        """Return the fields of a pool's ``step_time``."""
        scales = {name: self.parameters[name].value for name in SCALES}
        return {"kind": "calibrated", "base": dict(self.base), **scales}

    @property
    def request_overhead_s(self) -> float:
        """Return what each request takes besides the engine, s."""
        return self.parameters["request_overhead_s"].value

    def to_json(self) -> dict[str, Any]:
        """Return the content of a ``latency.json``."""
        return {
            "step_time": self.step_time,
            "request_overhead_s": self.request_overhead_s,
            "fitted_numbers": len(self.parameters),
            "parameters": {
                name: {
                    "value": fitted.value,
                    "interval": [fitted.low, fitted.high],
                    "meaning": MEANINGS[name],
                }
                for name, fitted in self.parameters.items()
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


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The beginning of a measured run, ready to be replayed."""

    measured: Measured
    trace: Trace
    seen: pd.DataFrame
    blocks: npt.NDArray[np.int64]


def calibrate(
    measured: Sequence[Measured], *, base: Mapping[str, Any] | None = None, seed: int = 0
) -> Calibration:
    """Return step times fitted to measured runs of one model on one kind of accelerator.

    Parameters
    ----------
    measured
        The runs.
    base
        Fields of the step time whose terms are scaled; None = the roofline.
    seed
        Of the bootstrap.

    Raises
    ------
    DataError
        For runs of different servers, or too few requests.
    """
    _same_server(measured)
    base = dict(base or {"kind": "roofline"})
    point = np.zeros(len(PARAMETERS))
    point[-1] = 1.0
    for most in ROUNDS:
        runs = [_run(one, most) for one in measured]
        residuals, slopes = _linearised(runs, base, point)
        weights = _weights(residuals)
        step = _step(residuals, slopes, weights, point)
        point = point + step
        point[-1] = max(point[-1], 0.0)
    left = residuals - np.einsum("p,pij->ij", step, slopes)
    drawn = _bootstrap(left, slopes, weights, point, seed=seed)
    return _calibration(runs, base, point, drawn, left)


def read_latency(path: Path) -> tuple[dict[str, Any], float]:
    """Return the step time's fields and the overhead of each request from a ``latency.json``.

    Raises :class:`DataError` for a file that ``capplan calibrate`` did not write.
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
    overhead_s = data.get("request_overhead_s", 0.0)
    number = isinstance(overhead_s, int | float) and not isinstance(overhead_s, bool)
    if not number or not 0 <= overhead_s < math.inf:
        rule = "seconds, not negative"
        raise DataError(rule, where=path, field="request_overhead_s", value=overhead_s)
    return law, float(overhead_s)


def _same_server(measured: Sequence[Measured]) -> None:
    if not measured:
        msg = "at least one measured run"
        raise ValueError(msg)
    first = measured[0].server
    for other in measured[1:]:
        for name in ("model", "accelerator", "tensor_parallel", "dtype"):
            if getattr(other.server, name) != getattr(first, name):
                raise DataError(
                    f"{getattr(first, name)!r} as in {measured[0].name}",
                    where=other.name,
                    field=name,
                    value=getattr(other.server, name),
                )
    for one in measured:
        if len(one.succeeded) < LEAST_REQUESTS:
            raise DataError(
                f"at least {LEAST_REQUESTS} requests that succeeded",
                where=one.name,
                value=len(one.succeeded),
            )


def _run(measured: Measured, most: int) -> _Run:
    trace = replay_trace(measured, replay_scenario(measured))
    seen = measured.requests.iloc[:most]
    count = max(1, min(BLOCKS, len(seen) // BLOCK_REQUESTS))
    blocks = np.arange(len(seen)) * count // len(seen)
    return _Run(measured, replace(trace, frame=trace.frame.iloc[:most]), seen, blocks)


def _scenario(run: _Run, base: Mapping[str, Any], point: Floats) -> Scenario:
    values = _values(point)
    law = {"kind": "calibrated", "base": dict(base), **{name: values[name] for name in SCALES}}
    return replay_scenario(
        run.measured, step_time=law, request_overhead_s=values["request_overhead_s"]
    )


def _values(point: Floats) -> dict[str, float]:
    scales = {name: math.exp(point[i]) for i, name in enumerate(SCALES)}
    return {**scales, "request_overhead_s": float(max(point[-1], 0.0)) * OVERHEAD_UNIT_S}


def _residuals(runs: Sequence[_Run], base: Mapping[str, Any], point: Floats) -> Floats:
    """Return two rows, decode and TTFT: measured over predicted, a column for each block.

    NaN where no request of the block has both.
    """
    parts = []
    for run in runs:
        result = simulate(_scenario(run, base, point), trace=run.trace)
        told = predicted_requests(run.measured, result)
        parts.append(
            [
                _medians(_log_ratio(_decode(run.seen), _decode(told)), run.blocks),
                _medians(_log_ratio(run.seen["ttft_s"], told["ttft_s"]), run.blocks),
            ]
        )
    return np.concatenate(parts, axis=1)


def _decode(requests: pd.DataFrame) -> Floats:
    """Return the time per token after the first; E2E where TTFT is not known."""
    tpot = requests["tpot_s"]
    found = tpot.where(tpot.notna(), requests["e2e_s"].where(requests["ttft_s"].isna()))
    return np.asarray(found, dtype=np.float64)


def _log_ratio(seen: Any, told: Any) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.asarray(seen, dtype=np.float64) / np.asarray(told, dtype=np.float64))
    return np.where(np.isfinite(ratio), ratio, np.nan)


def _medians(values: Floats, blocks: npt.NDArray[np.int64]) -> Floats:
    found = np.full(int(blocks.max()) + 1, np.nan)
    for block in range(found.size):
        of = values[blocks == block]
        of = of[~np.isnan(of)]
        if of.size:
            found[block] = np.median(of)
    return found


def _linearised(
    runs: Sequence[_Run], base: Mapping[str, Any], point: Floats
) -> tuple[Floats, Floats]:
    """Return the residuals at a point, and how the predictions change with each parameter."""
    here = _residuals(runs, base, point)
    slopes = []
    for index in range(len(PARAMETERS)):
        moved = point.copy()
        moved[index] += STEP if index < len(SCALES) else 1.0
        slopes.append((here - _residuals(runs, base, moved)) / (moved[index] - point[index]))
    return here, np.stack(slopes)


def _weights(residuals: Floats) -> Floats:
    """Return Huber's weights over the variance of each row, 0 where nothing is known."""
    weights = np.zeros_like(residuals)
    for row, ok in enumerate(~np.isnan(residuals)):
        if not ok.any():
            continue
        away = np.abs(residuals[row, ok] - np.median(residuals[row, ok]))
        scale = max(1.4826 * float(np.median(away)), LEAST_SCALE)
        weights[row, ok] = HUBER / np.maximum(away / scale, HUBER) / scale**2
    return weights


def _step(residuals: Floats, slopes: Floats, weights: Floats, point: Floats) -> Floats:
    """Return the step to the least weighted squares, the prior among them."""
    matrix, vector = _normal(residuals, slopes, weights)
    return _solved(matrix, vector, point)


def _normal(residuals: Floats, slopes: Floats, weights: Floats) -> tuple[Floats, Floats]:
    used = weights > 0
    flat = np.where(used, slopes, 0.0).reshape(len(PARAMETERS), -1)
    flat = np.nan_to_num(flat)
    left = np.where(used, residuals, 0.0).ravel()
    heavy = flat * weights.ravel()
    return heavy @ flat.T, heavy @ left


def _solved(matrix: Floats, vector: Floats, point: Floats) -> Floats:
    """Return the step that solves the normal equations of so many independent observations."""
    prior = np.diag([PRIOR**-2] * len(SCALES) + [PRIOR**-2 / 100])
    away = point - np.array([0.0] * len(SCALES) + [1.0])
    step: Floats = np.linalg.solve(matrix + prior, vector - prior @ away)
    return np.clip(step, -FARTHEST, FARTHEST) if np.any(np.abs(step) > FARTHEST) else step


def _bootstrap(
    residuals: Floats, slopes: Floats, weights: Floats, point: Floats, *, seed: int
) -> Floats:
    """Return draws of the parameters: blocks drawn again, the slopes kept."""
    rng = np.random.default_rng(np.random.SeedSequence([seed]))
    count = residuals.shape[1]
    draws = []
    for _ in range(BOOTSTRAPS):
        times = np.bincount(rng.integers(count, size=count), minlength=count)
        matrix, vector = _normal(residuals, slopes, weights * times)
        draws.append(point + _solved(matrix, vector, point))
    return np.array(draws)


def _calibration(
    runs: Sequence[_Run], base: Mapping[str, Any], point: Floats, drawn: Floats, left: Floats
) -> Calibration:
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    values, least, most = _values(point), _values(low), _values(high)
    fitted = {
        name: Fitted(value=values[name], low=least[name], high=most[name]) for name in PARAMETERS
    }
    pool = _scenario(runs[0], base, point).pool()
    spread = [float(np.nanmedian(np.abs(row))) if np.isfinite(row).any() else math.nan
              for row in left]  # fmt: skip
    said = implied(pool, step_time(pool))
    return Calibration(
        base=base,
        parameters=fitted,
        implied=said,
        measured=tuple(run.measured.name for run in runs),
        requests=int(sum(len(run.seen) for run in runs)),
        residual={"decode": spread[0], "ttft": spread[1]},
        scope=_scope(runs),
        notes=tuple(_notes(runs, fitted, said)),
    )


def _scope(runs: Sequence[_Run]) -> dict[str, Any]:
    """Return for what the numbers were fitted: server, and the load in requests in flight."""
    server = runs[0].measured.server
    loads = np.concatenate([_in_flight(run.seen) for run in runs])
    contexts = np.concatenate(
        [(run.seen["prompt_tokens"] + run.seen["output_tokens"] / 2).to_numpy() for run in runs]
    )
    return {
        "model": server.model,
        "accelerator": server.accelerator,
        "tensor_parallel": server.tensor_parallel,
        "dtype": server.dtype,
        "engine": server.engine,
        "in_flight": [float(x) for x in np.quantile(loads, [0.05, 0.95])],
        "context_tokens": [float(x) for x in np.quantile(contexts, [0.05, 0.95])],
    }


def _in_flight(requests: pd.DataFrame) -> Floats:
    """Return how many requests were in flight when each one started."""
    start = requests["start_s"].to_numpy()
    stays = requests["e2e_s"].fillna(requests["ttft_s"])
    ends = np.sort((start + stays.fillna(0.0)).to_numpy())
    began = np.arange(1, len(start) + 1)
    return np.asarray(began - np.searchsorted(ends, start, side="right"), dtype=np.float64)


def _notes(runs: Sequence[_Run], fitted: Mapping[str, Fitted], said: Implied) -> list[str]:
    notes = list(dict.fromkeys(note for run in runs for note in run.measured.notes))
    for name in SCALES:
        spread = math.log(fitted[name].high / fitted[name].low)
        if spread > 2 * PRIOR or _unmoved(fitted[name]):
            notes.append(f"The runs hardly tell {name}: it rests on the base and its prior.")
    if all(run.measured.origin == "scheduler_queue_in_s" for run in runs):
        notes.append("Latencies count from the engine: request_overhead_s was not measured.")
    if not said.plausible:
        notes.append("A fitted number implies more than the accelerator can do: do not trust it.")
    return notes


def _unmoved(fitted: Fitted) -> bool:
    """Return whether the bootstrap did not move a number, because no request depends on it."""
    return math.log(fitted.high / fitted.low) < UNMOVED


UNMOVED = 1e-6
