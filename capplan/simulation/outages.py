"""Outages: replicas of a pool that are down, until they have come back and loaded their model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from capplan.simulation.clock import Clock, Rank
from capplan.simulation.replica import CRASH

if TYPE_CHECKING:
    from capplan.simulation.loading import Load, Loader
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.replica import Replica

Back = Callable[[], None]


class _Outage:
    """One replica that is down; whoever waits for its return."""

    __slots__ = ("back_s", "load", "loads", "then", "token")

    def __init__(self) -> None:
        self.token = 0
        self.back_s = -math.inf
        self.load: Load | None = None
        self.loads = True
        self.then: list[Back] = []


class Outages:
    """The replicas of a pool that are down.

    Who is struck again while down returns after the later of the two, and its load starts over.
    """

    def __init__(self, pool: ServingPool, *, loader: Loader | None, clock: Clock) -> None:
        self._pool = pool
        self._loader = loader
        self._clock = clock
        self._down: dict[Replica, _Outage] = {}
        pool.watchers.append(self)

    def joined(self, replica: Replica) -> None:
        """Do nothing: who joins is not down."""

    def left(self, replica: Replica) -> None:
        """Forget a replica that is gone while it was down, and give up what it loads."""
        outage = self._down.pop(replica, None)
        if outage is None:
            return
        if outage.load is not None:
            outage.load.cancel()
        for then in outage.then:
            self._clock.at(self._clock.now, Rank.FAULT, lambda then: then(), then)

    def take_down(
        self,
        replicas: Iterable[Replica],
        *,
        back_s: float,
        reason: str = CRASH,
        loads: bool = True,
        then: Back | None = None,
    ) -> None:
        """Stop replicas until ``back_s`` (inf = for good), and then for as long as a load takes.

        Where there are no loads (or not ``loads``), they serve from then on. ``then`` is called
        when one of them serves again or is gone for good.
        """
        hit = list(replicas)
        for replica in hit:
            outage = self._down.setdefault(replica, _Outage())
            outage.token += 1
            outage.loads = loads
            outage.back_s = max(outage.back_s, back_s)
            if then is not None:
                outage.then.append(then)
            if outage.load is not None:
                outage.load.cancel()
                outage.load = None
            if outage.back_s < math.inf:
                call = (replica, outage.token)
                self._clock.at(outage.back_s, Rank.FAULT, self._back, call)
        self._pool.stop([replica for replica in hit if replica.up], reason)

    def _back(self, which: tuple[Replica, int]) -> None:
        replica, token = which
        outage = self._down.get(replica)
        if outage is None or outage.token != token:
            return
        if self._loader is None or not outage.loads:
            self._restore(replica)
            return
        outage.load = self._loader.load(
            self._pool.number_of(replica.name), lambda: self._restore(replica)
        )

    def _restore(self, replica: Replica) -> None:
        outage = self._down.pop(replica)
        replica.avoided.clear()
        replica.restore()
        for then in outage.then:
            then()
