"""A decision and its clauses, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from capplan.display import Displayed, html_text
from capplan.encoding import plain
from capplan.verdict import Outcome, worst

STATES = "states"
"""Outcome of a clause that states something and promises nothing."""
FIRST = ("fail", "blocked")
"""Outcomes of the clauses that come before all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One clause: what it is about, its outcome, the sentence, and the run that shows it."""

    clause: str
    outcome: str
    """Of a verdict, or ``states``."""
    text: str
    evidence: str = ""

    def line(self) -> str:
        """Return the clause as a line of Markdown."""
        mark = "" if self.outcome in (STATES, "pass") else f" **{self.outcome}**:"
        run = f" [{self.evidence}]" if self.evidence else ""
        return f"**{self.clause}:**{mark} {self.text}.{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Displayed):
    """The clauses of a decision, all about one configuration; those that fail come first."""

    replicas: int | None
    """Of the sized pool; None if no number is shown to hold."""
    clauses: tuple[Clause, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Gateway and pools as they are to be set, by dotted path."""

    def __post_init__(self) -> None:
        ordered = sorted(self.clauses, key=lambda one: one.outcome not in FIRST)
        object.__setattr__(self, "clauses", tuple(ordered))

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the clauses."""
        return worst(one.outcome for one in self.clauses)

    def summary(self) -> str:
        """Return the decision as Markdown, a paragraph a clause."""
        return "\n\n".join([f"**Decision: {self.outcome}**", *(c.line() for c in self.clauses)])

    def table(self) -> pd.DataFrame:
        """Return one row per clause: clause, outcome, text, evidence."""
        return pd.DataFrame(plain(self.clauses), columns=list(Clause.__slots__))

    def as_text(self) -> str:
        """Return the decision as plain text, a line a clause."""
        return str(self).replace("\n\n", "\n") + "\n"

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html_text(part)}</p>" for part in self.summary().split("\n\n"))

    def to_json(self) -> dict[str, Any]:
        """Return ``{"outcome", "replicas", "clauses": […], "settings": {…}}``, plain values."""
        parts = {name: plain(getattr(self, name)) for name in self.__slots__}
        return {"outcome": self.outcome, **parts}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """Return the decision of a document that :meth:`to_json` wrote."""
        clauses = tuple(Clause(**one) for one in data["clauses"])
        return cls(replicas=data["replicas"], clauses=clauses, settings=data["settings"])
