"""The fewest replicas of a pool that hold, and how they are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import counted, format_value, listed, rule_words
from capplan.scenario import Scenario
from capplan.sizing.fewest import WithinError
from capplan.sizing.loss import Loss, Outage, with_loss
from capplan.sizing.points import Point, Rejection
from capplan.sizing.reasons import own_sentence
from capplan.sizing.rules import RuleOfThumb
from capplan.sizing.table import operating_limits, unknown_rows
from capplan.statistics import share_interval
from capplan.verdict import Verdict

if TYPE_CHECKING:
    import altair as alt

    from capplan.evidence import Inputs

RULE_NAMES = {"erlang_c": "Erlang C", "peak_times_1.2": "peak × 1.2"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizing(Displayed):
    """The fewest replicas of a pool under each loss, with every number that was tried.

    ``chosen`` holds the point of the fewest replicas for each loss, None if no number up to
    ``n_max`` holds. ``rules`` stand beside it and are simulated too, so that it shows whether
    they hold. Every loss was judged on the same drawn traces.
    """

    inputs: Inputs
    scenario: Scenario
    pool: str
    n_max: int
    chosen: Mapping[Loss, Point | None]
    within: WithinError | None
    """How far the number moves with the error of step times; None = unknown."""
    rejected: tuple[Rejection, ...]
    rules: tuple[RuleOfThumb, ...]
    points: tuple[Point, ...]
    capacity_table: pd.DataFrame
    failure_margin: pd.DataFrame
    cause: str
    """Why serving alone breaks a promise, in words; empty if it does not."""
    outages: Mapping[int, tuple[Outage, ...]]
    """When each number of lost replicas crashes, in each of the runs."""
    notes: tuple[str, ...]
    """What the runs rest on, beside the scenario."""
    verdict: Verdict

    @property
    def run_id(self) -> str:
        """Return the id of the sizing, which follows from its inputs."""
        return self.inputs.run_id

    @property
    def replicas(self) -> dict[int, int | None]:
        """Return the fewest replicas by how many are lost; None if none is shown to hold."""
        return {
            lose.count: None if point is None or point.open else point.replicas
            for lose, point in self.chosen.items()
        }

    @property
    def answer(self) -> str:
        """Return in one sentence how many replicas there are, how many are needed, and why."""
        pool = self.scenario.pool(self.pool)
        return own_sentence(
            pool,
            self.chosen,
            self.rejected,
            self.n_max,
            cause=self.cause,
            within=self.within,
        )

    def summary(self) -> str:
        """Return the answer, the number found for each loss, and the verdict."""
        parts = [f"{self._number(point)} with {lose}" for lose, point in self.chosen.items()]
        numbers = (
            f"{self.answer}\n\nReplicas of `{self.pool}` that keep every promise: {listed(parts)}."
        )
        text = f"{numbers} **Verdict: {self.verdict}**"
        unknown = unknown_rows(self.capacity_table.to_dict("records"))
        return f"{text} Not known: {listed(unknown)}." if unknown else text

    def table(self) -> pd.DataFrame:
        """Return what each loss takes: replicas, classes protected and shed, cost, recovery.

        *missed*: the requests around the loss that missed a promise, of all of them.
        """
        margin = self.failure_margin
        return pd.DataFrame(
            {
                "lost": [lose["count"] for lose in margin["lose"]],
                "replicas": margin["replicas"],
                "protected": margin["protected"].map(listed),
                "shed": margin["shed"].map(listed),
                "cost_usd_per_hour": margin["cost_usd_per_hour"],
                "recovery_s": margin["recovery_s"],
                "missed with the loss": margin["missed"].map(_missed),
                "missed without": margin["missed_without"].map(_missed),
            }
        )

    def limits(self) -> pd.DataFrame:
        """Return the capacity table: each operating limit with its protective action."""
        return operating_limits(self.capacity_table)

    def rejections(self) -> pd.DataFrame:
        """Return each number of replicas that does not hold, with the first rule against it."""
        rows = [
            (r.replicas, r.lose.count, r.outcome, rule_words(r.rule), r.reason)
            for r in self.rejected
        ]
        return pd.DataFrame(rows, columns=["replicas", "lost", "outcome", "rule", "reason"])

    def answers(self) -> pd.DataFrame:
        """Return how many replicas each way of counting asks for, and whether that number holds."""
        how = "the fewest that keep every promise"
        rows = [
            ("simulation", lose.count, "none holds" if point is None else f"{point.replicas}",
             "" if point is None else "not shown" if point.open else "yes", how)
            for lose, point in self.chosen.items()
        ] + [
            (RULE_NAMES[rule.name], rule.lose, f"{rule.replicas or 'unknown'}",
             {True: "yes", False: "no", None: "unknown"}[rule.holds], rule.evidence)
            for rule in self.rules
        ]  # fmt: skip
        heads = ["counted by", "replicas lost", "replicas", "holds when simulated", "how"]
        return pd.DataFrame(rows, columns=heads)

    def chart(self, *, lost: int = 0) -> alt.LayerChart:
        """Return the share of good requests by replicas, one line per number lost.

        ``lost`` names the loss for which the number found and those of the rules are marked.
        """
        from capplan import charts

        rules = {RULE_NAMES[r.name]: r.replicas for r in self.rules if r.lose == lost}
        return charts.goodput_by_replicas(
            self.goodput(),
            promise_fraction=self._promised_fraction(),
            rules={name: n for name, n in rules.items() if n is not None},
            chosen=self.replicas.get(lost),
        )

    def goodput(self) -> pd.DataFrame:
        """Return the share of good requests of the pool by replicas and replicas lost.

        Columns: replicas, lost, goodput_fraction, low, high (95 % interval). A number without a
        row: the run cannot tell whether its requests were good.
        """
        own = self.frame()
        own = own[own["request_class"].isin(self._served())]
        own = own.assign(good=own["good_fraction"] * own["offered"])
        sums = own.groupby(["replicas", "lost"])[["offered", "good"]].sum(min_count=1).reset_index()
        rows = []
        for row in sums.dropna().to_dict("records"):
            share = share_interval(round(row["good"]), int(row["offered"]))
            rows.append((row["replicas"], row["lost"], share.value, share.low, share.high))
        return pd.DataFrame(rows, columns=["replicas", "lost", "goodput_fraction", "low", "high"])

    def losing(self, lost: int) -> Scenario:
        """Return the scenario with the number found for a loss, which strikes as it was judged.

        If no number holds, the scenario has the most that were tried. ValueError for a loss that
        was not asked about.
        """
        found = {lose.count: lose for lose in self.chosen}
        if lost not in found:
            msg = f"lost must be one of {listed(map(str, found))}, got {lost}"
            raise ValueError(msg)
        replicas = self.replicas[lost] or max(point.replicas for point in self.points)
        at_s = self.outages[lost][0].at_s if lost else 0.0
        pool = self.scenario.pool(self.pool)
        return with_loss(self.scenario, pool, replicas, found[lost], at_s=at_s)

    def around(self, lost: int) -> tuple[float, float]:
        """Return a stretch of the first run that shows a loss, s: before it, in it and after it."""
        if lost == 0:
            return 0.0, math.inf
        outage = self.outages[lost][0]
        low, high = outage.window_s
        length = min(outage.until_s - outage.at_s, high - low)
        return max(low - length, 0.0), high + length

    def moment(self, lost: int) -> str:
        """Return in words what happened when that many replicas were lost."""
        rows = self.failure_margin
        [row] = rows[[lose["count"] == lost for lose in rows["lose"]]].to_dict("records")
        if not row["missed"]:
            return f"{counted(lost, 'replica')} lost: there is nothing to show."
        back = "and stay away"
        if row["down_s"] is not None:
            back = f"for {format_value(row['down_s'], '_s')}"
        return (
            f"{lost} of {row['replicas'] or 'too few'} replicas crash after "
            f"{format_value(row['at_s'][0], '_s')} {back}. Around the loss "
            f"{_missed(row['missed'])} requests missed a promise, without it "
            f"{_missed(row['missed_without'])}. Recovery: {format_value(row['recovery_s'], '_s')}."
        )

    def frame(self) -> pd.DataFrame:
        """Return one row per number tried, loss and class: ``replicas, lost, holds`` and figures.

        Columns after these: ``rules`` (rules of thumb that give this number), ``reason`` (why it
        does not hold, else empty), ``outcome`` of its verdict, and those of ``Point.figures``.
        """
        parts = []
        for point in sorted(self.points, key=lambda p: (p.lose.count, p.replicas)):
            count, lost = point.replicas, point.lose.count
            front: dict[str, Any] = {
                "replicas": count,
                "lost": lost,
                "holds": point.holds,
                "rules": ", ".join(
                    r.name for r in self.rules if (r.replicas, r.lose) == (count, lost)
                ),
                "reason": "" if point.holds else point.rejection().reason,
                "outcome": point.verdict.outcome,
            }
            parts.append(point.figures.assign(**front)[[*front, *point.figures.columns]])
        return pd.concat(parts, ignore_index=True)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``size --json``."""
        return {
            "run_id": self.run_id,
            "pool": self.pool,
            "replicas": plain(self.replicas),
            "own_replicas": self.scenario.pool(self.pool).replicas,
            "within_step_time_error": None if self.within is None else self.within.to_json(),
            "answer": re.sub("`", "", self.answer),
            "capacity_table": plain(self.capacity_table.to_dict("records")),
            "failure_margin": plain(self.failure_margin.to_dict("records")),
            "rules_of_thumb": [rule.to_json() for rule in self.rules],
            "notes": list(self.notes),
            "rejected": [rejection.to_json() for rejection in self.rejected],
            "verdict": self.verdict.to_json(),
        }

    def _number(self, point: Point | None) -> str:
        if point is None:
            return f"no number up to {self.n_max}"
        if point.open:
            return f"not shown (nothing broken at {point.replicas})"
        return f"**{point.replicas}**"

    def _served(self) -> set[str]:
        return {name for point in self.points for name in point.classes}

    def _promised_fraction(self) -> float | None:
        """Return the strictest promised share of good requests of the pool's classes."""
        promises = [self.scenario.request_class(name).promises for name in self._served()]
        stated = [p.goodput_fraction for p in promises if p.goodput_fraction is not None]
        return max(stated, default=None)


def _missed(by_class: Mapping[str, Mapping[str, int]]) -> str:
    """Return how many requests missed a promise, of how many; empty if there was no loss."""
    parts = [f"{own['missed']:,} of {own['offered']:,} {name}" for name, own in by_class.items()]
    return listed(parts, none="")
