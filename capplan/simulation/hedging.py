"""Callers that send a second attempt while the first goes on; the first answer wins.

Source: Dean and Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013, section
"Within Request Short-Term Adaptations".
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from capplan.scenario.callers import Hedge
from capplan.scenario.classes import Promises
from capplan.simulation.attempt import Attempt, Failure, Request
from capplan.simulation.caller import Callers
from capplan.simulation.clock import Rank
from capplan.simulation.request_source import Crowd

if TYPE_CHECKING:
    from capplan.scenario import Scenario

LOST = "hedge_lost"
REMEMBERED = 1000
"""Latencies from which a quantile is taken, where it does not need more."""


class Latencies:
    """The last latencies of first tries and retries, and how long a hedge waits because of them.

    One that lost against its hedge, or that its caller gave up, counts with the time until then: it
    is beyond the quantile anyway, and without it the quantile would fall with every one of them.
    """

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._least = Promises(quantile=quantile).samples_needed()
        self._most = max(REMEMBERED, self._least)
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, latency_s: float) -> None:
        """Remember a latency, and forget the oldest of too many."""
        if len(self._recent) == self._most:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(latency_s)
        insort(self._sorted, latency_s)

    @property
    def delay_s(self) -> float:
        """Return the quantile, s; inf while too few latencies are known."""
        count = len(self._sorted)
        if count < self._least:
            return math.inf
        return self._sorted[math.ceil(self._quantile * count) - 1]


@dataclass(slots=True, eq=False)
class Race:
    """The attempts of one request that are on their way together.

    Attributes
    ----------
    sent
        Attempts sent so far.
    hedges
        The numbers of those that were hedges.
    """

    sent: int = 0
    hedges: set[int] = field(default_factory=set)
    running: list[Attempt] = field(default_factory=list)


def callers_of(scenario: Scenario) -> Callable[..., Callers]:
    """Return what makes the callers of a scenario."""
    hedges = {c.name: c.hedge for c in scenario.classes if c.hedge is not None}
    return partial(HedgingCallers, hedges=hedges) if hedges else Callers


class HedgingCallers(Callers):
    """Callers of whom some hedge.

    Attributes
    ----------
    hedged
        Attempts sent so far while another of the same request was on its way.
    """

    def __init__(self, crowd: Crowd, *, hedges: Mapping[str, Hedge], **wires: Any) -> None:
        super().__init__(crowd, **wires)
        self.hedged = 0
        self._hedges = hedges
        self._races: dict[Request, Race] = {}
        self._latencies = {
            name: Latencies(hedge.after_quantile)
            for name, hedge in hedges.items()
            if hedge.after_quantile is not None
        }

    @property
    def reacts(self) -> bool:
        """Return whether the end of an attempt can send or take back another at once."""
        return bool(self._races) or super().reacts

    def totals(self) -> Iterator[tuple[str, Callable[[], float]]]:
        """Yield what the timeline tells of these callers beyond outcomes."""
        yield from super().totals()
        yield "hedges_rps", lambda: self.hedged
        yield "cancelled_rps", lambda: self.ended["cancelled"]

    def _set_out(self, attempt: Attempt) -> None:
        self._enter(attempt)
        super()._set_out(attempt)

    def _generate(self, attempt: Attempt) -> None:
        self._enter(attempt)
        super()._generate(attempt)

    def _enter(self, attempt: Attempt) -> None:
        """Know of an attempt that is to be sent, now or by a load generator later."""
        request = attempt.request
        hedge = self._hedges.get(request.request_class)
        if hedge is None:
            return
        race = self._races.setdefault(request, Race())
        if attempt.attempt <= race.sent:
            return
        race.sent += 1
        race.running.append(attempt)
        delay_s = self._delay_s(hedge, request) if len(race.hedges) < hedge.most else math.inf
        if delay_s < math.inf:
            self._clock.at(self._clock.now + delay_s, Rank.TIMER, self._hedge, attempt)

    def _delay_s(self, hedge: Hedge, request: Request) -> float:
        if hedge.after_s is not None:
            return hedge.after_s
        return self._latencies[request.request_class].delay_s

    def _hedge(self, attempt: Attempt) -> None:
        """Send another attempt beside one that is still on its way."""
        request = attempt.request
        patience_s = self._patience_s[request.request_class]
        gives_up_s = min(request.leaves_s, attempt.intended_start_s + patience_s)
        if attempt.outcome != "in_flight" or self._clock.now >= gives_up_s:
            return
        race, most = self._races[request], self._hedges[request.request_class].most
        if len(race.hedges) >= most:
            return
        if not self._budgets.withdraw(request, self._clock.now):
            self.dropped += 1
            return
        race.hedges.add(race.sent + 1)
        self.hedged += 1
        self._send((request, race.sent + 1))

    def _over(self, attempt: Attempt, outcome: str) -> None:
        super()._over(attempt, outcome)
        known = self._latencies.get(attempt.request.request_class)
        left = outcome == "timed_out" and attempt.outcome_layer == "caller"
        if known is None or not (left or outcome in {"succeeded", "cancelled"}):
            return
        if attempt.attempt not in self._races[attempt.request].hedges:
            known.add(attempt.finish_s - attempt.intended_start_s)

    def _try_again(self, attempt: Attempt, failure: Failure) -> None:
        race = self._races.get(attempt.request)
        if race is None:
            super()._try_again(attempt, failure)
            return
        race.running.remove(attempt)
        if not race.running:
            tries = race.sent - len(race.hedges)
            self._decide(attempt, failure, tries=tries, number=race.sent + 1)

    def _request_over(self, request: Request) -> None:
        race = self._races.get(request)
        for attempt in () if race is None else race.running:
            if attempt.outcome == "in_flight":
                attempt.outcome_layer, attempt.reason = "caller", LOST
                self._over(attempt, "cancelled")
                self._leave(attempt)
        self._races.pop(request, None)
        super()._request_over(request)
