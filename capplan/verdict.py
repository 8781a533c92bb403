"""Reasons and verdicts: what each rule found, the outcome over all of them, and its scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import counted, format_value, rule_words
from capplan.scenario.part import Origin

Outcome = Literal["pass", "fail", "blocked", "retest", "unknown"]
PRECEDENCE: tuple[Outcome, ...] = ("blocked", "fail", "unknown", "retest", "pass")
"""The overall outcome, of a run as of a budget, is the first of these that any reason has. Blocked
comes first: with unclear responsibility nothing is proven, and no failure has an owner; unknown
(this run cannot decide) comes before retest (more of the same would)."""

LOAD_TOLERANCE = 0.01
"""How far beyond the range it ran at a verdict still answers: the range is itself an estimate."""

SUMMARIES: Mapping[Outcome, str] = {
    "pass": "every promise holds",
    "fail": "a promise is broken",
    "blocked": "responsibility must be fixed first",
    "retest": "the evidence is too thin to decide",
    "unknown": "the run cannot tell",
}


VERDICT_KEYS = (
    "rule",
    "outcome",
    "value",
    "limit",
    "evidence",
    "next_action",
    "request_class",
    "origin",
    "window",
)
"""Parts of each reason in the document of a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a run: when it starts, from the start of the run, and its length."""

    start_s: float
    length_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """What one rule found. ``value`` and ``limit`` are None if there is no number."""

    rule: str
    outcome: Outcome
    value: float | str | None = None
    limit: float | str | None = None
    evidence: str = ""
    next_action: str = ""
    """What to do about it; a rule that passes needs nothing done, so it is empty there."""
    request_class: str | None = None
    origin: Origin | None = None
    """Where the limit comes from; ``default`` = this project's, not a promise of yours."""
    pool: str = ""
    field: str = ""
    """Dotted path of the scenario's field that the rule is about; empty if there is none."""
    samples_missing: int = 0
    """How many more samples would decide it; 0 if samples are not what is missing."""
    window: Window | None = None
    """The part of the run that ``value`` is of; None = all of it."""

    def __post_init__(self) -> None:
        if self.outcome == "pass":
            object.__setattr__(self, "next_action", "")

    @property
    def rank(self) -> int:
        """Return the place of its outcome in :data:`PRECEDENCE`: the lowest decides."""
        return PRECEDENCE.index(self.outcome)

    def to_json(self, keys: Sequence[str] = VERDICT_KEYS) -> dict[str, Any]:
        """Return the named parts of the reason as plain JSON values."""
        return {name: plain(getattr(self, name)) for name in keys}


def checked(
    rule: str,
    holds: bool,
    *,
    evidence: str,
    next_action: str,
    value: float | str | None = None,
    limit: float | str | None = None,
    request_class: str | None = None,
    origin: Origin | None = None,
) -> Reason:
    """Return the reason of a rule that passes if it holds and fails if not."""
    return Reason(
        rule=rule,
        outcome="pass" if holds else "fail",
        value=value,
        limit=limit,
        evidence=evidence,
        next_action=next_action,
        request_class=request_class,
        origin=origin,
    )


def unknown(
    rule: str, evidence: str, *, next_action: str = "measure it", request_class: str | None = None
) -> Reason:
    """Return the reason of a rule that the run cannot decide."""
    return Reason(
        rule=rule,
        outcome="unknown",
        evidence=evidence,
        next_action=next_action,
        request_class=request_class,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a verdict speaks of. Asked about anything else, it is unknown."""

    model: tuple[str, ...]
    accelerator: tuple[str, ...]
    versions: Mapping[str, str]
    input_distribution: Mapping[str, Mapping[str, Any]]
    """By class: number of requests, quantiles of prompt and output tokens."""
    load_range_rps: tuple[float, float]
    """Least and greatest offered load, over a minute or a tenth of the run."""
    window_s: tuple[float, float]
    backend: str = "simulated"


def _numbers(reason: Reason) -> str:
    """Return the field, value and limit of a reason without other evidence."""
    value, limit = (format_value(part, reason.field) for part in (reason.value, reason.limit))
    return f"{reason.field}: {value}" + ("" if reason.limit is None else f", limit {limit}")


def reason_table(reasons: Iterable[Reason], *, passed: bool = False) -> pd.DataFrame:
    """Return what each rule found and what to do: the reasons that are not a pass.

    All of them if ``passed``, or if all pass.
    """
    every = tuple(reasons)
    kept = [r for r in every if passed or r.outcome != "pass"] or every
    rows = [
        (
            r.outcome,
            rule_words(r.rule),
            r.request_class or "all",
            r.evidence or _numbers(r),
            r.origin or "",
            r.next_action,
        )
        for r in kept
    ]
    heads = ["outcome", "rule", "class", "evidence", "limit from", "next action"]
    return pd.DataFrame(rows, columns=heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Displayed):
    """The outcome, by :data:`PRECEDENCE` over the reasons, and the scope it holds in."""

    reasons: tuple[Reason, ...]
    scope: Scope
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", worst(r.outcome for r in self.reasons))

    @property
    def decisive(self) -> tuple[Reason, ...]:
        """Return the reasons whose outcome is the verdict's."""
        return tuple(r for r in self.reasons if r.outcome == self.outcome)

    @property
    def defaults(self) -> tuple[Reason, ...]:
        """Return the reasons whose limit is a default, not a promise."""
        return tuple(r for r in self.reasons if r.origin == "default")

    def asked(
        self,
        *,
        load_rps: float | None = None,
        model: str | None = None,
        accelerator: str | None = None,
        request_class: str | None = None,
        prompt_tokens: float | None = None,
    ) -> Verdict:
        """Return the verdict for a question: itself within its scope, else one that is unknown."""
        scope = self.scope
        low, high = scope.load_range_rps
        known = scope.input_distribution
        lengths = [d["prompt_tokens"] for n, d in known.items() if request_class in (None, n)]
        outside = {
            "load_rps": load_rps is not None
            and not low * (1 - LOAD_TOLERANCE) <= load_rps <= high * (1 + LOAD_TOLERANCE),
            "model": model is not None and model not in scope.model,
            "accelerator": accelerator is not None and accelerator not in scope.accelerator,
            "request_class": request_class is not None and request_class not in known,
            "prompt_tokens": prompt_tokens is not None
            and not any(one["min"] <= prompt_tokens <= one["max"] for one in lengths),
        }
        fields = [name for name, is_outside in outside.items() if is_outside]
        return self.outside(fields) if fields else self

    def outside(self, fields: Sequence[str]) -> Verdict:
        """Return an unknown verdict, because these fields of the question are out of scope."""
        reason = Reason(
            rule="scope",
            outcome="unknown",
            value=", ".join(fields),
            limit=None,
            evidence=f"the run does not cover another {', '.join(fields)}",
            next_action="run the scenario that is asked about",
        )
        return replace(self, reasons=(reason,))

    def to_json(self) -> dict[str, Any]:
        """Return ``{"outcome", "reasons": […], "scope": {…}, "defaults": […]}``, plain values."""
        return {
            "outcome": self.outcome,
            "summary": self.summary(),
            "reasons": [reason.to_json() for reason in self.reasons],
            "scope": plain(self.scope),
            "defaults": sorted({reason.rule for reason in self.defaults}),
        }

    def table(self) -> pd.DataFrame:
        """Return the reasons that are not a pass, or all if all pass; columns in words."""
        return reason_table(self.reasons)

    def summary(self) -> str:
        """Return the verdict in one sentence."""
        text = f"{self.outcome}: {SUMMARIES[self.outcome]}"
        if self.outcome == "pass":
            text += f" ({counted(len(self.reasons), 'rule')} checked)"
        elif self.decisive:
            first, *more = self.decisive
            front = f"{first.request_class}: " if first.request_class else ""
            text += f"; {front}{first.evidence}"
            text += f" (and {len(more)} more)" if more else ""
        if rests := sorted({r.rule for r in self.decisive if r.origin == "default"}):
            text += f"; rests on a default, not your promise: {', '.join(rests).replace('_', ' ')}"
        return text + "."


def worst(outcomes: Any) -> Outcome:
    """Return the first outcome by :data:`PRECEDENCE`; nothing judged is unknown.

    >>> worst(["pass", "retest", "fail"]), worst([])
    ('fail', 'unknown')
    """
    found = set(outcomes)
    return next((outcome for outcome in PRECEDENCE if outcome in found), "unknown")
