"""OpenTelemetry spans of model calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from capplan.traffic.readers.json_records import (
    ERROR_STATUS,
    Record,
    Row,
    first,
    found,
    reach,
    values,
)
from capplan.traffic.readers.layouts import layout_of_rows

OTEL = layout_of_rows(
    "otel",
    (
        "request_id", "arrival_s", "prompt_tokens", "output_tokens", "request_class", "tenant",
        "session", "streaming", "observed_e2e_s",
    ),
    "gen_ai.operation.name is read as the class, the user or the calling service as the tenant.",
    "Spans other than one model call (tools, agents, others) are dropped as other_span.",
)  # fmt: skip
"""OpenTelemetry spans of model calls: OTLP JSON, or spans of the SDK's console exporter.

Source: OpenTelemetry, "Semantic conventions for generative client AI spans" 1.37
(``gen_ai.usage.input_tokens``, ``gen_ai.usage.output_tokens``, ``gen_ai.operation.name``,
``gen_ai.conversation.id``; before 1.27 ``gen_ai.usage.prompt_tokens`` and ``completion_tokens``),
and OTLP 1.7 JSON encoding (64-bit integers as text, times in ns since 1970).
"""

_MODEL_CALLS = ("chat", "text_completion", "generate_content", "embeddings")
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_USER = ("enduser.id", "user.id", "service.name")
_SESSION = ("gen_ai.conversation.id", "session.id")
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR", "ERROR")


def matches(record: Record) -> bool:
    """Return whether a record is an OTLP document or a span."""
    timed = "startTimeUnixNano" in record or "start_time" in record
    return "resourceSpans" in record or (timed and {"attributes", "name"} <= set(record))


def rows_of(path: Path) -> Callable[[Record], Iterator[Row]]:
    """Return what yields one row per span of a record of the file.

    A span of a model call inside which another one lies is dropped: client, gateway and server each
    write one for the same call, and frameworks one with the tokens of all its calls.
    """
    outer = _outer_spans(record for record in values(path) if isinstance(record, dict))

    def rows(record: Record) -> Iterator[Row]:
        for span, shared in _spans(record):
            row = _row(span, shared)
            inside = "drop" not in row or row["drop"] == "failed"
            yield {"drop": "outer_span"} if inside and _id(span) in outer else row

    return rows


def _outer_spans(records: Iterable[Record]) -> set[Any]:
    """Return the ids of the spans inside which a model call lies."""
    parents: dict[Any, Any] = {}
    calls: list[Any] = []
    for span, shared in (one for record in records for one in _spans(record)):
        parents[_id(span)] = first(span, ("parentSpanId", "parent_id"))
        if _is_call({**shared, **_attributes(span.get("attributes"))}):
            calls.append(parents[_id(span)])
    outer: set[Any] = set()
    for parent in calls:
        above = parent
        while above and above not in outer:
            outer.add(above)
            above = parents.get(above)
    return outer


def _id(span: Record) -> Any:
    return span.get("spanId") or reach(span, "context.span_id")


def _spans(record: Record) -> Iterator[tuple[Record, Record]]:
    """Yield each span of a record, with the attributes of its resource."""
    if "resourceSpans" not in record:
        yield record, {}
        return
    for group in _objects(record["resourceSpans"]):
        shared = _attributes(reach(group, "resource.attributes"))
        for scope in _objects(group.get("scopeSpans")):
            yield from ((span, shared) for span in _objects(scope.get("spans")))


def _is_call(attributes: Record) -> bool:
    """Return whether a span is one model call: by its operation, else by its token counts."""
    operation = attributes.get("gen_ai.operation.name")
    counted = any(key in attributes for key in (*_INPUT, *_OUTPUT))
    return counted if operation is None else operation in _MODEL_CALLS


def _row(span: Record, shared: Record) -> Row:
    attributes = {**shared, **_attributes(span.get("attributes"))}
    if not _is_call(attributes):
        return {"drop": "other_span"}
    start = first(span, ("startTimeUnixNano", "start_time"))
    row: Row = {
        "request_id": _id(span),
        "arrival_s": start,
        "prompt_tokens": first(attributes, _INPUT),
        "output_tokens": first(attributes, _OUTPUT),
        "request_class": attributes.get("gen_ai.operation.name"),
        "tenant": first(attributes, _USER),
        "session": first(attributes, _SESSION),
        "streaming": attributes.get("gen_ai.request.stream"),
        "observed_e2e_s": _seconds(start, first(span, ("endTimeUnixNano", "end_time"))),
    }
    status = first(attributes, ("http.response.status_code", "http.status_code"))
    bad = attributes.get("error.type") is not None or _is_error_status(status)
    if bad or found(span, ("status.",), ("code", "status_code")) in _ERROR_CODES:
        row["drop"] = "failed"
    return row


def _is_error_status(status: Any) -> bool:
    try:
        return int(status) >= ERROR_STATUS
    except (TypeError, ValueError):
        return False


def _objects(value: Any) -> list[Record]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _attributes(value: Any) -> Record:
    """Return attributes as a dictionary; OTLP has a list of key and value."""
    if isinstance(value, dict):
        return value
    return {str(item.get("key")): _scalar(item.get("value")) for item in _objects(value)}


def _scalar(value: Any) -> Any:
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _seconds(start: Any, end: Any) -> float | None:
    """Return end − start of OTLP nanoseconds; None for other times."""
    try:
        return (int(end) - int(start)) / 1e9
    except (TypeError, ValueError, OverflowError):
        return None
