"""Calls that a log marks as refused or failed: they are demand, and their lengths are imputed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.formatting import counted, format_value
from capplan.traffic.readers import values as v
from capplan.traffic.replay import busiest_hour
from capplan.traffic.streams import Stream, stream

Mask = npt.NDArray[np.bool_]
PREFIX = "mark:"
"""Begins the names under which a raw batch holds the columns that mark how a call ended."""
MARKS: Mapping[str, tuple[str, ...]] = {
    "status": ("status", "status_code", "http_status", "http_status_code", "response_code", "code"),
    "success": ("success", "succeeded", "successful", "is_success", "ok"),
    "error": ("error", "errors", "error_code", "error_type", "error_message", "error_msg",
              "exception"),
    "ended": ("outcome", "result", "state", "finish_reason", "stop_reason"),
}  # fmt: skip
"""Names, folded, of columns that mark how a call ended, by how they do."""
FAILED_WORDS = frozenset(
    ("error", "err", "fail", "failed", "failure", "timeout", "timed_out", "timedout", "rejected",
     "refused", "denied", "cancelled", "canceled", "aborted", "abort", "dropped", "throttled",
     "rate_limited", "overloaded", "unavailable", "incomplete")
)  # fmt: skip
NO_ERROR = frozenset((*v.MISSING_TEXT, "false", "no", "0", "0.0", "ok", "success", "[]", "{}"))
FIRST_ERROR = 400
"""HTTP statuses from here on are errors. Source: RFC 9110, section 15."""


def marks_of(folded: Mapping[str, str]) -> dict[str, str]:
    """Return kind and name of each column that marks how a call ended; keys ``mark:kind:name``.

    ``folded`` maps the columns of a file to their names in lower case with underscores.
    """
    return {
        f"{PREFIX}{kind}:{name}": name
        for kind, known in MARKS.items()
        for name, short in folded.items()
        if short in known
    }


def failed(columns: Mapping[str, Any], rows: int) -> Mask:
    """Return which rows some column marks as refused, failed, timed out or cancelled."""
    found = np.zeros(rows, np.bool_)
    for name, array in columns.items():
        if name.startswith(PREFIX):
            found |= _says_failed(name.split(":")[1], array)
    return found


def _says_failed(kind: str, array: Any) -> Mask:
    codes, texts = pd.factorize(np.array(v.plain(array).to_pylist(), dtype=object))
    each = np.array([_is_failure(kind, text) for text in texts] + [False], np.bool_)
    return np.asarray(each[codes], np.bool_)  # a missing value has code -1: the last


def _is_failure(kind: str, value: Any) -> bool:
    text = str(value).strip().lower().replace(" ", "_").replace("-", "_")
    if kind == "error":
        return text not in NO_ERROR
    if kind == "success":
        return text in ("false", "f", "no", "n", "0", "0.0")
    try:
        status = float(text)
    except ValueError:
        return text in FAILED_WORDS
    return kind == "status" and status >= FIRST_ERROR


def imputed(
    table: pd.DataFrame, unknown: Mapping[str, Mask], *, seed: int
) -> tuple[pd.DataFrame, list[str]]:
    """Return a table in which unknown lengths are those of a served request of the same class.

    ``unknown`` gives, for each column of lengths, the rows that lack it. Each takes the value of a
    request drawn from those of its class that have one, of all classes if its own has none.
    ``imputed`` marks the rows. A sentence states how many they are.
    """
    lacks = np.logical_or.reduce(list(unknown.values()))
    if not lacks.any():
        return table, []
    rng = stream(seed, 0, Stream.ROWS)
    groups = _groups(table)
    filled = {name: _drawn(table[name].to_numpy(), mask, groups, rng)
              for name, mask in unknown.items()}  # fmt: skip
    order = np.argsort(table["arrival_s"].to_numpy(np.float64), kind="stable")
    busiest = order[busiest_hour(table["arrival_s"].to_numpy(np.float64)[order])]
    share, of_busiest = (format_value(part.mean(), "_fraction") for part in (lacks, lacks[busiest]))
    note = (
        f"{counted(int(lacks.sum()), 'call')} ({share}; {of_busiest} in the busiest hour) ended "
        "without an answer or its lengths: each keeps its arrival, and takes "
        "the lengths that it lacks from a call of its class."
    )
    return table.assign(**filled, imputed=lacks), [note]


def _groups(table: pd.DataFrame) -> npt.NDArray[np.intp]:
    if "request_class" not in table:
        return np.zeros(len(table), np.intp)
    return np.asarray(pd.factorize(table["request_class"])[0], np.intp)


def _drawn(
    lengths: npt.NDArray[Any], lacks: Mask, groups: npt.NDArray[np.intp], rng: np.random.Generator
) -> npt.NDArray[Any]:
    out = lengths.copy()
    for group in np.unique(groups[lacks]):
        rows = np.flatnonzero(lacks & (groups == group))
        own = lengths[~lacks & (groups == group)]
        out[rows] = rng.choice(own if len(own) else lengths[~lacks], size=len(rows))
    return out
