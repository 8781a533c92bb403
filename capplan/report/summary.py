"""The first page of a report: verdict, figures, what they rest on, and the way to the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.display import html_text, table
from capplan.evidence import Inputs, RunRecord
from capplan.formatting import counted, format_nested, format_value
from capplan.pages.conclusion import Conclusion
from capplan.report.pages import ReportPage, exporter, style_sheet
from capplan.scenario.files import scenario_hash
from capplan.verdict import reason_table

if TYPE_CHECKING:
    import pandas as pd

    from capplan.verdict import Reason

INDEX = "index.html"


def report_title(inputs: Inputs) -> str:
    """Return the title that every page of a report carries."""
    return f"Capacity of {inputs.scenario.name}"


def write_summary(
    folder: Path,
    *,
    inputs: Inputs,
    record: RunRecord,
    conclusion: Conclusion,
    pages: Sequence[ReportPage],
) -> Path:
    """Write the index page into a folder and return its path."""
    environment = exporter().environment
    environment.filters.update(
        text=html_text, table=_table, reasons=_reasons, shown=lambda one: one._repr_html_()
    )
    html: str = environment.get_template("summary.html.j2").render(
        title=report_title(inputs),
        css=style_sheet(),
        description=inputs.scenario.description,
        conclusion=conclusion,
        pages=pages,
        scope=scope_lines(conclusion.scope),
        facts=facts(inputs, record),
    )
    target = folder / INDEX
    target.write_text(html, encoding="utf-8")
    return target


def facts(inputs: Inputs, record: RunRecord) -> list[tuple[str, Any]]:
    """Return names and values of the inputs of a report and of the versions that made it."""
    trace = inputs.trace
    rows: list[tuple[str, Any]] = [
        ("scenario", inputs.scenario.name),
        ("scenario, SHA-256 of its values", scenario_hash(inputs.scenario)),
        (
            "trace",
            f"{trace.source}, {counted(trace.rows, 'request')}"
            if trace
            else "none: drawn from laws",
        ),
    ]
    if trace:
        rows.append(("trace, SHA-256 of its rows", trace.content_sha256))
    if trace and trace.file_sha256:
        rows.append(("trace, SHA-256 of its file", trace.file_sha256))
    rows += [("seed", inputs.seed), ("run", record.run_id)]
    rows += [(f"-p {name}", value) for name, value in inputs.asked["parameters"].items()]
    rows.append(("versions", format_nested(record.manifest["versions"])))
    rows.append(("written", record.manifest["circumstances"]["written_at"]))
    return rows


def scope_lines(scope: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the scope of a verdict as names and lines of text."""
    readers: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
        "input_distribution": ("input distribution", _distribution),
        "load_range_rps": ("load", lambda ends: [f"{_ends(ends)} requests/s"]),
        "window_s": ("time judged", lambda ends: [f"{_ends(ends)} s from the start"]),
        "model": ("model", _named),
        "accelerator": ("accelerator", _named),
    }
    lines = []
    for name, value in scope.items():
        title, read = readers.get(
            name, (name.replace("_", " "), lambda other: [format_nested(other)])
        )
        lines.append((title, read(value)))
    return lines


def _named(names: Sequence[str]) -> list[str]:
    return ["a pool that names none" if name == "unnamed" else name for name in names]


def _ends(ends: Sequence[Any]) -> str:
    return " to ".join(map(format_value, ends))


def _distribution(classes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"{name}: {counted(own['requests'], 'request')}, "
        f"prompts of {_lengths(own['prompt_tokens'])}, outputs of {_lengths(own['output_tokens'])}"
        for name, own in classes.items()
    ]


def _lengths(tokens: Mapping[str, Any]) -> str:
    low, high, middle, long = (
        format_value(_whole(tokens[n])) for n in ("min", "max", "p50", "p95")
    )
    return f"{low} to {high} tokens (p50 {middle}, p95 {long})"


def _whole(tokens: Any) -> Any:
    """Return a number of tokens as the whole number it is, anything else as it is."""
    return int(tokens) if isinstance(tokens, float) and tokens.is_integer() else tokens


def _table(frame: pd.DataFrame) -> str:
    return table(frame, rows=len(frame))._repr_html_()


def _reasons(reasons: Sequence[Reason]) -> str:
    return _table(reason_table(reasons))
