"""What bends the comparison with the measured runs: figures frozen in ``data/validation``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from capplan.display import Displayed
from capplan.formatting import format_value, listed
from capplan.schema import require_columns

if TYPE_CHECKING:
    import pandas as pd

FILE = "circumstances.csv"
COLUMNS = (
    "run", "left_out", "left_out_fraction", "stall_period_s", "metric", "figure", "error_fraction",
)  # fmt: skip
WORDS = {
    "nothing": "nothing",
    "first_60_s": "the first 60 s",
    "at_cap": "requests at a limit",
    "stalls": "periodic stalls",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Circumstances(Displayed):
    """Errors of the roofline with and without some requests.

    ``frame`` has the columns ``COLUMNS``: a row per run, what is left out (a key of ``WORDS``),
    metric and figure; ``stall_period_s`` is NaN but for stalls.
    """

    frame: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """Return the errors of the runs at a limit or with stalls, as a whole and without them."""
        bent = set(self._without("at_cap")["run"]) | set(self._without("stalls")["run"])
        rows = self.frame[self.frame["run"].isin(bent) & (self.frame["left_out"] != "first_60_s")]
        figure = rows["metric"].str.removesuffix("_s") + " " + rows["figure"] + "_fraction"
        table = rows.assign(
            run=rows["run"].str.removeprefix("vllm-"),
            left_out=rows["left_out"].map(WORDS),
            requests_left_out_fraction=rows["left_out_fraction"],
            figure=figure,
        ).pivot_table(
            index=["run", "left_out", "requests_left_out_fraction"],
            columns="figure",
            values="error_fraction",
            sort=False,
        )
        return table.reset_index().rename_axis(columns=None)

    def summary(self) -> str:
        """Return where stalls were found, and by how much the first minute moves the errors."""
        stalled = self._without("stalls").drop_duplicates("run")
        found = listed(
            (
                f"`{run.removeprefix('vllm-')}` about every {format_value(period)} s"
                for run, period in zip(stalled["run"], stalled["stall_period_s"], strict=True)
            ),
            none="no run",
        )
        keys = ["run", "metric", "figure"]
        errors = (
            self._without(what).set_index(keys)["error_fraction"]
            for what in ("first_60_s", "nothing")
        )
        moved = next(errors).sub(next(errors)).abs()
        return (
            f"Periodic stalls: {found}. Without the first 60 s errors move by up to "
            f"{format_value(100 * float(moved.max()))} points, half of them by less than "
            f"{format_value(100 * float(moved.median()))}."
        )

    def _without(self, what: str) -> pd.DataFrame:
        return self.frame[self.frame["left_out"] == what]


def read_circumstances(folder: Path) -> Circumstances:
    """Return the frozen figures of a folder; raises :class:`DataError` for a missing column."""
    import pandas as pd

    frame = pd.read_csv(folder / FILE)
    require_columns(frame, COLUMNS, where=folder / FILE)
    return Circumstances(frame=frame)
