"""Retries and hedges of callers: what is final, the budgets of retries, when a hedge is sent.

Source of hedging: Dean and Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013,
section "Within Request Short-Term Adaptations".
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from capplan.scenario.callers import Hedge, Retry
from capplan.scenario.classes import Promises
from capplan.scenario.rate_limits import RetryBudget
from capplan.simulation.attempt import Attempt, Failure, Request
from capplan.simulation.clock import Clock, Rank

SLICES = 10
_ROUNDING = 1e-9
REMEMBERED = 1000
"""Latencies from which a quantile is taken, unless it needs more."""


def is_final(retry: Retry, failure: Failure) -> bool:
    """Return whether a failure ends the request, however many attempts are left."""
    return (
        failure.outcome not in retry.retry_on
        or retry.ends_on(failure.reason)
        or failure.status in retry.never_on_status
    )


class Budget:
    """First attempts and retries of one group of callers over the last ``window_s``.

    Source: Finagle project, ``util/TokenBucket.scala``, ``newLeakyBucket``: what is put in and
    what is taken out both count for about ``window_s``, in ten slices.

    >>> budget = Budget(RetryBudget(fraction=0.5, min_per_s=0.0))
    >>> budget.deposit(0.0), budget.deposit(0.0)
    (None, None)
    >>> [budget.withdraw(at_s) for at_s in (1.0, 1.0, 11.0)]
    [True, False, False]
    """

    def __init__(self, rules: RetryBudget) -> None:
        self._fraction = rules.fraction
        self._reserve = rules.min_per_s * rules.window_s
        self._slice_s = rules.window_s / SLICES
        self._slice = 0
        self._first = deque([0] * SLICES, maxlen=SLICES)
        self._again = deque([0] * SLICES, maxlen=SLICES)

    def deposit(self, now_s: float) -> None:
        """Count a first attempt."""
        self._turn(now_s)
        self._first[-1] += 1

    def withdraw(self, now_s: float) -> bool:
        """Count one more attempt, if it is within the budget."""
        self._turn(now_s)
        left = self._reserve + self._fraction * sum(self._first) - sum(self._again)
        if left < 1 - _ROUNDING:
            return False
        self._again[-1] += 1
        return True

    def _turn(self, now_s: float) -> None:
        now = int(now_s / self._slice_s + _ROUNDING)
        for _ in range(min(now - self._slice, SLICES)):
            self._first.append(0)
            self._again.append(0)
        self._slice = now


class SharedBudget:
    """The retry budget of a class or of the gateway: one for all requests, or one a tenant."""

    def __init__(self, rules: RetryBudget) -> None:
        self._rules = rules
        self._budgets: dict[str, Budget] = {}

    def deposit(self, request: Request, now_s: float) -> None:
        """Count the first attempt of a request."""
        self._of(request).deposit(now_s)

    def withdraw(self, request: Request, now_s: float) -> bool:
        """Count one more attempt of a request, if it is within the budget."""
        return self._of(request).withdraw(now_s)

    def _of(self, request: Request) -> Budget:
        group = request.tenant if self._rules.per_tenant else ""
        if group not in self._budgets:
            self._budgets[group] = Budget(self._rules)
        return self._budgets[group]


class Latencies:
    """The last latencies of first tries and retries, and the hedge delay that follows from them.

    An attempt that lost against its hedge, or that its caller gave up, counts with the time until
    then: it is beyond the quantile anyway, and without it the quantile would fall.
    """

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._least = Promises(quantile=quantile).samples_needed()
        self._most = max(REMEMBERED, self._least)
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, latency_s: float) -> None:
        """Add a latency; drop the oldest of too many."""
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
    """The attempts of one request that are under way together.

    Attributes
    ----------
    sent
        Attempts sent so far.
    hedges
        The numbers of the hedges among them.
    running
        Those under way.
    """

    sent: int = 0
    hedges: set[int] = field(default_factory=set)
    running: list[Attempt] = field(default_factory=list)


class Hedging:
    """Sends a second attempt while the first is under way; the first answer wins.

    Attributes
    ----------
    sent
        Hedges sent so far.
    races
        The running attempts of each request that may hedge.
    """

    def __init__(
        self,
        hedges: Mapping[str, Hedge],
        *,
        clock: Clock,
        may_send: Callable[[Attempt], bool],
        send: Callable[[Request, int], None],
    ) -> None:
        """Hedge by class; ``may_send(attempt)`` allows a hedge, ``send`` sends an attempt."""
        self.sent = 0
        self.races: dict[Request, Race] = {}
        self._hedges = hedges
        self._clock = clock
        self._may_send = may_send
        self._send = send
        self._latencies = {
            name: Latencies(hedge.after_quantile)
            for name, hedge in hedges.items()
            if hedge.after_quantile is not None
        }

    def began(self, attempt: Attempt) -> None:
        """Register an attempt that is sent, and schedule a hedge beside it."""
        request = attempt.request
        hedge = self._hedges.get(request.request_class)
        if hedge is None:
            return
        race = self.races.setdefault(request, Race())
        race.sent += 1
        race.running.append(attempt)
        if len(race.hedges) >= hedge.most:
            return
        delay_s = hedge.after_s
        if delay_s is None:
            delay_s = self._latencies[request.request_class].delay_s
        if delay_s < math.inf:
            self._clock.at(self._clock.now + delay_s, Rank.TIMER, self._hedge, attempt)

    def note(self, attempt: Attempt) -> None:
        """Add the latency of an attempt that has ended, unless it was a hedge."""
        known = self._latencies.get(attempt.request.request_class)
        gave_up = attempt.outcome == "timed_out" and attempt.outcome_layer == "caller"
        if known is None or not (gave_up or attempt.outcome in {"succeeded", "cancelled"}):
            return
        if attempt.attempt not in self.races[attempt.request].hedges:
            known.add(attempt.finish_s - attempt.intended_start_s)

    def _hedge(self, attempt: Attempt) -> None:
        request = attempt.request
        race = self.races.get(request)
        if race is None or len(race.hedges) >= self._hedges[request.request_class].most:
            return
        if self._may_send(attempt):
            race.hedges.add(race.sent + 1)
            self.sent += 1
            self._send(request, race.sent + 1)
