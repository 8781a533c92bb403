"""The callers: they send, wait until their deadline, give up, and try again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from capplan.scenario.callers import Retry
from capplan.simulation.attempt import Attempt, Failure, Request
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.connections import Connections
from capplan.simulation.deadlines import Deadlines
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.generator import Generator
from capplan.simulation.request_log import RequestLog
from capplan.simulation.request_source import Crowd
from capplan.simulation.retrying import Budgets, is_final

if TYPE_CHECKING:
    import numpy as np


class Callers:
    """All callers of a run.

    Attributes
    ----------
    log
        Every attempt sent.
    in_flight
        Attempts that are on their way.
    ended
        Attempts that are over, by outcome.
    retried, dropped
        Retries sent, and those (and hedges) that were beyond their budget.
    listeners
        Who is told of every attempt that is over, in this order.
    """

    def __init__(
        self,
        crowd: Crowd,
        *,
        log: RequestLog,
        retries: Mapping[str, Retry],
        clock: Clock,
        network_s: float,
        connections: Connections,
        backoff: np.random.Generator,
    ) -> None:
        self.log = log
        self.in_flight = 0
        self.ended: Counter[str] = Counter()
        self.retried = self.dropped = 0
        self.listeners: list[Callable[[Attempt], None]] = []
        self._crowd = crowd
        self._connections = connections
        self._retries = retries
        self._budgets = Budgets(retries)
        self._clock = clock
        self._patience_s = {
            name: math.inf if retry.attempt_timeout_s is None else retry.attempt_timeout_s
            for name, retry in retries.items()
        }
        self._deadlines = {name: Deadlines(self._give_up, clock=clock) for name in retries}
        self._network_s = network_s
        self._backoff = backoff
        self._gateway: GatewayHost | None = None
        self._goes: Callable[[Attempt], None] = self._set_out
        self._generator: Generator | None = None

    def through_generator(self) -> Generator:
        """Send everything through a load generator that can be limited; return it."""
        if self._generator is None:
            self._generator = Generator(clock=self._clock, send=self._go_out)
            self.listeners.append(self._generator.over)
            self._goes = self._generate
        return self._generator

    @property
    def generator(self) -> Generator | None:
        """Return the load generator that everything goes through; None = it has no limits."""
        return self._generator

    def start(self, gateway: GatewayHost) -> None:
        """Begin to send to a gateway."""
        self._gateway, self._arrive = gateway, gateway.arrive
        self._crowd.start(self._begin_paid if self._budgets else self._begin)

    @property
    def pending(self) -> int:
        """Return how many requests are not over: on their way, or to be tried again."""
        return self._clock.under_way

    @property
    def reacts(self) -> bool:
        """Return whether the end of an attempt can send or take back another at once."""
        return self._generator is not None and self._generator.waiting > 0

    @property
    def all_arrived(self) -> bool:
        """Return whether no request is going to come of itself."""
        return self._crowd.all_arrived

    @property
    def gateway(self) -> GatewayHost:
        """Return the gateway; RuntimeError before :meth:`start`."""
        if self._gateway is None:
            msg = "callers send to a gateway: call start first"
            raise RuntimeError(msg)
        return self._gateway

    def totals(self) -> Iterator[tuple[str, Callable[[], float]]]:
        """Yield what the timeline tells of these callers beyond outcomes: a name and a count."""
        if any(retry.max_attempts > 1 for retry in self._retries.values()):
            yield "retries_rps", lambda: self.retried
        if self._budgets:
            yield "retries_dropped_rps", lambda: self.dropped

    def returned(self, attempt: Attempt, failure: Failure | None) -> None:
        """Take what has passed the gateway on its way back; it arrives a network time later."""
        if self._network_s > 0:
            arrives_s = self._clock.now + self._network_s
            self._clock.at(arrives_s, Rank.ARRIVE, self._hear, (attempt, failure))
        else:
            self._hear((attempt, failure))

    def _begin(self, request: Request) -> None:
        self._clock.under_way += 1
        self._send((request, 1))

    def _begin_paid(self, request: Request) -> None:
        self._budgets.deposit(request, self._clock.now)
        self._begin(request)

    def _request_over(self, request: Request) -> None:
        self._clock.under_way -= 1
        self._crowd.over(request)

    def _send(self, which: tuple[Request, int]) -> None:
        request, number = which
        now_s = self._clock.now
        attempt = Attempt(request, number, now_s, self._connections.handshake_s(request))
        self.log.add(attempt)
        self.in_flight += 1
        gives_up_s = min(request.leaves_s, now_s + self._patience_s[request.request_class])
        if gives_up_s < math.inf:
            self._deadlines[request.request_class].watch(attempt, gives_up_s)
        self._goes(attempt)

    def _send_again(self, which: tuple[Request, int]) -> None:
        self.retried += 1
        self._send(which)

    def _generate(self, attempt: Attempt) -> None:
        """Let the load generator send an attempt, now or later."""
        attempt.place, attempt.sent_s = "caller", math.nan
        self.through_generator().take(attempt)

    def _go_out(self, attempt: Attempt) -> None:
        """Send what the load generator lets go."""
        attempt.place, attempt.sent_s = "network", self._clock.now
        self._set_out(attempt)

    def _set_out(self, attempt: Attempt) -> None:
        """Open the connection and go to the gateway."""
        there_s = attempt.handshake_s + self._network_s
        if there_s > 0:
            self._clock.at(attempt.sent_s + there_s, Rank.ARRIVE, self._arrive, attempt)
        else:
            self._arrive(attempt)

    def _hear(self, news: tuple[Attempt, Failure | None]) -> None:
        attempt, failure = news
        if attempt.outcome != "in_flight":
            return
        if failure is None:
            self._over(attempt, "succeeded")
            self._request_over(attempt.request)
        else:
            attempt.outcome_layer, attempt.reason = failure.layer, failure.reason
            self._over(attempt, failure.outcome)
            self._try_again(attempt, failure)

    def _give_up(self, attempt: Attempt) -> None:
        left = self._clock.now >= attempt.request.leaves_s
        failure = Failure("timed_out", "caller", "deadline" if left else "attempt_timeout")
        attempt.outcome_layer, attempt.reason = failure.layer, failure.reason
        self._over(attempt, failure.outcome)
        self._leave(attempt)
        self._try_again(attempt, failure)

    def _leave(self, attempt: Attempt) -> None:
        """Let the gateway know, a network time later, that nobody waits for an attempt."""
        if self._network_s > 0:
            reaches_s = self._clock.now + self._network_s
            self._clock.at(reaches_s, Rank.ARRIVE, self.gateway.withdraw, attempt)
        else:
            self.gateway.withdraw(attempt)

    def _over(self, attempt: Attempt, outcome: str) -> None:
        attempt.outcome = outcome
        attempt.finish_s = self._clock.now
        self.in_flight -= 1
        self.ended[outcome] += 1
        for notify in self.listeners:
            notify(attempt)

    def _try_again(self, attempt: Attempt, failure: Failure) -> None:
        number = attempt.attempt
        self._decide(attempt, failure, tries=number, number=number + 1)

    def _decide(self, attempt: Attempt, failure: Failure, *, tries: int, number: int) -> None:
        """Send a request again after so many tries, as the attempt of that number, or end it."""
        request, now_s = attempt.request, self._clock.now
        retry = self._retries[request.request_class]
        if tries < retry.max_attempts and not is_final(retry, failure):
            starts_s = now_s + self._pause_s(retry, tries + 1, failure)
            if starts_s < request.leaves_s:
                if self._budgets.withdraw(request, now_s):
                    self._clock.at(starts_s, Rank.ARRIVE, self._send_again, (request, number))
                    return
                self.dropped += 1
        self._request_over(request)

    def _pause_s(self, retry: Retry, attempt: int, failure: Failure) -> float:
        """Return the wait before an attempt: the backoff, at least any Retry-After."""
        pause_s = retry.backoff_before(attempt)
        if retry.jitter:
            pause_s *= float(self._backoff.random())
        if not retry.honour_retry_after:
            return pause_s
        most_s = math.inf if retry.max_retry_after_s is None else retry.max_retry_after_s
        return max(pause_s, min(failure.retry_after_s, most_s))
