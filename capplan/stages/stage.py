"""One stage: a load, its run, the window of the run that is judged, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from capplan.evidence.store import inputs_of
from capplan.formatting import counted
from capplan.results import conservation_table, outcome_counts, per_request, queue_waits
from capplan.results.headline import summary
from capplan.results.segments import waited_twice
from capplan.scenario.files import with_values
from capplan.slo import judge
from capplan.slo.mechanisms import ACHIEVED, most_lag_s, sent
from capplan.stages.violations import Break, breaks_of, margins_of
from capplan.statistics import stability
from capplan.verdict import Reason, Verdict

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.statistics import Stability


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """A load and what it did, from ``start_s`` to ``end_s`` of its run.

    ``run`` is the whole run, with its warm-up set to ``start_s``; ``table`` has one row per
    intended request of the window. ``void``: only the start-up broke a promise. ``steady``: its
    load is constant, so that its backlog must be known not to grow.
    """

    name: str
    kind: str
    load_rps: float
    run: RunResult
    start_s: float
    end_s: float
    table: pd.DataFrame
    verdict: Verdict
    stability: Stability
    margins: tuple[Break, ...]
    """Every promise that load can break, with the share of requests that break it."""
    breaks: tuple[Break, ...]
    """Those of them that are broken, the first to break first."""
    run_id: str
    note: str = ""
    void: bool = False
    steady: bool = True
    top_rps: float = math.nan
    """Highest load of the run, where that is not ``load_rps``: the overload before a fall-back."""

    @property
    def highest_rps(self) -> float:
        """Return the highest load of the run."""
        return self.load_rps if math.isnan(self.top_rps) else self.top_rps

    @property
    def whole(self) -> RunResult:
        """Return the whole run, judged from its start on."""
        return with_warmup(self.run, 0.0)

    @property
    def scenario(self) -> Scenario:
        """Return the scenario that ran."""
        return self.run.scenario

    @property
    def stationary(self) -> bool | None:
        """Return the stability gate's answer on all requests of the window."""
        return self.stability.stable

    @property
    def thin(self) -> tuple[Reason, ...]:
        """Return the promises for which the window has too few samples."""
        return tuple(r for r in self.verdict.reasons if r.samples_missing)

    @property
    def counts(self) -> bool:
        """Return whether the stage may be read: it surely breaks, or has all that a pass needs.

        A pass needs the samples of every promise and, under a constant load, a backlog that is
        known not to grow. What the client limited, or broke in its start-up alone, is not read.
        """
        if self.void or self.client_limited:
            return False
        return self.surely_breaks() or self.missing_s == 0

    @property
    def broken(self) -> bool:
        """Return whether a promise broke, or the backlog grows without end."""
        return bool(self.breaks) or self.grows()

    def grows(self, request_class: str | None = None) -> bool:
        """Return whether the backlog (of a class) surely grows under a constant load."""
        if request_class is None or not self.steady:
            return self.steady and self.stationary is False
        return any(
            r.rule == "stability" and r.outcome == "fail" and r.request_class == request_class
            for r in self.verdict.reasons
        )

    def surely_holds(self, request_class: str | None = None) -> bool:
        """Return whether the promises (of a class) that load can break are surely kept."""
        own = [m for m in self.margins if request_class in (None, m.request_class)]
        return all(m.kept for m in own) and not self.surely_breaks(request_class)

    def breaks_any(self, request_class: str) -> bool:
        """Return whether a promise of a class is broken, or the class's backlog grows."""
        broken = any(b.request_class == request_class for b in self.breaks)
        return broken or self.grows(request_class)

    def surely_breaks(self, request_class: str | None = None) -> bool:
        """Return whether a promise (of a class) is broken beyond doubt, or a backlog grows."""
        own = [b for b in self.breaks if request_class in (None, b.request_class)]
        return any(b.proven for b in own) or self.grows(request_class)

    @property
    def sent(self) -> tuple[float, float]:
        """Return the sent share of the asked rate, and the 99th percentile of the send lag, s."""
        log = self.run.requests
        first = log[
            (log["attempt"] == 1) & log["intended_start_s"].between(self.start_s, self.end_s)
        ]
        return sent(first, self.end_s)

    @property
    def client_limited(self) -> bool:
        """Return whether the load generator, not the service, was the limit."""
        achieved, lag = self.sent
        late = lag > most_lag_s(self.scenario.classes)
        return bool(achieved < ACHIEVED or late)

    def counts_for(self, request_class: str) -> bool:
        """Return whether the stage may be read for a class: another's break decides nothing."""
        lacks = any(r.request_class == request_class for r in self.thin)
        lacks |= self.of([request_class]).empty
        return self.counts and (self.surely_breaks(request_class) or not lacks)

    @property
    def missing_s(self) -> float:
        """Return how much longer it must last for its samples and its backlog's trend, s."""
        more = [self._samples_s(r) for r in self.thin]
        if self.steady and self.stationary is None:
            more.append(self._longer_s())
        return max(more, default=0.0)

    @property
    def needs_min(self) -> float:
        """Return how many more minutes would give the missing evidence; 0 if none is missing."""
        return 0.0 if self.counts or self.void else self.missing_s / 60

    def _samples_s(self, reason: Reason) -> float:
        """Return how long the samples that a promise lacks take to come, s."""
        have = len(self.of([str(reason.request_class)]))
        rate = have / (self.end_s - self.start_s)
        return reason.samples_missing / rate if rate > 0 else math.inf

    def _longer_s(self) -> float:
        """Return how much longer the window must be to show a trend of the backlog, s.

        The error of a trend falls with the window's length to the power of 3/2 (least squares over
        even batches), and the gate needs it below its tolerance.
        """
        from capplan.statistics.stability import FEWEST, TOLERANCE

        span, n = self.end_s - self.start_s, len(self.table)
        if n < FEWEST:
            return span * (FEWEST / max(n, 1) - 1)
        high = self.stability.drift_fraction.high
        if not math.isfinite(high) or high <= TOLERANCE:
            return span
        return span * (float((high / TOLERANCE) ** (2 / 3)) - 1)

    @property
    def throughput_rps(self) -> float:
        """Return successes among the requests of the window, per second of the window."""
        return self._share("succeeded") * self.offered_rps

    @property
    def goodput_rps(self) -> float:
        """Return the requests of the window that kept every promise, per second."""
        return float(self.table["good"].mean(skipna=False)) * self.offered_rps

    @property
    def offered_rps(self) -> float:
        """Return the requests of the window per second."""
        return len(self.table) / (self.end_s - self.start_s)

    def _share(self, outcome: str) -> float:
        return float((self.table["outcome"] == outcome).mean()) if len(self.table) else math.nan

    def of(self, names: tuple[str, ...] | list[str]) -> pd.DataFrame:
        """Return the requests of some classes."""
        return self.table[self.table["request_class"].isin(list(names))]

    def to_json(self) -> dict[str, Any]:
        """Return the stage as in ``stages --json``."""
        achieved, lag = self.sent
        return {
            "name": self.name,
            "kind": self.kind,
            "load_rps": self.load_rps,
            "run_id": self.run_id,
            "window_s": [self.start_s, self.end_s],
            "stationary": self.stationary,
            "stability": {
                "reason": self.stability.reason,
                "drift_fraction": self.stability.drift_fraction.value,
                "drift_interval": [
                    self.stability.drift_fraction.low,
                    self.stability.drift_fraction.high,
                ],
                "completion_ratio": self.stability.completion_ratio,
                "little_residual": self.stability.little_residual,
            },
            "counts": self.counts,
            "void": self.void,
            "note": self.remark,
            "needs_min": self.needs_min,
            "client": {
                "limited": self.client_limited,
                "achieved_fraction": achieved,
                "send_lag_p99_s": lag,
            },
            "offered_rps": self.offered_rps,
            "throughput_rps": self.throughput_rps,
            "goodput_rps": self.goodput_rps,
            "outcomes": outcome_counts(self.table),
            "by_class": self.by_class(),
            "books": self.books(("request_class",)).to_dict("records"),
            "double_queued": self.double_queued(),
            "breaks": [one.to_json() for one in self.breaks],
            "verdict": self.verdict.to_json(),
        }

    def books(self, by: Sequence[str]) -> pd.DataFrame:
        """Return the books of the requests of the window."""
        return conservation_table(self.run, by=by, within_s=(self.start_s, self.end_s))

    def double_queued(self) -> Mapping[str, Any]:
        """Return how many requests of the window waited in two queues or more, and where."""
        attempts = windowed(self.run, self.start_s, self.end_s).requests
        return waited_twice(attempts, queue_waits(attempts, end_s=self.end_s))

    @property
    def remark(self) -> str:
        """Return what qualifies the stage: its note, and why it does not count."""
        return "; ".join(part for part in (self.note, self.why_not) if part)

    @property
    def why_not(self) -> str:
        """Return why the stage does not count; empty if it does."""
        if self.counts or self.void:
            return ""
        if self.client_limited:
            return "the client, not the service, was the limit"
        more = counted(math.ceil(self.needs_min) or 1, "more minute")
        return f"insufficient evidence: needs {more}"

    def by_class(self) -> Mapping[str, Any]:
        """Return offered requests, outcomes, goodput and latencies of each class."""
        found = {}
        for c in self.scenario.classes:
            own = self.of([c.name])
            found[c.name] = {
                "offered": len(own),
                "outcomes": outcome_counts(own),
                "good_fraction": float(own["good"].mean(skipna=False)) if len(own) else math.nan,
                "ttft_censored_s": summary(own["ttft_censored_s"]),
                "e2e_censored_s": summary(own["e2e_censored_s"]),
                "tpot_s": summary(own["tpot_s"]),
                "samples_needed": c.promises.samples_needed(),
            }
        return found


def stage_of(
    name: str,
    kind: str,
    load_rps: float,
    run: RunResult,
    *,
    start_s: float,
    end_s: float,
    note: str = "",
    steady: bool = True,
) -> Stage:
    """Return the stage that a window of a run is."""
    whole = with_warmup(run, start_s)
    found = judged(windowed(whole, start_s, end_s))
    table = found["table"]
    return Stage(
        name=name,
        kind=kind,
        load_rps=load_rps,
        run=whole,
        start_s=start_s,
        end_s=end_s,
        stability=stability(
            table["intended_start_s"], table["finish_s"], start_s=start_s, end_s=end_s
        ),
        run_id=inputs_of(whole).run_id,
        note=note,
        steady=steady,
        **found,
    )


def judged(part: RunResult) -> dict[str, Any]:
    """Return the fields of a stage that follow from the requests of a part of its run."""
    table, verdict = per_request(part), judge(part)
    margins = tuple(margins_of(table, part.scenario))
    breaks = breaks_of(verdict, margins)
    return {"table": table, "verdict": verdict, "margins": margins, "breaks": breaks}


def with_warmup(run: RunResult, warmup_s: float) -> RunResult:
    """Return the run, judged from another moment on."""
    return replace(run, scenario=with_values(run.scenario, {"warmup_s": warmup_s}))


def windowed(run: RunResult, start_s: float, end_s: float) -> RunResult:
    """Return the part of a run that the requests of a window made: those that start in it."""
    log = run.requests
    first = log.groupby("request_id", sort=False, observed=True)["intended_start_s"].transform(
        "min"
    )
    inside = (first >= start_s) & (first < end_s)
    return replace(
        with_warmup(run, start_s),
        requests=log[inside].reset_index(drop=True),
        duration_s=min(run.duration_s, end_s),
    )


def resting_on(stages: Iterable[Stage], reasons: Iterable[Reason]) -> Iterator[Reason]:
    """Yield reasons, a *pass* as *unknown* if one of the stages that it rests on does not count."""
    lacking = next((s for s in stages if not s.counts), None)
    for reason in reasons:
        if lacking is None or reason.outcome != "pass":
            yield reason
        else:
            why = f"{lacking.name}, {lacking.load_rps:.3g}/s: {lacking.remark}"
            evidence = f"{reason.evidence}; it rests on a stage that does not count"
            yield replace(reason, outcome="unknown", evidence=evidence, next_action=why)


def interval_of(steps: Sequence[Stage], request_class: str | None = None) -> tuple[float, float]:
    """Return the load up to which promises (of a class) surely hold, and from which one breaks.

    NaN below where the lowest step does not surely hold; +inf above where no break is beyond doubt.
    """
    doubtful = [s.load_rps for s in steps if not s.surely_holds(request_class)]
    limit = min(doubtful, default=math.inf)
    kept = max((s.load_rps for s in steps if s.load_rps < limit), default=math.nan)
    sure = min((s.load_rps for s in steps if s.surely_breaks(request_class)), default=math.inf)
    return kept, sure
