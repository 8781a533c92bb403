"""The published JSON formats: how a record of each is recognised, and the rows that it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from capplan.schema import DataError
from capplan.traffic.readers import otel
from capplan.traffic.readers.json_records import ERROR_STATUS, Record, Row, first, found
from capplan.traffic.readers.layouts import Layout, layout_of_rows
from capplan.traffic.readers.values import RawBatch, text_array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JsonFormat:
    """A format of JSON records."""

    layout: Layout
    """Its columns; under our own names if ``rows`` makes them."""
    matches: Callable[[Record], bool]
    """Whether a record is of this format."""
    rows: Callable[[Path], Callable[[Record], Iterator[Row]]] | None = None
    """What yields the requests that a record of a file holds; None: one, whose fields the layout
    names."""
    is_run: bool = False
    """Whether a record is a whole run, so that a file may hold one."""


OPENAI_LOG = layout_of_rows(
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


def _openai_rows(record: Record) -> Iterator[Row]:
    """Yield the row of one record; a failed call is marked to be dropped."""
    usage = _openai_usage(record) or {}
    stamp = found(record, ("", "request."), _STAMPS)
    session = ("session_id", "conversation_id", "metadata.session_id")
    row: Row = {
        "request_id": found(record, _RESPONSES, ("id", "request_id")),
        "arrival_s": found(record, _RESPONSES, ("created", "created_at"))
        if stamp is None
        else stamp,
        "prompt_tokens": first(usage, ("prompt_tokens", "input_tokens")),
        "output_tokens": first(usage, ("completion_tokens", "output_tokens")),
        "request_class": found(record, (*_RESPONSES, *_REQUESTS), ("model",)),
        "tenant": found(record, _REQUESTS, ("user", "tenant", "organization")),
        "session": found(record, _REQUESTS, session),
        "priority": found(record, _REQUESTS, ("priority",)),
        "streaming": found(record, _REQUESTS, ("stream",)),
        "deadline_s": found(record, _REQUESTS, ("timeout", "deadline_s")),
        "observed_e2e_s": found(record, ("",), ("latency_s", "duration_s", "e2e_s")),
    }
    if _openai_failed(record):
        row["drop"] = "failed"
    yield row


def _openai_usage(record: Record) -> dict[str, Any] | None:
    usage = found(record, _RESPONSES, ("usage",))
    known = isinstance(usage, dict) and {"prompt_tokens", "input_tokens"} & set(usage)
    return usage if known else None


def _openai_failed(record: Record) -> bool:
    status = found(record, ("", "response."), ("status_code", "http_status"))
    bad = isinstance(status, int) and not isinstance(status, bool) and status >= ERROR_STATUS
    return bad or bool(found(record, _RESPONSES, ("error",)))


VLLM_BENCH = layout_of_rows(
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


def _vllm_rows(path: Path, record: Record) -> Iterator[Row]:
    """Yield one row per request of a result.

    Raises :class:`DataError` if the lists by request are absent or of unequal length.
    """
    lists: dict[str, list[Any]] = {}
    for key in ("start_times", "input_lens", "output_lens"):
        values = record.get(key)
        if not isinstance(values, list):
            rule = "a list by request (run with --save-detailed, a vLLM that saves start_times)"
            raise DataError(rule, where=path, field=key)
        lists[key] = values
    sizes = {key: len(values) for key, values in lists.items()}
    if len(set(sizes.values())) > 1:
        raise DataError("lists of one length", where=path, value=sizes)
    begin = min((s for s in lists["start_times"] if _is_number(s)), default=0.0)
    latency, errors = _vllm_latencies(record), record.get("errors")
    for i, (start, prompt, output) in enumerate(zip(*lists.values(), strict=True)):
        row: Row = {
            "arrival_s": start - begin if _is_number(start) else start,
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
        JsonFormat(
            layout=VLLM_BENCH,
            matches=_is_vllm_bench,
            rows=lambda path: partial(_vllm_rows, path),
            is_run=True,
        ),
        JsonFormat(layout=otel.OTEL, matches=otel.matches, rows=otel.rows_of),
        JsonFormat(
            layout=OPENAI_LOG,
            matches=lambda record: _openai_usage(record) is not None,
            rows=lambda _: _openai_rows,
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
