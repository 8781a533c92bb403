"""The conclusion of a study: what each page found, and the verdict over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.display import once
from capplan.formatting import counted, format_value, in_layer, listed, named, rule_words

if TYPE_CHECKING:
    from capplan.pages.page import Page
    from capplan.results import RunResult
    from capplan.slo import Verdict

UNKNOWN = "unknown"
SILENT = ("pass", "told")
"""Outcomes that are no warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one page says: its outcome, a sentence, and the artefact it stands in."""

    part: str
    outcome: str
    said: str
    artefact: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conclusion:
    """The verdict over all pages, with what each of them found."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    """Of the simulated run of the scenario as it is."""
    figures: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """Return the worst outcome of the pages that are about promises; one missing is unknown."""
        from capplan.slo import worst

        return worst(finding.outcome for finding in self.findings if finding.outcome != "told")

    @property
    def decisive(self) -> list[Finding]:
        """Return the findings whose outcome is the conclusion's."""
        return [finding for finding in self.findings if finding.outcome == self.outcome]

    @property
    def defaults(self) -> list[str]:
        """Return the rules whose limit is a default, not a promise."""
        return sorted({rule_words(reason.rule) for reason in self.verdict.defaults})

    @property
    def unknowns(self) -> list[str]:
        """Return the parts of which nothing is known."""
        return [finding.part for finding in self.findings if finding.outcome == UNKNOWN]

    def table(self) -> pd.DataFrame:
        """Return the findings, one row per part."""
        return pd.DataFrame(
            [(f.part, f.outcome, f.said, f.artefact) for f in self.findings],
            columns=["part", "outcome", "finding", "artefact"],
        )

    def reasons(self) -> pd.DataFrame:
        """Return the reasons of the run's verdict that are not a pass, or all where all are."""
        kept = [r for r in self.verdict.reasons if r.outcome != "pass"] or self.verdict.reasons
        return pd.DataFrame(
            [
                {
                    "outcome": r.outcome,
                    "class": r.request_class or "all",
                    "rule": rule_words(r.rule),
                    "evidence": r.evidence,
                    "origin of the limit": r.origin or "",
                    "next action": r.next_action,
                }
                for r in kept
            ]
        )

    def said(self) -> str:
        """Return the verdict, its scope and what it rests on: the first lines of a report."""
        scope = self.verdict.scope
        low, high = scope.load_range_rps
        decisive = listed(f.part for f in self.decisive)
        defaults = listed(self.defaults, none="none")
        return (
            f"**Verdict: {self.outcome}**, decided by: {decisive}.\n\n"
            f"**Scope:** {named(scope.model, none='no model named')} on "
            f"{named(scope.accelerator, none='no accelerator named')}, {scope.backend}, at "
            f"{format_value(low, '_rps')} to {format_value(high, '_rps')}, with this page's input lengths. Asked "
            f"about anything else, the answer is *unknown*.\n\n"
            f"**Limits that are defaults, not promises:** {defaults}.\n\n"
            f"**Not known:** {listed(self.unknowns, none='nothing that was asked')}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the artefact that the report's first page is made from."""
        return {
            "verdict": {
                "outcome": self.outcome,
                "reasons": [reason.to_json() for reason in self._reasons()],
                "scope": self.verdict.to_json()["scope"],
                "defaults": self.defaults,
            },
            "parts": [
                {"part": f.part, "outcome": f.outcome, "said": f.said, "artefact": f.artefact}
                for f in self.findings
            ],
            "figures": self.figures_table().to_dict("records"),
            "warnings": [
                *(
                    f"{f.part}: {f.said}"
                    for f in self.findings
                    if f.outcome not in ("pass", "told")
                ),
                *(f"The limit of {rule} is a default, not a promise." for rule in self.defaults),
            ],
            "assumptions": list(self.notes),
        }

    def figures_table(self) -> pd.DataFrame:
        """Return the run's key figures: name, value, unit."""
        rows = [(name, self.figures.get(key), unit) for name, key, unit in FIGURES]
        for name, own in self.figures["by_class"].items():
            rows.append((f"{name}: share with every promise kept", own["goodput_fraction"], ""))
            rows.append((f"{name}: E2E p99, failures infinite", own["e2e_censored_s"]["p99"], "s"))
        return pd.DataFrame(rows, columns=["name", "value", "unit"], dtype=object)

    def _reasons(self) -> list[Any]:
        kept = [r for r in self.verdict.reasons if r.outcome != "pass"]
        return kept or list(self.verdict.reasons)


FIGURES = (
    ("requests offered", "offered", ""),
    ("goodput", "goodput_rps", "requests/s"),
    ("share with every promise kept", "goodput_fraction", ""),
    ("throughput", "throughput_rps", "requests/s"),
    ("error rate", "error_rate_fraction", ""),
    ("timeout rate", "timeout_fraction", ""),
    ("retry amplification", "retry_amplification", ""),
    ("accelerators busy", "accelerator_busy_fraction", ""),
    ("cost per success", "cost_usd_per_success", "USD"),
)
"""Key figures of a conclusion: name, key of the headline, unit."""


def conclude(page: Page, result: RunResult, *, notes: tuple[str, ...] = ()) -> Conclusion:
    """Return the conclusion over what the pages left and a run of the scenario as it is."""
    from capplan.results import headline
    from capplan.slo import judge

    figures = headline(result)
    verdict = judge(result)
    run = Finding(part="promises", outcome=verdict.outcome, said=str(verdict), artefact="")
    return Conclusion(
        findings=(
            _profile(page),
            _budget(page),
            _window(page),
            _stages(page),
            _margin(page),
            run,
        ),
        verdict=verdict,
        figures=figures,
        notes=notes,
    )


def _profile(page: Page) -> Finding:
    found = page.find("profile.json")
    if found is None:
        return _missing("traffic", "profile.json")
    text = (
        f"{format_value(found['rate_rps'], '_rps')}, CV of gaps {format_value(found['gap_cv'])}, prompts p99 "
        f"{format_value(found['prompt_tokens']['p99'], '_tokens')}, outputs p99 "
        f"{format_value(found['output_tokens']['p99'], '_tokens')}"
    )
    return Finding(part="traffic", outcome="told", said=text, artefact="profile.json")


def _budget(page: Page) -> Finding:
    found = page.find("budget.json")
    if found is None:
        return _missing("wait budget", "budget.json")
    reasons = found["verdict"]["reasons"]
    text = "every limit is what the promises leave"
    if reasons:
        first, more = reasons[0], counted(len(reasons) - 1, "more finding")
        text = f"{rule_words(first['rule'])}: {first['next_action']} (and {more})"
    return Finding(
        part="wait budget", outcome=found["verdict"]["outcome"], said=text, artefact="budget.json"
    )


def _window(page: Page) -> Finding:
    from capplan.slo import worst

    found = page.find("chosen_point.json")
    if found is None:
        return _missing("batch window", "chosen_point.json")
    pools = found["pools"]
    return Finding(
        part="batch window",
        outcome=worst(pool["outcome"] for pool in pools),
        said=" ".join(pool["said"] for pool in pools),
        artefact="chosen_point.json",
    )


def _stages(page: Page) -> Finding:
    name = "stages/summary.json"
    found = page.find(name)
    if found is None:
        return _missing("load", name)
    first = found["first_degradation"]
    steps = [stage["load_rps"] for stage in found["stages"] if stage["kind"] == "ramp"]
    text = f"no promise broken up to {format_value(max(steps, default=None), '_rps')}"
    if first is not None:
        text = (
            f"first broken: {first['request_class']}, {rule_words(first['promise'])}, "
            f"{in_layer(first['layer'])}, at {format_value(first['load_rps'], '_rps')}; "
            f"surely none up to {format_value(first['interval'][0], '_rps')}"
        )
    acted = [p["boundary"] for p in found["protective_actions"] if p["acted"]]
    own = [name for name in acted if not name.startswith("classes.")]  # what is no caller's
    text += f". Limits that acted: {listed(own)}"
    return Finding(part="load", outcome=found["verdict"]["outcome"], said=text, artefact=name)


def _margin(page: Page) -> Finding:
    found = page.find("capacity_table.json")
    if found is None:
        return _missing("failure margin", "capacity_table.json")
    numbers = [
        f"{'none' if replicas is None else replicas} with {lost} lost"
        for lost, replicas in found["replicas"].items()
    ]
    return Finding(
        part="failure margin",
        outcome=found["verdict"]["outcome"],
        said=f"replicas of {found['pool']} that keep every promise: {listed(numbers)}",
        artefact="capacity_table.json",
    )


def _missing(part: str, name: str) -> Finding:
    return Finding(part=part, outcome=UNKNOWN, said="its page has not run", artefact=name)


WAITING = ("service_queue", "scheduler_queue", "batch_window")


def time_by_layer(result: RunResult) -> pd.DataFrame:
    """Return the mean time of successes in each layer: request_class, layer, mean_s."""
    from capplan.results import segments

    done = result.judged[result.judged["outcome"] == "succeeded"]
    parts = segments(done).assign(request_class=done["request_class"])
    long = parts.drop(columns="send_lag_s").melt(
        "request_class", var_name="layer", value_name="mean_s"
    )
    means = long.groupby(["request_class", "layer"], sort=False, observed=True)["mean_s"].mean()
    frame = means.reset_index()
    return frame.assign(layer=frame["layer"].str.removesuffix("_s")).dropna()


def capacity_table(page: Page) -> pd.DataFrame:
    """Return the capacity table that the sizing page left; without rows where it has not run."""
    found = page.find("capacity_table.json") or {"capacity_table": []}
    columns = ["row", "class_group", "load_rps", "replicas", "protective_action", "evidence"]
    table = pd.DataFrame(found["capacity_table"], columns=columns)
    return table.assign(
        load_rps=pd.to_numeric(table["load_rps"]),
        protective_action=once(table["protective_action"]),
    )
