"""The load generator's own limits: what it cannot send yet waits in it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from capplan.simulation.clock import Clock, Rank

if TYPE_CHECKING:
    from capplan.scenario.faults import GeneratorLimit
    from capplan.simulation.attempt import Attempt


class _Limit:
    """One limit, and from when on it lets the next go."""

    __slots__ = ("free_s", "rules")

    def __init__(self, rules: GeneratorLimit) -> None:
        self.rules = rules
        self.free_s = 0.0

    def spend(self, now_s: float) -> None:
        """Know that one has gone out."""
        if self.rules.rate_rps:
            self.free_s = max(self.free_s, now_s) + 1 / self.rules.rate_rps


class Generator:
    """Sends attempts in the order of their intended starts, as soon as its limits let it.

    ``send(attempt)`` is called when one goes out; one whose caller has left meanwhile never does.
    """

    def __init__(self, *, clock: Clock, send: Callable[[Attempt], None]) -> None:
        self._clock = clock
        self._send = send
        self._line: deque[Attempt] = deque()
        self._sent: set[Attempt] = set()
        self._limits: list[_Limit] = []
        self._due_s = math.inf

    @property
    def waiting(self) -> int:
        """Return how many have not gone out yet."""
        return len(self._line)

    def limit(self, limit: GeneratorLimit) -> None:
        """Keep to a limit from now on."""
        self._limits.append(_Limit(limit))

    def lift(self, limit: GeneratorLimit) -> None:
        """Keep to it no longer; what waits for nothing else goes out at once."""
        self._limits.remove(next(one for one in self._limits if one.rules == limit))
        self._go()

    def take(self, attempt: Attempt) -> None:
        """Take an attempt that is to be sent now."""
        self._line.append(attempt)
        self._go()

    def over(self, attempt: Attempt) -> None:
        """Know that an attempt is over: its connection is free, or it need not be sent."""
        if attempt in self._sent:
            self._sent.remove(attempt)
            self._go()
        else:
            self._line.remove(attempt)

    def _go(self) -> None:
        """Send who can go; come again when the next can."""
        now_s = self._clock.now
        while self._line and len(self._sent) < self._connections:
            free_s = max((one.free_s for one in self._limits), default=0.0)
            if free_s > now_s:
                self._come_at(free_s)
                return
            attempt = self._line.popleft()
            self._sent.add(attempt)
            for one in self._limits:
                one.spend(now_s)
            self._send(attempt)

    @property
    def _connections(self) -> float:
        stated = (one.rules.connections for one in self._limits)
        return min((most for most in stated if most), default=math.inf)

    def _come_at(self, time_s: float) -> None:
        if self._due_s != time_s:
            self._due_s = time_s
            self._clock.at(time_s, Rank.ARRIVE, self._on_time, None)

    def _on_time(self, _: None) -> None:
        self._due_s = math.inf
        self._go()
