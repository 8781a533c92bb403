"""Results of load testers that tell every request, as rows of a measured run.

Each is known by its keys:

- ``vllm bench serve --save-result --save-detailed`` (vllm-project/vllm, ``benchmarks/serve.py``,
  2026): one object of lists by request, ``start_times``, ``input_lens``, ``output_lens``,
  ``ttfts``, ``itls`` in s, ``errors``; ``sglang.bench_serving --output-file --output-details``
  (sgl-project/sglang, ``docs/developer_guide/bench_serving.md``, 2026) writes the same lists as one
  line, in some versions without ``start_times``;
- AIPerf (ai-dynamo/aiperf, ``docs/tutorials/working-with-profile-exports.md`` at 13992db, 2026):
  ``profile_export.jsonl``, a line per request with ``metadata`` and ``metrics``;
- GuideLLM (vllm-project/guidellm, ``schemas/request_stats.py`` at 06cef29, ``schemas/info.py`` at
  04fcfd8, 2026): a report with ``benchmarks``, of each its ``requests`` by how they ended.

What others write lacks what a replay needs: LLMPerf's ``individual_responses.json`` and older files
of bench_serving when a request was sent, GenAI-Perf's ``profile_export.json`` and k6 how many
tokens, Locust's statistics the single requests. That is what their error says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from capplan.schema import DataError

LISTS = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
"""Seconds of AIPerf's units."""

LACKING = {
    "experiments": "GenAI-Perf's profile_export.json tells no token counts: use AIPerf's "
    "profile_export.jsonl",
    "end_to_end_latency_s": "LLMPerf's individual responses do not say when a request was sent",
    "metric_name": "k6's CSV tells no token counts of a request",
    "Request Count": "Locust's statistics tell no single requests",
}
"""A key that tells a file which cannot be replayed, and why."""


def from_record(record: Any, path: Path) -> pd.DataFrame:
    """Return the rows of a load tester's JSON file.

    Raises :class:`DataError` saying what the file lacks, or that it is of no known tester.
    """
    refuse(record[0] if isinstance(record, list) and record else record, path)
    if isinstance(record, Mapping) and "benchmarks" in record:
        return _guidellm(record, path)
    return _lists(record, path)


def from_lines(records: Sequence[Mapping[str, Any]], path: Path) -> pd.DataFrame | None:
    """Return the rows of a load tester's JSON lines; None for lines that are rows themselves."""
    first = records[0] if records else {}
    refuse(first, path)
    if "metadata" in first and "metrics" in first:
        return _aiperf(records, path)
    if "ttfts" not in first:
        return None
    if len(records) > 1:
        raise DataError("one run a file", where=path, value=f"{len(records)} lines of runs")
    return _lists(first, path)


def refuse(keys: Any, path: Path) -> None:
    """Raise :class:`DataError` for the columns or keys of a file that cannot be replayed."""
    if not isinstance(keys, Iterable):
        return
    found = set(keys) if not isinstance(keys, str) else set()
    for key, why in LACKING.items():
        if key in found:
            raise DataError(f"requests with start, tokens and latency ({why})", where=path)


def _lists(record: Any, path: Path) -> pd.DataFrame:
    lists: dict[str, Any] = {
        key: record.get(key) if isinstance(record, Mapping) else None for key in LISTS
    }
    for key, values in lists.items():
        if not isinstance(values, list):
            rule = "a list by request (--save-detailed or --output-details)"
            raise DataError(rule, where=path, field=key)
    if len({len(values) for values in lists.values()}) > 1:
        raise DataError("lists of one length", where=path)
    errors = record.get("errors") or [""] * len(lists["ttfts"])
    failed = pd.Series([bool(error) for error in errors], dtype=bool)
    ttft = pd.Series(lists["ttfts"], dtype="float64").mask(failed)
    gaps = pd.Series([sum(gaps) for gaps in lists["itls"]], dtype="float64")
    return pd.DataFrame(
        {
            "sent_s": lists["start_times"],
            "prompt_tokens": lists["input_lens"],
            "output_tokens": lists["output_lens"],
            "ttft_s": ttft,
            "e2e_s": ttft + gaps,
            "outcome": failed.map({True: "failed", False: "succeeded"}),
        }
    )


def _aiperf(records: Sequence[Mapping[str, Any]], path: Path) -> pd.DataFrame:
    rows = []
    for number, record in enumerate(records, 1):
        about, metrics = record["metadata"], record["metrics"] or {}
        if about.get("benchmark_phase", "profiling") != "profiling":
            continue
        where = f"{path}, line {number}"
        rows.append(
            {
                "sent_s": about["request_start_ns"] * UNITS["ns"],
                "prompt_tokens": _value(metrics, "input_sequence_length", where)
                or _value(metrics, "error_isl", where),
                "output_tokens": _value(metrics, "output_sequence_length", where),
                "ttft_s": _seconds(metrics, "time_to_first_token", where),
                "e2e_s": _seconds(metrics, "request_latency", where),
                "outcome": _ended(about, record.get("error")),
            }
        )
    return pd.DataFrame(rows)


def _ended(about: Mapping[str, Any], error: Any) -> str:
    if about.get("was_cancelled"):
        return "cancelled"
    return "failed" if error else "succeeded"


def _value(metrics: Mapping[str, Any], name: str, where: str) -> float | None:
    found = metrics.get(name)
    if found is None:
        return None
    value = found.get("value") if isinstance(found, Mapping) else found
    if not isinstance(value, int | float):
        raise DataError("a number", where=where, field=name, value=value)
    return float(value)


def _seconds(metrics: Mapping[str, Any], name: str, where: str) -> float | None:
    value = _value(metrics, name, where)
    if value is None:
        return None
    unit = metrics[name].get("unit") if isinstance(metrics[name], Mapping) else None
    if unit not in UNITS:
        raise DataError(f"a unit of {', '.join(UNITS)}", where=where, field=name, value=unit)
    return value * UNITS[unit]


OUTCOMES = {"successful": "succeeded", "errored": "failed", "incomplete": "cancelled"}


def _guidellm(record: Mapping[str, Any], path: Path) -> pd.DataFrame:
    runs = record["benchmarks"]
    if not isinstance(runs, list) or len(runs) != 1:
        told = len(runs) if isinstance(runs, list) else runs
        raise DataError("one benchmark a file", where=path, field="benchmarks", value=told)
    requests = runs[0].get("requests")
    if not isinstance(requests, Mapping) or not set(OUTCOMES) & set(requests):
        rule = f"requests by {', '.join(OUTCOMES)}"
        raise DataError(rule, where=path, field="benchmarks.0.requests")
    return pd.DataFrame(
        [_guided(one, OUTCOMES[kind]) for kind in OUTCOMES for one in requests.get(kind) or []]
    )


def _guided(one: Mapping[str, Any], outcome: str) -> dict[str, Any]:
    times = one["info"]["timings"]
    start, first = times.get("request_start"), times.get("first_token_iteration")
    end = times.get("request_end")
    begun = start if start is not None else times.get("resolve_start")
    return {
        "sent_s": begun,
        "prompt_tokens": one.get("prompt_tokens"),
        "output_tokens": one.get("output_tokens"),
        "ttft_s": None if first is None or start is None else first - start,
        "e2e_s": None if end is None or start is None else end - start,
        "outcome": outcome,
    }
