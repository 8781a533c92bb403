"""When the next request begins: as the trace says, or when its user was answered."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from capplan.simulation.attempt import Request
from capplan.simulation.clock import Clock, Rank

Begin = Callable[[Request], None]


class Crowd(Protocol):
    """Everybody who sends requests."""

    @property
    def all_arrived(self) -> bool:
        """Return whether nobody is going to send of itself: only answers can lead to more."""

    def start(self, begin: Begin) -> None:
        """Schedule the first requests; ``begin`` is called with each when it starts."""

    def over(self, request: Request) -> None:
        """Know that a request is over, with all its attempts."""


class OpenLoop:
    """Requests that begin when the trace says, whatever becomes of the others."""

    def __init__(self, requests: Iterator[Request], *, clock: Clock) -> None:
        self.all_arrived = False
        self._requests = requests
        self._clock = clock

    def start(self, begin: Begin) -> None:
        """Schedule the first arrival; each schedules the next."""
        self._begin = begin
        self._next()

    def over(self, request: Request) -> None:
        """Do nothing: nobody waits for the answer before the next request."""

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.all_arrived = True
        else:
            self._clock.at(request.first_start_s, Rank.ARRIVE, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        self._next()
        self._begin(request)


class ClosedLoop:
    """Users who begin their next request a think time after the previous one is over.

    A request of no user is that of a user who sends no other. Nobody sends at or after
    ``until_s``.
    """

    def __init__(self, requests: Iterable[Request], *, clock: Clock, until_s: float) -> None:
        self._thinking = 0
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
        """Return whether nobody is thinking."""
        return not self._thinking

    def start(self, begin: Begin) -> None:
        """Schedule the first request of each user at its arrival in the trace."""
        self._begin = begin
        for request in self._first:
            self._schedule(request)

    def over(self, request: Request) -> None:
        """Let its user think, and then send the next."""
        left = self._left[request.user] if request.user else None
        if not left:
            return
        coming = left.popleft()
        coming.first_start_s = self._clock.now + coming.think_s
        if coming.first_start_s < self._until_s:
            self._schedule(coming)
        else:
            left.clear()

    def _schedule(self, request: Request) -> None:
        self._thinking += 1
        self._clock.at(request.first_start_s, Rank.ARRIVE, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        self._thinking -= 1
        self._begin(request)


def crowd(requests: Iterator[Request], *, closed: bool, until_s: float, clock: Clock) -> Crowd:
    """Return the crowd of a trace; ``until_s`` inf = users send until they have no more."""
    if not closed:
        return OpenLoop(requests, clock=clock)
    return ClosedLoop(requests, clock=clock, until_s=until_s)
