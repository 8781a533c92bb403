"""What a gateway refuses at once: final retries, too long, used up, or too fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from capplan.scenario.ending import Ending
from capplan.scenario.gateway import Gateway
from capplan.scenario.rate_limits import Allowance, RequestLimit, TokenLimit
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.retries import SharedBudget

ROUNDING_S = 1e-9
DECIMALS = 9
"""To which periods are counted, so that a rounding error starts none early."""

Bound = tuple[Callable[[Attempt], float], float, Ending]
Meters = tuple[tuple["Used", ...], tuple["RateMeter", ...]]


class Refusals:
    """The limits at which no request waits, in the order in which the gateway checks them."""

    def __init__(self, rules: Gateway) -> None:
        self._final: set[int] | None = set() if rules.drop_final_retries else None
        self._bounds = tuple(_bounds(rules))
        budget = rules.retry_budget
        self._retries = None if budget is None else SharedBudget(budget)
        self._used = tuple(map(Used, rules.allowances))
        self._rates = (*map(RateMeter, rules.rate_limits), *map(RateMeter, rules.token_limits))
        self._found: dict[tuple[str, str], Meters] = {}
        self._hears_answers = bool(rules.allowances) or any(x.corrected for x in rules.token_limits)

    def refusal(self, attempt: Attempt, now_s: float) -> Failure | None:
        """Return why an attempt is refused; None if it passes, and then book it everywhere."""
        retry = attempt.attempt > 1
        if retry and self._final is not None and attempt.request.row in self._final:
            return Failure.of(Gateway.final_retry)
        for size, most, ending in self._bounds:
            if size(attempt) > most:
                return Failure.of(ending)
        if self._retries is not None:
            if not retry:
                self._retries.deposit(attempt.request, now_s)
            elif not self._retries.withdraw(attempt.request, now_s):
                return Failure.of(Gateway.over_retry_budget)
        allowances, rates = self._meters_of(attempt)
        for used in allowances:
            if used.is_gone(now_s):
                return Failure.of(Allowance.used_up, name=used.rules.name)
        if failure := take_all(rates, attempt, now_s):
            return failure
        for used in allowances:
            used.add(attempt.prompt_tokens, now_s)
        return None

    def answered(self, attempt: Attempt, now_s: float) -> None:
        """Book what an answer has really taken."""
        if not self._hears_answers:
            return
        allowances, rates = self._meters_of(attempt)
        for rate in rates:
            rate.answered(attempt, now_s)
        for used in allowances:
            used.add(attempt.output_tokens, now_s)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Remember the requests whose answer was not to try again."""
        if self._final is not None and not failure.can_be_retried:
            self._final.add(attempt.request.row)

    def _meters_of(self, attempt: Attempt) -> Meters:
        """Return the allowances and the rates that count an attempt."""
        key = attempt.request.tenant, attempt.request.request_class
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = (
                tuple(used for used in self._used if used.rules.counts(*key)),
                tuple(rate for rate in self._rates if rate.rules.counts(*key)),
            )
        return found


def _bounds(rules: Gateway) -> Iterator[Bound]:
    """Yield what may be only so large in one request: its size, the most, how it ends beyond."""
    if (most := rules.max_prompt_tokens) is not None:
        yield attrgetter("prompt_tokens"), most, Gateway.prompt_too_long
    if (most := rules.max_total_tokens) is not None:
        yield (lambda a: a.prompt_tokens + a.output_tokens), most, Gateway.too_many_tokens


class TokenBucket:
    """Tokens that fill up at a constant rate; a request takes its cost or goes without.

    Source: ITU-T Recommendation I.371, 2004, annex A: the virtual scheduling form of the generic
    cell rate algorithm, which keeps one time instead of a fill level and so does not drift. The
    bucket is ``full_at_s - now`` short of full, in tokens of ``1 / rate_per_s``. A token less than
    a nanosecond away is there: a request that comes exactly at its Retry-After must not be one
    rounding error early.

    >>> bucket = TokenBucket(rate_per_s=2.0, burst=2)
    >>> bucket.charge(0.0, 2)
    >>> bucket.wait_s(0.0), bucket.wait_s(0.5)
    (0.5, 0.0)
    """

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.burst = burst
        self._interval_s = 1 / rate_per_s
        self._full_at_s = 0.0

    def wait_s(self, now_s: float, cost: float = 1) -> float:
        """Return how long until there are so many tokens, s; the cost is at most ``burst``."""
        return max(self._full_at_s - (self.burst - cost) * self._interval_s - now_s, 0.0)

    def charge(self, now_s: float, cost: float) -> None:
        """Take tokens, if need be those to come; a negative cost gives back what fits in."""
        self._full_at_s = max(self._full_at_s, now_s) + cost * self._interval_s


class RateMeter:
    """One rate limit: its bucket, and what a request costs there: one token, or model tokens."""

    def __init__(self, rules: RequestLimit | TokenLimit) -> None:
        self.rules = rules
        if isinstance(rules, TokenLimit):
            self.bucket = TokenBucket(rules.rate_tokens_per_s, rules.burst_tokens)
        else:
            self.bucket = TokenBucket(rules.rate_rps, rules.burst)

    def cost(self, attempt: Attempt) -> int:
        """Return what is booked when an attempt comes."""
        if isinstance(self.rules, TokenLimit):
            return attempt.prompt_tokens + self.rules.output_estimate_tokens
        return 1

    def answered(self, attempt: Attempt, now_s: float) -> None:
        """Replace the estimate by the tokens of the answer."""
        rules = self.rules
        if isinstance(rules, TokenLimit) and rules.corrected:
            self.bucket.charge(now_s, attempt.output_tokens - rules.output_estimate_tokens)


def take_all(rates: Iterable[RateMeter], attempt: Attempt, now_s: float) -> Failure | None:
    """Take an attempt's cost from every bucket; where one lacks it, from none, and return which.

    Of several that lack it, it is the one that lacks it for longest.
    """
    worst, wait_s = None, ROUNDING_S
    for rate in rates:
        cost, bucket = rate.cost(attempt), rate.bucket
        if cost > bucket.burst:
            return Failure.of(TokenLimit.too_large, name=rate.rules.name)
        if (lacks_s := bucket.wait_s(now_s, cost)) > wait_s:
            worst, wait_s = rate.rules, lacks_s
    if worst is not None:
        return Failure.of(worst.refused, name=worst.name, retry_after_s=wait_s)
    for rate in rates:
        rate.bucket.charge(now_s, rate.cost(attempt))
    return None


class Used:
    """The tokens that were used of an allowance in its running period."""

    def __init__(self, rules: Allowance) -> None:
        self.rules = rules
        self._tokens = rules.tokens
        self._period_s = math.inf if rules.period_s is None else rules.period_s
        self._period = 0
        self._used = 0

    def is_gone(self, now_s: float) -> bool:
        """Return whether everything is used up."""
        self._turn(now_s)
        return self._used >= self._tokens

    def add(self, tokens: int, now_s: float) -> None:
        """Use tokens, also beyond what is left."""
        self._turn(now_s)
        self._used += tokens

    def _turn(self, now_s: float) -> None:
        if (period := int(round(now_s / self._period_s, DECIMALS))) > self._period:
            self._period, self._used = period, 0
