"""The request log: attempts as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from capplan.schema import REQUESTS, Column
from capplan.simulation.attempt import Attempt, Request

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario


ROWS_AT_ONCE = 10_000
"""Rows of a trace that become requests together: fast enough, and little memory."""
ATTEMPTS_AT_ONCE = 20_000
"""Attempts that become columns together."""


def requests_of(
    frame: pd.DataFrame, scenario: Scenario, *, block_tokens: int | None = None
) -> Iterator[Request]:
    """Return the rows of a trace as requests, one after the other.

    ``block_tokens`` are the tokens of one of the trace's prefix blocks; without them there are no
    prefixes.

    A column that the trace lacks, or a value that is missing, is filled by the scenario's default
    class and first tenant; a deadline only where the whole column is absent.
    """
    for first in range(0, len(frame), ROWS_AT_ONCE):
        rows = frame.iloc[first : first + ROWS_AT_ONCE]
        columns = _columns(rows, first, scenario, block_tokens=block_tokens)
        yield from map(Request, *(columns[name] for name in Request.__slots__))


def _columns(
    frame: pd.DataFrame, first: int, scenario: Scenario, *, block_tokens: int | None
) -> dict[str, Iterable[Any]]:
    """Return the fields of the requests of some rows; ``first`` is the number of the first."""
    rows = range(first, first + len(frame))
    missing = [math.nan] * len(frame)
    class_names = _column(frame, "request_class", [scenario.request_class().name] * len(frame))
    known = {name: scenario.request_class(name) for name in set(class_names)}
    classes = [known[name] for name in class_names]
    promised = [c.promises.deadline_s or math.nan for c in classes]
    return {
        "row": rows,
        "request_id": map(str, _column(frame, "request_id", rows)),
        "request_class": class_names,
        "tenant": map(str, _column(frame, "tenant", [scenario.tenants[0].name] * len(frame))),
        "session": map(str, _column(frame, "session", [""] * len(frame))),
        "priority": map(int, _column(frame, "priority", [c.priority for c in classes])),
        "streaming": map(bool, _column(frame, "streaming", [c.streaming for c in classes])),
        "deadline_s": _column(frame, "deadline_s", missing if "deadline_s" in frame else promised),
        "size": _column(frame, "size", missing),
        "prompt_tokens": map(int, frame["prompt_tokens"].tolist()),
        "output_tokens": map(int, frame["output_tokens"].tolist()),
        "first_start_s": frame["arrival_s"].tolist(),
        "prefix_blocks": _prefixes(frame, block_tokens),
        "prefix_block_tokens": [block_tokens or 0] * len(frame),
        "cached_fraction": [c.cached_fraction for c in classes],
        "user": _column(frame, "user", [""] * len(frame)),
        "think_s": _column(frame, "think_s", missing),
    }


def _prefixes(frame: pd.DataFrame, block_tokens: int | None) -> list[Sequence[int]]:
    if "prefix_blocks" not in frame or not block_tokens:
        return [()] * len(frame)
    return [() if isinstance(ids, float) or ids is None else ids for ids in frame["prefix_blocks"]]


def _column(frame: pd.DataFrame, name: str, default: Sequence[Any]) -> list[Any]:
    if name not in frame:
        return list(default)
    column = frame[name]
    found, missing = column.tolist(), column.isna()
    if not missing.any():
        return found
    return [
        default[i] if gone else value
        for i, (value, gone) in enumerate(zip(found, missing, strict=True))
    ]


class RequestLog:
    """The attempts of a run, in the order of sending; those that are settled, as columns only.

    Attributes
    ----------
    attempts
        Those that are not columns yet.
    """

    def __init__(
        self,
        trace: pd.DataFrame,
        *,
        network_s: float,
        leaves_s: Callable[[Attempt, float], float],
    ) -> None:
        """Start a log.

        ``trace`` are the rows that the requests are made of; ``leaves_s(attempt, made_s)`` is when
        a token made at that time leaves the gateway.
        """
        self.attempts: list[Attempt] = []
        self._trace = trace
        self._network_s = network_s
        self._leaves_s = leaves_s
        self._given = [n for n in _OF_REQUEST if n in trace and not trace[n].isna().any()]
        self._parts: list[dict[str, pd.Series[Any]]] = []
        self._put_away = 0
        self._full = ATTEMPTS_AT_ONCE

    def __len__(self) -> int:
        return self._put_away + len(self.attempts)

    def first_token_s(self, attempt: Attempt) -> float:
        """Return when the first token of an attempt reached its caller, s; NaN if none has."""
        return _first_token_s(attempt, self._network_s, self._leaves_s)

    def add(self, attempt: Attempt) -> None:
        """Take an attempt that is being sent."""
        self.attempts.append(attempt)
        if len(self.attempts) >= self._full:
            open_ = [a for a in self.attempts if a.outcome == "in_flight" or a.is_held]
            left = set(map(id, open_))
            self._put([a for a in self.attempts if id(a) not in left])
            self.attempts = open_
            self._full = len(open_) + ATTEMPTS_AT_ONCE

    def frame(self) -> pd.DataFrame:
        """Return one row per attempt (``schema.REQUESTS``), by request, then attempt."""
        import numpy as np
        import pandas as pd

        if self.attempts or not self._parts:
            self._put(self.attempts)
            self.attempts = []
        rows = np.concatenate([part.pop("row") for part in self._parts])
        numbers = np.concatenate([part["attempt"] for part in self._parts])
        order = np.lexsort((numbers, rows))
        columns = {}
        for c in REQUESTS:
            if c.name in self._given:
                values = self._trace[c.name].take(rows[order]).reset_index(drop=True)
                columns[c.name] = values.astype(_dtype(c))
            else:
                values = pd.concat([part.pop(c.name) for part in self._parts])
                columns[c.name] = values.take(order).reset_index(drop=True)
        return pd.DataFrame(columns, copy=False)

    def _put(self, rows: list[Attempt]) -> None:
        """Keep what the log says of some attempts, instead of them."""
        import pandas as pd

        of = [a.request for a in rows]
        firsts = [_first_token_s(a, self._network_s, self._leaves_s) for a in rows]
        told: dict[str, list[Any]] = {
            "outcome_layer": [
                a.layer if a.outcome == "in_flight" else a.outcome_layer for a in rows
            ],
            "first_token_s": firsts,
            "network_s": [_on_network_s(a, self._network_s) for a in rows],
            "output_tokens": [_delivered(a, first) for a, first in zip(rows, firsts, strict=True)],
            "wasted_tokens": [0 if a.outcome == "succeeded" else a.spent_tokens for a in rows],
            "degraded": [False] * len(rows),
        }
        part = {"row": pd.Series([r.row for r in of], dtype="int64")}
        for c in REQUESTS:
            if c.name not in self._given:
                source: Sequence[Any] = of if c.name in _OF_REQUEST else rows
                values = told.get(c.name) or list(map(attrgetter(c.name), source))
                part[c.name] = pd.Series(values, dtype=_dtype(c))
        self._parts.append(part)
        self._put_away += len(rows)


def _dtype(column: Column) -> Any:
    """Return the type of a column; numbers that may be missing are floats."""
    if column.name in {"batch_id", "batch_size"}:
        return "float64"
    return {"int": "int64", "float": "float64"}.get(column.kind, column.kind)


_OF_REQUEST = (
    *("request_id", "request_class", "tenant", "session"),
    *("priority", "streaming", "deadline_s", "size", "prompt_tokens"),
)
"""Columns that are fields of the request, and of the trace where it has them."""


def _first_token_s(
    attempt: Attempt, network_s: float, leaves_s: Callable[[Attempt, float], float]
) -> float:
    """Return when the first token reached the caller; without streaming, that is the last."""
    if math.isnan(attempt.prefill_end_s):
        return math.nan
    if not (attempt.request.streaming and attempt.streams):
        return attempt.finish_s if attempt.outcome == "succeeded" else math.nan
    first_s = leaves_s(attempt, attempt.prefill_end_s) + network_s
    if attempt.outcome == "succeeded":
        return min(first_s, attempt.finish_s)
    return first_s if first_s <= attempt.finish_s else math.nan


def _delivered(attempt: Attempt, first_token_s: float) -> int:
    """Return the output tokens the caller got: all, or the chunks streamed until the end."""
    if attempt.outcome == "succeeded":
        return attempt.output_tokens
    made = attempt.generated_tokens if attempt.seen_tokens is None else attempt.seen_tokens
    if math.isnan(first_token_s) or not made:
        return 0
    return 1 + (made - 1) // attempt.stream_interval * attempt.stream_interval


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
