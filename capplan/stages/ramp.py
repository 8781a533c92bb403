"""Raise the load step by step until a promise breaks, then close in on where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.stages.run_load import step
from capplan.stages.stage import Stage

if TYPE_CHECKING:
    from capplan.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ramp:
    """The steps of a ramp in order of load, and the void tries."""

    steps: tuple[Stage, ...]
    voids: tuple[Stage, ...] = ()

    @property
    def first_broken(self) -> Stage | None:
        """Return the lowest step that counts and breaks a promise."""
        return next((s for s in self.steps if s.counts and s.broken), None)

    @property
    def kept_rps(self) -> float:
        """Return the highest load that counts below the first broken one; NaN if there is none."""
        broken = self.first_broken
        limit = math.inf if broken is None else broken.load_rps
        below = [s.load_rps for s in self.steps if s.counts and s.load_rps < limit]
        return max(below, default=math.nan)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the load up to which nothing breaks, and from which something surely does."""
        return interval_of([s for s in self.steps if s.counts])

    def in_turn(self) -> Iterator[Stage]:
        """Yield the steps in order of load, void tries before what they gave way to."""
        left = list(self.voids)
        for one in self.steps:
            tries = [void for void in left if void.load_rps <= one.load_rps]
            left = [void for void in left if void.load_rps > one.load_rps]
            yield from (*tries, one)
        yield from left

    @property
    def client_limit_rps(self) -> float:
        """Return the lowest load at which the client was the limit; NaN where it never was."""
        return min((s.load_rps for s in self.steps if s.client_limited), default=math.nan)

    def acceptable(self, request_class: str) -> tuple[float, tuple[float, float]]:
        """Return the highest load that keeps a class's promises, and the interval of its limit.

        NaN where no step that counts keeps them; +inf above where no step surely breaks them.
        """
        counted = [s for s in self.steps if s.counts]
        broken = [s.load_rps for s in counted if breaks(s, request_class)]
        limit = min(broken, default=math.inf)
        kept = max((s.load_rps for s in counted if s.load_rps < limit), default=math.nan)
        return kept, interval_of(counted, request_class)


def interval_of(steps: Sequence[Stage], request_class: str | None = None) -> tuple[float, float]:
    """Return the load up to which promises (of a class) surely hold, and from which one breaks.

    NaN below where the lowest step does not surely hold; +inf above where no break is beyond doubt.
    """
    doubtful = [s.load_rps for s in steps if not holds(s, request_class)]
    limit = min(doubtful, default=math.inf)
    kept = max((s.load_rps for s in steps if s.load_rps < limit), default=math.nan)
    sure = min((s.load_rps for s in steps if surely(s, request_class)), default=math.inf)
    return kept, sure


def holds(stage: Stage, request_class: str | None = None) -> bool:
    """Return whether a stage surely keeps the promises (of a class) that load can break."""
    own = [m for m in stage.margins if request_class in (None, m.request_class)]
    return all(m.kept for m in own) and not _grows(stage, request_class)


def breaks(stage: Stage, request_class: str) -> bool:
    """Return whether a stage breaks a promise of a class, or the class's backlog grows."""
    return any(b.request_class == request_class for b in stage.breaks) or _grows(
        stage, request_class
    )


def surely(stage: Stage, request_class: str | None = None) -> bool:
    """Return whether a stage breaks a promise (of a class) beyond doubt, or a backlog grows."""
    own = [b for b in stage.breaks if request_class in (None, b.request_class)]
    return any(b.proven for b in own) or _grows(stage, request_class)


def _grows(stage: Stage, request_class: str | None) -> bool:
    if request_class is None:
        return stage.stationary is False
    return any(
        r.rule == "stability" and r.outcome == "fail" and r.request_class == request_class
        for r in stage.verdict.reasons
    )


def raise_load(scenario: Scenario, *, start_rps: float, seed: int, replication: int = 0) -> Ramp:
    """Return the ramp of a scenario: up by its plan's factor until a promise surely breaks.

    ``beyond`` further steps follow the first break, so that the knee lies between steps, and the
    gap between the last kept and the first broken load is halved ``refine`` times. No more of them
    follow where the client is the limit: a higher load would not be sent.
    """
    plan = scenario.stages
    steps: list[Stage] = []
    voids: list[Stage] = []
    after = limited = 0
    for n in range(plan.most_steps):
        load = start_rps * plan.factor**n
        before = load / plan.factor
        found, void = step(
            scenario,
            load,
            before_rps=before,
            name=f"step {n + 1}",
            kind="ramp",
            seed=seed,
            replication=replication,
        )
        steps.append(found)
        voids += void
        after += int(after > 0 or (found.counts and surely(found)))
        limited += int(found.client_limited)
        if max(after, limited) > plan.beyond:
            break
    for turn in range(plan.refine):
        if closer := _between(scenario, steps, turn, seed, replication=replication):
            steps.append(closer[0])
            voids += closer[1]
    return Ramp(steps=in_order(steps), voids=tuple(voids))


def _between(
    scenario: Scenario, steps: Sequence[Stage], turn: int, seed: int, *, replication: int
) -> tuple[Stage, list[Stage]] | None:
    """Return a step half way (by ratio) between the last kept and the first broken load."""
    ordered = in_order(steps)
    broken = Ramp(steps=ordered).first_broken
    kept = Ramp(steps=ordered).kept_rps
    if broken is None or math.isnan(kept):
        return None
    load = math.sqrt(kept * broken.load_rps)
    name = f"between {turn + 1}"
    return step(
        scenario,
        load,
        before_rps=kept,
        name=name,
        kind="ramp",
        seed=seed,
        replication=replication,
    )


def in_order(steps: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return stages by rising load."""
    return tuple(sorted(steps, key=lambda s: s.load_rps))
