"""Making a report: run every notebook in a folder aside, write the pages, move it into place."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.bundled import notebooks_path
from capplan.evidence import Inputs, RunRecord, TraceIdentity, read_run, seal
from capplan.evidence.folders import part_folder, swap_in, write_file
from capplan.evidence.manifest import file_hash, file_hashes
from capplan.evidence.store import MANIFEST
from capplan.pages.conclusion import Conclusion, read_conclusion
from capplan.replica.assumptions import rests_on
from capplan.report.notebook import NotebookError, chosen, execute_all
from capplan.report.pages import page_of, write_page
from capplan.report.summary import INDEX, report_title, write_summary
from capplan.scenario.files import write_scenario
from capplan.schema import DataError

if TYPE_CHECKING:
    from capplan.scenario import Scenario

RUN = "run"
SCENARIO_FILE = "scenario.yaml"
FAILURE_FILE = "failure.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished report: its folder, its first page, and what it concludes."""

    folder: Path
    index: Path
    record: RunRecord
    conclusion: Conclusion
    earlier: Path | None = None
    """Where the report that stood in the folder is now; None if there was none, or the same run."""


def build_report(
    scenario: Scenario,
    out: str | Path,
    *,
    seed: int = 0,
    parameters: Sequence[tuple[str, str]] = (),
    notebooks: Path | None = None,
) -> Report:
    """Run the workbook on a scenario and return the report in the folder ``out``.

    Every notebook gets those of ``scenario`` (a file in the run folder), ``trace``,
    ``run_folder``, ``seed`` and ``parameters`` that it declares; artefacts stay in the run folder
    for the notebooks after it. Only a finished report takes the place of an earlier one, which is
    kept in ``<out>.earlier-1``, ``-2``, … if its run holds other files. A finished report removes
    the ``<out>.failed`` of an earlier attempt.

    Parameters
    ----------
    scenario
        The scenario, with its trace.
    out
        A new or empty folder, or an earlier report.
    seed
        Seed of all random numbers.
    parameters
        Names and values as text; each must be declared by some notebook.
    notebooks
        Folder of notebooks, of which the numbered ones run, in order of name; None = the bundled
        ones. Folders inside it (teaching) are left out.

    Raises
    ------
    DataError
        For a parameter, trace or folder that breaks a rule; nothing has run then.
    NotebookError
        If a notebook fails. The half-executed notebook is kept in ``<out>.failed``.
    """
    target = Path(out).absolute()
    _check_replaceable(target)
    files = _files(notebooks or notebooks_path())
    given: dict[str, Any] = {
        "scenario": SCENARIO_FILE,
        "trace": scenario.traffic.trace or "",
        "run_folder": ".",
        "seed": seed,
    }
    values = chosen(files, parameters, given)
    inputs = _inputs(scenario, seed, parameters, files)
    with part_folder(target) as part:
        try:
            _fill(part, inputs, files, values)
        except NotebookError as err:
            raise _kept(part, target, err) from err
        earlier = _set_aside(target, part)
        swap_in(part, target)
    _remove_failed(target)
    record = read_run(target / RUN)
    return Report(
        folder=target,
        index=target / INDEX,
        record=record,
        conclusion=read_conclusion(target / RUN, assumed=record.manifest["summary"]["assumed"]),
        earlier=earlier,
    )


def _fill(
    part: Path, inputs: Inputs, files: Sequence[Path], values: Mapping[Path, Mapping[str, Any]]
) -> None:
    start = time.perf_counter()
    run, executed = part / RUN, part / "notebooks"
    for folder in (run, executed):
        folder.mkdir()
    write_file(run / SCENARIO_FILE, write_scenario(inputs.scenario).encode())
    done = execute_all(files, values, into=executed, run_folder=run)
    pages = [page_of(notebook) for notebook in done]
    for notebook in done:
        write_page(notebook, pages, part, report_title=report_title(inputs))
    notes = () if inputs.trace is None else inputs.trace.notes
    conclusion = read_conclusion(run, assumed=(*notes, *rests_on(inputs.scenario)))
    wall_s = time.perf_counter() - start
    summary = {"assumed": conclusion.assumptions}
    record = seal(inputs, run, conclusion.verdict, summary=summary, wall_s=wall_s)
    write_summary(part, inputs=inputs, record=record, conclusion=conclusion, pages=pages)


def _inputs(
    scenario: Scenario, seed: int, parameters: Sequence[tuple[str, str]], files: Sequence[Path]
) -> Inputs:
    asked = {
        "parameters": dict(parameters),
        "notebooks": {notebook.name: file_hash(notebook) for notebook in files},
    }
    return Inputs(
        kind="report", scenario=scenario, seed=seed, trace=_identity(scenario), asked=asked
    )


def _identity(scenario: Scenario) -> TraceIdentity | None:
    """Return the identity of the scenario's trace; a trace that cannot be read fails here."""
    from capplan.traffic.sample import base_trace

    trace = base_trace(scenario.traffic)
    return None if trace is None else TraceIdentity.of(trace)


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("[0-9]*.ipynb"))
    if not files:
        raise DataError("a folder with numbered notebooks", where=folder, value="none")
    return files


def _check_replaceable(target: Path) -> None:
    """Refuse a target that holds anything but an earlier report."""
    if target.exists() and not target.is_dir():
        raise DataError("a folder, or a name for a new one", where=target, value="a file")
    if target.is_dir() and any(target.iterdir()) and not (target / RUN / MANIFEST).exists():
        raise DataError("a new or empty folder, or an earlier report", where=target)


def _set_aside(target: Path, part: Path) -> Path | None:
    """Rename an earlier report whose run differs from the new one; return its new place."""
    if not (target / RUN).exists() or _run_files(target) == _run_files(part):
        return None
    places = (target.with_name(f"{target.name}.earlier-{n}") for n in count(1))
    place = next(place for place in places if not place.exists())
    target.rename(place)
    return place


def _run_files(report: Path) -> dict[str, str]:
    return file_hashes(report / RUN, leave_out=frozenset({MANIFEST}))


def _kept(part: Path, target: Path, err: NotebookError) -> NotebookError:
    """Keep the unfinished report beside its target; return the error that names the folder."""
    free = (p for p in _failed_places(target) if not p.exists() or (p / FAILURE_FILE).exists())
    failed = next(free)
    write_file(part / FAILURE_FILE, f"{err}\n".encode())
    swap_in(part, failed)
    kept = failed / "notebooks" / err.notebook.name
    return NotebookError(err.notebook, err.cell, f"{err.cause} (half-executed: {kept})")


def _remove_failed(target: Path) -> None:
    """Remove the unfinished reports of earlier attempts; other folders of that name stay."""
    for place in takewhile(Path.exists, _failed_places(target)):
        if (place / FAILURE_FILE).exists():
            shutil.rmtree(place)


def _failed_places(target: Path) -> Iterator[Path]:
    yield target.with_name(f"{target.name}.failed")
    for number in count(2):
        yield target.with_name(f"{target.name}.failed-{number}")
