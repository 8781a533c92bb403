"""The callers: they send, wait until their deadline, give up, try again and hedge."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from capplan.scenario.callers import Hedge, Retry
from capplan.simulation.attempt import Attempt, Failure, Request
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.connections import Connections
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.request_log import RequestLog
from capplan.simulation.request_source import LoadGenerator, TraceSource, UserSource
from capplan.simulation.retries import Hedging, SharedBudget, is_final

HEDGE_LOST = "hedge_lost"


class Callers:
    """All callers of a run.

    Attributes
    ----------
    log
        Every attempt sent.
    in_flight
        Attempts that are under way.
    ended
        Attempts that have ended, by outcome.
    retried, dropped
        Retries sent, and retries and hedges that exceeded their budget.
    reacts
        Whether the end of an attempt can send or cancel another in the same instant: without a
        network time, a caller cancels the other attempts of a race, and a load generator sends on
        the connection that is free again.
    listeners
        Called with every attempt that has ended, in this order.
    """

    def __init__(
        self,
        source: TraceSource | UserSource,
        *,
        log: RequestLog,
        retries: Mapping[str, Retry],
        hedges: Mapping[str, Hedge],
        clock: Clock,
        network_s: float,
        connections: Connections,
        backoff: np.random.Generator,
    ) -> None:
        self.log = log
        self.in_flight = 0
        self.ended: Counter[str] = Counter()
        self.retried = self.dropped = 0
        self.reacts = bool(hedges) and network_s == 0
        self.listeners: list[Callable[[Attempt], None]] = []
        self._source = source
        self._connections = connections
        self._retries = retries
        budgets = {name: retry.budget for name, retry in retries.items()}
        self._budgets = {name: SharedBudget(b) for name, b in budgets.items() if b is not None}
        self._clock = clock
        self._patience_s = {
            name: math.inf if retry.attempt_timeout_s is None else retry.attempt_timeout_s
            for name, retry in retries.items()
        }
        self._deadlines = {name: _Deadlines(self._give_up, clock=clock) for name in retries}
        self._network_s = network_s
        self._backoff = backoff
        self._gateway: GatewayHost | None = None
        self._generator: LoadGenerator | None = None
        self._hedging = (
            Hedging(hedges, clock=clock, may_send=self._may_hedge, send=self._send)
            if hedges
            else None
        )

    def through_generator(self) -> LoadGenerator:
        """Send everything through a load generator that can be limited; return it."""
        if self._generator is None:
            self._generator = LoadGenerator(clock=self._clock, send=self._leave_generator)
            self.listeners.append(self._generator.ended)
            self.reacts = self._network_s == 0
        return self._generator

    def start(self, gateway: GatewayHost) -> None:
        """Begin to send to a gateway."""
        self._gateway, self._arrive = gateway, gateway.arrive
        self._source.start(self._begin_with_budget if self._budgets else self._begin)

    @property
    def pending(self) -> int:
        """Return how many requests have not ended: under way, or waiting for another try."""
        return self._clock.under_way

    @property
    def all_arrived(self) -> bool:
        """Return whether no request is going to come by itself."""
        return self._source.all_arrived

    @property
    def gateway(self) -> GatewayHost:
        """Return the gateway; RuntimeError before :meth:`start`."""
        if self._gateway is None:
            raise RuntimeError("callers send to a gateway: call start first")
        return self._gateway

    def gauges(self) -> Iterator[tuple[str, Callable[[], float], bool]]:
        """Yield the metrics of the timeline: name, reading, and whether it is a total."""
        yield "in_flight", lambda: self.in_flight, False
        if (generator := self._generator) is not None:
            yield "generator_waiting", lambda: generator.waiting, False
        yield "arrivals_rps", lambda: len(self.log), True
        for outcome in ("succeeded", "rejected", "timed_out", "failed"):
            yield f"{outcome}_rps", partial(self.ended.__getitem__, outcome), True
        if any(retry.max_attempts > 1 for retry in self._retries.values()):
            yield "retries_rps", lambda: self.retried, True
        if self._budgets:
            yield "retries_dropped_rps", lambda: self.dropped, True
        if (hedging := self._hedging) is not None:
            yield "hedges_rps", lambda: hedging.sent, True
            yield "cancelled_rps", lambda: self.ended["cancelled"], True

    def returned(self, attempt: Attempt, failure: Failure | None) -> None:
        """Take an answer (None) or a failure from the gateway; it arrives a network time later."""
        if self._network_s > 0:
            arrives_s = self._clock.now + self._network_s
            self._clock.at(arrives_s, Rank.ARRIVE, self._come_back, (attempt, failure))
        else:
            self._receive(attempt, failure)

    def _begin(self, request: Request) -> None:
        self._clock.under_way += 1
        self._send(request, 1)

    def _begin_with_budget(self, request: Request) -> None:
        if budget := self._budgets.get(request.request_class):
            budget.deposit(request, self._clock.now)
        self._begin(request)

    def _end_request(self, request: Request) -> None:
        if self._hedging is not None and (race := self._hedging.races.get(request)):
            for attempt in race.running:
                if attempt.outcome == "in_flight":
                    attempt.outcome_layer, attempt.reason = "caller", HEDGE_LOST
                    self._end(attempt, "cancelled")
                    self._withdraw(attempt)
            del self._hedging.races[request]
        self._clock.under_way -= 1
        self._source.ended(request)

    def _send(self, request: Request, number: int) -> None:
        now_s, name = self._clock.now, request.request_class
        attempt = Attempt(request, number, now_s, self._connections.handshake_s(request))
        self.log.add(attempt)
        self.in_flight += 1
        gives_up_s = min(request.leaves_s, now_s + self._patience_s[name])
        if gives_up_s < math.inf:
            self._deadlines[name].watch(attempt, gives_up_s)
        if self._hedging is not None:
            self._hedging.began(attempt)
        if self._generator is None:
            self._set_out(attempt)
        else:
            attempt.place, attempt.sent_s = "caller", math.nan
            self._generator.take(attempt)

    def _send_again(self, which: tuple[Request, int]) -> None:
        self.retried += 1
        self._send(*which)

    def _may_hedge(self, attempt: Attempt) -> bool:
        """Return whether the caller of an attempt still waits and its budget allows a hedge."""
        request, now_s = attempt.request, self._clock.now
        patience_s = self._patience_s[request.request_class]
        gives_up_s = min(request.leaves_s, attempt.intended_start_s + patience_s)
        if attempt.outcome != "in_flight" or now_s >= gives_up_s:
            return False
        return self._is_within_budget(request)

    def _leave_generator(self, attempt: Attempt) -> None:
        """Send an attempt that leaves the load generator."""
        attempt.place, attempt.sent_s = "network", self._clock.now
        self._set_out(attempt)

    def _set_out(self, attempt: Attempt) -> None:
        """Open the connection and go to the gateway."""
        there_s = attempt.handshake_s + self._network_s
        if there_s > 0:
            self._clock.at(attempt.sent_s + there_s, Rank.ARRIVE, self._arrive, attempt)
        else:
            self._arrive(attempt)

    def _come_back(self, answer: tuple[Attempt, Failure | None]) -> None:
        self._receive(*answer)

    def _receive(self, attempt: Attempt, failure: Failure | None) -> None:
        if attempt.outcome != "in_flight":
            return
        if failure is None:
            self._end(attempt, "succeeded")
            self._end_request(attempt.request)
        else:
            attempt.outcome_layer, attempt.reason = failure.layer, failure.reason
            self._end(attempt, failure.outcome)
            self._try_again(attempt, failure)

    def _give_up(self, attempt: Attempt) -> None:
        left = self._clock.now >= attempt.request.leaves_s
        failure = Failure("timed_out", "caller", "deadline" if left else Retry.timed_out.reason)
        attempt.outcome_layer, attempt.reason = failure.layer, failure.reason
        self._end(attempt, failure.outcome)
        self._withdraw(attempt)
        self._try_again(attempt, failure)

    def _withdraw(self, attempt: Attempt) -> None:
        """Cancel an attempt at the gateway, a network time later."""
        if self._network_s > 0:
            reaches_s = self._clock.now + self._network_s
            self._clock.at(reaches_s, Rank.ARRIVE, self.gateway.withdraw, attempt)
        else:
            self.gateway.withdraw(attempt)

    def _end(self, attempt: Attempt, outcome: str) -> None:
        attempt.outcome = outcome
        attempt.finish_s = self._clock.now
        self.in_flight -= 1
        self.ended[outcome] += 1
        for notify in self.listeners:
            notify(attempt)
        if self._hedging is not None:
            self._hedging.note(attempt)

    def _try_again(self, attempt: Attempt, failure: Failure) -> None:
        """Send a request again after its last running attempt has failed, or end it."""
        tries = sent = attempt.attempt
        if self._hedging is not None and (race := self._hedging.races.get(attempt.request)):
            race.running.remove(attempt)
            if race.running:
                return
            tries, sent = race.sent - len(race.hedges), race.sent
        request, now_s = attempt.request, self._clock.now
        retry = self._retries[request.request_class]
        if tries < retry.max_attempts and not is_final(retry, failure):
            starts_s = now_s + self._pause_s(retry, tries + 1, failure)
            if starts_s < request.leaves_s and self._is_within_budget(request):
                self._clock.at(starts_s, Rank.ARRIVE, self._send_again, (request, sent + 1))
                return
        self._end_request(request)

    def _is_within_budget(self, request: Request) -> bool:
        """Take one more attempt from the budget of its class, if there is one; count a refusal."""
        budget = self._budgets.get(request.request_class)
        within = budget is None or budget.withdraw(request, self._clock.now)
        self.dropped += not within
        return within

    def _pause_s(self, retry: Retry, attempt: int, failure: Failure) -> float:
        """Return the wait before an attempt: the backoff, at least any Retry-After."""
        pause_s = retry.backoff_before(attempt)
        if retry.jitter:
            pause_s *= float(self._backoff.random())
        if not retry.honour_retry_after:
            return pause_s
        most_s = math.inf if retry.max_retry_after_s is None else retry.max_retry_after_s
        return max(pause_s, min(failure.retry_after_s, most_s))


class _Deadlines:
    """The deadlines of attempts in flight: one alarm for many, as most answers come in time.

    Deadlines mostly come in order, so they stand in a line whose first sets the alarm. One that
    is earlier than the last one gets its own alarm. Attempts that have ended leave the line, so
    that it keeps none alive.
    """

    def __init__(self, give_up: Callable[[Attempt], None], *, clock: Clock) -> None:
        self._give_up = give_up
        self._clock = clock
        self._line: deque[tuple[float, Attempt]] = deque()
        self._armed = False
        self._last_s = -math.inf

    def watch(self, attempt: Attempt, time_s: float) -> None:
        """Give an attempt up at that time, if it is still in flight."""
        line = self._line
        while line and line[0][1].outcome != "in_flight":
            line.popleft()
        if self._armed and time_s < self._last_s:
            self._clock.at(time_s, Rank.TIMER, self._pass, attempt)
            return
        line.append((time_s, attempt))
        self._last_s = time_s
        if not self._armed:
            self._armed = True
            self._clock.at(time_s, Rank.TIMER, self._ring, None)

    def _pass(self, attempt: Attempt) -> None:
        if attempt.outcome == "in_flight":
            self._give_up(attempt)

    def _ring(self, _: None) -> None:
        line, now_s = self._line, self._clock.now
        while line and (line[0][0] <= now_s or line[0][1].outcome != "in_flight"):
            self._pass(line.popleft()[1])
        self._armed = bool(line)
        if line:
            self._clock.at(line[0][0], Rank.TIMER, self._ring, None)
