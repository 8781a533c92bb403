"""Files of load testers: which tool wrote one, its requests, or what it lacks for a replay.

A form is recognised by its keys (:data:`FORMS`). Sources of the forms, read 2026-11:
vllm-project/vllm ``benchmarks/serve.py``; sgl-project/sglang ``bench_serving.md``;
vllm-project/guidellm ``schemas/request_stats.py`` (0.4 and newer) and ``objects/statistics.py``
(0.2, 0.3); ai-dynamo/aiperf ``working-with-profile-exports.md`` and the example exports of 0.1;
kubernetes-sigs/inference-perf ``docs/reports.md``; ray-project/llmperf; JMeter "Listeners", CSV
log format; Grafana k6 "CSV" and "JSON" outputs; Locust "Retrieve test statistics".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from capplan.schema import DataError

Record = Mapping[str, Any]
Row = dict[str, Any]
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
"""Seconds of the units that load testers write."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The requests of a file, its tool, the rows dropped by reason, the columns not used."""

    frame: pd.DataFrame
    tool: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


class NotOfTheRunError(ValueError):
    """A record that is readable, and no part of the run; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A file that a load tester writes.

    ``has`` are keys that each file of the form has. ``requests`` yields the raw requests of the
    whole file and ``row`` reads one; without them the file cannot be replayed and ``lacks`` says
    what is missing and which option of that tool writes it.
    """

    tool: str
    has: tuple[str, ...]
    requests: Callable[[Any, Path], Iterable[Any]] | None = None
    row: Callable[[Any], Row] | None = None
    lacks: str = ""


def read_form(content: Any, path: Path) -> Rows | None:
    """Return the requests of a load tester's file; None if no form has its keys.

    ``content`` is what the file holds: a mapping, or a list of mappings (JSON lines, CSV rows).
    Raises :class:`DataError` naming the tool and what the file lacks.
    """
    first = content[0] if isinstance(content, list) and content else content
    keys = set(first) if isinstance(first, Mapping) else set()
    if "backend" in keys and str(first["backend"]).startswith("sglang"):
        keys.add("tag")  # older versions of SGLang's bench write no tag
    form = form_of(keys)
    if form is None:
        return None
    if form.requests is None or form.row is None:
        rule = "start, tokens and latency of each request"
        raise DataError(f"{rule}; this file of {form.tool} lacks {form.lacks}", where=path)
    rows: list[Row] = []
    dropped: Counter[str] = Counter()
    for request in form.requests(content, path):
        try:
            rows.append(form.row(request))
        except NotOfTheRunError as err:
            dropped[str(err)] += 1
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            dropped[f"unreadable ({type(err).__name__}: {err})"] += 1
    return Rows(frame=pd.DataFrame(rows), tool=form.tool, dropped=dropped)


def form_of(keys: Iterable[str]) -> Form | None:
    """Return the first form all of whose keys are there; None if there is none.

    >>> form_of(["timeStamp", "elapsed", "label"]).tool
    'JMeter'
    """
    known = set(keys)
    return next((form for form in FORMS if known.issuperset(form.has)), None)


def _each(content: Any, path: Path) -> Iterable[Any]:
    return content if isinstance(content, list) else [content]


# ------------------------------------------------------------------ vLLM and SGLang bench


LISTS = ("start_times", "input_lens", "output_lens", "ttfts", "itls")


def _lists(content: Any, path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield start, lengths, TTFT, gaps and error of each request of one run."""
    if isinstance(content, list) and len(content) != 1:
        raise DataError("one run a file", where=path, value=f"{len(content)} lines of runs")
    record = content[0] if isinstance(content, list) else content
    lists = [record[name] for name in LISTS]
    for name, values in zip(LISTS, lists, strict=True):
        if not isinstance(values, list):
            raise DataError("a list by request", where=path, field=name, value=values)
    if len({len(values) for values in lists}) > 1:
        raise DataError("lists of one length", where=path, field=", ".join(LISTS))
    errors = record.get("errors") or [""] * len(lists[0])
    yield from zip(*lists, errors, strict=True)


def _listed(request: tuple[Any, ...]) -> Row:
    start, prompt, output, ttft, gaps, error = request
    return {
        "sent_s": float(start),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "ttft_s": None if error else float(ttft),
        "e2e_s": None if error else float(ttft) + sum(gaps),
        "outcome": "failed" if error else "succeeded",
    }


# ------------------------------------------------------------------ GuideLLM

ENDS = {"successful": "succeeded", "errored": "failed", "incomplete": "cancelled"}


def _guidellm(content: Any, path: Path) -> Iterator[tuple[str, Record]]:
    """Yield outcome and request of a report of one benchmark."""
    runs = content["benchmarks"]
    if not isinstance(runs, list) or len(runs) != 1:
        found = len(runs) if isinstance(runs, list) else runs
        rule = "one benchmark a file (GuideLLM writes one for a single --rate)"
        raise DataError(rule, where=path, field="benchmarks", value=found)
    requests = runs[0].get("requests")
    if not isinstance(requests, Mapping) or not set(ENDS) & set(requests):
        rule = f"requests by {', '.join(ENDS)}"
        raise DataError(rule, where=path, field="benchmarks.0.requests")
    for end, outcome in ENDS.items():
        yield from ((outcome, request) for request in requests.get(end) or [])


def _guided(request: tuple[str, Record]) -> Row:
    outcome, one = request
    if "info" in one:  # 0.4 and newer
        times = one["info"]["timings"]
        start, first, end = (
            times.get(n) for n in ("request_start", "first_token_iteration", "request_end")
        )
        sent = start if start is not None else times["resolve_start"]
    else:  # 0.2 and 0.3
        start, first, end = (one.get(n) for n in ("start_time", "first_token_time", "end_time"))
        sent = one["start_time"]
    return {
        "sent_s": sent,
        "prompt_tokens": one.get("prompt_tokens"),
        "output_tokens": one.get("output_tokens"),
        "ttft_s": None if first is None or start is None else first - start,
        "e2e_s": None if end is None or start is None else end - start,
        "outcome": outcome,
    }


# ------------------------------------------------------------------ AIPerf


def _aiperf(record: Record) -> Row:
    about, metrics, error = record["metadata"], record["metrics"] or {}, record.get("error")
    if about.get("benchmark_phase", about.get("credit_phase", "profiling")) != "profiling":
        raise NotOfTheRunError("of the warm-up, though the server carried it")
    start_ns = about["request_start_ns"] if "request_start_ns" in about else about["timestamp_ns"]
    prompt = _value(metrics, "input_sequence_length")
    outcome = "cancelled" if about.get("was_cancelled") else "failed" if error else "succeeded"
    return {
        "sent_s": start_ns * UNITS["ns"],
        "prompt_tokens": prompt if prompt is not None else _value(metrics, "error_isl"),
        "output_tokens": _value(metrics, "output_sequence_length"),
        "ttft_s": _seconds(metrics, "time_to_first_token", "ttft"),
        "e2e_s": _seconds(metrics, "request_latency"),
        "outcome": outcome,
    }


def _value(metrics: Record, name: str) -> float | None:
    found = metrics.get(name)
    value = found.get("value") if isinstance(found, Mapping) else found
    return None if value is None else float(value)


def _seconds(metrics: Record, *names: str) -> float | None:
    """Return the first of some metrics that is there, in s; ValueError for an unknown unit."""
    for name in names:
        value = _value(metrics, name)
        if value is not None:
            unit = metrics[name].get("unit") if isinstance(metrics[name], Mapping) else None
            if unit not in UNITS:
                msg = f"{name}: a unit of {', '.join(UNITS)}, got {unit!r}"
                raise ValueError(msg)
            return value * UNITS[unit]
    return None


# ------------------------------------------------------------------ inference-perf, JMeter


def _lifecycle(record: Record) -> Row:
    info, start, end = record["info"], float(record["start_time"]), float(record["end_time"])
    times: Sequence[float] = info.get("output_token_times") or ()
    failed = bool(record.get("error"))
    return {
        "sent_s": start,
        "prompt_tokens": info["input_tokens"],
        "output_tokens": info["output_tokens"],
        "ttft_s": float(times[0]) - start if times and not failed else None,
        "e2e_s": None if failed else end - start,
        "outcome": "failed" if failed else "succeeded",
    }


def _jmeter(row: Record) -> Row:
    failed = str(row.get("success", "true")).strip().lower() != "true"
    return {
        "sent_s": float(row["timeStamp"]) * UNITS["ms"],
        "prompt_tokens": row["prompt_tokens"],
        "output_tokens": row["output_tokens"],
        "e2e_s": None if failed else float(row["elapsed"]) * UNITS["ms"],
        "outcome": "failed" if failed else "succeeded",
    }


NO_OPTION = "and no option writes them"
FORMS = (
    Form(tool="vLLM or SGLang bench", has=LISTS, requests=_lists, row=_listed),
    Form(tool="SGLang bench_serving", has=("tag", "ttfts", "itls"),
         lacks="start_times, which this version does not write with --output-details"),
    Form(tool="vLLM bench serve", has=("ttfts", "itls"),
         lacks="start_times, which this version does not write with --save-detailed"),
    Form(tool="SGLang bench_serving", has=("tag", "completed"),
         lacks="single requests: --output-details writes them"),
    Form(tool="vLLM bench serve", has=("completed", "request_throughput"),
         lacks="single requests: --save-result --save-detailed writes them"),
    Form(tool="GuideLLM", has=("benchmarks",), requests=_guidellm, row=_guided),
    Form(tool="AIPerf", has=("metadata", "metrics"), requests=_each, row=_aiperf),
    Form(tool="AIPerf", has=("request_latency", "input_config"),
         lacks="single requests: --export-level records writes profile_export.jsonl"),
    Form(tool="inference-perf", has=("start_time", "end_time", "info"),
         requests=_each, row=_lifecycle),
    Form(tool="inference-perf", has=("load_summary",),
         lacks="single requests: report.request_lifecycle.per_request: true writes them"),
    Form(tool="GenAI-Perf or Perf Analyzer", has=("experiments",),
         lacks=f"token counts of requests, {NO_OPTION} to profile_export.json"),
    Form(tool="GenAI-Perf", has=("request_throughput", "request_latency"),
         lacks=f"single requests with token counts, {NO_OPTION}"),
    Form(tool="Perf Analyzer", has=("Concurrency", "Inferences/Second"),
         lacks=f"single requests with token counts, {NO_OPTION}"),
    Form(tool="LLMPerf", has=("end_to_end_latency_s",),
         lacks=f"start times of requests, {NO_OPTION}"),
    Form(tool="JMeter", has=("timeStamp", "elapsed", "prompt_tokens", "output_tokens"),
         requests=_each, row=_jmeter),
    Form(tool="JMeter", has=("timeStamp", "elapsed"),
         lacks="token counts: the property sample_variables=prompt_tokens,output_tokens writes "
               "variables of those names"),
    Form(tool="k6", has=("metric_name", "metric_value"),
         lacks=f"token counts of a request, {NO_OPTION}"),
    Form(tool="k6", has=("type", "metric", "data"),
         lacks=f"token counts of a request, {NO_OPTION}"),
    Form(tool="k6", has=("root_group", "metrics"),
         lacks=f"single requests with token counts, {NO_OPTION}"),
    Form(tool="Locust", has=("Request Count", "Failure Count"),
         lacks=f"single requests with token counts, {NO_OPTION}; log them in a request event"),
    Form(tool="Locust", has=("User Count", "Timestamp"),
         lacks=f"single requests with token counts, {NO_OPTION}; log them in a request event"),
)  # fmt: skip
"""The known forms, the more special first."""
TOOLS = tuple(dict.fromkeys(form.tool for form in FORMS if form.requests))
