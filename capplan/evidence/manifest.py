"""What a run was asked: the inputs that decide its tables, and the id that stands for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from capplan.evidence.circumstances import capplan_version
from capplan.evidence.hashing import content_hash, json_hash

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario

ID_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceIdentity:
    """Which trace went in: where it came from, and checksums of the file and of the rows."""

    source: str
    rows: int
    content_sha256: str
    file_sha256: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, trace: Any) -> Self:
        """Return the identity of a ``capplan.traffic.trace.Trace``, or of anything with a frame."""
        frame: pd.DataFrame = trace.frame
        return cls(
            source=str(getattr(trace, "source", "frame")),
            rows=len(frame),
            content_sha256=content_hash(frame),
            file_sha256=getattr(trace, "sha256", None),
            notes=tuple(getattr(trace, "notes", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything that decides a run's tables; ``asked`` holds what the kind of run adds.

    Where the trace was read from is told but does not count, only its rows do: the same study in
    another folder is the same run.
    """

    kind: str
    scenario: Scenario
    seed: int
    replication: int = 0
    trace: TraceIdentity | None = None
    backend: str = "simulated"
    asked: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def sha256(self) -> str:
        """Return the hash of what decides the tables, the version of capplan included."""
        scenario = self.scenario.model_dump(mode="json")
        scenario["traffic"] = {**scenario["traffic"], "trace": None}
        decides = {
            "kind": self.kind,
            "scenario": scenario,
            "trace": self.trace.content_sha256 if self.trace else None,
            "seed": self.seed,
            "replication": self.replication,
            "backend": self.backend,
            "asked": self.asked,
            "capplan": capplan_version(),
        }
        return json_hash(decides)

    @property
    def run_id(self) -> str:
        """Return the id of the run: the first digits of :attr:`sha256`."""
        return self.sha256[:ID_DIGITS]

    def to_json(self) -> dict[str, Any]:
        """Return the inputs in full, as the manifest holds them."""
        return {
            "scenario": self.scenario.model_dump(mode="json", exclude_unset=True),
            "trace": self.trace,
            "seed": self.seed,
            "replication": self.replication,
            "backend": self.backend,
            "asked": dict(self.asked),
            "sha256": self.sha256,
        }
