"""A swept grid: its points, the best of them, and how they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.display import Displayed
from capplan.encoding import plain
from capplan.evidence import Inputs, RunRecord, store
from capplan.formatting import axis_title, counted, does, format_value, in_words, listed
from capplan.grid.buckets import Buckets
from capplan.schema import POINT_STATES
from capplan.verdict import worst

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from pathlib import Path

    import altair as alt

INSIDE = (POINT_STATES["pass"], POINT_STATES["retest"])
"""States of a point that may be chosen, the better one first."""
FIGURES = (
    "goodput_rps",
    "goodput_fraction",
    "throughput_rps",
    "latency_of_promise",
    "ttft_censored_p99_s",
    "e2e_censored_p99_s",
    "timeout_fraction",
    "error_rate_fraction",
    "wasted_token_fraction",
    "kv_usage_mean",
)
SHOWN = (
    "state",
    "goodput_rps",
    "throughput_rps",
    "ttft_censored_p99_s",
    "e2e_censored_p99_s",
    "timeout_fraction",
    "why",
)
MOST_AXES = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepResult(Displayed):
    """A swept grid.

    ``frame`` has one row per point and replication, in the order of the grid: ``point``,
    ``replication``, one column per varied field, ``as_is`` (the point is the scenario as it
    stands), ``feasible``, ``reason`` (why it is not), ``outcome`` of the verdict,
    ``latency_of_promise`` (the worst latency ÷ its promise), ``equal_lengths`` (of the requests of
    a class, so that nothing follows for others), and the headline figures with the part before the
    unit (``ttft_p99_s``, ``queue_wait_gateway_p99_s``). ``by_class`` has the same
    per request class; ``by_bucket`` the table of :func:`capplan.results.by_bucket`, if asked for.
    """

    inputs: Inputs
    frame: pd.DataFrame
    by_class: pd.DataFrame
    by_bucket: pd.DataFrame
    assumed: tuple[str, ...] = ()
    """What was assumed, cut, dropped or filled in the requests of any point."""
    picked: Any = None
    """The index in ``points`` of a point that is chosen by more than these runs."""

    @property
    def verdict(self) -> dict[str, Any]:
        """Return the verdict: ``pass`` if some point passes in each of its replications."""
        ends = self.frame.groupby("point")["outcome"].agg(set)
        passed = [point for point, outcomes in ends.items() if outcomes == {"pass"}]
        known = all(outcomes <= {"pass", "fail"} for outcomes in ends)
        outcome = "pass" if passed else "fail" if known else "unknown"
        reason = {
            "rule": "some point keeps every promise in each of its replications",
            "value": len(passed),
            "limit": 1,
            "evidence": counted(len(ends), "point"),
            "next_action": None if passed else "widen the grid, or change what is not varied",
        }
        return {"outcome": outcome, "reasons": [reason]}

    def write(self, folder: str | Path) -> RunRecord:
        """Store the grid in ``folder``; same rules as :func:`capplan.evidence.write_run`."""
        tables = {"sweep": self.frame, "by_class": self.by_class}
        summary = {"assumed": self.assumed}
        return store(self.inputs, tables, folder, self.verdict, summary=summary)

    @property
    def names(self) -> dict[str, str]:
        """Return each varied field with its short name: its last part, or all of it if shared."""
        fields = list(self.inputs.asked["vary"])
        ends = [field.rpartition(".")[2] for field in fields]
        return {f: f if ends.count(end) > 1 else end for f, end in zip(fields, ends, strict=True)}

    @cached_property
    def points(self) -> pd.DataFrame:
        """Return one row per point, its figures the mean over its replications.

        Columns: the varied fields, ``as_is``, the :data:`FIGURES`, ``outcome`` (the worst of its
        replications), ``state`` (a value of ``POINT_STATES``) and ``why`` it failed.
        """
        number = self.frame["point"]
        first = self.frame.groupby(number)[[*self.names, "as_is", "feasible", "reason"]].first()
        figures = self.frame.reindex(columns=list(FIGURES)).astype("float64")
        means = figures.groupby(number).agg(_mean)
        outcome = self.frame.groupby(number)["outcome"].agg(worst)
        points = pd.concat([first, means, outcome], axis="columns")
        state = points["outcome"].map(POINT_STATES).fillna(POINT_STATES["unknown"])
        points = points.assign(state=state)
        bar_rps = _bar(points)
        why = [_why(point, bar_rps) for point in points.to_dict("records")]
        return points.assign(why=why).drop(columns=["feasible", "reason"])

    @property
    def chosen(self) -> pd.Series[Any] | None:
        """Return the point with most goodput inside the budget; the shortest tail breaks a tie.

        Points that are not proven count only if no other is inside. None = no point is inside.
        A point that was picked by something else than this load (``picked``) stands in its place.
        """
        if self.picked is not None:
            picked: pd.Series[Any] = self.points.loc[self.picked]
            return picked
        for state in INSIDE:
            inside = self.points[self.points["state"] == state]
            if not inside.empty:
                order = ["goodput_fraction", "latency_of_promise"]
                return inside.sort_values(order, ascending=[False, True]).iloc[0]
        return None

    def choice(self) -> dict[str, Any]:
        """Return the chosen point as plain values: fields, outcome, summary, and the fields now."""
        chosen, now = self.chosen, self._as_is
        failed = (self.points["state"] == POINT_STATES["fail"]).all()
        outcome = "fail" if failed and not self._equal_lengths else "unknown"
        return {
            "fields": self._setting(chosen),
            "outcome": outcome if chosen is None else chosen["outcome"],
            "finding": self.summary().replace("**", ""),
            "now": self._setting(now),
        }

    def summary(self) -> str:
        """Return the chosen point, and how many points there are of each state."""
        states = self.points["state"].value_counts()
        counts = ", ".join(f"{states.get(state, 0)} {state}" for state in POINT_STATES.values())
        chosen, now = self.chosen, self._as_is
        own = "" if now is None else f" The scenario has {self._words(now)}."
        if chosen is None:
            end = ""
            if self._equal_lengths:
                end = " All requests of a class are equally long: **the conclusion is unknown.**"
            return f"No point of {self._of} is shown to keep every promise: {counts}.{end}{own}"
        return (
            f"**Chosen for {self._of}: {self._words(chosen)}** ({chosen['outcome']}), "
            f"{self._how} ({counts}).{own}"
        )

    def failures(self) -> str:
        """Return how many points buy throughput with broken promises."""
        more = int(self.points["why"].str.startswith("throughput up").sum())
        return (
            f"{more} of {counted(len(self.points), 'point')} {does(more, 'has', 'have')} more "
            "throughput than the best point inside the budget, or than the scenario as it stands, "
            "and break a promise: **failed**, whatever their accelerators deliver."
        )

    def table(self) -> pd.DataFrame:
        """Return one row per point: the varied fields by their short names, state and figures."""
        return self.points[[*self.names, *SHOWN]].rename(columns=self.names)

    def chart(self, *, reference: tuple[Any, ...] | None = None) -> alt.LayerChart:
        """Return the goodput of each point as a heat map, failed points crossed out.

        ``reference`` is a point to compare with, its fields in the order of the grid; a point that
        the grid lacks is left out. Raises ValueError for more than two varied fields.
        """
        from capplan import charts

        frame, titles = self._axes()
        places = dict(
            zip(frame.index, zip(frame["across"], frame["down"], strict=True), strict=True)
        )
        chart: alt.LayerChart = charts.goodput_by_point(
            frame,
            **titles,
            reference=reference if reference in places.values() else None,
            chosen=None if self.chosen is None else places[self.chosen.name],
        )
        return chart

    def tradeoff(self) -> alt.LayerChart:
        """Return throughput (up) against the tail (to the right), a mark for each point."""
        from capplan import charts

        frame, titles = self._axes()
        return charts.throughput_against_tail(frame, **titles)

    @property
    def buckets(self) -> Buckets:
        """Return the figures of each length bucket; needs ``sweep(…, by_bucket=True)``."""
        across, *others = self.names
        rows, now = self.by_bucket, self._as_is
        best = now if self.chosen is None else self.chosen
        if rows.empty or best is None or now is None:
            msg = "sweep with by_bucket=True, and with the scenario as it stands among the points"
            raise ValueError(msg)
        line = self.points[(self.points[others] == now[others]).all(axis="columns")]
        return Buckets(
            across=across,
            title=axis_title(self.names[across]),
            rows=rows[rows["point"].isin(line.index)],
            best=rows[rows["point"] == best.name],
            at=self._words(best),
        )

    @property
    def _how(self) -> str:
        if self.picked is not None:
            return "by its headroom"
        return "the most goodput inside the budget at this load, then the shortest tail"

    @property
    def _equal_lengths(self) -> bool:
        return bool(self.frame["equal_lengths"].eq(True).any())

    @property
    def _as_is(self) -> pd.Series[Any] | None:
        own = self.points[self.points["as_is"].astype(bool)]
        return None if own.empty else own.iloc[0]

    @property
    def _of(self) -> str:
        """Return what all varied fields belong to, or the fields."""
        parts = {field.rpartition(".")[0] for field in self.names}
        whole = len(parts) == 1 and "" not in parts
        return f"`{parts.pop()}`" if whole else listed(f"`{field}`" for field in self.names)

    def _words(self, point: pd.Series[Any]) -> str:
        return listed(_setting_words(name, _item(point[f])) for f, name in self.names.items())

    def _setting(self, point: pd.Series[Any] | None) -> dict[str, Any]:
        return {n: None if point is None else plain(_item(point[f])) for f, n in self.names.items()}

    def _axes(self) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the points with the varied fields as ``across`` and ``down``, and their titles."""
        fields = list(self.names)
        if len(fields) > MOST_AXES:
            msg = f"a chart takes one or two varied fields, got {len(fields)}"
            raise ValueError(msg)
        titles = map(axis_title, self.names.values())
        down = self.points[fields[1]] if len(fields) == MOST_AXES else ""
        frame = self.points.assign(
            across=self.points[fields[0]],
            down=down,
            tail_of_promise=self.points["latency_of_promise"],
        )
        return frame, dict(zip(("across", "down"), (*titles, ""), strict=False))


def _setting_words(name: str, value: Any) -> str:
    count = isinstance(value, int) and not name.endswith("_s")
    return f"{in_words(name.removesuffix('_s'))} {format_value(value, '' if count else name)}"


def _item(value: Any) -> Any:
    """Return a cell as a Python value; a whole number as an int."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _mean(column: pd.Series[float]) -> float:
    return float(column.mean(skipna=False))


def _bar(points: pd.DataFrame) -> float:
    """Return the most throughput of a point that passes; that of the scenario if none does."""
    passing = points["state"] == POINT_STATES["pass"]
    shown = passing if passing.any() else points["as_is"].astype(bool)
    return float(points.loc[shown, "throughput_rps"].max())


def _why(point: Mapping[Hashable, Any], bar_rps: float) -> str:
    """Return why a point failed, first of all that it buys throughput with a promise."""
    if not point["feasible"]:
        return str(point["reason"])
    if point["state"] != POINT_STATES["fail"]:
        return ""
    why = "tail over" if point["latency_of_promise"] > 1 else "a promise broken"
    why = "timeouts" if point["timeout_fraction"] > 0 else why
    return f"throughput up, {why}" if point["throughput_rps"] > bar_rps else why
