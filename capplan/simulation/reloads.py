"""A rolling reload: replicas of a pool load their model anew, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from capplan.scenario.faults import ModelReload
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.frail import FrailReplica

if TYPE_CHECKING:
    from capplan.simulation.outages import Outages
    from capplan.simulation.pool import ServingPool

RELOAD = "reload"
"""Why what a replica still held failed when its grace was over."""


class Reload:
    """One reload of a pool; ``over`` is called when the last replica is back."""

    def __init__(
        self,
        pool: ServingPool,
        rules: ModelReload,
        *,
        outages: Outages,
        clock: Clock,
        over: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._rules = rules
        self._outages = outages
        self._clock = clock
        self._over = over
        self._away = 0
        replicas = [r for r in pool.replicas if isinstance(r, FrailReplica)]
        self._left = deque(replicas[: rules.count])

    def start(self) -> None:
        """Take the first replicas out of routing."""
        self._away = min(self._rules.max_unavailable, len(self._left))
        if not self._away:
            self._over()
        for _ in range(self._away):
            self._next()

    def _next(self) -> None:
        """Let the next replica take its turn; who is down already needs none."""
        while self._left:
            replica = self._left.popleft()
            if replica.up and replica in self._pool.replicas:
                self._pool.avoid(replica, self)
                _Turn(replica, self._rules.drain_s, load=self._load, clock=self._clock).start()
                return
        self._away -= 1
        if not self._away:
            self._over()

    def _load(self, replica: FrailReplica) -> None:
        if not replica.up:  # it has crashed meanwhile, and loads when it returns
            self._next()
            return
        load_s = self._rules.load_s
        self._outages.take_down(
            [replica],
            back_s=self._clock.now + (load_s or 0.0),
            reason=RELOAD,
            loads=load_s is None,
            then=self._next,
        )


class _Turn:
    """One replica that finishes what it holds, for as long as its grace lasts."""

    def __init__(
        self,
        replica: FrailReplica,
        drain_s: float,
        *,
        load: Callable[[FrailReplica], None],
        clock: Clock,
    ) -> None:
        self._replica = replica
        self._drain_s = drain_s
        self._load = load
        self._clock = clock
        self._over = False

    def start(self) -> None:
        """Load when it is empty or its grace is over, whichever comes first."""
        if not self._replica.in_flight:
            self._end(None)
            return
        self._replica.emptied = self._empty
        self._clock.at(self._clock.now + self._drain_s, Rank.FAULT, self._end, None)

    def _empty(self) -> None:
        self._clock.at(self._clock.now, Rank.FAULT, self._end, None)

    def _end(self, _: None) -> None:
        if not self._over:
            self._over, self._replica.emptied = True, None
            self._load(self._replica)
