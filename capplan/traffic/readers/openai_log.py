"""Logs of an OpenAI-compatible endpoint: one response, or request with response, per record.

The response may stand at the top, under ``response``, ``body`` or ``response.body`` (the batch
API's output files); usage, model and creation time are looked up there, a time stamp of the log
first. Source: OpenAI API reference, "The chat completion object" and "The batch object" (fields
``id``, ``created``, ``usage.prompt_tokens``, ``usage.completion_tokens``; Responses API:
``created_at``, ``usage.input_tokens``, ``usage.output_tokens``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capplan.traffic.readers.jsonlines import reach
from capplan.traffic.readers.layouts import Layout
from capplan.traffic.readers.records import Row

COLUMNS = (
    "request_id", "arrival_s", "prompt_tokens", "output_tokens", "request_class", "tenant",
    "session", "priority", "streaming", "deadline_s", "observed_e2e_s",
)  # fmt: skip
LAYOUT = Layout(
    format="openai-log",
    columns=dict(zip(COLUMNS, COLUMNS, strict=True)),
    notes=(
        "The model called stands as the class, the user field as the tenant.",
        "The arrival is the log's time stamp, else the response's creation time.",
    ),
)
_PLACES = ("", "response.", "response.body.", "body.")
_REQUEST_PLACES = ("", "request.", "request.body.")
_STAMPS = ("timestamp", "time", "ts", "request_time", "start_time", "started_at", "startTime")
_ERROR_STATUS = 400


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether a record holds the usage of an OpenAI-compatible response."""
    return _usage(record) is not None


def rows(record: dict[str, Any]) -> Iterator[Row]:
    """Yield the row of one record; a failed call is marked for the ledger."""
    usage = _usage(record) or {}
    row: Row = {
        "request_id": _first(record, _PLACES, ("id", "request_id")),
        "arrival_s": _arrival(record),
        "prompt_tokens": _either(usage, "prompt_tokens", "input_tokens"),
        "output_tokens": _either(usage, "completion_tokens", "output_tokens"),
        "request_class": _first(record, (*_PLACES, *_REQUEST_PLACES), ("model",)),
        "tenant": _first(record, _REQUEST_PLACES, ("user", "tenant", "organization")),
        "session": _first(
            record, _REQUEST_PLACES, ("session_id", "conversation_id", "metadata.session_id")
        ),
        "priority": _first(record, _REQUEST_PLACES, ("priority",)),
        "streaming": _first(record, _REQUEST_PLACES, ("stream",)),
        "deadline_s": _first(record, _REQUEST_PLACES, ("timeout", "deadline_s")),
        "observed_e2e_s": _first(record, ("",), ("latency_s", "duration_s", "e2e_s")),
    }
    if _failed(record):
        row["drop"] = "failed"
    yield row


def _usage(record: dict[str, Any]) -> dict[str, Any] | None:
    found = _first(record, _PLACES, ("usage",))
    known = isinstance(found, dict) and {"prompt_tokens", "input_tokens"} & set(found)
    return found if known else None


def _arrival(record: dict[str, Any]) -> Any:
    stamp = _first(record, ("", "request."), _STAMPS)
    return stamp if stamp is not None else _first(record, _PLACES, ("created", "created_at"))


def _failed(record: dict[str, Any]) -> bool:
    status = _first(record, ("", "response."), ("status_code", "http_status"))
    bad = isinstance(status, int) and not isinstance(status, bool) and status >= _ERROR_STATUS
    return bad or bool(_first(record, _PLACES, ("error",)))


def _first(record: dict[str, Any], places: tuple[str, ...], keys: tuple[str, ...]) -> Any:
    for place in places:
        for key in keys:
            found = reach(record, f"{place}{key}")
            if found is not None:
                return found
    return None


def _either(usage: dict[str, Any], one: str, other: str) -> Any:
    return usage[one] if usage.get(one) is not None else usage.get(other)
