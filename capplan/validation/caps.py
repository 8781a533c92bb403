"""Requests that found a limit reached when they came.

At a limit requests wait for one another, and the wait grows with the sum of all service times
before it: a prediction that is 1 % slow per token is then far more than 1 % slow in TTFT. Such
requests say little about the step time, so they are counted, and left out beside the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capplan.formatting import format_value
from capplan.scenario.batching import ContinuousBatching
from capplan.validation.figures import stays_s
from capplan.validation.series import between

if TYPE_CHECKING:
    import pandas as pd

    from capplan.results import RunResult

Flags = npt.NDArray[np.bool_]

FELT_FRACTION = 0.01
"""Share of the requests from which on a limit is reported: as many decide a p99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A limit, and the share of requests that found it reached.

    Attributes
    ----------
    field
        ``max_num_seqs``, ``client_max_in_flight`` or ``kv_blocks``.
    limit
        Requests, or blocks, of all replicas.
    measured_fraction, predicted_fraction
        Share of the requests; NaN if unknown. What the KV of a server holds is not measured.
    """

    field: str
    limit: int
    measured_fraction: float
    predicted_fraction: float

    @property
    def is_felt(self) -> bool:
        """Return whether enough requests found it reached for a p99 to show it."""
        return any(x >= FELT_FRACTION for x in (self.measured_fraction, self.predicted_fraction))

    def __str__(self) -> str:
        """Return the limit and the shares, in words."""
        told = format_value(self.predicted_fraction, "_fraction")
        if math.isnan(self.measured_fraction):
            return f"{self.field} of {self.limit:,} by {told} of the requests of the replay"
        seen = format_value(self.measured_fraction, "_fraction")
        return f"{self.field} of {self.limit:,} by {seen} of the requests (replay: {told})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def caps(
    seen: pd.DataFrame, replayed: pd.DataFrame, result: RunResult, *, timeout_s: float | None
) -> tuple[tuple[Cap, ...], Flags]:
    """Return the limits that requests met, and which of them met one, measured or predicted.

    ``seen`` and ``replayed`` are the same requests, row by row. Both sides of a limit on requests
    are counted alike: in flight at the caller, when the request came. KV is full if no replica of
    the replay had room for the request's prompt.
    """
    ours, theirs = (in_flight_before(rows, timeout_s) for rows in (seen, replayed))
    found, met = [], np.zeros(len(seen), dtype=bool)
    for field, limit in _limits(result):
        measured, predicted = ours >= limit, theirs >= limit
        found.append(_cap(field, limit, _share(measured, ours), _share(predicted, theirs)))
        met |= measured | predicted
    for field, blocks, full in _kv(seen, result):
        found.append(_cap(field, blocks, float("nan"), float(full.mean())))
        met |= full
    return tuple(one for one in found if one.is_felt), met


def in_flight_before(requests: pd.DataFrame, timeout_s: float | None) -> npt.NDArray[np.float64]:
    """Return the requests in flight when each came, itself left out; NaN if not known."""
    start, stays = requests["start_s"].to_numpy(), stays_s(requests, timeout_s).to_numpy()
    if np.isnan(stays).any():
        return np.full(len(start), np.nan)
    return np.asarray(between(start, start + stays, start) - 1, dtype=np.float64)


def _cap(field: str, limit: int, measured: float, predicted: float) -> Cap:
    return Cap(field=field, limit=limit, measured_fraction=measured, predicted_fraction=predicted)


def _share(met: Flags, counts: npt.NDArray[np.float64]) -> float:
    return float("nan") if np.isnan(counts).any() else float(met.mean())


def _limits(result: RunResult) -> Iterator[tuple[str, int]]:
    """Yield the limits on requests in flight, the client's first."""
    client = result.scenario.gateway.concurrency
    if isinstance(client, int):
        yield "client_max_in_flight", client
    pool = result.scenario.pool()
    if isinstance(pool.batching, ContinuousBatching):
        yield "max_num_seqs", pool.batching.max_num_seqs * pool.replicas


def _kv(seen: pd.DataFrame, result: RunResult) -> Iterator[tuple[str, int, Flags]]:
    """Yield the blocks of KV, and which requests came when no replica had room for them.

    Room is what the fullest moment beside the arrival leaves, less the prompts that wait already.
    """
    pool, lines = result.scenario.pool(), result.timeline
    usage = lines[lines["metric"] == "kv_usage_fraction"]
    if usage.empty or not isinstance(pool.batching, ContinuousBatching):
        return
    from capplan.replica.kv_capacity import kv_blocks

    blocks, size = kv_blocks(pool), pool.batching.block_size
    least = usage.groupby("time_s")["value"].min()
    start = seen["start_s"].to_numpy()
    after = np.searchsorted(least.index.to_numpy(), start)
    beside = [least.to_numpy()[np.clip(after - n, 0, len(least) - 1)] for n in (0, 1)]
    prompts = np.ceil(seen["prompt_tokens"].to_numpy() / size)
    wanted = prompts + _waiting_blocks(result.requests, start, size) / pool.replicas
    yield "kv_blocks", blocks * pool.replicas, np.maximum(*beside) * blocks + wanted > blocks


def _waiting_blocks(log: pd.DataFrame, times: Any, block_size: int) -> Any:
    """Return the blocks of the prompts that wait for a batch at some times, of all replicas."""
    came = log.dropna(subset="scheduler_queue_in_s")
    blocks = np.ceil(came["prompt_tokens"].to_numpy() / block_size)
    left = came["batch_in_s"].fillna(came["finish_s"]).to_numpy()
    waiting = np.zeros(len(times))
    for moments, sign in ((came["scheduler_queue_in_s"].to_numpy(), 1), (left, -1)):
        order = np.argsort(moments)
        sums = np.concatenate(([0.0], np.cumsum(blocks[order])))
        waiting += sign * sums[np.searchsorted(moments[order], times, side="left")]
    return waiting
