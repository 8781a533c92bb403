"""Buckets of tokens, and the limits of a gateway that are made of them."""

from __future__ import annotations

from collections.abc import Iterable

from capplan.scenario.gateway import RateLimit, RequestLimit, TokenLimit
from capplan.simulation.attempt import Attempt, Failure

TOO_MANY_REQUESTS, CONTENT_TOO_LARGE = 429, 413
ROUNDING_S = 1e-9


class TokenBucket:
    """Tokens that fill up at a constant rate; a request takes its cost or goes without.

    Source: ITU-T Recommendation I.371, 2004, annex A: the virtual scheduling form of the generic
    cell rate algorithm, which keeps one time instead of a fill level and so does not drift. The
    bucket is ``full_at_s - now`` short of full, in tokens of ``1 / rate_per_s``. A token that is
    less than a nanosecond away is there: who comes exactly when told must not be one rounding
    error early.

    >>> bucket = TokenBucket(rate_per_s=2.0, burst=2)
    >>> [bucket.take(t) for t in (0.0, 0.0, 0.0, 0.5)]
    [True, True, False, True]
    """

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.burst = burst
        self._interval_s = 1 / rate_per_s
        self._full_at_s = 0.0

    def take(self, now_s: float, cost: float = 1) -> bool:
        """Take tokens, all or none."""
        full_at_s = max(self._full_at_s, now_s)
        if full_at_s - now_s > (self.burst - cost) * self._interval_s + ROUNDING_S:
            return False
        self._full_at_s = full_at_s + cost * self._interval_s
        return True

    def wait_s(self, now_s: float, cost: float = 1) -> float:
        """Return how long until there are so many tokens, s; of more than it holds, never."""
        return max(self._full_at_s - (self.burst - cost) * self._interval_s - now_s, 0.0)

    def charge(self, now_s: float, cost: float) -> None:
        """Take tokens, if need be those to come; a negative cost gives back what fits in."""
        self._full_at_s = max(self._full_at_s, now_s) + cost * self._interval_s


class Limit:
    """One rate limit: its bucket, and what a request costs there: one token, or model tokens."""

    def __init__(
        self,
        reason: str,
        bucket: TokenBucket,
        *,
        tokens: bool = False,
        estimate: int = 0,
        corrected: bool = False,
    ) -> None:
        self.reason, self.bucket = reason, bucket
        self._tokens, self._estimate, self._corrected = tokens, estimate, corrected

    def cost(self, attempt: Attempt) -> int:
        """Return what is booked when an attempt comes."""
        return attempt.prompt_tokens + self._estimate if self._tokens else 1

    def answered(self, attempt: Attempt, now_s: float) -> None:
        """Replace the estimate by the tokens that an answer is made of."""
        if self._corrected:
            self.bucket.charge(now_s, attempt.output_tokens - self._estimate)


def limit_of(rules: RateLimit | RequestLimit | TokenLimit) -> Limit:
    """Return a limit of the scenario, full."""
    if isinstance(rules, TokenLimit):
        return Limit(
            f"token_limit:{rules.name}",
            TokenBucket(rules.rate_tokens_per_s, rules.burst_tokens),
            tokens=True,
            estimate=rules.output_estimate_tokens,
            corrected=rules.corrected,
        )
    name = f"rate_limit:{rules.name}" if isinstance(rules, RequestLimit) else "rate_limit"
    return Limit(name, TokenBucket(rules.rate_rps, rules.burst))


def take_all(limits: Iterable[Limit], attempt: Attempt, now_s: float) -> Failure | None:
    """Take an attempt's cost from every bucket; where one lacks it, from none, and say which.

    Of several that lack it, it is the one that lacks it for longest.
    """
    worst, wait_s = "", ROUNDING_S
    for limit in limits:
        cost, bucket = limit.cost(attempt), limit.bucket
        if cost > bucket.burst:
            reason = f"request_too_large:{limit.reason.partition(':')[2]}"
            return Failure("rejected", "gateway", reason, CONTENT_TOO_LARGE)
        if (lacks_s := bucket.wait_s(now_s, cost)) > wait_s:
            worst, wait_s = limit.reason, lacks_s
    if worst:
        return Failure("rejected", "gateway", worst, TOO_MANY_REQUESTS, wait_s)
    for limit in limits:
        limit.bucket.charge(now_s, limit.cost(attempt))
    return None
