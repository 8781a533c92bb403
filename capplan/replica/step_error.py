"""How far step times can be from those of a real server, and a scenario at either end of that.

Near the knee a small error of the step times is a large one of latencies: at 8 % shorter steps a
measured server's mean E2E came out 40 % too low. So answers near the knee are found at both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from capplan.formatting import format_value, listed
from capplan.replica.assumptions import frozen_errors, unlike
from capplan.replica.family_errors import family_errors
from capplan.scenario import Scenario
from capplan.scenario.batching import DynamicBatching, ServiceLaw
from capplan.scenario.files import with_values
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import (
    CalibratedStep,
    LinearStep,
    RooflineStep,
    SiliconStep,
    StepTime,
    TablesStep,
    TimeLaw,
)

_Law = TypeVar("_Law", bound=TimeLaw)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """Real step times are at most so much shorter or longer than the law's, as shares of these."""

    shorter_fraction: float
    longer_fraction: float
    source: str

    @classmethod
    def of(cls, low: float, high: float, source: str) -> StepError:
        """Return the error of a law from the range of law over measured, minus 1.

        >>> StepError.of(-0.5, 1.0, "a run")
        StepError(shorter_fraction=0.5, longer_fraction=1.0, source='a run')
        """
        shorter, longer = max(1 - 1 / (1 + high), 0.0), max(1 / (1 + low) - 1, 0.0)
        return cls(shorter_fraction=shorter, longer_fraction=longer, source=source)

    def __str__(self) -> str:
        """Return the range in words."""
        low, high = (
            format_value(share, "_fraction")
            for share in (self.shorter_fraction, self.longer_fraction)
        )
        return f"step times {low} shorter to {high} longer ({self.source})"

    def factor(self, *, longer: bool) -> float:
        """Return the longest or shortest real step time over the law's."""
        return 1 + self.longer_fraction if longer else 1 - self.shorter_fraction

    def to_json(self) -> dict[str, Any]:
        """Return the error as plain values."""
        return asdict(self)


def known_error(pool: Pool) -> StepError | None:
    """Return how far a pool's step times can be from a server's; None = that is not known.

    It is what the law states, else the range of mean TPOT over the measured runs of servers of the
    pool's kind, else that of the middle nine of ten steps (or loads) of its model's family against
    measured kernels and servers: a run mixes its steps, so that the extremes of single ones even
    out.
    """
    law = law_of(pool)
    if (stated := law.error_fraction) is not None:
        return StepError(shorter_fraction=stated, longer_fraction=stated, source="as stated")
    if isinstance(law, LinearStep | ServiceLaw) or pool.models:
        return None
    if isinstance(law, CalibratedStep) or not unlike(pool):
        low, high = frozen_errors()[law.kind]["tpot_s", "mean"]
        return StepError.of(low, high, "mean TPOT of measured servers")
    if families := family_errors(pool):
        lows, highs = zip(*(one.nine_of_ten for one in families), strict=True)
        against = listed(one.against for one in families)
        source = f"nine of ten steps against {against}, {families[0].family}"
        return StepError.of(min(lows), max(highs), source)
    return None


def law_of(pool: Pool) -> StepTime | ServiceLaw:
    """Return the law of a pool's steps, or of its batches."""
    batching = pool.batching
    return batching.service if isinstance(batching, DynamicBatching) else batching.step_time


def error_factors(scenario: Scenario, *, longer: bool) -> dict[str, float]:
    """Return the factors of the longest or shortest step times, of pools whose error is known."""
    known = {pool.name: known_error(pool) for pool in scenario.pools}
    return {name: error.factor(longer=longer) for name, error in known.items() if error}


def with_step_times(scenario: Scenario, factors: Mapping[str, float]) -> Scenario:
    """Return the scenario with the step times of some pools multiplied, all else as it is.

    >>> from capplan.scenario.files import load_scenario
    >>> slower = with_step_times(load_scenario("benchmark"), {"llm": 2.0})
    >>> law_of(slower.pool()).base_s / law_of(load_scenario("benchmark").pool()).base_s
    2.0
    """
    values: dict[str, Any] = {}
    for name, factor in factors.items():
        pool = scenario.pool(name)
        place = "service" if isinstance(pool.batching, DynamicBatching) else "step_time"
        values[f"pools.{name}.batching.{place}"] = _multiplied(law_of(pool), factor)
        for own in pool.models:
            if own.step_time is not None:
                path = f"pools.{name}.models.{own.name}.step_time"
                values[path] = _multiplied(own.step_time, factor)
    return with_values(scenario, values)


def _multiplied(law: TimeLaw, factor: float) -> TimeLaw:
    """Return a law whose steps take ``factor`` times as long; it is calibrated if none can."""
    if isinstance(law, RooflineStep | TablesStep | SiliconStep):
        law = CalibratedStep(base=law, dense_scale=1.0, mixed_fraction=None)
    if isinstance(law, CalibratedStep) and isinstance(law.base, RooflineStep):
        host = ("overhead_s", "per_sequence_s")  # no scale of a roofline holds the host's work
        law = law.model_copy(update={"base": _times(law.base, host, factor)})
    own = [name for name in type(law).model_fields if name.endswith(("_s", "_scale"))]
    return _times(law, own, factor)


def _times(law: _Law, names: Iterable[str], factor: float) -> _Law:
    return law.model_copy(update={name: factor * getattr(law, name) for name in names})
