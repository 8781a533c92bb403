"""A page of the workbook: the study it belongs to, and the run folder it shares with the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.evidence import artefact, read_artefact

if TYPE_CHECKING:
    import pandas as pd

    from capplan.evidence import RunRecord
    from capplan.grid import SweepResult
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace
    from capplan.verdict import Verdict

RUNS = Path("runs")
"""Where a page that is run by hand puts its run folder, below the current folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One study: its scenario, the seed of its random numbers, and its run folder."""

    scenario: Scenario
    seed: int
    folder: Path

    def leave(self, name: str, payload: Any) -> Path:
        """Write an artefact for the pages after this one and return its path."""
        return artefact(self.folder, name, payload)

    def find(self, name: str) -> Any:
        """Return an artefact that an earlier page left, or None where that page has not run."""
        if not (self.folder / name).is_file():
            return None
        return read_artefact(self.folder, name)

    def keep(self, sweep: SweepResult) -> Path:
        """Store a sweep in a folder of its own, named by its run id, and return that folder."""
        return sweep.write(self.folder / "sweeps" / sweep.inputs.run_id).folder

    def keep_run(self, result: RunResult, verdict: Verdict) -> RunRecord:
        """Store a run with its verdict in a folder of its own, named by its run id."""
        from capplan.evidence import write_run
        from capplan.evidence.store import inputs_of

        return write_run(result, verdict, self.folder / "simulated" / inputs_of(result).run_id)

    def draw(self, *, requests: int = 0) -> Trace:
        """Return the requests of this study, at most ``requests`` of them (0 = all)."""
        from capplan.scenario.files import with_values
        from capplan.traffic.draw import draw

        scenario = self.scenario
        if requests > 0:
            scenario = with_values(scenario, {"requests": requests})
        return draw(scenario, seed=self.seed)

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
    seed: int = 0,
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
    seed
        Names the random numbers.
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
    from capplan.charts import use_theme
    from capplan.scenario.files import load_scenario

    changes: dict[str, Any] = {key.replace("__", "."): value for key, value in values.items()}
    if requests > 0:
        changes["requests"] = requests
    if trace:
        changes["traffic.trace"] = trace if trace == "sample" else str(Path(trace).resolve())
    study = resolved(load_scenario(scenario, values=changes))
    use_theme()
    return Page(scenario=study, seed=seed, folder=Path(run_folder or RUNS / study.name))
