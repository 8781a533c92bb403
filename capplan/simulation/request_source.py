"""When requests begin: as the trace says or after the user's last answer, and how fast they go out.

The load generator between the callers and the network can have limits of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator

from capplan.scenario.faults import GeneratorLimit
from capplan.simulation.attempt import Attempt, Request
from capplan.simulation.clock import Clock, Rank

Begin = Callable[[Request], None]


class TraceSource:
    """Requests that begin at the times of the trace.

    ``all_arrived`` is True once no request is going to come by itself.
    """

    def __init__(self, requests: Iterator[Request], *, clock: Clock) -> None:
        self.all_arrived = False
        self._requests = requests
        self._clock = clock

    def start(self, begin: Begin) -> None:
        """Schedule the first arrival; each schedules the next."""
        self._begin = begin
        self._next()

    def stop(self) -> None:
        """Begin no further request."""
        self.all_arrived = True

    def ended(self, request: Request) -> None:
        """Do nothing: the next request does not wait for the answer."""

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.all_arrived = True
        else:
            self._clock.at(request.first_start_s, Rank.ARRIVE, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        if not self.all_arrived:
            self._next()
            self._begin(request)


class UserSource:
    """Users (a closed loop) whose next request begins a think time after the previous ended.

    A request without a user has a user of its own. No request begins at or after ``until_s``.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        *,
        clock: Clock,
        until_s: float,
        there_s: Callable[[str, float], float] = lambda user, time_s: time_s,
    ) -> None:
        self._thinking = 0
        self._stopped = False
        self._there_s = there_s
        self._clock = clock
        self._until_s = until_s
        self._left: dict[str, deque[Request]] = defaultdict(deque)
        self._first: list[Request] = []
        for request in requests:
            known = request.user in self._left
            if known:
                self._left[request.user].append(request)
            else:
                self._first.append(request)
                if request.user:
                    self._left[request.user] = deque()

    @property
    def all_arrived(self) -> bool:
        """Return whether no user is in its think time."""
        return not self._thinking

    def start(self, begin: Begin) -> None:
        """Schedule the first request of each user at its arrival in the trace."""
        self._begin = begin
        for request in self._first:
            self._schedule(request)

    def stop(self) -> None:
        """Begin no further request; users in their think time do not come back."""
        self._stopped = True
        self._until_s, self._thinking = -math.inf, 0

    def ended(self, request: Request) -> None:
        """Schedule the next request of its user, after the think time."""
        left = self._left[request.user] if request.user else None
        if not left:
            return
        coming = left.popleft()
        coming.begin_at(self._there_s(coming.user, self._clock.now + coming.think_s))
        if coming.first_start_s < self._until_s:
            self._schedule(coming)
        else:
            left.clear()

    def _schedule(self, request: Request) -> None:
        self._thinking += 1
        self._clock.at(request.first_start_s, Rank.ARRIVE, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        if not self._stopped:
            self._thinking -= 1
            self._begin(request)


def request_source(
    requests: Iterator[Request],
    *,
    closed: bool,
    until_s: float,
    clock: Clock,
    there_s: Callable[[str, float], float],
) -> TraceSource | UserSource:
    """Return the source of a trace's requests; ``until_s`` inf = until users have none left.

    ``there_s`` returns when a user is there next, from a time on.
    """
    if not closed:
        return TraceSource(requests, clock=clock)
    return UserSource(requests, clock=clock, until_s=until_s, there_s=there_s)


class _Limit:
    """One limit, and from when on it lets the next attempt go."""

    __slots__ = ("free_s", "rules")

    def __init__(self, rules: GeneratorLimit) -> None:
        self.rules = rules
        self.free_s = 0.0

    def spend(self, now_s: float) -> None:
        """Count an attempt that goes out."""
        if self.rules.rate_rps:
            self.free_s = max(self.free_s, now_s) + 1 / self.rules.rate_rps


class LoadGenerator:
    """Sends attempts in the order of their intended starts, as soon as its limits allow.

    ``send(attempt)`` is called when one goes out; one whose caller has left never goes.
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
        """Apply a limit from now on."""
        self._limits.append(_Limit(limit))

    def lift(self, limit: GeneratorLimit) -> None:
        """Lift a limit; attempts that wait for nothing else go out at once."""
        self._limits.remove(next(one for one in self._limits if one.rules == limit))
        self._go()

    def take(self, attempt: Attempt) -> None:
        """Take an attempt that is to be sent now."""
        self._line.append(attempt)
        self._go()

    def ended(self, attempt: Attempt) -> None:
        """Free the connection of an attempt that has ended, or do not send it at all."""
        if attempt in self._sent:
            self._sent.remove(attempt)
            self._go()
        else:
            self._line.remove(attempt)

    def _go(self) -> None:
        """Send what can go; schedule the next."""
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
