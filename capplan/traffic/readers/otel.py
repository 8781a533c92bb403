"""OpenTelemetry spans of model calls: OTLP JSON, or spans as the SDK's console exporter has them.

Source: OpenTelemetry, "Semantic conventions for generative client AI spans" 1.37
(``gen_ai.usage.input_tokens``, ``gen_ai.usage.output_tokens``, ``gen_ai.operation.name``,
``gen_ai.conversation.id``; before 1.27 ``gen_ai.usage.prompt_tokens`` and ``completion_tokens``),
and OTLP 1.7 JSON encoding (64-bit integers as text, times in ns since 1970).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capplan.traffic.readers.layouts import Layout
from capplan.traffic.readers.records import Row

COLUMNS = (
    "request_id", "arrival_s", "prompt_tokens", "output_tokens", "request_class", "tenant",
    "session", "streaming", "observed_e2e_s",
)  # fmt: skip
LAYOUT = Layout(
    format="otel",
    columns=dict(zip(COLUMNS, COLUMNS, strict=True)),
    notes=(
        "gen_ai.operation.name stands as the class, the user or the calling service as the tenant.",
        "Spans that are no single model call (tools, agents, others) are dropped as other_span.",
    ),
)
MODEL_CALLS = ("chat", "text_completion", "generate_content", "embeddings")
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_USER = ("enduser.id", "user.id", "service.name")
_SESSION = ("gen_ai.conversation.id", "session.id")
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR", "ERROR")


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether a record is an OTLP document or a span."""
    if "resourceSpans" in record:
        return True
    timed = "startTimeUnixNano" in record or "start_time" in record
    return timed and "attributes" in record and "name" in record


def rows(record: dict[str, Any]) -> Iterator[Row]:
    """Yield one row per span of a record."""
    if "resourceSpans" not in record:
        yield _row(record, {})
        return
    for group in _dicts(record["resourceSpans"]):
        resource = group.get("resource")
        shared = _attributes(resource.get("attributes")) if isinstance(resource, dict) else {}
        for scope in _dicts(group.get("scopeSpans")):
            for span in _dicts(scope.get("spans")):
                yield _row(span, shared)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _row(span: dict[str, Any], shared: dict[str, Any]) -> Row:
    attributes = {**shared, **_attributes(span.get("attributes"))}
    operation = attributes.get("gen_ai.operation.name")
    if not _is_model_call(attributes, operation):
        return {"drop": "other_span"}
    start = _first(span, ("startTimeUnixNano", "start_time"))
    row: Row = {
        "request_id": _span_id(span),
        "arrival_s": start,
        "prompt_tokens": _first(attributes, _INPUT),
        "output_tokens": _first(attributes, _OUTPUT),
        "request_class": operation,
        "tenant": _first(attributes, _USER),
        "session": _first(attributes, _SESSION),
        "streaming": attributes.get("gen_ai.request.stream"),
        "observed_e2e_s": _seconds(start, _first(span, ("endTimeUnixNano", "end_time"))),
    }
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else None
    if code in _ERROR_CODES:
        row["drop"] = "failed"
    return row


def _is_model_call(attributes: dict[str, Any], operation: Any) -> bool:
    if operation is not None:
        return operation in MODEL_CALLS
    return any(key in attributes for key in (*_INPUT, *_OUTPUT))


def _span_id(span: dict[str, Any]) -> Any:
    context = span.get("context")
    return span.get("spanId") or (context.get("span_id") if isinstance(context, dict) else None)


def _attributes(value: Any) -> dict[str, Any]:
    """Return attributes as a dictionary, whether OTLP's list of key and value or one already."""
    if isinstance(value, dict):
        return value
    return {str(item.get("key")): _scalar(item.get("value")) for item in _dicts(value)}


def _scalar(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return next((inner for inner in value.values()), None)


def _first(table: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((table[key] for key in keys if table.get(key) is not None), None)


def _seconds(start: Any, end: Any) -> float | None:
    """Return end − start of OTLP nanoseconds; None for other times."""
    try:
        return (int(end) - int(start)) / 1e9
    except (TypeError, ValueError, OverflowError):
        return None
