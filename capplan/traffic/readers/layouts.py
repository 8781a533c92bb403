"""How the columns of a file map to ours: the published tables, and tables with plain names.

Sources: column names as in the headers of the published files — Azure/AzurePublicDataset (2023,
2024), HPMLL/BurstGPT, Mutinifni/splitwise-sim, microsoft/vidur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from capplan.schema import TRACE, DataError, names
from capplan.traffic.readers import recordings, repeats
from capplan.traffic.readers.unserved import marks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the columns of one format map to ours."""

    format: str
    """Name of the format."""
    columns: Mapping[str, str]
    """Our column → column of the file; a dotted one reaches into nested objects."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Our column → ``s``, ``ms``, ``us`` or ``ns``."""
    unit_is_assumed: bool = False
    """The unit of times is the format's, and files of other tools in that form have another."""
    exact_times: bool = False
    """Times are the trace's own seconds: neither shifted nor spread."""
    zero_reason: str | None = "zero_tokens"
    """Ledger reason for a row without prompt or output tokens; None keeps such rows."""
    prefix_block_tokens: int | None = None
    """Tokens in a prefix block."""
    guessed: bool = False
    """The column of arrivals was taken for its name alone, one that others use for durations."""
    duration_s: float | None = None
    """Observation window, if the format states it."""
    notes: tuple[str, ...] = ()
    """Sentences about what the mapping assumes."""
    also_required: tuple[str, ...] = ()
    """Columns of ours, beside the required ones, without which a file is not of this format."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Columns of the file that mark refused and failed calls, or name a run; keys as in
    :func:`capplan.traffic.readers.unserved.marks_of` and ``recordings.columns_of``."""

    def required(self) -> set[str]:
        """Return the columns of the file without which it is not of this format."""
        return {self.columns[ours] for ours in (*REQUIRED, *self.also_required)}

    def among(self, columns: Sequence[str]) -> Layout | None:
        """Return the layout of the columns that a file has; None if it lacks a required one."""
        if not self.required() <= set(columns):
            return None
        present = {ours: theirs for ours, theirs in self.columns.items() if theirs in columns}
        return replace(self, columns=present)


REQUIRED = tuple(c.name for c in TRACE if c.required)


def layout_of_rows(name: str, columns: tuple[str, ...], *notes: str) -> Layout:
    """Return the layout of a format whose rows a reader makes under our own names."""
    return Layout(format=name, columns={column: column for column in columns}, notes=notes)


AZURE = Layout(
    format="azure",
    columns={
        "arrival_s": "TIMESTAMP",
        "prompt_tokens": "ContextTokens",
        "output_tokens": "GeneratedTokens",
    },
)
BURSTGPT = Layout(
    format="burstgpt",
    columns={
        "arrival_s": "Timestamp",
        "prompt_tokens": "Request tokens",
        "output_tokens": "Response tokens",
        "request_class": "Log Type",
        "session": "Session ID",
        "tenant": "Model",
        "observed_e2e_s": "Elapsed time",
    },
    units={"arrival_s": "s"},
    zero_reason="failed",
    notes=(
        "The model called is read as the tenant, the log type as the class.",
        "A row with no tokens is a failed request of the source.",
    ),
)
SPLITWISE = Layout(
    format="splitwise",
    columns={
        "request_id": "request_id",
        "arrival_s": "arrival_timestamp",
        "prompt_tokens": "prompt_size",
        "output_tokens": "token_size",
        "request_class": "request_type",
        "tenant": "application_id",
    },
    exact_times=True,
)
VIDUR = Layout(
    format="vidur",
    columns={
        "arrival_s": "arrived_at",
        "prompt_tokens": "num_prefill_tokens",
        "output_tokens": "num_decode_tokens",
    },
    exact_times=True,
)
TABLE_LAYOUTS = {layout.format: layout for layout in (AZURE, BURSTGPT, SPLITWISE, VIDUR)}
"""The published tables by format. A new one is a :class:`Layout` here."""

EXACT = ("arrival_s", "intended_start_s", "sent_s")
"""Columns of times that count from the start of the trace, in s."""
ALIASES: Mapping[str, tuple[str, ...]] = {
    "arrival_s": (
        "arrival_s", "arrival", "arrival_time", "arrived_at", "intended_start_s", "sent_s",
        "timestamp", "time", "ts", "datetime", "created_at", "created", "start_time",
        "request_time", "timestamp_ms", "time_ms", "ts_ms", "arrival_ms", "arrival_time_ms",
        "timestamp_us", "timestamp_ns", "starttime", "@timestamp", "time_iso8601", "time_local",
        "msec",
    ),
    "prompt_tokens": (
        "prompt_tokens", "input_tokens", "input_length", "prompt_length", "context_tokens",
        "num_prefill_tokens", "request_tokens", "contexttokens", "prompt_len", "input_len",
        "llm_input_token", "genai_tokens_input", "gen_ai_usage_input_tokens", "usage_input",
        "usagedetails_input",
    ),
    "output_tokens": (
        "output_tokens", "completion_tokens", "generated_tokens", "output_length",
        "num_decode_tokens", "response_tokens", "generatedtokens", "output_len",
        "llm_output_token", "genai_tokens_output", "gen_ai_usage_output_tokens", "usage_output",
        "usagedetails_output",
    ),
    "request_id": ("request_id", "id"),
    "request_class": ("request_class", "class"),
    "tenant": ("tenant", "tenant_id"),
    "session": ("session", "session_id", "conversation_id"),
    "priority": ("priority",),
    "streaming": ("streaming", "stream"),
    "deadline_s": ("deadline_s", "timeout_s", "deadline_ms", "timeout_ms"),
    "size": ("size",),
    "prefix_blocks": ("prefix_blocks", "hash_ids"),
    "observed_e2e_s": ("observed_e2e_s", "e2e_s", "latency_s", "e2e_ms", "latency_ms"),
}  # fmt: skip
"""Names under which plain tables hold our columns, our own name first.

Those of gateways: LiteLLM spend logs (``startTime``), nginx ``ngx_http_log_module``, Elastic
(``@timestamp``), Envoy and Envoy AI Gateway access logs, Langfuse observations (``usageDetails``).
"""


def plain_layout(
    columns: Sequence[str],
    *,
    format: str,
    where: str,
    mapping: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> Layout:
    """Return the layout of a table with named columns.

    Our own names are taken as they are, then ``mapping`` (ours → theirs), then the well-known names
    of :data:`ALIASES`, which the notes list.
    Raises :class:`DataError` if a required column is absent, a name fits two columns, or a column
    occurs twice.
    """
    _check_names(mapping, units, where)
    found: dict[str, str] = dict(mapping or {})
    absent = [theirs for theirs in found.values() if theirs not in columns]
    if absent:
        rule = f"a column of the file ({_few(columns)})"
        raise DataError(rule, where=where, field="mapping", value=", ".join(absent))
    notes: list[str] = []
    for ours in ALIASES:
        if ours in found:
            continue
        match = _match(ours, columns, taken=set(found.values()), where=where)
        if match is not None:
            found[ours] = match
            if match != ours:
                notes.append(f"Column {match!r} is read as {ours}.")
    missing = [ours for ours in REQUIRED if ours not in found]
    if missing:
        rule = f"a column for it among {_few(columns)}, or a mapping"
        raise DataError(rule, where=where, field=", ".join(missing))
    folded = {c: _folded(c) for c in columns if c not in found.values()}
    marks = marks_of(folded)
    other = {**repeats.columns_of(folded.items()), **recordings.columns_of(folded.items())}
    notes += [f"Column {name!r} marks refused and failed calls." for name in marks.values()]
    used = {*found.values(), *marks.values(), *other.values()}
    unused = [c for c in columns if c not in used]
    if unused:
        notes.append(f"Columns not used: {_few(unused)}.")
    twice = [name for name, n in Counter(columns).items() if n > 1 and name in found.values()]
    if twice:
        raise DataError("each column once", where=where, field=", ".join(twice))
    return Layout(
        format=format,
        columns=found,
        units={**_units_by_name(found), **(units or {})},
        exact_times=found["arrival_s"] in EXACT,
        guessed="arrival_s" not in (mapping or {}) and found["arrival_s"] not in EXACT,
        notes=tuple(notes),
        marks={**marks, **other},
    )


def _check_names(
    mapping: Mapping[str, str] | None, units: Mapping[str, str] | None, where: str
) -> None:
    """Check that the keys of ``mapping`` and ``units`` are our columns, and the units known."""
    ours = names(TRACE)
    for field_name, table in (("mapping", mapping), ("units", units)):
        for key in table or {}:
            if key not in ours:
                rule = f"a column of a trace ({', '.join(ours)})"
                raise DataError(rule, where=where, field=field_name, value=key)
    for unit in (units or {}).values():
        if unit not in ("s", "ms", "us", "ns"):
            raise DataError("s, ms, us or ns", where=where, field="units", value=unit)


def _match(ours: str, columns: Sequence[str], *, taken: set[str], where: str) -> str | None:
    if ours in columns:
        return ours
    wanted = ALIASES[ours]
    hits = [c for c in dict.fromkeys(columns) if _folded(c) in wanted and c not in taken]
    if len(hits) > 1:
        rule = "one column for it; name it in a mapping"
        raise DataError(rule, where=where, field=ours, value=", ".join(hits))
    return hits[0] if hits else None


def _folded(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_").replace(".", "_")


def _units_by_name(columns: Mapping[str, str]) -> dict[str, str]:
    ends = {ours: _folded(theirs).rpartition("_")[2] for ours, theirs in columns.items()}
    timed = ("arrival_s", "deadline_s", "observed_e2e_s")
    return {o: end for o, end in ends.items() if o in timed and end in ("ms", "us", "ns")}


def _few(columns: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(_short(name) for name in columns[:most]) or "no columns"
    return shown if len(columns) <= most else f"{shown}, …"


def _short(name: str, most: int = 40) -> str:
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return printable if len(printable) <= most else f"{printable[:most]}…"
