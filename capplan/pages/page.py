"""A page of the workbook: its study, the run folder it shares with the others, what it shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.evidence import artefact, read_artefact
from capplan.formatting import listed
from capplan.results import per_request
from capplan.schema import NoRowsError

if TYPE_CHECKING:
    import pandas as pd

    from capplan.evidence import RunRecord
    from capplan.grid import SweepResult
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.verdict import Verdict

RUNS = Path("runs")
"""Where a page that is run by hand puts its run folder, below the current folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One study: its scenario and its run folder."""

    scenario: Scenario
    folder: Path
    study: str
    """Hash of the scenario and its trace as they were named, without what the page sets."""

    def leave(self, name: str, payload: Any) -> Path:
        """Write an artefact for the pages after this one and return its path.

        A mapping holds the hash of the study, as ``study``.
        """
        if isinstance(payload, dict):
            payload = {**payload, "study": self.study}
        return artefact(self.folder, name, payload)

    def find(self, name: str) -> Any:
        """Return an artefact that an earlier page left, None if none did for this study."""
        if not (self.folder / name).is_file():
            return None
        found = read_artefact(self.folder, name)
        stated = found.get("study", self.study) if isinstance(found, dict) else self.study
        return found if stated == self.study else None

    def keep(self, sweep: SweepResult) -> Path:
        """Store a sweep in a folder of its own, named by its run id, and return that folder."""
        return sweep.write(self.folder / "sweeps" / sweep.inputs.run_id).folder

    def keep_run(self, result: RunResult, verdict: Verdict) -> RunRecord:
        """Store a run with its verdict in a folder of its own, named by its run id."""
        from capplan.evidence import write_run
        from capplan.evidence.store import inputs_of

        return write_run(result, verdict, self.folder / "simulated" / inputs_of(result).run_id)

    def batching(self) -> str:
        """Return the batch windows that a page is about, the scenario's own, and 03's choice."""
        left = self.find("chosen_point.json")
        if left is None:
            return "This page is about the scenario's own batch windows; page 03 has not run."
        words = []
        for one in left["pools"]:
            own, chosen = one["now"], one["fields"]
            text = f"`{one['pool']}` {listed(f'{k} {v}' for k, v in own.items())}"
            if None in chosen.values():
                text += " (page 03 found none to choose)"
            elif chosen != own:
                text += f" (page 03 chose {listed(f'{k} {v}' for k, v in chosen.items())})"
            words.append(text)
        return f"This page is about the scenario's own batch windows: {listed(words)}."

    def in_order(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a frame whose ``request_class`` keeps the scenario's order, and so its colours."""
        import pandas as pd

        names = [c.name for c in self.scenario.classes]
        names += [name for name in frame["request_class"].unique() if name not in names]
        kind = pd.CategoricalDtype(names, ordered=True)
        return frame.assign(request_class=frame["request_class"].astype(kind))


def open_page(
    scenario: str,
    *,
    trace: str = "",
    run_folder: str = "",
    requests: int = 0,
    **values: Any,
) -> Page:
    """Return the page of a study, with the theme of its charts set.

    Parameters
    ----------
    scenario
        A file or the name of a bundled scenario.
    trace
        A trace to rest the traffic on; ``""`` = the scenario's own.
    run_folder
        Where pages leave their artefacts; ``""`` = ``runs/<name of the scenario>``.
    requests
        Most requests of the study; 0 = all.
    **values
        Fields of the scenario to set first, dots written as two underscores.

    Raises
    ------
    DataError
        For a scenario or trace that cannot be read.
    """
    from capplan.budget import resolved
    from capplan.catalog.tables import placed_trace
    from capplan.charts import use_theme
    from capplan.scenario.files import load_scenario, scenario_hash, with_values

    named = load_scenario(scenario, values={"traffic.trace": placed_trace(trace)} if trace else {})
    changes: dict[str, Any] = {key.replace("__", "."): value for key, value in values.items()}
    if requests > 0:
        changes["requests"] = requests
    use_theme()
    return Page(
        scenario=resolved(with_values(named, changes)),
        folder=Path(run_folder or RUNS / named.name),
        study=scenario_hash(named),
    )


def has_reader() -> bool:
    """Return whether this process is a kernel with a reader who can move a slider.

    A notebook front end lets the kernel ask its user for input (``allow_stdin``); papermill and
    nbconvert, which run a notebook headless, do not. Voilà does not either, but sets
    ``VOILA_`` variables.
    """
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    in_voila = any(name.startswith("VOILA_") for name in os.environ)
    return in_voila or bool(getattr(kernel, "_allow_stdin", False))


def show(*parts: Any) -> None:
    """Show charts, tables and computed sentences (texts in Markdown) below the cell, in order."""
    from IPython.display import Markdown, display

    for part in parts:
        display(Markdown(part) if isinstance(part, str) else part)  # type: ignore[no-untyped-call]


def drawn(chart: Callable[..., Any], *frames: Any, **options: Any) -> Any:
    """Return the chart, or a sentence in its place if it has no row to draw."""
    try:
        return chart(*frames, **options)
    except NoRowsError:
        return "Nothing to draw here."


def acting_charts(run: RunResult) -> list[Any]:
    """Return the charts of what acts by itself in a run: breakers, degraded answers, replicas."""
    from capplan import charts

    parts: list[Any] = []
    spans, elastic = run.breaker_spans(), run.elastic_timeline()
    if not spans.empty:
        parts.append(charts.breakers_over_time(spans, end_s=run.duration_s))
    if (run.requests["degraded"] == True).any():  # noqa: E712
        parts.append(charts.degraded_over_time(per_request(run, warmup=True)))
    if not elastic.empty:
        parts.append(charts.replicas_over_time(elastic))
    return parts
