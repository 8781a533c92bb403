"""Promises in every part of a run: its busiest hour, and any few minutes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.display import Displayed
from capplan.formatting import counted, does, format_value, listed, rule_words
from capplan.results import RunResult, per_request
from capplan.scenario import Scenario
from capplan.scenario.classes import Promises, RequestClass
from capplan.scenario.metric_names import samples_needed
from capplan.scenario.part import origin
from capplan.slo.promises import LATENCIES, SHARES, allowance, stated, violating
from capplan.statistics import quantile
from capplan.statistics.estimates import TAIL
from capplan.verdict import Reason, Window

Floats = npt.NDArray[np.float64]

BUSIEST_S = 3600.0
"""The busiest stretch, in which each promise is judged as over the whole run: the long window of a
paging alert. Source: Beyer, Murphy, Rensin, Kawahara and Thorne (eds.), "The Site Reliability
Workbook", 2018, chapter 5, table 5-8 (1 hour, and 5 minutes beside it)."""
STARTS = 5
"""Windows that start within the length of one; a default of this project. Whatever is broken for a
whole window fills at least nine tenths of one of them."""
MOMENTS = 300
"""Points a class in the chart."""

SHOWN = ("run", "request_class", "promise", "start_s", "length_s", "requests", "broken",
         "broken_fraction", "allowed_fraction")  # fmt: skip
FRAME = (*SHOWN, "needed", "chance")
WORST = ("request_class", "promise", "windows", "failed_windows", "broken_for_s", "judged_for_s",
         "run", "start_s", "length_s", "requests", "broken", "figure")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromiseWindows(Displayed):
    """How each promise held in each window of the runs.

    ``frame`` has one row per window: ``run, request_class, promise, start_s, length_s, requests,
    broken, broken_fraction, allowed_fraction, outcome``. A window *fails* if so many broken
    requests are certain to be no chance: under the promise they have a probability of at most
    2.5 % over all windows together (exact binomial, Bonferroni). It is *unknown* if it has fewer
    requests than leave one that may break (100 for p99), else it passes: it shows no break. Broken
    requests that come together, as in an outage, are a break of that window, not an error of the
    test.
    """

    frame: pd.DataFrame
    worst: pd.DataFrame
    """One row per class and promise: how many windows were judged and failed, over how long, and
    the least probable one (of equals, the busiest) with its ``figure``: the latency at the
    promised quantile, or the share that the promise is about."""
    defaults: Collection[str]
    """The classes that do not state how long their windows are."""

    def table(self) -> pd.DataFrame:
        """Return the worst window of each promise of each class, those that fail first."""
        rows = self.worst.sort_values("failed_windows", ascending=False, kind="stable")
        shown = rows.assign(
            promise=rows["promise"].map(rule_words),
            figure=list(map(_figure_text, rows["figure"], rows["promise"])),
        )
        return shown.drop(columns=["run"]).rename(columns={"start_s": "worst_from_s"})

    def summary(self) -> str:
        """Return which promises break in some window, and how many windows were judged."""
        if self.frame.empty:
            return "The run is no longer than one window, so it is judged as a whole."
        judged = int((self.frame["outcome"] != "unknown").sum())
        few = len(self.frame) - judged
        lengths = [format_value(v, "_s") for v in sorted(self.frame["length_s"].unique())]
        broken = self.worst[self.worst["failed_windows"] > 0]
        which = [
            f"{row.request_class}'s {rule_words(str(row.promise))} for "
            f"{format_value(row.broken_for_s, '_s')}"
            for row in broken.itertuples()
        ]
        found = f"**broken**: {listed(which)}" if which else "no promise surely breaks in any"
        rests = " (a default)" if self.defaults else ""
        return (
            f"{counted(judged, 'window')} of {listed(lengths)}{rests}: {found}; "
            f"{counted(few, 'window')} {does(few, 'has', 'have')} too few requests to tell."
        )

    def chart(self) -> Any:
        """Return the share of broken requests over what each promise allows, over time."""
        from capplan import charts

        return charts.promises_over_time(self.over_time())

    def over_time(self) -> pd.DataFrame:
        """Return each class's worst promise in the worst window about each moment.

        At most :data:`MOMENTS` a class; columns: those of ``charts.promises_over_time``. Windows
        with too few requests are left out.
        """
        known = self.frame[self.frame["outcome"] != "unknown"]
        least = 1 / known["requests"].clip(lower=1)  # a promise that lets none break
        ratio = known["broken_fraction"] / known["allowed_fraction"].clip(lower=least)
        time_s = known["start_s"] + known["length_s"] / 2
        width = max(float(time_s.max() - time_s.min()) / MOMENTS, 1e-9)
        known = known.assign(
            of_allowed=ratio,
            time_s=time_s,
            request_class=pd.Categorical(
                known["request_class"], self.worst["request_class"].unique()
            ),
            promise=known["promise"].map(rule_words),
            moment=(time_s // width if len(known) else time_s),
        )
        known = known.assign(
            fails=known["outcome"] == "fail"
        )  # beyond doubt goes before far beyond
        ordered = known.sort_values(["fails", "of_allowed"], kind="stable")
        worst = ordered.groupby(["request_class", "moment"], observed=True).tail(1)
        columns = ["time_s", "request_class", "promise", "of_allowed", "requests", "outcome"]
        return worst.sort_values(["request_class", "time_s"])[columns]


def promise_windows(
    result: RunResult | Sequence[RunResult],
    scenario: Scenario | None = None,
    *,
    tables: Sequence[pd.DataFrame] | None = None,
) -> PromiseWindows:
    """Return how each promise held in each window of a run, or of several judged together.

    ``scenario`` is the question (default: that of the run), ``tables`` the runs' ``per_request``.
    """
    runs = [result] if isinstance(result, RunResult) else list(result)
    asked = runs[0].scenario if scenario is None else scenario
    tables = [per_request(run) for run in runs] if tables is None else tables
    every = list(_windows(runs, tables, asked))
    frame = pd.concat(every, ignore_index=True) if every else pd.DataFrame(columns=FRAME)
    judged = (frame["requests"] >= frame["needed"]).to_numpy()
    surely = frame["chance"].to_numpy() <= TAIL / max(int(judged.sum()), 1)
    frame["outcome"] = np.select([~judged, surely], ["unknown", "fail"], "pass")
    return PromiseWindows(
        frame=frame[[*SHOWN, "outcome"]],
        worst=_worst(frame, tables, asked),
        defaults=[c.name for c in asked.classes if origin(c.promises, "window_s") == "default"],
    )


def _windows(
    runs: Sequence[RunResult], tables: Sequence[pd.DataFrame], asked: Scenario
) -> Iterator[pd.DataFrame]:
    """Yield the windows of each run and promise, each with the chance of its breaks."""
    for number, (run, table) in enumerate(zip(runs, tables, strict=True)):
        for c in asked.classes:
            length = c.promises.window_s
            begins = window_starts(run.judged_from_s, _end_s(run, table), length)
            own = table[table["request_class"] == c.name] if begins.size else table[:0]
            for rule in stated(c.promises) if begins.size else ():
                yield pd.DataFrame(
                    {
                        "run": number,
                        "request_class": c.name,
                        "promise": rule,
                        "start_s": begins,
                        "length_s": length,
                        **_breaks(own, c.promises, rule, begins),
                    }
                )


def _breaks(own: pd.DataFrame, promises: Promises, rule: str, begins: Floats) -> dict[str, Any]:
    """Return how many requests of each window break a promise, and how probable so many are."""
    from scipy.special import bdtrc

    applies, breaks = violating(own, promises, rule)
    at = own["intended_start_s"].to_numpy(np.float64)[applies]
    first, last = (np.searchsorted(at, begins + after) for after in (0.0, promises.window_s))
    so_far = np.concatenate([[0], np.cumsum(breaks[applies])])
    n, broken = last - first, so_far[last] - so_far[first]
    allowed = allowance(promises, rule)
    return {
        "requests": n,
        "broken": broken,
        "broken_fraction": np.divide(broken, n, out=np.full(n.size, np.nan), where=n > 0),
        "allowed_fraction": allowed,
        "needed": samples_needed(promises.quantile),
        "chance": np.where(broken > 0, bdtrc(broken - 1.0, n, allowed), 1.0),
    }


def _end_s(run: RunResult, table: pd.DataFrame) -> float:
    """Return when requests end to come: what is left of a run then only serves them, s."""
    last = table["intended_start_s"].max() if len(table) else run.judged_from_s
    return float(min(run.duration_s, last))


def window_starts(start_s: float, end_s: float, length_s: float) -> Floats:
    """Return where windows of a span start, the last at its end; none if the span is not longer.

    >>> window_starts(0.0, 400.0, 300.0)
    array([  0.,  60., 100.])
    """
    room = end_s - start_s - length_s
    if room <= 0:
        return np.empty(0)
    return np.append(np.arange(start_s, start_s + room, length_s / STARTS), start_s + room)


def _worst(frame: pd.DataFrame, tables: Sequence[pd.DataFrame], asked: Scenario) -> pd.DataFrame:
    rows = []
    for c in asked.classes:
        own = frame[(frame["request_class"] == c.name) & (frame["outcome"] != "unknown")]
        for rule in stated(c.promises):
            known = own[own["promise"] == rule]
            failed = known[known["outcome"] == "fail"]
            row: dict[str, Any] = {
                "request_class": c.name,
                "promise": rule,
                "windows": len(known),
                "failed_windows": len(failed),
                "broken_for_s": _covered(failed),
                "judged_for_s": _covered(known),
            }
            if len(known):
                one = known.sort_values(["chance", "requests"], ascending=[True, False]).iloc[0]
                row |= {k: one[k] for k in ("run", "start_s", "length_s", "requests", "broken")}
                row["figure"] = _figure(tables[one["run"]], c, one)
            rows.append(row)
    return pd.DataFrame(rows, columns=WORST)


def _covered(windows: pd.DataFrame) -> float:
    """Return how long windows of equal length last together, what they share counted once, s."""
    if windows.empty:
        return 0.0
    begins, length = windows["start_s"].to_numpy(), float(windows["length_s"].iloc[0])
    same_run = np.diff(windows["run"].to_numpy()) == 0
    return length + float(np.where(same_run, np.minimum(np.diff(begins), length), length).sum())


def _figure(table: pd.DataFrame, request_class: RequestClass, window: pd.Series) -> float:
    """Return what a promise is about, measured in one window."""
    rule = str(window["promise"])
    if rule not in LATENCIES:
        share = float(window["broken_fraction"])
        return share if SHARES[rule].most else 1 - share
    own = within(table[table["request_class"] == request_class.name], _window(window))
    applies, _ = violating(own, request_class.promises, rule)
    value = np.where(own["success"], own[rule], np.inf)[applies]
    return quantile(value, request_class.promises.quantile)


def _window(row: pd.Series) -> Window:
    return Window(start_s=float(row["start_s"]), length_s=float(row["length_s"]))


def _figure_text(figure: float, rule: str) -> str:
    return format_value(figure, rule if rule in LATENCIES else "_fraction")


def within(table: pd.DataFrame, window: Window) -> pd.DataFrame:
    """Return the requests that start in a window."""
    start = table["intended_start_s"]
    return table[(start >= window.start_s) & (start < window.start_s + window.length_s)]


def busiest_hour(run: RunResult, table: pd.DataFrame, name: str) -> Window | None:
    """Return the hour in which most requests of a class start; None if the run is no longer."""
    own = table[table["request_class"] == name]
    at = own["intended_start_s"].to_numpy(np.float64)
    begins = window_starts(run.judged_from_s, _end_s(run, table), BUSIEST_S)
    if not begins.size:
        return None
    counts = np.searchsorted(at, begins + BUSIEST_S) - np.searchsorted(at, begins)
    return Window(start_s=float(begins[counts.argmax()]), length_s=BUSIEST_S)


def in_windows(reasons: Iterable[Reason], found: PromiseWindows) -> Iterator[Reason]:
    """Yield the reasons; a promise that surely breaks in a window fails, and names the worst."""
    failed = found.worst[found.worst["failed_windows"] > 0]
    by_promise = {(row["request_class"], row["promise"]): row for _, row in failed.iterrows()}
    for reason in reasons:
        row = by_promise.get((reason.request_class, reason.rule))
        is_default = reason.request_class in found.defaults
        yield reason if row is None else _broken_in(reason, row, is_default=is_default)


def _broken_in(reason: Reason, row: pd.Series, *, is_default: bool) -> Reason:
    length = format_value(float(row["length_s"]), "_s") + " (a default)" * is_default
    spans = (format_value(float(row[key]), "_s") for key in ("broken_for_s", "judged_for_s"))
    figure = _figure_text(float(row["figure"]), reason.rule)
    broken = (
        f"broken in windows of {length} over {' of '.join(spans)}, worst from "
        f"{row['start_s']:,.0f} s: {figure}, {row['broken']:,} of {row['requests']:,} break it"
    )
    if reason.outcome == "fail":
        return replace(reason, evidence=f"{reason.evidence}; {broken}")
    return replace(
        reason,
        outcome="fail",
        value=float(row["figure"]),
        evidence=f"{broken}; over the whole run {reason.evidence}",
        next_action="see what happens in that window: plan for its load, not for the average",
        window=_window(row),
        samples_missing=0,
    )
