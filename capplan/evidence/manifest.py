"""The identity of a run: its inputs, the checksums of tables and files, and the circumstances."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from capplan.encoding import plain

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario


def content_hash(frame: pd.DataFrame) -> str:
    """Return the SHA-256 of a table's values: names, order, rows; independent of their storage.

    Numbers count as float64 and all missing values as equal, so a table keeps its hash through
    Parquet.
    """
    digest = hashlib.sha256()
    for position, name in enumerate(frame.columns):
        digest.update(f"{name}\0{len(frame)}\0".encode())
        digest.update(_column_bytes(frame.iloc[:, position]))
    return digest.hexdigest()


def json_hash(value: Any) -> str:
    """Return the SHA-256 of a value's JSON with sorted keys.

    >>> json_hash({"a": 1, "b": 2}) == json_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hashes(folder: Path, *, leave_out: frozenset[str]) -> dict[str, str]:
    """Return the checksum of each file below a folder by its relative path, in order of path."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: file_hash(path)
        for name, path in sorted(files.items())
        if path.is_file() and name not in leave_out
    }


def _column_bytes(column: pd.Series[Any]) -> bytes:
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        numbers = column.to_numpy(dtype="float64", na_value=np.nan)
        return np.where(np.isnan(numbers), np.nan, numbers).astype("<f8").tobytes()
    if column.dtype == object:
        column = column.map(_without_lists)
    codes, values = pd.factorize(column)
    texts = json.dumps([str(value) for value in values], ensure_ascii=False)
    return codes.astype("<i8").tobytes() + texts.encode()


def _without_lists(value: Any) -> Any:
    """Return a list or an array as its JSON text; anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "i":
        return str(value.tolist())  # of whole numbers, that is their JSON
    is_nested = hasattr(value, "__len__") and not isinstance(value, str)
    return json.dumps(plain(value)) if is_nested else value


PACKAGES = ("numpy", "pandas", "scipy", "simpy", "pyarrow", "pydantic", "altair")
"""Packages whose version may change a figure or a picture."""

GIT_TIMEOUT_S = 5.0


def versions() -> dict[str, str]:
    """Return the versions of capplan, Python and the packages that may change a figure."""
    return {"capplan": capplan_version(), "python": platform.python_version(), **_packages()}


def capplan_version() -> str:
    """Return the version of this package."""
    import capplan

    return capplan.__version__


def circumstances(wall_s: float | None = None) -> dict[str, Any]:
    """Return time, duration and host of a run, and the state of the code's checkout.

    The environment is not recorded: it may contain secrets.
    """
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": wall_s,
        "host": platform.node(),
        "platform": platform.platform(),
        "git": git_state(Path(__file__).resolve().parent),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit and whether files differ from it; None outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "-uno"))}


@cache
def _packages() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


ID_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceIdentity:
    """The trace of a run: its source, and checksums of the file and of the rows."""

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
    """Everything that decides a run's tables; ``asked`` holds the additions of the kind of run.

    Of the trace only the rows count, not its path: the same study in another folder is the same
    run.
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
        """Return the hash of the inputs and the version of capplan."""
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
        """Return the inputs in full, for the manifest."""
        return {
            "scenario": self.scenario.model_dump(mode="json", exclude_unset=True),
            "trace": self.trace,
            "seed": self.seed,
            "replication": self.replication,
            "backend": self.backend,
            "asked": dict(self.asked),
            "sha256": self.sha256,
        }
