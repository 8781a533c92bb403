"""Step times fitted to measured runs, by replaying them.

Four numbers are fitted: three scales of a base step time (see ``capplan.replica.step_time``) and
the time of HTTP, tokenizer and detokenizer per request. Each trial replays the measured requests
and compares each: the logarithm of the time per token, and that of the TTFT. The fit is to the
medians of up to 60 blocks of consecutive requests: requests of the same seconds are not
independent, and a small change moves a single request mostly to another step. Gauss-Newton steps
follow finite differences (Nocedal and Wright, "Numerical Optimization", 2006, section 10.3), with
Huber's weights against single bad blocks (Huber, "Robust Estimation of a Location Parameter", Ann.
Math. Stat. 35, 1964).

A scale that the run does not determine stays near 1: each has a normal prior of 30 % around it. The
intervals come from a bootstrap of the blocks (Künsch, "The Jackknife and the Bootstrap for General
Stationary Observations", Ann. Stat. 17, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capplan.calibration.replays import (
    Floats,
    Run,
    beginning,
    from_engine,
    linearised,
    notes,
    parameter_values,
    scope,
    trial_scenario,
)
from capplan.calibration.result import PARAMETERS, Calibration, Fitted
from capplan.measured import Measured
from capplan.replica.step_time import implied, step_time
from capplan.schema import DataError

PRIOR_MEAN = np.array([0.0, 0.0, 0.0, 1.0])
PRIOR_SPREAD = np.array([0.3, 0.3, 0.3, 3.0])
"""Standard deviations: of the logarithm of a scale, and of the overhead in its unit."""
FARTHEST = 0.4
"""Largest change of a logarithm in one step."""
HUBER = 1.5
LEAST_SCALE = 1e-3
"""Least spread of the logarithms: a replay of a simulated run fits to the last digit."""
FIRST_REQUESTS = 1500
"""Requests of a run in the first round."""
MOST_REQUESTS = 10_000
"""Requests of all runs together in the other rounds."""
MOST_ROUNDS = 8
MOST_REPLAYED = 110_000
"""Requests to replay in all, which bounds the time: rounds end there, or settled."""
SETTLED = 0.003
BOOTSTRAPS = 400
LEAST_REQUESTS = 30


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

    Raises :class:`DataError` for runs of different servers, or too few requests.
    """
    _same_server(measured)
    base = dict(base or {"kind": "roofline"})
    point = np.zeros(len(PARAMETERS))
    point[-1] = 1.0
    whole = max(MOST_REQUESTS // len(measured), FIRST_REQUESTS)
    replayed, most = 0, FIRST_REQUESTS
    for _ in range(MOST_ROUNDS):
        runs = [beginning(one, most) for one in measured]
        residuals, slopes = linearised(runs, base, point)
        weights = _weights(residuals)
        step = _solved(*_normal(residuals, slopes, weights), point, PRIOR_MEAN)
        point = point + step
        point[-1] = max(point[-1], 0.0)
        count = (1 + len(PARAMETERS)) * sum(len(run.seen) for run in runs)
        replayed += count
        settled = np.abs(step).max() < SETTLED or replayed + count > MOST_REPLAYED
        if most == whole and settled:
            break
        most = whole
    left = residuals - np.einsum("p,pij->ij", step, slopes)
    drawn = _bootstrap(left, slopes, weights, point, seed=seed)
    if from_engine(runs):
        point[-1] = drawn[:, -1] = 0.0
    return _calibration(runs, base, point, drawn, left)


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


def _weights(residuals: Floats) -> Floats:
    """Return Huber's weights over the variance of each row, 0 for unknown residuals."""
    weights = np.zeros_like(residuals)
    for row, ok in enumerate(~np.isnan(residuals)):
        if not ok.any():
            continue
        away = np.abs(residuals[row, ok] - np.median(residuals[row, ok]))
        scale = max(1.4826 * float(np.median(away)), LEAST_SCALE)
        weights[row, ok] = HUBER / np.maximum(away / scale, HUBER) / scale**2
    return weights


def _normal(residuals: Floats, slopes: Floats, weights: Floats) -> tuple[Floats, Floats]:
    used = weights > 0
    flat = np.where(used, slopes, 0.0).reshape(len(PARAMETERS), -1)
    flat = np.nan_to_num(flat)
    left = np.where(used, residuals, 0.0).ravel()
    heavy = flat * weights.ravel()
    return heavy @ flat.T, heavy @ left


def _solved(matrix: Floats, vector: Floats, point: Floats, center: Floats) -> Floats:
    """Return the step that solves the normal equations, with a prior around ``center``."""
    prior = np.diag(PRIOR_SPREAD**-2)
    step = np.linalg.solve(matrix + prior, vector - prior @ (point - center))
    return np.asarray(np.clip(step, -FARTHEST, FARTHEST), dtype=np.float64)


def _bootstrap(
    residuals: Floats, slopes: Floats, weights: Floats, point: Floats, *, seed: int
) -> Floats:
    """Return draws of the parameters: blocks drawn again, the slopes kept.

    The prior's centre is drawn too, so a number that rests on it is as uncertain as the prior.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed]))
    count = residuals.shape[1]
    draws = []
    for _ in range(BOOTSTRAPS):
        times = np.bincount(rng.integers(count, size=count), minlength=count)
        matrix, vector = _normal(residuals, slopes, weights * times)
        center = rng.normal(PRIOR_MEAN, PRIOR_SPREAD)
        draws.append(point + _solved(matrix, vector, point, center))
    return np.array(draws)


def _calibration(
    runs: Sequence[Run], base: Mapping[str, Any], point: Floats, drawn: Floats, left: Floats
) -> Calibration:
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    values, least, most = parameter_values(point), parameter_values(low), parameter_values(high)
    fitted = {
        name: Fitted(value=values[name], low=least[name], high=most[name]) for name in PARAMETERS
    }
    pool = trial_scenario(runs[0], base, point).pool()
    spread = [
        float(np.nanmedian(np.abs(row))) if np.isfinite(row).any() else math.nan for row in left
    ]
    found = implied(pool, step_time(pool))
    return Calibration(
        base=base,
        parameters=fitted,
        implied=found,
        measured=tuple(run.measured.name for run in runs),
        requests=int(sum(len(run.seen) for run in runs)),
        residual={"decode": spread[0], "ttft": spread[1]},
        scope=scope(runs),
        notes=tuple(notes(runs, fitted, found)),
    )
