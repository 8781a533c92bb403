"""Qwen-Bailian traces: Mooncake's fields in seconds, 16-token blocks, chats that go on.

Source: alibaba-edu/qwen-bailian-usagetraces-anon, README ("Data Specification of the Traces").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from capplan.traffic.readers.layouts import Layout
from capplan.traffic.readers.raw import RawBatch, text_array

LAYOUT = Layout(
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
    notes=("A session is a chat with all that go back to it through parent_chat_id.",),
)
NO_PARENT = ("-1", "", "-1.0", None)


def looks_like(columns: tuple[str, ...]) -> bool:
    """Tell whether the fields of a record are those of these traces."""
    return {"chat_id", "timestamp", "input_length", "output_length"} <= set(columns)


def with_sessions(batches: Iterable[RawBatch]) -> Iterator[RawBatch]:
    """Yield the rows with the first chat of each conversation as the session."""
    roots: dict[str, str] = {}
    for batch in batches:
        if "session" not in batch.columns:
            yield batch
            continue
        chats = _texts(batch.columns["request_id"])
        parents = _texts(batch.columns["session"])
        sessions = [_root(chat, parent, roots) for chat, parent in zip(chats, parents, strict=True)]
        yield replace(batch, columns={**batch.columns, "session": text_array(sessions)})


def _texts(array: Any) -> list[str | None]:
    return [None if value is None else str(value) for value in array.to_pylist()]


def _root(chat: str | None, parent: str | None, roots: dict[str, str]) -> str | None:
    if chat is None:
        return None
    known = chat if parent in NO_PARENT or parent is None else roots.get(parent, parent)
    roots[chat] = known
    return known
