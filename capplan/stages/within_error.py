"""How far the loads of a ramp move with the error of step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.formatting import format_value
from capplan.replica.step_error import StepError, error_factors, known_error, with_step_times
from capplan.stages.run_load import continued, step

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.knee import Knee
    from capplan.stages.ramp import LoadRamp
    from capplan.stages.stage import Stage

TRIES = 4
"""Most steps at each end; each is nearer to the far side by half a step of the ramp (by ratio)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadsWithinError:
    """Loads of a ramp, if step times are off by their known error.

    The highest load that keeps every promise, and the lowest that breaks one, lie between
    ``low_rps``, which the longest step times were run to keep, and ``high_rps``, which the shortest
    were run to break. NaN below and +inf above: no step showed it.
    """

    error: StepError
    low_rps: float
    high_rps: float
    stages: tuple[Stage, ...]
    """The steps that were run for it."""

    def __str__(self) -> str:
        """Return the loads and the error in words."""
        low, high = (format_value(end, "_rps") for end in (self.low_rps, self.high_rps))
        return f"between {low} and {high} with {self.error}"

    def knee(self, knee: Knee) -> tuple[float, float]:
        """Return the interval of a knee, widened by the error, requests/s.

        If all times are ``f`` times as long, a run at ``1 / f`` of the load is the same run in slow
        motion, with its knee (the greatest power, which no promise moves) at ``1 / f`` of the load.
        Times that are no step's, as of the network and of limits, are taken to scale too.
        """
        longest, shortest = (self.error.factor(longer=end) for end in (True, False))
        return knee.low_rps / longest, knee.high_rps / shortest

    def to_json(self) -> dict[str, Any]:
        """Return the loads, the error and the runs as plain values."""
        return {
            "interval": [self.low_rps, self.high_rps],
            "run_ids": [one.run_id for one in self.stages],
            **self.error.to_json(),
        }


def moved_words(within: LoadsWithinError | None) -> str:
    """Return how far the load moves with the error of step times, in a sentence."""
    if within is None:
        return "How far that load moves with the error of step times is unknown."
    return f"The load lies {within}."


def knee_words(within: LoadsWithinError | None, knee: Knee) -> str:
    """Return the interval of a knee within the error of step times; unknown without it."""
    ends = [math.nan] if within is None else within.knee(knee)
    loads = " to ".join(format_value(end, "_rps") for end in ends)
    return f"within the error of step times: {loads}"


def loads_within_error(
    scenario: Scenario, ramp: LoadRamp, pool_name: str, *, seed: int
) -> LoadsWithinError | None:
    """Return how far the loads of a ramp move with the error of step times.

    Parameters
    ----------
    scenario
        The scenario of the ramp; its limits stay, as they are set without knowing the error.
    ramp
        Its highest kept and lowest broken load are where the search begins.
    pool_name
        The pool that degrades first; None is returned if the error of its steps is unknown.
    seed
        That of the ramp.
    """
    error = known_error(scenario.pool(pool_name))
    if error is None:
        return None
    kept, first = ramp.kept_rps, ramp.first_broken
    slow = _tried(scenario, ramp, kept, longer=True, seed=seed)
    fast = _tried(scenario, ramp, math.nan if first is None else first.load_rps, longer=False,
                  seed=seed)  # fmt: skip
    return LoadsWithinError(
        error=error,
        low_rps=next((s.load_rps for s in slow if _keeps(s)), math.nan),
        high_rps=next((s.load_rps for s in fast if _breaks(s)), math.inf),
        stages=(*slow, *fast),
    )


def _tried(
    scenario: Scenario, ramp: LoadRamp, load_rps: float, *, longer: bool, seed: int
) -> Sequence[Stage]:
    """Return the steps from a load, scaled by the error, to the first that decides an end."""
    factors = error_factors(scenario, longer=longer)
    changed = with_step_times(scenario, factors)
    half = math.sqrt(scenario.stages.factor)
    load = load_rps / (max if longer else min)(factors.values())
    tried: list[Stage] = []
    while len(tried) < TRIES and math.isfinite(load):
        below = max((s for s in ramp.steps if s.load_rps <= load), key=_load, default=ramp.steps[0])
        words = "longest" if longer else "shortest"
        found, _ = step(
            continued(changed, below.run),
            load,
            before_rps=load / scenario.stages.factor,
            name=f"{words} step times, {load:.3g}/s",
            kind="within_error",
            seed=seed,
        )
        tried.append(found)
        if (_keeps if longer else _breaks)(found):
            break
        load *= 1 / half if longer else half
    return tried


def _keeps(stage: Stage) -> bool:
    return stage.counts and not stage.broken


def _breaks(stage: Stage) -> bool:
    return stage.counts and stage.broken


def _load(stage: Stage) -> float:
    return stage.load_rps
