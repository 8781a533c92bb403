"""The gateway: rate limit, concurrency with its own queue, overhead, and the way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from capplan.scenario import Gateway, RateLimit
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.pool import ServingPool
from capplan.simulation.queue import BoundedQueue

TOO_MANY_REQUESTS = 429
_ROUNDING_S = 1e-9


class TokenBucket:
    """Tokens that fill up at a constant rate; a request takes one or goes without.

    Source: ITU-T Recommendation I.371, 2004, annex A: the virtual scheduling form of the generic
    cell rate algorithm, which keeps one time instead of a fill level and so does not drift. The
    bucket is ``full_at_s - now`` short of full, in tokens of ``1 / rate_rps``. A token that is
    less than a nanosecond away is there: who comes exactly when told must not be one rounding
    error early.

    >>> bucket = TokenBucket(RateLimit(rate_rps=2.0, burst=2))
    >>> [bucket.take(t) for t in (0.0, 0.0, 0.0, 0.5)]
    [True, True, False, True]
    """

    def __init__(self, limit: RateLimit) -> None:
        self._interval_s = 1 / limit.rate_rps
        self._tolerance_s = (limit.burst - 1) * self._interval_s
        self._full_at_s = 0.0

    def take(self, now_s: float) -> bool:
        """Take a token if there is one."""
        full_at_s = max(self._full_at_s, now_s)
        if full_at_s - now_s > self._tolerance_s + _ROUNDING_S:
            return False
        self._full_at_s = full_at_s + self._interval_s
        return True

    def wait_s(self, now_s: float) -> float:
        """Return how long until there is a token, s."""
        return max(self._full_at_s - self._tolerance_s - now_s, 0.0)


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
        self.pools: Mapping[str, ServingPool] = {}
        """The pool of each request class."""
        self.in_flight = 0
        self.statuses: Counter[int] = Counter()
        """Refusals and failures by their HTTP status."""
        self.queue = BoundedQueue(rules.queue, layer="gateway", clock=clock, expired=self._expired)
        self._clock = clock
        self._network_s = network_s
        self._returned = returned
        self._bucket = None if rules.rate_limit is None else TokenBucket(rules.rate_limit)
        self._concurrency = rules.concurrency
        self._overhead_s = rules.overhead_s
        self._stretch = 1 / (1 - rules.overhead_fraction)
        self._admitting = False

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits in the gateway's queue."""
        return bool(self.queue.line)

    def pool_of(self, attempt: Attempt) -> ServingPool:
        """Return the pool that an attempt is served by, or would be."""
        return self.pools[attempt.request.request_class]

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the network: refuse it, let it wait, or admit it."""
        if attempt.place != "network":
            return
        now_s = self._clock.now
        attempt.gateway_in_s = now_s
        attempt.place = "gateway"
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
            self._release()

    def answered(self, attempt: Attempt) -> None:
        """Serialise an answer, then send it back."""
        attempt.place = "answer"
        done_s = self.leaves_s(attempt.intended_start_s, attempt.decode_end_s)
        if done_s > self._clock.now:
            self._clock.at(done_s, Rank.ARRIVE, self._serialised, attempt)
        else:
            self._serialised(attempt)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Send back what failed behind the gateway."""
        attempt.place = "gone"
        self._release()
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
            self._release()
            self._send_back(attempt, None)

    def _send_back(self, attempt: Attempt, failure: Failure | None) -> None:
        attempt.place = "gone"
        if failure is not None and failure.status is not None:
            self.statuses[failure.status] += 1
        self._returned(attempt, failure)

    def _expired(self, attempt: Attempt, failure: Failure) -> None:
        self._send_back(attempt, failure)

    def _release(self) -> None:
        """Let the next in, or several: who is refused further on leaves again at once."""
        self.in_flight -= 1
        if self._admitting or self._concurrency is None:
            return
        self._admitting = True
        while self.queue.line and self.in_flight < self._concurrency:
            self._admit(self.queue.line.pop())
        self._admitting = False
