"""The published JSON formats: how a record of each is recognised, and the rows that it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from capplan.schema import DataError
from capplan.traffic.readers.json_records import Record, Row, reach
from capplan.traffic.readers.layouts import Layout
from capplan.traffic.readers.values import RawBatch, text_array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JsonFormat:
    """A format of JSON records."""

    layout: Layout
    """Its columns; under our own names if ``rows`` makes them."""
    matches: Callable[[Record], bool]
    """Whether a record is of this format."""
    rows: Callable[[Record, Path], Iterator[Row]] | None = None
    """The requests that a record of a file holds; None: one, whose fields the layout names."""
    is_run: bool = False
    """Whether a record is a whole run, so that a file may hold one."""


def _layout_of_rows(name: str, columns: tuple[str, ...], *notes: str) -> Layout:
    return Layout(format=name, columns={column: column for column in columns}, notes=notes)


OPENAI_LOG = _layout_of_rows(
    "openai-log",
    (
        "request_id", "arrival_s", "prompt_tokens", "output_tokens", "request_class", "tenant",
        "session", "priority", "streaming", "deadline_s", "observed_e2e_s",
    ),
    "The model called is read as the class, the user field as the tenant.",
    "The arrival is the log's time stamp, else the response's creation time.",
)  # fmt: skip
"""Logs of an OpenAI-compatible endpoint: one response, or request with response, per record.

The response may stand at the top, under ``response``, ``body`` or ``response.body`` (the batch
API's output files). Source: OpenAI API reference, "The chat completion object" and "The batch
object" (fields ``id``, ``created``, ``usage.prompt_tokens``, ``usage.completion_tokens``;
Responses API: ``created_at``, ``usage.input_tokens``, ``usage.output_tokens``).
"""

_RESPONSES = ("", "response.", "response.body.", "body.")
_REQUESTS = ("", "request.", "request.body.")
_STAMPS = ("timestamp", "time", "ts", "request_time", "start_time", "started_at", "startTime")
_ERROR_STATUS = 400


def _openai_rows(record: Record, _: Path) -> Iterator[Row]:
    """Yield the row of one record; a failed call is marked to be dropped."""
    usage = _openai_usage(record) or {}
    stamp = _found(record, ("", "request."), _STAMPS)
    session = ("session_id", "conversation_id", "metadata.session_id")
    row: Row = {
        "request_id": _found(record, _RESPONSES, ("id", "request_id")),
        "arrival_s": _found(record, _RESPONSES, ("created", "created_at"))
        if stamp is None
        else stamp,
        "prompt_tokens": _first(usage, ("prompt_tokens", "input_tokens")),
        "output_tokens": _first(usage, ("completion_tokens", "output_tokens")),
        "request_class": _found(record, (*_RESPONSES, *_REQUESTS), ("model",)),
        "tenant": _found(record, _REQUESTS, ("user", "tenant", "organization")),
        "session": _found(record, _REQUESTS, session),
        "priority": _found(record, _REQUESTS, ("priority",)),
        "streaming": _found(record, _REQUESTS, ("stream",)),
        "deadline_s": _found(record, _REQUESTS, ("timeout", "deadline_s")),
        "observed_e2e_s": _found(record, ("",), ("latency_s", "duration_s", "e2e_s")),
    }
    if _openai_failed(record):
        row["drop"] = "failed"
    yield row


def _openai_usage(record: Record) -> dict[str, Any] | None:
    found = _found(record, _RESPONSES, ("usage",))
    known = isinstance(found, dict) and {"prompt_tokens", "input_tokens"} & set(found)
    return found if known else None


def _openai_failed(record: Record) -> bool:
    status = _found(record, ("", "response."), ("status_code", "http_status"))
    bad = isinstance(status, int) and not isinstance(status, bool) and status >= _ERROR_STATUS
    return bad or bool(_found(record, _RESPONSES, ("error",)))


def _found(record: Record, places: tuple[str, ...], keys: tuple[str, ...]) -> Any:
    """Return the first value that is not null of the keys in the places."""
    values = (reach(record, f"{place}{key}") for place in places for key in keys)
    return next((value for value in values if value is not None), None)


OTEL = _layout_of_rows(
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


def _is_otel(record: Record) -> bool:
    """Return whether a record is an OTLP document or a span."""
    timed = "startTimeUnixNano" in record or "start_time" in record
    return "resourceSpans" in record or (timed and {"attributes", "name"} <= set(record))


def _otel_rows(record: Record, _: Path) -> Iterator[Row]:
    """Yield one row per span of a record."""
    if "resourceSpans" not in record:
        yield _otel_row(record, {})
        return
    for group in _objects(record["resourceSpans"]):
        shared = _attributes(reach(group, "resource.attributes"))
        for scope in _objects(group.get("scopeSpans")):
            for span in _objects(scope.get("spans")):
                yield _otel_row(span, shared)


def _otel_row(span: Record, shared: Record) -> Row:
    attributes = {**shared, **_attributes(span.get("attributes"))}
    operation = attributes.get("gen_ai.operation.name")
    counted = any(key in attributes for key in (*_INPUT, *_OUTPUT))
    if not (counted if operation is None else operation in _MODEL_CALLS):
        return {"drop": "other_span"}
    start = _first(span, ("startTimeUnixNano", "start_time"))
    row: Row = {
        "request_id": span.get("spanId") or reach(span, "context.span_id"),
        "arrival_s": start,
        "prompt_tokens": _first(attributes, _INPUT),
        "output_tokens": _first(attributes, _OUTPUT),
        "request_class": operation,
        "tenant": _first(attributes, _USER),
        "session": _first(attributes, _SESSION),
        "streaming": attributes.get("gen_ai.request.stream"),
        "observed_e2e_s": _seconds(start, _first(span, ("endTimeUnixNano", "end_time"))),
    }
    if _found(span, ("status.",), ("code", "status_code")) in _ERROR_CODES:
        row["drop"] = "failed"
    return row


def _objects(value: Any) -> list[Record]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _attributes(value: Any) -> Record:
    """Return attributes as a dictionary; OTLP has a list of key and value."""
    if isinstance(value, dict):
        return value
    return {str(item.get("key")): _scalar(item.get("value")) for item in _objects(value)}


def _scalar(value: Any) -> Any:
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _first(table: Record, keys: tuple[str, ...]) -> Any:
    return next((table[key] for key in keys if table.get(key) is not None), None)


def _seconds(start: Any, end: Any) -> float | None:
    """Return end − start of OTLP nanoseconds; None for other times."""
    try:
        return (int(end) - int(start)) / 1e9
    except (TypeError, ValueError, OverflowError):
        return None


VLLM_BENCH = _layout_of_rows(
    "vllm-bench",
    ("arrival_s", "prompt_tokens", "output_tokens", "observed_e2e_s"),
    "Arrivals are the client's send times, counted from the first.",
)
"""Results of ``vllm bench serve --save-result --save-detailed``: one object, lists by request.

Source: vllm-project/vllm, vllm/benchmarks/serve.py: ``input_lens``, ``output_lens``, ``ttfts``
(s), ``itls`` (s), ``start_times`` (s of a monotonic clock, absent before 2025), ``errors``.
"""


def _is_vllm_bench(record: Record) -> bool:
    return "input_lens" in record or {"request_throughput", "total_input_tokens"} <= set(record)


def _vllm_rows(record: Record, path: Path) -> Iterator[Row]:
    """Yield one row per request of a result.

    Raises :class:`DataError` if the lists by request are absent or of unequal length.
    """
    lists: dict[str, list[Any]] = {}
    for key in ("start_times", "input_lens", "output_lens"):
        found = record.get(key)
        if not isinstance(found, list):
            rule = "a list by request (run with --save-detailed, a vLLM that saves start_times)"
            raise DataError(rule, where=path, field=key)
        lists[key] = found
    sizes = {key: len(found) for key, found in lists.items()}
    if len(set(sizes.values())) > 1:
        raise DataError("lists of one length", where=path, value=sizes)
    first = min((s for s in lists["start_times"] if _is_number(s)), default=0.0)
    latency, errors = _vllm_latencies(record), record.get("errors")
    for i, (start, prompt, output) in enumerate(zip(*lists.values(), strict=True)):
        row: Row = {
            "arrival_s": start - first if _is_number(start) else start,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "observed_e2e_s": latency[i] if i < len(latency) else None,
        }
        if isinstance(errors, list) and i < len(errors) and errors[i]:
            row["drop"] = "failed"
        yield row


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) < 2.0**63 and math.isfinite(value)


def _vllm_latencies(record: Record) -> list[float | None]:
    """Return E2E by request: TTFT + the sum of the gaps between tokens."""
    ttfts, itls = record.get("ttfts"), record.get("itls")
    if not isinstance(ttfts, list) or not isinstance(itls, list) or len(ttfts) != len(itls):
        return []
    parts: list[list[Any]] = [
        [ttft, *gaps] if isinstance(gaps, list) else [None]
        for ttft, gaps in zip(ttfts, itls, strict=True)
    ]
    return [math.fsum(p) if all(map(_is_number, p)) else None for p in parts]


MOONCAKE = Layout(
    format="mooncake",
    columns={
        "arrival_s": "timestamp",
        "prompt_tokens": "input_length",
        "output_tokens": "output_length",
        "prefix_blocks": "hash_ids",
    },
    units={"arrival_s": "ms"},
    unit_is_assumed=True,
    prefix_block_tokens=512,
)
"""Source: kvcache-ai/Mooncake (FAST'25), FAST25-release/traces: fields of the published files."""

BAILIAN = Layout(
    format="bailian",
    columns={
        "request_id": "chat_id",
        "arrival_s": "timestamp",
        "prompt_tokens": "input_length",
        "output_tokens": "output_length",
        "request_class": "type",
        "session": "parent_chat_id",
        "prefix_blocks": "hash_ids",
    },
    units={"arrival_s": "s"},
    prefix_block_tokens=16,
    also_required=("request_id",),
    notes=("A session is a chat and every chat that leads back to it by parent_chat_id.",),
)
"""Qwen-Bailian traces: Mooncake's fields in seconds, 16-token blocks, chats with a parent chat.

Source: alibaba-edu/qwen-bailian-usagetraces-anon, README ("Data Specification of the Traces").
"""

_NO_PARENT = ("-1", "", "-1.0", None)


def with_sessions(batches: Iterable[RawBatch]) -> Iterator[RawBatch]:
    """Yield rows of Bailian with the first chat of each conversation as the session."""
    roots: dict[str, str] = {}
    for batch in batches:
        if "session" not in batch.columns:
            yield batch
            continue
        chats, parents = (_texts(batch.columns[name]) for name in ("request_id", "session"))
        sessions = [_root(chat, parent, roots) for chat, parent in zip(chats, parents, strict=True)]
        yield replace(batch, columns={**batch.columns, "session": text_array(sessions)})


def _texts(array: Any) -> list[str | None]:
    return [None if value is None else str(value) for value in array.to_pylist()]


def _root(chat: str | None, parent: str | None, roots: dict[str, str]) -> str | None:
    if chat is None:
        return None
    known = chat if parent in _NO_PARENT or parent is None else roots.get(parent, parent)
    roots[chat] = known
    return known


def _has_fields(fields: Iterable[str], record: Record) -> bool:
    return set(fields) <= set(record)


JSON_FORMATS = {
    form.layout.format: form
    for form in (
        JsonFormat(layout=VLLM_BENCH, matches=_is_vllm_bench, rows=_vllm_rows, is_run=True),
        JsonFormat(layout=OTEL, matches=_is_otel, rows=_otel_rows),
        JsonFormat(
            layout=OPENAI_LOG,
            matches=lambda record: _openai_usage(record) is not None,
            rows=_openai_rows,
        ),
        JsonFormat(layout=BAILIAN, matches=partial(_has_fields, BAILIAN.required())),
        JsonFormat(
            layout=MOONCAKE,
            matches=lambda record: (
                _has_fields(MOONCAKE.columns.values(), record) and "chat_id" not in record
            ),
        ),
    )
}
"""Every published JSON format by name. A new one is a :class:`JsonFormat` here."""
