"""The request log: attempts as a table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, repeat
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capplan.scenario import Scenario
from capplan.scenario.classes import RequestClass
from capplan.schema import REQUESTS, Column
from capplan.simulation.attempt import Attempt, Request

ROWS_AT_ONCE = 10_000
"""Rows of a trace that become requests together: fast enough, and little memory."""
ATTEMPTS_AT_ONCE = 2000
"""Attempts that become columns together, or as many as are still open: few enough for the caches
of a processor (20,000 take 1 µs longer each)."""


def requests_of(
    frame: pd.DataFrame, scenario: Scenario, *, block_tokens: int | None = None
) -> Iterator[Request]:
    """Return the rows of a trace as requests, one after the other.

    ``block_tokens`` is the size of the trace's prefix blocks; without it there are no prefixes. The
    scenario's default class and first tenant fill missing columns and values; a class fills a
    deadline only if the whole column is missing.
    """
    for first in range(0, len(frame), ROWS_AT_ONCE):
        rows = frame.iloc[first : first + ROWS_AT_ONCE]
        columns = _columns(rows, first, scenario, block_tokens=block_tokens)
        yield from map(Request, *(columns[name] for name in Request.__slots__))


def _columns(
    frame: pd.DataFrame, first: int, scenario: Scenario, *, block_tokens: int | None
) -> dict[str, Iterable[Any]]:
    """Return the fields of the requests of some rows; ``first`` is the number of the first."""
    rows, missing = range(first, first + len(frame)), repeat(math.nan)
    class_names = list(_column(frame, "request_class", [scenario.request_class().name] * len(rows)))
    classes = {name: scenario.request_class(name) for name in set(class_names)}

    def of_class(value: Callable[[RequestClass], Any]) -> Iterable[Any]:
        known = {name: value(c) for name, c in classes.items()}
        return map(known.__getitem__, class_names)

    promised = of_class(lambda c: c.promises.deadline_s or math.nan)
    starts_s = frame["arrival_s"].to_numpy(np.float64)
    deadlines = _column(frame, "deadline_s", missing if "deadline_s" in frame else promised)
    deadlines_s = np.fromiter(deadlines, np.float64, len(rows))
    leaves_s = np.where(np.isnan(deadlines_s), np.inf, starts_s + deadlines_s)
    no_prefix: Iterable[Sequence[int]] = repeat(())
    prefixes = _column(frame, "prefix_blocks", no_prefix) if block_tokens else no_prefix
    return {
        "row": rows,
        "request_id": map(str, _column(frame, "request_id", rows)),
        "request_class": class_names,
        "tenant": map(str, _column(frame, "tenant", repeat(scenario.tenants[0].name))),
        "session": map(str, _column(frame, "session", repeat(""))),
        "priority": map(int, _column(frame, "priority", of_class(lambda c: c.priority))),
        "streaming": map(bool, _column(frame, "streaming", of_class(lambda c: c.streaming))),
        "deadline_s": deadlines_s.tolist(),
        "size": _column(frame, "size", missing),
        "prompt_tokens": map(int, frame["prompt_tokens"].tolist()),
        "output_tokens": map(int, frame["output_tokens"].tolist()),
        "first_start_s": starts_s.tolist(),
        "prefix_blocks": prefixes,
        "prefix_block_tokens": repeat(block_tokens or 0),
        "cached_fraction": of_class(lambda c: c.cached_fraction),
        "user": _column(frame, "user", repeat("")),
        "think_s": _column(frame, "think_s", missing),
        "leaves_s": leaves_s.tolist(),
    }


def _column(frame: pd.DataFrame, name: str, default: Iterable[Any]) -> Iterable[Any]:
    """Return the values of a column; the default, which may be endless, where one is missing."""
    missing = frame[name].isna().to_numpy() if name in frame else np.ones(1, np.bool_)
    if missing.all():
        return default
    found = frame[name].tolist()
    if not missing.any():
        return found
    return [
        other if gone else value
        for value, gone, other in zip(found, missing, default, strict=False)
    ]


class RequestLog:
    """The attempts of a run in the order of sending; those that have ended, as columns.

    Attributes
    ----------
    attempts
        Those that are not columns yet.
    """

    def __init__(
        self, trace: pd.DataFrame, *, network_s: float, leaves_s: Callable[[Any, Any], Any]
    ) -> None:
        """Start a log.

        ``trace`` has the rows of the requests. ``leaves_s(start_s, made_s)`` returns when a token
        made at ``made_s`` leaves the gateway, for an attempt that intended to start at ``start_s``;
        both may be arrays.
        """
        self.attempts: list[Attempt] = []
        self._trace = trace
        self._network_s = network_s
        self._leaves_s = leaves_s
        self._given = [n for n in _OF_REQUEST if n in trace and not trace[n].isna().any()]
        self._words = {c.name: _Words() for c in REQUESTS if c.kind == "str"}
        self._parts: list[dict[str, NDArray[Any]]] = []
        self._put_away = 0
        self._full = ATTEMPTS_AT_ONCE

    def __len__(self) -> int:
        return self._put_away + len(self.attempts)

    def first_token_s(self, attempt: Attempt) -> float:
        """Return when the first token of an attempt reached its caller, s; NaN if none has.

        Without streaming, that is when the last one did.
        """
        succeeded = attempt.outcome == "succeeded"
        if math.isnan(attempt.prefill_end_s):  # a success comes from the gateway itself
            return attempt.finish_s if succeeded else math.nan
        if not (attempt.request.streaming and attempt.streams):
            return attempt.finish_s if succeeded else math.nan
        made_s: float = self._leaves_s(attempt.intended_start_s, attempt.prefill_end_s)
        first_s = made_s + self._network_s
        if succeeded:
            return min(first_s, attempt.finish_s)
        return first_s if first_s <= attempt.finish_s else math.nan

    def add(self, attempt: Attempt) -> None:
        """Add an attempt that is sent."""
        self.attempts.append(attempt)
        if len(self.attempts) >= self._full:
            self._put([a for a in self.attempts if a.outcome != "in_flight" and not a.is_held])
            self.attempts = [a for a in self.attempts if a.outcome == "in_flight" or a.is_held]
            self._full = len(self.attempts) + max(ATTEMPTS_AT_ONCE, len(self.attempts))

    def frame(self) -> pd.DataFrame:
        """Return one row per attempt (``schema.REQUESTS``), by request, then attempt."""
        if self.attempts or not self._parts:
            self._put(self.attempts)
            self.attempts = []
        rows = np.concatenate([part.pop("row") for part in self._parts])
        numbers = np.concatenate([part["attempt"] for part in self._parts])
        order = np.lexsort((numbers, rows))
        rows = rows[order]
        columns: dict[str, Any] = {}
        for c in REQUESTS:
            if c.name in self._given:
                values = self._trace[c.name].take(rows).reset_index(drop=True)
                columns[c.name] = values.astype(_dtype(c))
                continue
            found = np.concatenate([part.pop(c.name) for part in self._parts])[order]
            columns[c.name] = self._words[c.name].of(found) if c.kind == "str" else found
        return pd.DataFrame(columns, copy=False)

    def _put(self, rows: list[Attempt]) -> None:
        """Store some attempts as columns, instead of as objects."""
        columns: dict[str, Any] = {name: _floats(name, rows) for name in _NUMBERS}
        columns |= {name: list(map(attrgetter(name), rows)) for name in (*_WORDS, "degraded")}
        self._add_derived(columns, rows)
        for i, attempt in enumerate(rows):
            if attempt.outcome != "succeeded":
                self._correct_failure(columns, i, attempt)
        part = {"row": _floats("request.row", rows).astype(np.int64)}
        for c in REQUESTS:
            if c.name not in self._given:
                if (values := columns.get(c.name)) is None:
                    values = list(map(attrgetter(f"request.{c.name}"), rows))
                if c.kind == "str":
                    part[c.name] = self._words[c.name].numbers(values)
                else:
                    part[c.name] = np.asarray(values, dtype=_dtype(c))
        self._parts.append(part)
        self._put_away += len(rows)

    def _add_derived(self, columns: dict[str, Any], rows: list[Attempt]) -> None:
        """Add the columns that follow from times, as if all attempts had succeeded."""
        streaming = _floats("request.streaming", rows) != 0
        finish_s, made_s = columns["finish_s"], columns["prefill_end_s"]
        first_s = self._leaves_s(columns["intended_start_s"], made_s) + self._network_s
        streamed = streaming & (columns["streams"] != 0)
        at_caller_s = np.where(streamed, np.minimum(first_s, finish_s), finish_s)
        columns["first_token_s"] = np.where(np.isnan(made_s), finish_s, at_caller_s)
        columns["network_s"] = columns["handshake_s"] + self._network_s + self._network_s
        columns["wasted_tokens"] = np.zeros(len(rows))

    def _correct_failure(self, columns: dict[str, Any], i: int, attempt: Attempt) -> None:
        """Correct these columns for an attempt without success."""
        first_s = self.first_token_s(attempt)
        columns["first_token_s"][i] = first_s
        columns["network_s"][i] = _on_network_s(attempt, self._network_s)
        columns["output_tokens"][i] = _delivered(attempt, first_s)
        columns["wasted_tokens"][i] = attempt.spent_tokens
        if attempt.outcome == "in_flight":
            columns["outcome_layer"][i] = attempt.layer


class _Words:
    """The distinct texts of a column, each with a number."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str | None, int] = defaultdict(count().__next__)

    def numbers(self, texts: Iterable[str | None]) -> NDArray[np.int64]:
        """Return texts as numbers."""
        return np.fromiter(map(self._numbers.__getitem__, texts), np.int64)

    def of(self, numbers: NDArray[np.int64]) -> Any:
        """Return numbers as texts."""
        return pd.array(list(self._numbers), dtype="str").take(numbers)


def _floats(name: str, rows: list[Attempt]) -> NDArray[np.float64]:
    """Return a field that attempts hold as a column of floats."""
    return np.fromiter(map(attrgetter(name), rows), np.float64, len(rows))


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
_NUMBERS = (
    *("attempt", "intended_start_s", "sent_s", "gateway_in_s"),
    *("gateway_admitted_s", "service_queue_in_s", "scheduler_queue_in_s", "batch_in_s"),
    *("prefill_end_s", "decode_end_s", "finish_s", "batch_window_s", "handshake_s", "streams"),
    *("batch_id", "batch_size", "cached_tokens", "output_tokens"),
)
"""Fields of an attempt that are numbers; batch and step counts are exact as floats."""
_WORDS = ("outcome", "outcome_layer", "reason", "replica")
"""Fields of an attempt that are texts."""


def _delivered(attempt: Attempt, first_token_s: float) -> int:
    """Return the output tokens that the caller got: all, or the chunks streamed until the end."""
    if attempt.outcome == "succeeded":
        return attempt.output_tokens
    made = attempt.generated_tokens if attempt.seen_tokens is None else attempt.seen_tokens
    if math.isnan(first_token_s) or not made:
        return 0
    return 1 + (made - 1) // attempt.stream_interval * attempt.stream_interval


def _on_network_s(attempt: Attempt, network_s: float) -> float:
    """Return the time on the network: there and back, or until the caller left.

    It includes opening the connection.
    """
    if attempt.outcome == "in_flight":
        return math.nan
    if math.isnan(attempt.sent_s):
        return 0.0
    there_s = attempt.handshake_s + network_s
    if attempt.outcome_layer == "caller":
        return min(there_s, attempt.finish_s - attempt.sent_s)
    return there_s + network_s
