"""The run store: one folder a run, with its manifest and its tables."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.encoding import plain, to_text
from capplan.evidence.folders import new_folder, write_file
from capplan.evidence.manifest import (
    Inputs,
    TraceIdentity,
    circumstances,
    content_hash,
    file_hash,
    file_hashes,
    versions,
)
from capplan.measured.run import SERVER_FILE
from capplan.measured.server import server_text
from capplan.schema import DataError

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the manifest's form; a reader refuses any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A stored run: its folder and its manifest. Tables are read on demand."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        """Return the id of the run: a hash of its inputs."""
        return str(self.manifest["run_id"])

    @property
    def kind(self) -> str:
        """Return the kind of run: ``simulate``, ``sweep``, …."""
        return str(self.manifest["kind"])

    @property
    def verdict(self) -> Mapping[str, Any] | None:
        """Return the stored verdict, or None."""
        found: Mapping[str, Any] | None = self.manifest["verdict"]
        return found

    @property
    def scenario(self) -> Scenario:
        """Return the scenario of the run."""
        from capplan.scenario.files import validate

        return validate(self.manifest["inputs"]["scenario"], where=self.folder / MANIFEST)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table by name; DataError if it is unknown or differs from its checksum."""
        entry = self.manifest["tables"].get(name)
        if entry is None:
            known = ", ".join(self.manifest["tables"]) or "nothing"
            raise DataError(f"one of {known}", where=self.folder, field="table", value=name)
        return _read_table(self.folder / entry["file"], entry)

    def verify(self) -> None:
        """Check every file against its checksum; DataError names the first that differs."""
        for entry in self.manifest["tables"].values():
            _check_bytes(self.folder / entry["file"], entry["file_sha256"])
        for name, sha256 in self.manifest.get("files", {}).items():
            _check_bytes(self.folder / name, sha256)


def write_run(result: RunResult, verdict: Any, folder: str | Path) -> RunRecord:
    """Store a run in ``folder``: its manifest, log, timelines and counts; return its record.

    A measured run has ``server.json`` too, so that ``calibrate`` and ``validate`` read the folder.

    ``verdict`` is the result of ``capplan.slo.judge``, or None. A folder with the same run is
    checked and kept; one with anything else is a :class:`~capplan.schema.DataError`.
    """
    return store(
        inputs_of(result),
        result_tables(result),
        folder,
        verdict,
        wall_s=result.wall_s,
        files={} if result.client is None else {SERVER_FILE: server_text(result.scenario)},
    )


def inputs_of(result: RunResult) -> Inputs:
    """Return the inputs of a run."""
    return Inputs(
        kind="simulate",
        scenario=result.scenario,
        trace=TraceIdentity.of(result.trace),
        seed=result.seed,
        replication=result.replication,
        backend=result.backend,
        asked={} if result.client is None else result.client.identity(),
    )


def result_tables(result: RunResult) -> dict[str, pd.DataFrame]:
    """Return the tables of a run by their names in the store."""
    from capplan.results import conservation_table

    return {
        "requests": result.requests,
        "timeline": result.timeline,
        "books": conservation_table(result),
        **({} if result.client is None else {"exchanges": result.client.exchanges}),
    }


def store(
    inputs: Inputs,
    tables: Mapping[str, pd.DataFrame],
    folder: str | Path,
    verdict: Any = None,
    *,
    summary: Any = None,
    wall_s: float | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> RunRecord:
    """Store tables under their inputs, as a whole or not at all.

    Same rules as :func:`write_run`; ``summary`` is kept in the manifest unchanged, ``files`` are
    texts by name.
    """
    target = Path(folder)
    hashes = {name: content_hash(table) for name, table in tables.items()}
    if _occupied(target):
        return _keep(target, inputs, hashes)
    try:
        with new_folder(target) as part:
            entries = {n: _write_table(part, n, t, hashes[n]) for n, t in tables.items()}
            manifest = _manifest(inputs, entries, verdict, summary, wall_s)
            for name, text in files.items():
                (part / name).write_text(text, encoding="utf-8")
            if files:
                manifest["files"] = {name: file_hash(part / name) for name in files}
            (part / MANIFEST).write_text(to_text(manifest), encoding="utf-8")
    except OSError as err:
        if err.errno in (errno.ENOTEMPTY, errno.EEXIST) and _occupied(target):
            return _keep(target, inputs, hashes)
        raise
    return RunRecord(folder=target, manifest=plain(manifest))


def seal(
    inputs: Inputs,
    folder: str | Path,
    verdict: Any = None,
    *,
    summary: Any = None,
    wall_s: float | None = None,
) -> RunRecord:
    """Write the manifest of a folder with finished files, with a checksum of each."""
    target = Path(folder)
    manifest = _manifest(inputs, {}, verdict, summary, wall_s)
    manifest["files"] = file_hashes(target, leave_out=frozenset({MANIFEST}))
    write_file(target / MANIFEST, to_text(manifest).encode())
    return RunRecord(folder=target, manifest=plain(manifest))


def read_run(folder: str | Path) -> RunRecord:
    """Return the record of a stored run; DataError if the folder has none."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise DataError("a folder with a run", where=folder) from err
    except (OSError, ValueError) as err:
        raise DataError(f"a readable manifest ({err})", where=path) from err
    form = manifest.get("format") if isinstance(manifest, dict) else None
    if form != FORMAT:
        raise DataError(f"a manifest of form {FORMAT}", where=path, field="format", value=form)
    missing = {"run_id", "kind", "inputs", "verdict", "tables"} - manifest.keys()
    if missing:
        raise DataError("a required field", where=path, field=min(missing), value="nothing")
    return RunRecord(folder=Path(folder), manifest=manifest)


def _manifest(
    inputs: Inputs,
    tables: Mapping[str, Any],
    verdict: Any,
    summary: Any,
    wall_s: float | None,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run_id": inputs.run_id,
        "kind": inputs.kind,
        "inputs": inputs.to_json(),
        "versions": versions(),
        "verdict": verdict,
        "summary": summary,
        "tables": tables,
        "circumstances": circumstances(wall_s),
    }


def _occupied(target: Path) -> bool:
    if target.is_dir():
        return any(target.iterdir())
    if target.exists():
        raise DataError("a folder, or a name for a new one", where=target, value="a file")
    return False


def _keep(target: Path, inputs: Inputs, hashes: Mapping[str, str]) -> RunRecord:
    """Return the run in the folder, if it is the same run."""
    if not (target / MANIFEST).exists():
        raise DataError("an empty or new folder for the run", where=target, value="other files")
    record = read_run(target)
    if record.run_id != inputs.run_id:
        rule = f"an empty or new folder for run {inputs.run_id}"
        raise DataError(rule, where=target, value=f"run {record.run_id}")
    record.verify()
    stored = {name: entry["content_sha256"] for name, entry in record.manifest["tables"].items()}
    for name in sorted(stored):
        if stored[name] != hashes.get(name):
            rule = f"the tables of the stored run {record.run_id}, which has the same inputs"
            raise DataError(rule, where=target, field=name, value=hashes.get(name))
    return record


def _write_table(folder: Path, name: str, table: pd.DataFrame, sha256: str) -> dict[str, Any]:
    file = folder / f"{name}.parquet"
    table.to_parquet(file, index=False, compression="zstd")
    return {
        "file": file.name,
        "rows": len(table),
        "content_sha256": sha256,
        "file_sha256": file_hash(file),
    }


def _read_table(path: Path, entry: Mapping[str, Any]) -> pd.DataFrame:
    _check_bytes(path, entry["file_sha256"])
    return pd.read_parquet(path)


def _check_bytes(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise DataError("a file of the run", where=path, value="nothing")
    found = file_hash(path)
    if found != sha256:
        raise DataError(f"the stored bytes (sha256 {sha256})", where=path, value=found)
