"""The conclusion of a study: what each page found, and the verdict over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.decision import Clause, Decision, decide
from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import counted, format_value, in_layer, listed, named, rule_words
from capplan.replica.assumptions import rests_on
from capplan.replica.utilisation import utilisation_table
from capplan.schema import DataError
from capplan.sizing.table import DOES_NOT_APPLY, operating_limits, row_outcome, unknown_rows
from capplan.verdict import PRECEDENCE, Reason, reason_table, worst

if TYPE_CHECKING:
    from capplan.pages.page import Page
    from capplan.results import RunResult
    from capplan.verdict import Verdict

CONCLUSION = "conclusion.json"
"""Artefact of the last notebook: ``decision`` (of :mod:`capplan.decision`), ``verdict``
(``outcome``, ``reasons``, ``scope``, ``defaults``), ``parts``,
``limits`` (the capacity table), ``figures`` (``name``, ``value``, ``unit``, or a mapping
of names to values), ``warnings`` and ``assumptions`` (lists of sentences). No key is required."""
DESCRIPTION = "description"
"""Outcome of a part that describes and makes no promise."""
DECIDED = ("load", "failure margin")
"""Parts that clauses of the decision are about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPart:
    """What one page contributes: its outcome, a sentence, and the artefact that holds it."""

    part: str
    outcome: str
    finding: str
    artefact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conclusion(Displayed):
    """The verdict of a study, the parts and reasons that decide it, and what qualifies it."""

    outcome: str
    decision: Decision | None = None
    parts: tuple[StudyPart, ...] = ()
    reasons: tuple[Reason, ...] = ()
    """Of the simulated run of the scenario as it is."""
    scope: Mapping[str, Any] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()
    """Rules whose limit is a default, not a promise."""
    limits: tuple[Mapping[str, Any], ...] = ()
    """The capacity table that the sizing page left, row by row."""
    figures: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def unknowns(self) -> list[str]:
        """Return the parts whose outcome is unknown, and the limits that no run decided."""
        parts = [one.part for one in self.parts if one.outcome == "unknown"]
        return parts + unknown_rows(self.limits)

    @property
    def held(self) -> tuple[Reason, ...]:
        """Return the reasons that speak for a pass."""
        return tuple(reason for reason in self.reasons if reason.outcome == "pass")

    @property
    def open(self) -> tuple[Reason, ...]:
        """Return the reasons that do not speak for a pass."""
        return tuple(reason for reason in self.reasons if reason.outcome != "pass")

    @property
    def verdict(self) -> dict[str, Any]:
        """Return the verdict as a manifest holds it."""
        reasons = [reason.to_json() for reason in self.reasons]
        scope = dict(self.scope)
        return {"outcome": self.outcome, "reasons": reasons, "scope": scope,
                "defaults": list(self.defaults)}  # fmt: skip

    def summary(self) -> str:
        """Return the verdict, its scope and what it rests on: the first lines of a report."""
        decisive = listed(one.part for one in self.parts if one.outcome == self.outcome)
        return "\n\n".join(
            (
                f"**Verdict: {self.outcome}**, decided by: {decisive}.",
                f"**Scope:** {self._scope()} Asked about anything else, the answer is unknown.",
                f"**Limits that are defaults, not promises:** {listed(self.defaults)}.",
                f"**Not known:** {listed(self.unknowns, none='nothing that was asked')}.",
            )
        )

    def _scope(self) -> str:
        if not self.scope:
            return "not stated."
        low, high = (format_value(end, "_rps") for end in self.scope["load_range_rps"])
        return (
            f"{named(self.scope['model'], none='no model named')} on "
            f"{named(self.scope['accelerator'], none='no accelerator named')}, "
            f"{self.scope['backend']}, at {low} to {high}, with this page's input lengths."
        )

    def table(self) -> pd.DataFrame:
        """Return what each part found, one row a part."""
        rows = [(one.part, one.outcome, one.finding, one.artefact) for one in self.parts]
        return pd.DataFrame(rows, columns=["part", "outcome", "finding", "artefact"])

    def reason_table(self) -> pd.DataFrame:
        """Return the reasons of the run that are not a pass, or all if all pass."""
        return reason_table(self.reasons)

    def figure_table(self) -> pd.DataFrame:
        """Return the key figures of the run with their units, as text."""
        rows = []
        for one in self.figures:
            unit = one.get("unit", "")
            value = format_value(one["value"], SUFFIXES.get(unit, ""))
            rows.append((one["name"], value if unit in SUFFIXES else f"{value} {unit}"))
        return pd.DataFrame(rows, columns=["figure", "value"])

    def operating_limits(self) -> pd.DataFrame:
        """Return the operating limits: each load, its replicas, and the action that protects it."""
        return operating_limits(pd.DataFrame(list(self.limits)))

    def to_json(self) -> dict[str, Any]:
        """Return the artefact that the report's first page is made from."""
        return {
            "decision": plain(self.decision),
            "verdict": self.verdict,
            "parts": plain(self.parts),
            "limits": plain(self.limits),
            "figures": plain(self.figures),
            "warnings": list(self.warnings),
            "assumptions": list(self.assumptions),
        }


def read_conclusion(run_folder: Path, *, assumed: Iterable[str] = ()) -> Conclusion:
    """Return the conclusion in a run folder; *unknown* if no notebook left one.

    ``assumed`` joins its assumptions.

    Raises
    ------
    DataError
        If the file is not JSON, or has another form.
    """
    import json

    path = run_folder / CONCLUSION
    if not path.exists():
        none = "No notebook left a conclusion."
        return Conclusion(outcome="unknown", warnings=(none,), assumptions=tuple(assumed))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise DataError(f"JSON ({err})", where=path) from err
    verdict = data.get("verdict") or {}
    outcome = verdict.get("outcome", "unknown")
    if outcome not in PRECEDENCE:
        rule = f"one of {', '.join(PRECEDENCE)}"
        raise DataError(rule, where=path, field="verdict.outcome", value=outcome)
    try:
        parts = [StudyPart(**part) for part in data.get("parts") or ()]
        reasons = [_reason(reason, outcome) for reason in verdict.get("reasons") or ()]
        decision = Decision.from_json(data["decision"]) if data.get("decision") else None
    except (TypeError, KeyError) as err:
        raise DataError(f"the fields of a conclusion ({err})", where=path) from err
    return Conclusion(
        outcome=outcome,
        decision=decision,
        parts=tuple(parts),
        reasons=tuple(reasons),
        scope=verdict.get("scope") or {},
        defaults=tuple(verdict.get("defaults") or ()),
        limits=tuple(data.get("limits") or ()),
        figures=tuple(_named_figures(data.get("figures") or ())),
        warnings=tuple(data.get("warnings") or ()),
        assumptions=tuple(dict.fromkeys((*(data.get("assumptions") or ()), *assumed))),
    )


def _reason(data: Mapping[str, Any], outcome: str) -> Reason:
    missing = {"outcome": outcome, "value": None, "limit": None, "evidence": ""}
    return Reason(**{**missing, **data})


def _named_figures(stated: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(stated, Mapping):
        return ({"name": name, "value": value} for name, value in stated.items())
    return (figure for figure in stated if isinstance(figure, Mapping))


SUFFIXES = {"": "", "fraction": "_fraction", "requests/s": "_rps", "s": "_s",
            "USD": "_usd_per_success"}  # fmt: skip
"""Suffix of the quantities of each unit, by which they are formatted."""
FIGURES = (
    ("requests offered", "offered", ""),
    ("goodput", "goodput_rps", "requests/s"),
    ("share with every promise kept", "goodput_fraction", "fraction"),
    ("throughput", "throughput_rps", "requests/s"),
    ("error rate", "error_rate_fraction", "fraction"),
    ("timeout rate", "timeout_fraction", "fraction"),
    ("retry amplification", "retry_amplification", ""),
    ("accelerators busy", "accelerator_busy_fraction", "fraction"),
    ("cost per success", "cost_usd_per_success", "USD"),
)
"""Key figures of a conclusion: name, key of the headline, unit."""


def conclude(
    page: Page, result: RunResult, verdict: Verdict, *, notes: tuple[str, ...] = ()
) -> Conclusion:
    """Return the conclusion over what the pages left and a judged run of the scenario as it is."""
    notes = (*notes, *rests_on(page.scenario))
    run = StudyPart(part="promises", outcome=verdict.outcome, finding=verdict.summary())
    parts = (*_parts(page), run)
    defaults = sorted({rule_words(reason.rule) for reason in verdict.defaults})
    sized = page.find("capacity_table.json")
    decision = decide(
        page.scenario,
        sized,
        page.find("stages/summary.json"),
        assumed=notes,
        more=[
            Clause(
                clause=p.part.capitalize(),
                outcome=p.outcome,
                text=p.finding.removeprefix(f"{p.outcome}: ").removesuffix("."),
                evidence=p.artefact,
            )
            for p in parts
            if p.outcome not in ("pass", DESCRIPTION) and p.part not in DECIDED
        ],
    )
    open_parts = (p for p in parts if p.outcome not in ("pass", DESCRIPTION))
    return Conclusion(
        outcome=worst(p.outcome for p in parts if p.outcome != DESCRIPTION),
        decision=decision,
        parts=parts,
        reasons=verdict.reasons,
        scope=verdict.to_json()["scope"],
        defaults=tuple(defaults),
        limits=tuple((sized or {}).get("capacity_table", ())),
        figures=tuple(_figures(result)),
        warnings=(
            *(f"{p.part}: {p.finding}" for p in open_parts),
            *(f"The limit of {rule} is a default, not a promise." for rule in defaults),
        ),
        assumptions=(*notes, *(sized or {}).get("notes", ())),
    )


def _figures(result: RunResult) -> Iterator[Mapping[str, Any]]:
    from capplan.results import headline

    found = headline(result)
    for name, key, unit in FIGURES:
        yield {"name": name, "value": found.get(key), "unit": unit}
    for row in utilisation_table(result).to_dict("records"):
        what = f"{row['pool']}: share of the roofline reached"
        yield {"name": what, "value": row["utilisation_fraction"], "unit": "fraction"}
    for name, own in found["by_class"].items():
        shares = (("share with every promise kept", own["goodput_fraction"], "fraction"),
                  ("E2E p99, failures infinite", own["e2e_censored_s"]["p99"], "s"))  # fmt: skip
        for what, value, unit in shares:
            yield {"name": f"{name}: {what}", "value": value, "unit": unit}


def _parts(page: Page) -> Iterator[StudyPart]:
    """Yield what each page left in the run folder; *unknown* for a page that has not run."""
    readers = {
        ("traffic", "profile.json"): _traffic,
        ("wait budget", "budget.json"): _budget,
        ("batch window", "chosen_point.json"): _window,
        ("load", "stages/summary.json"): _load,
        ("failure margin", "capacity_table.json"): _margin,
    }
    for (part, name), read in readers.items():
        left = page.find(name)
        none = ("unknown", "its page has not run for this scenario")
        outcome, finding = none if left is None else read(left)
        yield StudyPart(part=part, outcome=outcome, finding=finding, artefact=name)


def _traffic(left: Any) -> tuple[str, str]:
    return DESCRIPTION, (
        f"{format_value(left['rate_rps'], '_rps')}, CV of gaps {format_value(left['gap_cv'])}, "
        f"prompts p99 {format_value(left['prompt_tokens']['p99'], '_tokens')}, outputs p99 "
        f"{format_value(left['output_tokens']['p99'], '_tokens')}"
    )


def _budget(left: Any) -> tuple[str, str]:
    reasons = left["verdict"]["reasons"]
    finding = "every limit is what the promises leave"
    if reasons:
        first, *others = reasons
        more = f" (and {counted(len(others), 'more finding')})" if others else ""
        finding = f"{rule_words(first['rule'])}: {first['next_action']}{more}"
    return left["verdict"]["outcome"], finding


def _window(left: Any) -> tuple[str, str]:
    pools = left["pools"]
    return worst(pool["outcome"] for pool in pools), " ".join(pool["finding"] for pool in pools)


def _load(left: Any) -> tuple[str, str]:
    first = left["first_degradation"]
    steps = [stage["load_rps"] for stage in left["stages"] if stage["kind"] == "ramp"]
    finding = "no ramp was run"
    if steps:
        finding = f"no promise broken up to {format_value(max(steps), '_rps')}"
    if first is not None:
        low = first["interval"][0]
        sure = "no load surely keeps all" if low is None else "surely none up to "
        finding = (
            f"first broken: {first['request_class']}, {rule_words(first['promise'])}, "
            f"{in_layer(first['layer'])}, at {format_value(first['load_rps'], '_rps')}; "
            f"{sure}{'' if low is None else format_value(low, '_rps')}"
        )
    if left["verdict"]["outcome"] == "blocked":
        why = left["verdict"]["summary"].removeprefix("blocked: ").removesuffix(".")
        finding = f"{why}; {finding}"
    acted = [p["boundary"] for p in left["protective_actions"] if p["acted"]]
    own = [name for name in acted if not name.startswith("classes.")]  # not a caller's deadline
    return left["verdict"]["outcome"], f"{finding}. Limits that acted: {listed(own)}"


def _margin(left: Any) -> tuple[str, str]:
    numbers = [
        f"{'none' if replicas is None else replicas} with {lost} lost"
        for lost, replicas in left["replicas"].items()
    ]
    finding = f"replicas of {left['pool']} that keep every promise: {listed(numbers)}"
    if "answer" in left:
        finding = f"{left['answer'].removesuffix('.')}; {finding}"
    rows = left.get("capacity_table", ())
    broken = [f"{row['row']}: {row['evidence']}" for row in rows if row_outcome(row) == "fail"]
    outcomes = [one for one in map(row_outcome, rows) if one != DOES_NOT_APPLY]
    return worst([left["verdict"]["outcome"], *outcomes]), "; ".join([finding, *broken])
