"""The request log: attempts as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from capplan.schema import REQUESTS, names
from capplan.simulation.attempt import Attempt, Request

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario


def requests_of(
    frame: pd.DataFrame, scenario: Scenario, *, block_tokens: int | None = None
) -> Iterator[Request]:
    """Return the rows of a trace as requests, one after the other.

    ``block_tokens`` are the tokens of one of the trace's prefix blocks; without them there are no
    prefixes.

    A column that the trace lacks, or a value that is missing, is filled by the scenario's default
    class and first tenant; a deadline only where the whole column is absent.
    """
    rows = range(len(frame))
    missing = [math.nan] * len(frame)
    class_names = _column(frame, "request_class", [scenario.request_class().name] * len(frame))
    classes = [scenario.request_class(name) for name in class_names]
    promised = [c.promises.deadline_s or math.nan for c in classes]
    columns: dict[str, Iterable[Any]] = {
        "row": rows,
        "request_id": map(str, _column(frame, "request_id", rows)),
        "request_class": class_names,
        "tenant": map(str, _column(frame, "tenant", [scenario.tenants[0].name] * len(frame))),
        "session": map(str, _column(frame, "session", [""] * len(frame))),
        "priority": map(int, _column(frame, "priority", [c.priority for c in classes])),
        "streaming": map(bool, _column(frame, "streaming", [c.streaming for c in classes])),
        "deadline_s": _column(frame, "deadline_s", missing if "deadline_s" in frame else promised),
        "size": _column(frame, "size", missing),
        "prompt_tokens": map(int, frame["prompt_tokens"]),
        "output_tokens": map(int, frame["output_tokens"]),
        "first_start_s": frame["arrival_s"].tolist(),
        "prefix_blocks": _prefixes(frame, block_tokens),
        "prefix_block_tokens": [block_tokens or 0] * len(frame),
        "cached_fraction": [c.cached_fraction for c in classes],
        "user": _column(frame, "user", [""] * len(frame)),
        "think_s": _column(frame, "think_s", missing),
    }
    for values in zip(*columns.values(), strict=True):
        yield Request(**dict(zip(columns, values, strict=True)))


def _prefixes(frame: pd.DataFrame, block_tokens: int | None) -> list[Sequence[int]]:
    if "prefix_blocks" not in frame or not block_tokens:
        return [()] * len(frame)
    return [() if isinstance(ids, float) or ids is None else ids for ids in frame["prefix_blocks"]]


def _column(frame: pd.DataFrame, name: str, default: Sequence[Any]) -> list[Any]:
    if name not in frame:
        return list(default)
    found, missing = frame[name].tolist(), frame[name].isna().tolist()
    return [default[i] if missing[i] else value for i, value in enumerate(found)]


def request_log(
    attempts: list[Attempt], *, network_s: float, leaves_s: Callable[[Attempt, float], float]
) -> pd.DataFrame:
    """Return one row per attempt (``schema.REQUESTS``), by request, then attempt.

    ``leaves_s(attempt, made_s)`` is when a token made at that time leaves the gateway.
    """
    import pandas as pd

    rows = sorted(attempts, key=lambda a: (a.request.row, a.attempt))
    firsts = [_first_token_s(a, network_s, leaves_s) for a in rows]
    columns: dict[str, pd.Series[Any]] = {}
    for name in _TEXTS:
        columns[name] = pd.Series([_text(a, name) for a in rows], dtype="str")
    for name in _OF_REQUEST:
        columns[name] = pd.Series([getattr(a.request, name) for a in rows])
    for name in _OF_ATTEMPT:
        columns[name] = pd.Series([getattr(a, name) for a in rows])
    columns |= {
        "first_token_s": pd.Series(firsts, dtype="float64"),
        "network_s": pd.Series([_on_network_s(a, network_s) for a in rows], dtype="float64"),
        "cached_tokens": pd.Series([a.cached_tokens for a in rows], dtype="int64"),
        "output_tokens": pd.Series(
            [_delivered(a, first) for a, first in zip(rows, firsts, strict=True)], dtype="int64"
        ),
        "wasted_tokens": pd.Series(
            [0 if a.outcome == "succeeded" else a.spent_tokens for a in rows], dtype="int64"
        ),
        "degraded": pd.Series([False] * len(rows), dtype="bool"),
    }
    for name in _MOMENTS:
        columns[name] = columns[name].astype("float64")
    return pd.DataFrame(columns)[names(REQUESTS)]


_TEXTS = (
    "request_id",
    "request_class",
    "tenant",
    "session",
    "outcome",
    "outcome_layer",
    "reason",
    "replica",
)
_OF_REQUEST = ("priority", "streaming", "deadline_s", "size")
_MOMENTS = (
    "intended_start_s",
    "sent_s",
    "gateway_in_s",
    "gateway_admitted_s",
    "service_queue_in_s",
    "scheduler_queue_in_s",
    "batch_in_s",
    "prefill_end_s",
    "decode_end_s",
    "finish_s",
    "batch_window_s",
    "batch_id",
    "batch_size",
)
_OF_ATTEMPT = ("attempt", "prompt_tokens", *_MOMENTS)


def _text(attempt: Attempt, name: str) -> str | None:
    if name in Request.__slots__:
        return str(getattr(attempt.request, name))
    if name == "outcome_layer" and attempt.outcome == "in_flight":
        return attempt.layer
    value: str | None = getattr(attempt, name)
    return value


def _first_token_s(
    attempt: Attempt, network_s: float, leaves_s: Callable[[Attempt, float], float]
) -> float:
    """Return when the first token reached the caller; without streaming, that is the last."""
    if math.isnan(attempt.prefill_end_s):
        return math.nan
    if not attempt.request.streaming:
        return attempt.finish_s if attempt.outcome == "succeeded" else math.nan
    first_s = leaves_s(attempt, attempt.prefill_end_s) + network_s
    if attempt.outcome == "succeeded":
        return min(first_s, attempt.finish_s)
    return first_s if first_s <= attempt.finish_s else math.nan


def _delivered(attempt: Attempt, first_token_s: float) -> int:
    """Return the output tokens the caller got: all, or what was streamed until the end."""
    if attempt.outcome == "succeeded":
        return attempt.output_tokens
    return 0 if math.isnan(first_token_s) else attempt.generated_tokens


def _on_network_s(attempt: Attempt, network_s: float) -> float:
    """Return the time on the network: there and back, or what there was until the caller left.

    Opening the connection counts as time on the network.
    """
    if attempt.outcome == "in_flight":
        return math.nan
    there_s = attempt.handshake_s + network_s
    if attempt.outcome_layer == "caller":
        return min(there_s, attempt.finish_s - attempt.sent_s)
    return there_s + network_s
