"""Faults: replicas that crash, and return empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capplan.simulation.clock import Clock, Rank

if TYPE_CHECKING:
    from capplan.scenario import Crash, Scenario
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.replica import Replica


def schedule(scenario: Scenario, *, pools: Mapping[str, ServingPool], clock: Clock) -> None:
    """Schedule every fault of a scenario; ``pools`` by name."""
    for fault in scenario.faults:
        pool = pools[scenario.pool(fault.pool).name]
        clock.at(fault.at_s, Rank.FAULT, _Crashing(pool, fault, clock), None)


class _Crashing:
    """A crash that waits for its moment, and for the return of what it hit."""

    def __init__(self, pool: ServingPool, fault: Crash, clock: Clock) -> None:
        self._pool = pool
        self._fault = fault
        self._clock = clock

    def __call__(self, _: None) -> None:
        hit = self._pool.crash(self._fault.count)
        if self._fault.down_s is not None:
            returns_s = self._clock.now + self._fault.down_s
            self._clock.at(returns_s, Rank.FAULT, _restore, hit)


def _restore(replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.restore()
