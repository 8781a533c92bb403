"""What the notebooks concluded, as the first page of a report tells it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from capplan.schema import DataError

CONCLUSION = "conclusion.json"
"""Artefact of the last notebook. Keys, all optional: ``verdict`` (``outcome``, ``reasons``,
``scope``), ``parts`` (what each page found: ``part``, ``outcome``, ``said``, ``artefact``),
``figures`` (a list of ``name``, ``value``, ``unit``, or a mapping of names to values),
``warnings`` and ``assumptions`` (lists of sentences)."""

OUTCOMES = ("pass", "fail", "blocked", "retest", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The verdict of a study, its key figures, and the sentences that qualify it."""

    outcome: str
    reasons: tuple[Mapping[str, Any], ...] = ()
    scope: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    parts: tuple[Mapping[str, Any], ...] = ()
    figures: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def verdict(self) -> dict[str, Any]:
        """Return the verdict as a manifest holds it."""
        scope = dict(self.scope)
        return {"outcome": self.outcome, "reasons": list(self.reasons), "scope": scope}

    @property
    def held(self) -> tuple[Mapping[str, Any], ...]:
        """Return the reasons that speak for a pass."""
        return tuple(reason for reason in self.reasons if reason.get("outcome") == "pass")

    @property
    def open(self) -> tuple[Mapping[str, Any], ...]:
        """Return the reasons that do not speak for a pass."""
        return tuple(reason for reason in self.reasons if reason.get("outcome") != "pass")


def read_conclusion(run_folder: Path) -> Conclusion:
    """Return the conclusion that the notebooks left; *unknown* where they left none.

    Raises DataError where the file has another form.
    """
    path = run_folder / CONCLUSION
    if not path.exists():
        return Conclusion(outcome="unknown", warnings=("No notebook left a conclusion.",))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise DataError(f"JSON ({err})", where=path) from err
    verdict = data.get("verdict") or {}
    outcome = verdict.get("outcome", "unknown")
    if outcome not in OUTCOMES:
        rule = f"one of {', '.join(OUTCOMES)}"
        raise DataError(rule, where=path, field="verdict.outcome", value=outcome)
    return Conclusion(
        outcome=outcome,
        reasons=tuple(verdict.get("reasons") or ()),
        scope=verdict.get("scope") or {},
        parts=tuple(data.get("parts") or ()),
        figures=tuple(_figures(data.get("figures") or ())),
        warnings=tuple(map(str, data.get("warnings") or ())),
        assumptions=tuple(map(str, data.get("assumptions") or ())),
    )


def _figures(stated: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(stated, Mapping):
        return ({"name": name, "value": value} for name, value in stated.items())
    return (figure for figure in stated if isinstance(figure, Mapping))
