"""Measured runs replayed anew, and whether the frozen figures still hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.bundled import SHARED_DATA_VARIABLE, shared_data_path
from capplan.display import table
from capplan.formatting import counted, format_value, listed
from capplan.pages.fidelity import COMMAND, FIGURES, H100, METRICS, Frozen, long_series, short
from capplan.schema import DataError

if TYPE_CHECKING:
    import pandas as pd

    from capplan.validation import Validation

FITTED, OTHER = f"{H100}roleplay", "vllm-rtx4090-llama-3.1-8b"
SAME_FRACTION = 0.001
"""Most by which an error computed anew may differ from the frozen one, which has four digits."""


def measured_folder(data: str = "") -> Path | None:
    """Return the folder of measured runs: ``data``, else what ``CAPPLAN_DATA`` names, else None.

    Raises :class:`DataError` for a folder that is named and not there.
    """
    if not data:
        return shared_data_path()
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise DataError("a folder of measured runs", field="data", value=data)
    return folder


def replayed(frozen: Frozen, folder: Path) -> list[Validation]:
    """Return one run replayed with the fitted step times, one with its own kernel profile."""
    from capplan.measured import read_measured, replay_scenario
    from capplan.replica.kernel_tables import find_profile
    from capplan.validation import validate

    known = read_measured(folder / "measured" / FITTED)
    other = read_measured(folder / "measured" / OTHER)
    profile = find_profile(folder / "profiles", replay_scenario(other).pool())
    return [
        validate(
            known,
            step_time=frozen.latency["step_time"],
            request_overhead_s=frozen.latency["request_overhead_s"],
            source="calibrated",
        ),
        validate(other, step_time={"kind": "tables", "path": str(profile)}, source="tables"),
    ]


def recomputed_parts(frozen: Frozen, data: str = "") -> list[Any]:
    """Return what to show of the runs replayed anew; without them, that nothing is known."""
    from capplan import charts

    folder = measured_folder(data)
    if folder is None:
        return [
            f"**Unknown.** No measured run is at hand (neither `data` nor `{SHARED_DATA_VARIABLE}` "
            f"names a folder), so nothing was computed anew: the figures above are those of "
            f"{frozen.computed}."
        ]
    found = replayed(frozen, folder)
    compared = comparison(frozen, found)
    overlays = [long_series(one.overlay) for one in found if one.overlay is not None]
    return [
        table(compared),
        *[charts.measured_beside_predicted(overlay) for overlay in overlays],
        said(compared, frozen, found),
    ]


def comparison(frozen: Frozen, found: list[Validation]) -> pd.DataFrame:
    """Return each error computed now beside the frozen one."""
    import pandas as pd

    old = frozen.errors.set_index(["run", "step_times", "metric", "figure"])["error_fraction"]
    rows = []
    for one in found:
        for name, metric in METRICS.items():
            for figure in FIGURES:
                key = (short(one.name), one.source, metric, figure)
                now, then = one.latencies[name][figure].error_fraction, old.get(key, float("nan"))
                row = {"run": key[0], "step_times": one.source, "figure": f"{metric} {figure}"}
                rows.append({**row, "now_fraction": now, "frozen_fraction": then})
    return pd.DataFrame(rows)


def said(compared: pd.DataFrame, frozen: Frozen, found: list[Validation]) -> str:
    """Return whether the frozen figures hold, in a sentence."""
    apart = (compared["now_fraction"] - compared["frozen_fraction"]).abs()
    runs = listed(
        f"`{short(one.name)}` ({counted(one.n, 'request')}, {one.source})" for one in found
    )
    if apart.isna().any():
        return f"Replayed {runs}. **Unknown**: {int(apart.isna().sum())} figures can't be compared."
    most = f"the errors differ by at most {format_value(100 * float(apart.max()))} points"
    if apart.max() <= SAME_FRACTION:
        return f"Replayed {runs}: {most} from those of {frozen.computed}. **The frozen ones hold.**"
    return (
        f"Replayed {runs}: {most} from those of {frozen.computed}. **They are out of date**: "
        f"`{COMMAND}` computes them again."
    )
