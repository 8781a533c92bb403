"""What a gateway refuses at once: what must not be retried, is too long, used up, or too fast."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from capplan.scenario.gateway import (
    Allowance,
    Gateway,
    GatewayRetryBudget,
    RequestLimit,
    TokenLimit,
)
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.buckets import (
    CONTENT_TOO_LARGE,
    TOO_MANY_REQUESTS,
    limit_of,
    take_all,
)

BAD_REQUEST = 400
DECIMALS = 9
"""To which shares and periods are counted, so that a rounding error makes no request more."""

Meter = TypeVar("Meter")
Rules = TypeVar("Rules", bound=Allowance | RequestLimit | TokenLimit)


class Refusals:
    """The limits that let nobody wait, in the order in which the gateway asks them."""

    def __init__(self, rules: Gateway) -> None:
        self._final: set[int] | None = set() if rules.drop_final_retries else None
        self._longest = math.inf if rules.max_prompt_tokens is None else rules.max_prompt_tokens
        budget = rules.retry_budget
        self._retries = None if budget is None else RetryWindow(budget)
        self._allowances = _Matching(rules.allowances, Used)
        limits: tuple[RequestLimit | TokenLimit, ...] = (*rules.rate_limits, *rules.token_limits)
        self._limits = _Matching(limits, limit_of)
        self._all = () if rules.rate_limit is None else (limit_of(rules.rate_limit),)

        self.hears_answers = bool(rules.allowances) or any(x.corrected for x in rules.token_limits)

    @staticmethod
    def are_asked(rules: Gateway) -> bool:
        """Return whether a gateway refuses anything at once."""
        limits = rules.max_prompt_tokens, rules.retry_budget, rules.rate_limit
        return rules.drop_final_retries or bool(rules.meters) or limits != (None, None, None)

    def refusal(self, attempt: Attempt, now_s: float) -> Failure | None:
        """Return why an attempt is refused; None books it everywhere and lets it pass."""
        retry = attempt.attempt > 1
        if retry and self._final is not None and attempt.request.row in self._final:
            return Failure("rejected", "gateway", "final_retry", BAD_REQUEST)
        if attempt.prompt_tokens > self._longest:
            return Failure("rejected", "gateway", "prompt_too_long", CONTENT_TOO_LARGE)
        if self._retries is not None and not self._retries.lets_in(now_s, retry=retry):
            return Failure("rejected", "gateway", "retry_budget", TOO_MANY_REQUESTS)
        allowances = self._allowances.of(attempt)
        for used in allowances:
            if used.is_gone(now_s):
                return Failure("rejected", "gateway", used.reason, TOO_MANY_REQUESTS)
        if failure := take_all((*self._all, *self._limits.of(attempt)), attempt, now_s):
            return failure
        for used in allowances:
            used.add(attempt.prompt_tokens, now_s)
        return None

    def answered(self, attempt: Attempt, now_s: float) -> None:
        """Book what an answer has really taken."""
        for limit in self._limits.of(attempt):
            limit.answered(attempt, now_s)
        for used in self._allowances.of(attempt):
            used.add(attempt.output_tokens, now_s)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Remember who was told not to try again."""
        if self._final is not None and not failure.can_be_retried:
            self._final.add(attempt.request.row)


class RetryWindow:
    """Counts first attempts and retries of the last seconds, and lets in a share of retries."""

    def __init__(self, rules: GatewayRetryBudget) -> None:
        self._window_s = rules.window_s
        self._fraction = rules.retry_fraction
        self._least = rules.min_retries_rps * rules.window_s
        self._firsts: deque[float] = deque()
        self._let_in: deque[float] = deque()

    def lets_in(self, now_s: float, *, retry: bool) -> bool:
        """Return whether an attempt may pass; a first attempt always may."""
        if not retry:
            self._firsts.append(now_s)
            self._forget(self._firsts, now_s)
            return True
        for times in (self._firsts, self._let_in):
            self._forget(times, now_s)
        most = round(self._fraction * len(self._firsts) + self._least, DECIMALS)
        if len(self._let_in) + 1 > most:
            return False
        self._let_in.append(now_s)
        return True

    def _forget(self, times: deque[float], now_s: float) -> None:
        while times and times[0] <= now_s - self._window_s:
            times.popleft()


class Used:
    """The tokens that were used of an allowance in its running period."""

    def __init__(self, rules: Allowance) -> None:
        self.reason = f"quota_exhausted:{rules.name}"
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


class _Matching(Generic[Rules, Meter]):
    """Meters of some requests each, found by tenant and class."""

    def __init__(self, rules: tuple[Rules, ...], meter: Callable[[Rules], Meter]) -> None:
        self._meters = tuple((r, meter(r)) for r in rules)
        self._found: dict[tuple[str, str], tuple[Meter, ...]] = {}

    def of(self, attempt: Attempt) -> tuple[Meter, ...]:
        """Return the meters that count an attempt."""
        request = attempt.request
        key = request.tenant, request.request_class
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = tuple(
                meter
                for r, meter in self._meters
                if r.tenant in (None, key[0]) and r.request_class in (None, key[1])
            )
        return found
