"""Load raised step by step on the same requests: what is answered, what is good, what breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from capplan.pages.loads import at_load, busiest, rate_rps
from capplan.pages.telling import rule_words, told

if TYPE_CHECKING:
    from capplan.pages.page import Page
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.slo import Reason, Verdict

WARMUP_FRACTION = 0.1
"""Part of each step that fills the empty system and is not judged."""
PROMISED = ("ttft_s", "tpot_s", "e2e_s", "deadline_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One load: its rate, its run, and the verdict on it."""

    load_rps: float
    factor: float
    result: RunResult
    requests: pd.DataFrame
    """One row per intended request, after the warm-up."""
    verdict: Verdict

    @property
    def broken(self) -> list[Reason]:
        """Return the promises that are broken, classes in their order."""
        return [r for r in self.verdict.reasons if r.outcome == "fail" and r.request_class]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ramp:
    """The steps of a ramp, lowest load first."""

    scenario: Scenario
    steps: tuple[Step, ...]

    def flows(self) -> pd.DataFrame:
        """Return throughput and goodput by load: load_rps, figure, flow_rps, low, high."""
        rows = []
        for step in self.steps:
            succeeded = (step.requests["outcome"] == "succeeded").to_numpy(np.float64)
            shares = {"throughput": succeeded, "goodput": step.requests["good"].to_numpy()}
            for figure, share in shares.items():
                rows.append((step.load_rps, figure, *_flow(share, step.load_rps)))
        return pd.DataFrame(rows, columns=["load_rps", "figure", "flow_rps", "low", "high"])

    def latencies(self, name: str) -> pd.DataFrame:
        """Return a latency at each class's promised quantile by load, failures +inf.

        ``name`` is ``ttft`` (of streamed answers only: any other has its first token with its
        last) or ``e2e``. Columns: load_rps, request_class, latency_s, low, high.
        """
        from capplan.statistics import quantile_interval

        rows = []
        for step in self.steps:
            for c in self.scenario.classes:
                own = step.requests.loc[step.requests["request_class"] == c.name]
                own = own[own["streaming"].astype(bool)] if name == "ttft" else own
                if own.empty:
                    continue
                found = quantile_interval(own[f"{name}_censored_s"], c.promises.quantile)
                ends = [v if np.isfinite(v) else np.nan for v in (found.low, found.high)]
                rows.append((step.load_rps, c.name, found.value, *ends))
        return pd.DataFrame(rows, columns=["load_rps", "request_class", "latency_s", "low", "high"])

    def outcomes(self) -> pd.DataFrame:
        """Return the share of each outcome by load: load_rps, outcome, share_fraction."""
        rows = []
        for step in self.steps:
            shares = step.requests["outcome"].value_counts(normalize=True)
            rows += [(step.load_rps, str(name), float(share)) for name, share in shares.items()]
        return pd.DataFrame(rows, columns=["load_rps", "outcome", "share_fraction"])

    def promises(self, field: str) -> dict[str, float]:
        """Return the classes' bounds on a latency, those that have one."""
        bounds = {c.name: getattr(c.promises, field) for c in self.scenario.classes}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    def table(self) -> pd.DataFrame:
        """Return one row per load: flows, failures, the verdict, and what breaks first."""
        flows = self.flows()
        by_figure = {str(name): part["flow_rps"].tolist() for name, part in flows.groupby("figure")}
        rows = []
        for i, step in enumerate(self.steps):
            ended = step.requests["outcome"].value_counts(normalize=True)
            first = step.broken[0] if step.broken else None
            rows.append(
                {
                    "load_rps": step.load_rps,
                    "throughput_rps": by_figure["throughput"][i],
                    "goodput_rps": by_figure["goodput"][i],
                    "timed out_fraction": float(ended.get("timed_out", 0.0)),
                    "refused_fraction": float(ended.get("rejected", 0.0)),
                    "verdict": step.verdict.outcome,
                    "first broken": "" if first is None else _promise(first),
                }
            )
        return pd.DataFrame(rows)

    @property
    def first_degradation(self) -> dict[str, Any] | None:
        """Return where it first breaks: load_rps, request_class, promise, layer; None nowhere."""
        for step in self.steps:
            if step.broken:
                first = step.broken[0]
                return {
                    "load_rps": step.load_rps,
                    "request_class": first.request_class,
                    "promise": first.rule,
                    "layer": _longest_wait(step.result, str(first.request_class)),
                }
        return None

    @property
    def acceptable_rps(self) -> float:
        """Return the highest load below the first broken promise; NaN where the lowest breaks."""
        kept = float("nan")
        for step in self.steps:
            if step.broken:
                break
            kept = step.load_rps
        return kept

    def said(self) -> str:
        """Return where it first breaks, in a sentence."""
        first = self.first_degradation
        if first is None:
            return f"No promise is broken up to {told(self.steps[-1].load_rps, '_rps')}."
        return (
            f"The first promise to break is **{first['request_class']}: "
            f"{rule_words(first['promise'])}**, at {told(first['load_rps'], '_rps')}; "
            f"its requests wait longest in the {first['layer'].replace('_', ' ')}. Up to "
            f"{told(self.acceptable_rps, '_rps')} none is broken."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the ramp as an artefact: its stages, and where it first breaks."""
        table = self.table()
        return {
            "stages": [
                {
                    "name": f"{step.factor:g} × the trace",
                    "load_rps": step.load_rps,
                    "outcomes": step.requests["outcome"].value_counts().to_dict(),
                    "goodput_rps": table["goodput_rps"].iloc[i],
                    "throughput_rps": table["throughput_rps"].iloc[i],
                    "verdict": step.verdict.to_json(),
                }
                for i, step in enumerate(self.steps)
            ],
            "first_degradation": self.first_degradation,
            "acceptable_load_rps": self.acceptable_rps,
        }


def raise_load(page: Page, factors: Sequence[float], *, requests: int) -> Ramp:
    """Return a ramp over the busiest stretch of the study's requests, sped up by each factor.

    Every step has the very same requests in the same order, so that steps differ in load alone.
    """
    from capplan.results import per_request
    from capplan.scenario.files import with_values
    from capplan.simulation import simulate
    from capplan.slo import judge

    stretch = busiest(page.draw(), requests)
    steps = []
    for factor in sorted(factors):
        trace = at_load(stretch, factor)
        span = float(trace.frame["arrival_s"].iloc[-1])
        scenario = with_values(page.scenario, {"warmup_s": WARMUP_FRACTION * span})
        result = simulate(scenario, trace=trace, seed=page.seed)
        steps.append(
            Step(
                load_rps=rate_rps(trace),
                factor=factor,
                result=result,
                requests=per_request(result),
                verdict=judge(result),
            )
        )
    return Ramp(scenario=page.scenario, steps=tuple(steps))


def _flow(share: np.ndarray, load_rps: float) -> tuple[float, float, float]:
    """Return a share of the requests as a rate, with the interval of its batch means."""
    from capplan.statistics import batch_means

    found = batch_means(share)
    ends = [load_rps * v if np.isfinite(v) else np.nan for v in (found.low, found.high)]
    return load_rps * found.value, max(ends[0], 0.0), min(ends[1], load_rps)


def _promise(reason: Reason) -> str:
    return f"{reason.request_class}: {rule_words(reason.rule)}"


def _longest_wait(result: RunResult, request_class: str) -> str:
    """Return the queue in which a class's requests wait longest on average."""
    from capplan.results import queue_waits

    waits = queue_waits(result.judged, end_s=result.duration_s)
    own = waits[(result.judged["request_class"] == request_class).to_numpy()].mean()
    return str(own.idxmax()) if own.notna().any() else "unknown"


def even_steps(lowest: float, highest: float, steps: int) -> list[float]:
    """Return that many factors, each the same multiple of the one before.

    >>> even_steps(1.0, 4.0, 3)
    [1.0, 2.0, 4.0]
    """
    if steps < 1 or not 0 < lowest <= highest:
        msg = f"0 < lowest <= highest and a step must hold, got {lowest}, {highest}, {steps} steps"
        raise ValueError(msg)
    return [float(round(factor, 4)) for factor in np.geomspace(lowest, highest, steps)]
