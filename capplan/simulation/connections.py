"""Connections between callers and gateway: which are opened, what that costs, how many fit."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable

from capplan.scenario.ending import Ending
from capplan.scenario.gateway import Accept
from capplan.scenario.layers import Network
from capplan.simulation.attempt import Attempt, Failure, Request
from capplan.simulation.clock import Clock, Rank


class Connections:
    """The connections that are open.

    ``long_lived`` ones belong to a user, else to a session; a request of neither uses one that
    was open before. ``fresh`` ones are opened by every attempt.
    """

    def __init__(self, network: Network) -> None:
        self._handshake_s = network.handshake_s
        self._fresh = network.connections == "fresh"
        self._open: set[str] = set()

    def handshake_s(self, request: Request) -> float:
        """Return how long an attempt must wait for its connection, s, and keep it open."""
        if self._fresh or self._handshake_s == 0:
            return self._handshake_s
        owner = request.user or request.session
        if not owner or owner in self._open:
            return 0.0
        self._open.add(owner)
        return self._handshake_s

    def refused(self, request: Request) -> None:
        """Forget a connection that the gateway did not accept: the next attempt opens it anew."""
        self._open.discard(request.user or request.session)


class Listener:
    """The part of a gateway that accepts connections; see :class:`capplan.scenario.gateway.Accept`.

    ``enter(attempt)`` takes an attempt on an accepted connection, ``refuse(attempt, failure)`` one
    on a refused connection. Requests on a connection in the backlog wait with it.

    Attributes
    ----------
    open
        Connections that are accepted and not closed.
    """

    def __init__(
        self,
        rules: Accept,
        *,
        network: Network,
        connections: Connections,
        clock: Clock,
        enter: Callable[[Attempt], None],
        refuse: Callable[[Attempt, Failure], None],
    ) -> None:
        self.open = 0
        self._rules = rules
        self._gap_s = 0.0 if rules.rate_per_s is None else 1 / rules.rate_per_s
        self._most = math.inf if rules.max_open is None else rules.max_open
        self._each = math.inf if rules.max_per_caller is None else rules.max_per_caller
        self._fresh = network.connections == "fresh"
        self._network_s = network.one_way_s
        self._connections = connections
        self._clock = clock
        self._enter, self._refuse = enter, refuse
        self._next_s = 0.0
        self._backlog: OrderedDict[object, list[Attempt]] = OrderedDict()
        self._accepted: set[object] = set()
        self._of_caller: Counter[str] = Counter()
        self._is_timed = self._accepting = False

    @property
    def waiting(self) -> int:
        """Return how many connections wait in the backlog."""
        return len(self._backlog)

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the network: on an open connection, or with a new one."""
        if attempt.place != "network":
            return
        key = self._key(attempt)
        if key is None or key in self._accepted:
            self._enter(attempt)
        elif key in self._backlog:
            self._backlog[key].append(attempt)
        elif self._of_caller[caller_of(attempt)] >= self._each:
            self._turn_away(attempt, Accept.too_many)
        elif not self._backlog and self._may_accept:
            self._of_caller[caller_of(attempt)] += 1
            self._accept(key, [attempt])
        elif len(self._backlog) >= self._rules.backlog:
            self._turn_away(attempt, Accept.refused)
        else:
            self._of_caller[caller_of(attempt)] += 1
            self._backlog[key] = [attempt]
            self._accept_waiting()

    def leave(self, attempt: Attempt) -> None:
        """Close the connection of an attempt that has ended, unless it is a long-lived one."""
        if attempt.place == "network":
            waited_s = self._clock.now - attempt.sent_s - self._network_s
            attempt.handshake_s = max(waited_s, attempt.handshake_s)
        if self._fresh and attempt in self._accepted:
            self._accepted.discard(attempt)
            self._close(attempt)
            self._accept_waiting()

    def _key(self, attempt: Attempt) -> object | None:
        """Return the key of a connection: its attempt or its owner; None = it was open before."""
        return attempt if self._fresh else attempt.request.user or attempt.request.session or None

    @property
    def _may_accept(self) -> bool:
        return self.open < self._most and self._clock.now >= self._next_s

    def _accept(self, key: object, attempts: list[Attempt]) -> None:
        """Accept a connection and take the attempts on it whose callers have not left."""
        now_s = self._clock.now
        self._next_s = now_s + self._gap_s
        here = [attempt for attempt in attempts if attempt.place == "network"]
        self.open += 1
        if not here and self._fresh:
            self._close(attempts[0])
            return
        self._accepted.add(key)
        for attempt in here:
            waited_s = now_s - attempt.sent_s - self._network_s
            attempt.handshake_s = max(attempt.handshake_s, waited_s)
            self._enter(attempt)

    def _accept_waiting(self) -> None:
        """Accept from the backlog while the rate allows, and come back when it allows more."""
        if self._accepting:  # an accepted attempt may be refused further on, and close at once
            return
        self._accepting = True
        while self._backlog and self._may_accept:
            self._accept(*self._backlog.popitem(last=False))
        self._accepting = False
        if self._backlog and self.open < self._most and not self._is_timed:
            self._is_timed = True
            self._clock.at(self._next_s, Rank.ARRIVE, self._on_time, None)

    def _on_time(self, _: None) -> None:
        self._is_timed = False
        self._accept_waiting()

    def _close(self, attempt: Attempt) -> None:
        self.open -= 1
        self._of_caller[caller_of(attempt)] -= 1

    def _turn_away(self, attempt: Attempt, ending: Ending) -> None:
        self._connections.refused(attempt.request)
        self._refuse(attempt, Failure.of(ending))


def caller_of(attempt: Attempt) -> str:
    """Return the owner of an attempt's connection: its user, else its session, else its tenant."""
    request = attempt.request
    return request.user or request.session or request.tenant
