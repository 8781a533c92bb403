"""Results of ``vllm bench serve --save-result --save-detailed``: one object, lists by request.

Source: vllm-project/vllm, vllm/benchmarks/serve.py: ``input_lens``, ``output_lens``, ``ttfts``
(s), ``itls`` (s), ``start_times`` (s of a monotonic clock, absent before 2025), ``errors``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capplan.schema import DataError
from capplan.traffic.readers.layouts import Layout
from capplan.traffic.readers.records import Row

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "observed_e2e_s")
LAYOUT = Layout(
    format="vllm-bench",
    columns=dict(zip(COLUMNS, COLUMNS, strict=True)),
    notes=("Arrivals are the client's send times, counted from the first.",),
)


def looks_like(record: dict[str, Any]) -> bool:
    """Tell whether a record is a result of the benchmark."""
    return "input_lens" in record or {"request_throughput", "total_input_tokens"} <= set(record)


def rows(record: dict[str, Any], *, path: Path) -> Iterator[Row]:
    """Yield one row per request of a result.

    Raises
    ------
    DataError
        When the lists by request are absent or of unequal length.
    """
    lists = {key: record.get(key) for key in ("start_times", "input_lens", "output_lens")}
    for key, values in lists.items():
        if not isinstance(values, list):
            rule = "a list by request (run with --save-detailed, a vLLM that saves start_times)"
            raise DataError(rule, where=path, field=key)
    starts, prompts, outputs = lists.values()
    sizes = {key: len(values) for key, values in lists.items() if values is not None}
    if len(set(sizes.values())) > 1:
        raise DataError("lists of one length", where=path, value=sizes)
    first = min((s for s in starts or [] if _number(s)), default=0.0)
    latency, errors = _latencies(record), record.get("errors")
    for i, start in enumerate(starts or []):
        row: Row = {
            "arrival_s": start - first if _number(start) else start,
            "prompt_tokens": (prompts or [])[i],
            "output_tokens": (outputs or [])[i],
            "observed_e2e_s": latency[i] if i < len(latency) else None,
        }
        if isinstance(errors, list) and i < len(errors) and errors[i]:
            row["drop"] = "failed"
        yield row


def _number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) < 2.0**63 and math.isfinite(value)


def _latencies(record: dict[str, Any]) -> list[float | None]:
    """Return TTFT + the sum of the gaps between tokens, which is E2E."""
    ttfts, itls = record.get("ttfts"), record.get("itls")
    if not isinstance(ttfts, list) or not isinstance(itls, list) or len(ttfts) != len(itls):
        return []
    return [_total(t, gaps) for t, gaps in zip(ttfts, itls, strict=True)]


def _total(ttft: Any, gaps: Any) -> float | None:
    parts = [ttft, *gaps] if isinstance(gaps, list) else [None]
    known = [float(part) for part in parts if part is not None and _number(part)]
    return math.fsum(known) if len(known) == len(parts) else None
