"""The same requests, faster and faster: what the tour shows before a proper acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from capplan.formatting import format_value, in_layer, rule_words
from capplan.pages import acceptance
from capplan.traffic.stretch import at_load, busiest, rate_rps

if TYPE_CHECKING:
    import pandas as pd

    from capplan.pages.page import Page
    from capplan.scenario import Scenario
    from capplan.stages import Degradation, Stage

WARMUP_FRACTION = 0.1
"""Part of each step that fills the empty system and is not judged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ramp:
    """The steps of a ramp, lowest load first."""

    scenario: Scenario
    steps: tuple[Stage, ...]

    def flows(self) -> pd.DataFrame:
        """Return throughput and goodput by load."""
        return acceptance.flows(self.steps)

    def latencies(self, name: str) -> pd.DataFrame:
        """Return a latency (``ttft`` or ``e2e``) at each class's promised quantile by load."""
        return acceptance.latencies(self.scenario, self.steps, name)

    def outcomes(self) -> pd.DataFrame:
        """Return the share of each outcome by load."""
        return acceptance.outcomes(self.steps)

    def promises(self, field: str) -> dict[str, float]:
        """Return the classes' bounds on a latency, those that have one."""
        return acceptance.promises(self.scenario, field)

    @property
    def first_degradation(self) -> Degradation | None:
        """Return where it first breaks; None nowhere."""
        from capplan.stages import degradation_of

        return degradation_of(self.steps, self.steps[0])

    @property
    def acceptable_rps(self) -> float:
        """Return the highest load below the first broken promise; NaN where the lowest breaks."""
        kept = math.nan
        for step in self.steps:
            if step.broken:
                break
            kept = step.load_rps
        return kept

    def said(self) -> str:
        """Return where it first breaks, in a sentence."""
        first = self.first_degradation
        if first is None:
            return f"No promise is broken up to {format_value(self.steps[-1].load_rps, '_rps')}."
        return (
            f"The first promise to break is **{first.request_class}: "
            f"{rule_words(first.promise)}**, at {format_value(first.load_rps, '_rps')}; "
            f"most of its requests lose their time {in_layer(first.layer)}. Up to "
            f"{format_value(self.acceptable_rps, '_rps')} none is broken."
        )


def raise_load(page: Page, factors: Sequence[float], *, requests: int) -> Ramp:
    """Return a ramp over the busiest stretch of the study's requests, sped up by each factor.

    Every step has the very same requests in the same order, so that steps differ in load alone.
    """
    from capplan.simulation import simulate
    from capplan.stages import stage_of

    stretch = busiest(page.draw(), requests)
    steps = []
    for factor in sorted(factors):
        trace = at_load(stretch, factor)
        span = math.nextafter(float(trace.frame["arrival_s"].iloc[-1]), math.inf)
        result = simulate(page.scenario, trace=trace, seed=page.seed)
        steps.append(
            stage_of(
                f"{factor:g} × the trace",
                "ramp",
                rate_rps(trace),
                result,
                start_s=WARMUP_FRACTION * span,
                end_s=span,
            )
        )
    return Ramp(scenario=page.scenario, steps=tuple(steps))


def even_steps(lowest: float, highest: float, steps: int) -> list[float]:
    """Return that many factors, each the same multiple of the one before.

    >>> even_steps(1.0, 4.0, 3)
    [1.0, 2.0, 4.0]
    """
    if steps < 1 or not 0 < lowest <= highest:
        msg = f"0 < lowest <= highest and a step must hold, got {lowest}, {highest}, {steps} steps"
        raise ValueError(msg)
    return [float(round(factor, 4)) for factor in np.geomspace(lowest, highest, steps)]
