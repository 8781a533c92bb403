"""Step times fitted to measured runs, by replaying them.

Seven numbers are fitted: those of a calibrated step time (see ``capplan.replica.step_time``) and
the time that a request takes outside the engine, alone and for each request in flight. Each trial
replays the measured requests and compares, in up to 60 blocks of consecutive requests, the
logarithm of three figures: the median time per token, the median TTFT, and the TTFT of the slowest
tenth. Requests of the same seconds are not independent, and a small change moves a single request
mostly to another step. Gauss-Newton steps follow finite differences (Nocedal and Wright, "Numerical
Optimization", 2006, section 10.3), with Huber's weights against single bad blocks (Huber, "Robust
Estimation of a Location Parameter", Ann. Math. Stat. 35, 1964).

The numbers lie in a valley: in one run, slower products and faster attention look the same. Each
therefore has a normal prior (``capplan.calibration.parameters``), and two runs of which one is
heavy tell more than one. The intervals hold the numbers that other loads of the same server give.
What blocks scatter gives far narrower ones, so the law's own error is carried through the fit
beside it: of each run, of each quarter of it and of each block, larger where longer steps move a
latency by more than their share, as near a limit. They are as wide as the prior at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capplan.calibration.parameters import (
    FRONT_END,
    is_known,
    parameters_of,
    prior_covariance,
)
from capplan.calibration.replays import (
    ROWS,
    Floats,
    Run,
    beginning,
    from_engine,
    linearised,
    misfit,
    notes,
    scope,
    trial_scenario,
)
from capplan.calibration.result import Calibration, Fitted
from capplan.measured import Measured
from capplan.replica.step_time import implied, step_time
from capplan.schema import DataError

LAW_ERROR = np.array([0.015, 0.03, 0.08])
"""What the law is off by, by row: the errors at loads it was not fitted on that ``data/validation``
is held to, of the time per token, the TTFT p50 and its p99."""
PARTS = 4
"""Parts of a run, one after the other."""
HUBER = 1.5
LEAST_SCALE = 1e-3
"""Least spread of the logarithms: a replay of a simulated run fits to the last digit."""
FIRST_REQUESTS = 1500
"""Requests of a run in the first round."""
MOST_REQUESTS = 20_000
"""Requests of all runs together in the other rounds."""
MOST_ROUNDS = 10
NEARING_ROUNDS = 4
"""Rounds that look for one factor of all scales, where the base is unknown."""
MOST_REPLAYED = 600_000
"""Requests to replay in all, which bounds the time: rounds end there, or settled."""
SETTLED = 0.05
"""Largest step of the last round, in standard deviations of the prior."""
LEAST_REQUESTS = 30
INTERVAL = 1.96
"""Standard deviations of a normal number that hold 95 % of it."""


def calibrate(
    measured: Sequence[Measured], *, base: Mapping[str, Any] | None = None
) -> Calibration:
    """Return step times fitted to measured runs of one model on one kind of accelerator.

    Parameters
    ----------
    measured
        The runs.
    base
        Fields of the step time whose terms are scaled; None = the roofline.

    Raises :class:`DataError` for runs of different servers, or too few requests.
    """
    _same_server(measured)
    base = dict(base or {"kind": "roofline"})
    known = is_known(measured[0].server, base)
    parameters = parameters_of(known=known)
    farthest, least = np.array([(p.farthest, p.least_deviation) for p in parameters]).T
    prior = prior_covariance(parameters, known=known)
    point = np.zeros(len(parameters))
    if not known:
        first = [beginning(one, FIRST_REQUESTS, parameters) for one in measured]
        point = _near(first, base, point)
    whole = max(MOST_REQUESTS // len(measured), FIRST_REQUESTS)
    replayed, most = 0, FIRST_REQUESTS
    for _ in range(MOST_ROUNDS):
        runs = [beginning(one, most, parameters) for one in measured]
        residuals, slopes = linearised(runs, base, point)
        step, spread = _solved(runs, residuals, slopes, point, prior)
        step = np.maximum(np.clip(step, -farthest, farthest), least - point)
        point = point + step
        count = (1 + len(parameters)) * sum(len(run.seen) for run in runs)
        replayed += count
        settled = np.abs(step).max() < SETTLED or replayed + count > MOST_REPLAYED
        if most == whole and settled:
            break
        most = whole
    left = residuals - np.einsum("p,pij->ij", step, slopes)
    return _calibration(runs, base, point, spread, left)


def _near(runs: Sequence[Run], base: Mapping[str, Any], point: Floats) -> Floats:
    """Return the point with all scales alike at which half of the times per token are too long."""
    scales = np.array([one.is_scale / one.spread for one in runs[0].parameters])
    for _ in range(NEARING_ROUNDS):
        decode = misfit(runs, base, point)[0]
        if np.isnan(decode).all():
            break
        point = point + scales * float(np.nanmedian(decode))
    return point


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


def _solved(
    runs: Sequence[Run], residuals: Floats, slopes: Floats, point: Floats, prior: Floats
) -> tuple[Floats, Floats]:
    """Return the step to the most likely point, and the standard deviation of each number."""
    precision = np.linalg.inv(prior)
    pull, shifts = -precision @ point, []
    longer = np.array([one.is_scale / one.spread for one in runs[0].parameters])
    ends = np.cumsum([int(run.blocks.max()) + 1 for run in runs])
    for blocks in np.split(np.arange(residuals.shape[1]), ends[:-1]):
        for row, law_error in enumerate(LAW_ERROR):
            known = blocks[~np.isnan(residuals[row, blocks])]
            if not known.size:
                continue
            here, along = residuals[row, known], np.nan_to_num(slopes[:, row, known])
            heavy = along * _weights(here)
            precision += heavy @ along.T
            pull += heavy @ here
            off = heavy * law_error * np.maximum(longer @ along, 1.0)
            for parts in (1, PARTS, known.size):
                shifts += [part.sum(axis=1) for part in np.array_split(off, parts, axis=1)]
    covariance = np.linalg.inv(precision)
    shifted = np.stack(shifts) @ covariance
    variance = np.diag(covariance) + (shifted**2).sum(axis=0)
    return covariance @ pull, np.sqrt(np.minimum(variance, np.diag(prior)))


def _weights(residuals: Floats) -> Floats:
    """Return Huber's weight of each block over the variance of them all."""
    away = np.abs(residuals - np.median(residuals))
    scale = max(1.4826 * float(np.median(away)), LEAST_SCALE)
    return np.asarray(HUBER / np.maximum(away / scale, HUBER) / scale**2)


def _calibration(
    runs: Sequence[Run], base: Mapping[str, Any], point: Floats, spread: Floats, left: Floats
) -> Calibration:
    fitted = {
        one.name: Fitted(
            value=one.value(at),
            low=one.value(at - INTERVAL * sd),
            high=one.value(at + INTERVAL * sd),
        )
        for one, at, sd in zip(runs[0].parameters, point.tolist(), spread.tolist(), strict=True)
    }
    if from_engine(runs):
        fitted |= {one.name: Fitted(value=0.0, low=0.0, high=0.0) for one in FRONT_END}
    pool = trial_scenario(runs[0], base, point).pool()
    apart = [
        float(np.nanmedian(np.abs(row))) if np.isfinite(row).any() else math.nan for row in left
    ]
    found = implied(pool, step_time(pool))
    return Calibration(
        base=base,
        parameters=fitted,
        implied=found,
        measured=tuple(run.measured.name for run in runs),
        requests=int(sum(len(run.seen) for run in runs)),
        residual=dict(zip(ROWS, apart, strict=True)),
        scope=scope(runs),
        notes=tuple(notes(runs, base, spread, found)),
    )
