"""A batch of rows as a file holds them, before any value is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawBatch:
    """Rows under our column names with whatever type the file gave them.

    Attributes
    ----------
    columns
        Arrow arrays by column of :data:`capplan.schema.TRACE`, all ``rows`` long.
    rows
        Rows in the arrays.
    lost
        Rows that did not even make it into the arrays, by ledger reason.
    drops
        Per row the ledger reason for which the reader drops it, or ``""``; None = none.
    """

    columns: Mapping[str, Any]
    rows: int
    lost: Mapping[str, int] = field(default_factory=dict)
    drops: Any = None


def text_array(values: Iterable[Any]) -> Any:
    """Return scalars of any type as an Arrow array of text, so that one parser judges them."""
    texts = [_text(value) for value in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # a lone surrogate, written as \ud800 in JSON
        clean = [t if t is None else t.encode("utf-8", "replace").decode() for t in texts]
        return pa.array(clean, pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return f"{type(value).__name__}"


def field_array(name: str, values: list[Any]) -> Any:
    """Return a column of ours as an Arrow array: lists for prefix ids, text for all else."""
    return block_array(values) if name == "prefix_blocks" else text_array(values)


def block_array(values: Iterable[Any]) -> Any:
    """Return lists of prefix ids as an Arrow list array; what is not a list of ids is null."""
    lists = [v if isinstance(v, list) and v else None for v in values]
    for kind in (pa.int64(), pa.string()):
        try:
            return pa.array(lists, pa.list_(kind))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            continue
    texts = [None if v is None else text_array(v).to_pylist() for v in lists]
    return pa.array(texts, pa.list_(pa.string()))
