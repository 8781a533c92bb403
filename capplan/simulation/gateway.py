"""The gateway: rate limit, concurrency with its own queue, overhead, and the way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from capplan.scenario.gateway import Gateway
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.buckets import TOO_MANY_REQUESTS, TokenBucket
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.pool import ServingPool
from capplan.simulation.queue import BoundedQueue


class Entrance(Protocol):
    """A pool, seen from the gateway."""

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt."""

    def withdraw(self, attempt: Attempt) -> None:
        """Give an attempt up, wherever behind the gateway it is."""

    def serving(self, attempt: Attempt) -> ServingPool:
        """Return the pool that an attempt is in."""


class GatewayHost:
    """The gateway in front of all pools.

    ``returned(attempt, failure)`` takes what has passed the gateway on its way back, with None
    for an answer.
    """

    def __init__(
        self,
        rules: Gateway,
        *,
        clock: Clock,
        network_s: float,
        returned: Callable[[Attempt, Failure | None], None],
    ) -> None:
        self.pools: Mapping[str, Entrance] = {}
        """The pool of each request class, or what stands before it."""
        self.refusing: dict[object, tuple[Collection[str], Failure]] = {}
        """What open breakers refuse here, by action: for these classes."""
        self.in_flight = 0
        self.statuses: Counter[int] = Counter()
        """Refusals and failures by their HTTP status."""
        self.queue = BoundedQueue(rules.queue, layer="gateway", clock=clock, expired=self._expired)
        self._clock = clock
        self._network_s = network_s
        self._returned = returned
        limit = rules.rate_limit
        self._bucket = None if limit is None else TokenBucket(limit.rate_rps, limit.burst)
        self._concurrency = rules.concurrency
        self._overhead_s = rules.overhead_s
        self._stretch = 1 / (1 - rules.overhead_fraction)
        self._admitting = False

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits in the gateway's queue."""
        return bool(self.queue.line)

    def gauges(self) -> Iterable[tuple[str, Callable[[], float], bool]]:
        """Return what else the timeline shows: name, reading, and whether it is a total."""
        return ()

    def pool_of(self, attempt: Attempt) -> ServingPool:
        """Return the pool that an attempt is served by, or would be."""
        return self.pools[attempt.request.request_class].serving(attempt)

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the network: refuse it, let it wait, or admit it."""
        if attempt.place != "network":
            return
        attempt.gateway_in_s = self._clock.now
        attempt.place = "gateway"
        if self.refusing and (failure := self._broken(attempt)):
            self._send_back(attempt, failure)
        else:
            self._enter(attempt)

    def _broken(self, attempt: Attempt) -> Failure | None:
        """Return what an open breaker tells an attempt, None if it may pass."""
        name = attempt.request.request_class
        return next((told for classes, told in self.refusing.values() if name in classes), None)

    def _enter(self, attempt: Attempt) -> None:
        now_s = attempt.gateway_in_s
        if self._bucket is not None and not self._bucket.take(now_s):
            wait_s = self._bucket.wait_s(now_s)
            late = Failure("rejected", "gateway", "rate_limit", TOO_MANY_REQUESTS, wait_s)
            self._send_back(attempt, late)
        elif self._concurrency is None or self.in_flight < self._concurrency:
            self._admit(attempt)
        else:
            attempt.place = "gateway_queue"
            if not self.queue.enter(attempt):
                self._send_back(attempt, self.queue.full)

    def withdraw(self, attempt: Attempt) -> None:
        """Know that the caller has left: free what the attempt holds."""
        place = attempt.place
        if place == "gateway_queue":
            self.queue.line.remove(attempt)
        elif place in {"service_queue", "replica"}:
            self.pools[attempt.request.request_class].withdraw(attempt)
        attempt.place = "gone"
        if place in {"gateway", "service_queue", "replica", "answer"}:
            self._release(attempt)

    def answered(self, attempt: Attempt) -> None:
        """Serialise an answer, then send it back."""
        attempt.place = "answer"
        if self._stretch == 1.0:
            self._serialised(attempt)
            return
        done_s = self.leaves_s(attempt.intended_start_s, attempt.decode_end_s)
        if done_s > self._clock.now:
            self._clock.at(done_s, Rank.ARRIVE, self._serialised, attempt)
        else:
            self._serialised(attempt)

    def answers(self, attempt: Attempt) -> None:
        """Serialise an answer that no replica has made, then send it."""
        attempt.place = "answer"
        now_s = self._clock.now
        done_s = self.leaves_s(attempt.intended_start_s, now_s)
        self._clock.at(max(done_s, now_s), Rank.ARRIVE, self._serialised, attempt)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Send back what failed behind the gateway."""
        attempt.place = "gone"
        self._release(attempt)
        self._send_back(attempt, failure)

    def leaves_s(self, start_s: Any, made_s: Any) -> Any:
        """Return when a token made at ``made_s`` leaves the gateway for the caller, s.

        Serialisation takes a share of the whole time from the intended start to the caller: what
        would take x takes x / (1 - share). Times may be arrays.
        """
        if self._stretch == 1.0:
            return made_s
        back_s = self._network_s
        return start_s + (made_s - start_s + back_s) * self._stretch - back_s

    def _admit(self, attempt: Attempt) -> None:
        self.in_flight += 1
        now_s = self._clock.now
        attempt.gateway_admitted_s = now_s
        attempt.place = "gateway"
        if self._overhead_s > 0:
            self._clock.at(now_s + self._overhead_s, Rank.ARRIVE, self._pass_on, attempt)
        else:
            self._pass_on(attempt)

    def _pass_on(self, attempt: Attempt) -> None:
        if attempt.place == "gateway":
            self.pools[attempt.request.request_class].arrive(attempt)

    def _serialised(self, attempt: Attempt) -> None:
        if attempt.place == "answer":
            attempt.place = "gone"
            self._release(attempt)
            self._send_back(attempt, None)

    def _send_back(self, attempt: Attempt, failure: Failure | None) -> None:
        attempt.place = "gone"
        if failure is not None and failure.status is not None:
            self.statuses[failure.status] += 1
        self._returned(attempt, failure)

    def _expired(self, attempt: Attempt, failure: Failure) -> None:
        self._send_back(attempt, failure)

    def _release(self, attempt: Attempt) -> None:
        """Let the next in, or several: who is refused further on leaves again at once."""
        self.in_flight -= 1
        if self._admitting or self._concurrency is None:
            return
        self._admitting = True
        while self.queue.line and self.in_flight < self._concurrency:
            self._admit(self.queue.line.pop())
        self._admitting = False
