"""Columns, units, checks and the one error for bad files and tables.

A :class:`Column` feeds validation, the data dictionary and axis titles, so the three cannot
disagree. This module imports neither pandas nor numpy: it is loaded by ``capplan --help``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["float", "int", "str", "bool", "list"]


LONGEST_VALUE = 200
"""Most characters of a wrong value in a message."""


class DataError(ValueError):
    """A file, field, table or server answer that breaks a rule.

    The message has one form: ``where: field: rule, got value``; parts that do not apply are
    left out.

    >>> str(DataError("a finite number", where="t.csv", field="arrival_s", value="abc"))
    "t.csv: arrival_s: a finite number, got 'abc'"
    """

    def __init__(
        self, rule: str, *, where: object = None, field: str | None = None, value: object = ...
    ) -> None:
        self.rule = rule
        self.where = None if where is None else str(where)
        self.field = field
        self.value = value
        got = "" if value is ... else f", got {_short(repr(value))}"
        super().__init__(": ".join(part for part in (self.where, field, f"{rule}{got}") if part))


def invalid_yaml(err: Exception, *, where: object = None) -> DataError:
    """Return the error for a text that is no YAML: at which line, what is wrong, what began where.

    ``err`` is what the YAML reader or the file system raised.
    """
    mark, begun = (getattr(err, f"{of}_mark", None) for of in ("problem", "context"))
    if mark is None:
        kind = "a readable UTF-8 file" if isinstance(err, OSError | UnicodeError) else "valid YAML"
        return DataError(f"{kind} ({' '.join(str(err).split())})", where=where)
    problem, context = (getattr(err, of, None) for of in ("problem", "context"))
    parts = [problem, context and f"{context}{_at(begun) if begun else ''}"]
    rule = f"valid YAML ({'; '.join(' '.join(part.split()) for part in parts if part)})"
    return DataError(rule, where=where, field=_at(mark).removeprefix(" from "))


def _at(mark: Any) -> str:
    return f" from line {mark.line + 1}, column {mark.column + 1}"


class NoRowsError(DataError):
    """A frame without the one row that is the least to draw."""


def _short(text: str) -> str:
    """Return a text cut to :data:`LONGEST_VALUE` characters."""
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its name, unit (``""`` = none), meaning and kind of value.

    ``required`` columns must be present and, for numbers, not NaN.
    """

    name: str
    unit: str
    meaning: str
    kind: Kind = "float"
    required: bool = False

    @property
    def title(self) -> str:
        """Axis title: the meaning and the unit.

        >>> Column("ttft_s", "s", "time to first token").title
        'time to first token (s)'
        """
        return f"{self.meaning} ({self.unit})" if self.unit else self.meaning


TRACE: tuple[Column, ...] = (
    Column("request_id", "", "request", "str"),
    Column("arrival_s", "s", "arrival, from the start of the trace", required=True),
    Column("prompt_tokens", "tokens", "prompt length", "int", required=True),
    Column("output_tokens", "tokens", "output length", "int", required=True),
    Column("request_class", "", "request class", "str"),
    Column("tenant", "", "tenant", "str"),
    Column("session", "", "session or conversation", "str"),
    Column("priority", "", "priority, lower is served first", "int"),
    Column("streaming", "", "answer is streamed", "bool"),
    Column("deadline_s", "s", "deadline of the caller, from arrival"),
    Column("size", "", "size of a request without tokens"),
    Column("prefix_blocks", "", "ids of the prompt's prefix blocks", "list"),
    Column("observed_e2e_s", "s", "end-to-end latency the source observed"),
    Column("user", "", "user of a closed loop, which waits for each answer", "str"),
    Column("think_s", "s", "think time of that user since its previous answer"),
    Column("imputed", "", "lengths are not the source's, but of a call of the same class", "bool"),
)
"""One row per request. A column that is not required is absent if the source lacks it."""

REQUESTS: tuple[Column, ...] = (
    Column("request_id", "", "request", "str", required=True),
    Column("attempt", "", "attempt, from 1", "int", required=True),
    Column("request_class", "", "request class", "str", required=True),
    Column("tenant", "", "tenant", "str"),
    Column("priority", "", "priority, lower is served first", "int"),
    Column("session", "", "session or conversation", "str"),
    Column("streaming", "", "answer is streamed", "bool"),
    Column("deadline_s", "s", "deadline of the caller, from the first intended start"),
    Column("size", "", "size of a request without tokens"),
    Column("intended_start_s", "s", "when the caller wanted to send this attempt", required=True),
    Column("sent_s", "s", "when the attempt was sent"),
    Column("gateway_in_s", "s", "arrival at the gateway"),
    Column("gateway_admitted_s", "s", "left the gateway's own queue"),
    Column("service_queue_in_s", "s", "arrival at the pool's service queue"),
    Column("scheduler_queue_in_s", "s", "arrival at the replica's scheduler queue"),
    Column("batch_in_s", "s", "first scheduled into a batch"),
    Column("prefill_end_s", "s", "first token made at the replica"),
    Column("decode_end_s", "s", "last token made at the replica"),
    Column("first_token_s", "s", "first token at the caller"),
    Column("finish_s", "s", "end of the attempt at the caller, whatever its outcome"),
    Column("batch_window_s", "s", "part of the scheduler wait spent waiting for the batch window"),
    Column("network_s", "s", "time on the network, there and back"),
    Column("prompt_tokens", "tokens", "prompt length", "int"),
    Column("cached_tokens", "tokens", "prompt tokens found in the prefix cache", "int"),
    Column("output_tokens", "tokens", "output tokens delivered", "int"),
    Column("wasted_tokens", "tokens", "tokens computed for an attempt that did not succeed", "int"),
    Column("batch_id", "", "batch in which the attempt was first scheduled", "int"),
    Column("batch_size", "", "sequences in that batch", "int"),
    Column("degraded", "", "answer degraded by a protective action", "bool"),
    Column("outcome", "", "outcome", "str", required=True),
    Column("outcome_layer", "", "layer that decided the outcome", "str"),
    Column("reason", "", "why the outcome was not a success", "str"),
    Column("replica", "", "replica that served the attempt", "str"),
)
"""One row per attempt. Times count from the start of the run; a moment not reached is NaN."""

TIMELINE: tuple[Column, ...] = (
    Column("time_s", "s", "time from the start of the run", required=True),
    Column("layer", "", "layer", "str", required=True),
    Column("replica", "", "replica, empty for a layer without replicas", "str", required=True),
    Column("metric", "", "metric", "str", required=True),
    Column("value", "", "value", required=True),
)
"""One row per observation of a metric of a layer."""

OUTCOMES = ("succeeded", "rejected", "timed_out", "cancelled", "failed", "in_flight")
POINT_STATES = {
    "pass": "inside the budget",
    "retest": "inside, not proven",
    "fail": "failed",
    "unknown": "unknown",
}
"""Outcome of a point of a grid -> its state in words. Not proven: every estimate keeps its promise,
and some 95 % interval still reaches beyond it."""
LAYERS = (
    "caller",
    "network",
    "gateway",
    "service_queue",
    "scheduler_queue",
    "batch_window",
    "prefill",
    "decode",
)
"""The layers a request passes, outermost first; values of ``outcome_layer`` and ``layer``."""

PHASES = ("asked", "provisioning", "pulling", "loading", "standby", "up", "draining", "gone")
"""Phases of a replica of an elastic pool; the timeline's ``phase`` counts from 0."""


def names(table: Iterable[Column]) -> list[str]:
    """Return the column names of a table, in order."""
    return [column.name for column in table]


def require_columns(
    frame: pd.DataFrame, columns: Iterable[str], *, where: object = "table"
) -> None:
    """Check that every named column is present; raises :class:`DataError` naming the missing."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise DataError("a required column", where=where, field=", ".join(missing), value="nothing")
