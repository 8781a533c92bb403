"""What may be sent in a time: rates of requests and tokens, allowances, budgets of retries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from capplan.scenario.ending import Ending, Limit
from capplan.scenario.part import (
    ClassName,
    Count,
    CountOrZero,
    Name,
    NonNegative,
    Owner,
    Part,
    PositiveSeconds,
    Rate,
    TenantName,
)


class Meter(Part):
    """A limit that counts the requests of a tenant, of a class, of both, or (None) all.

    In a file, ``each: tenant`` (or ``class``) stands for one limit for each of them, and a single
    mapping for a list of one; see :mod:`capplan.scenario.shorthands`. The name stands in the log,
    behind the reason and a colon.
    """

    name: Name | None = None
    owner: Owner = ""
    tenant: TenantName | None = None
    request_class: ClassName | None = None

    @property
    def of_tenant(self) -> str:
        """Return the tenant it counts, in words; "" = every one."""
        return "" if self.tenant is None else f" of {self.tenant}"

    def counts(self, tenant: str, request_class: str) -> bool:
        """Return whether it counts the requests of a tenant and class."""
        return self.tenant in (None, tenant) and self.request_class in (None, request_class)

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class it counts; empty = every one."""
        return () if self.request_class is None else (self.request_class,)

    def limits(self) -> Iterator[Limit]:
        """Yield the limits that the meter sets."""
        raise NotImplementedError


class RequestLimit(Meter):
    """A token bucket of requests: ``rate_rps`` tokens a second, at most ``burst`` saved.

    A request takes one token from every bucket that counts it, or, where one of them lacks it,
    from none: it is rejected with 429 and the longest of the waits as Retry-After.
    """

    refused: ClassVar = Ending("rate_limit", 429)

    rate_rps: Rate
    burst: Count = 1

    def limits(self) -> Iterator[Limit]:
        """Yield the rate limit."""
        what = f"beyond {self.rate_rps:g}/s{self.of_tenant} (burst {self.burst})"
        yield self.refused.at("rate_rps", what, name=self.name, value=self.rate_rps)


class TokenLimit(Meter):
    """A bucket of model tokens instead of requests, since requests differ in cost.

    When a request comes, a gateway knows its prompt, and of the answer only what the caller asks
    for (``max_tokens``) or what such requests took before: ``output_estimate_tokens``. It books
    prompt + estimate. Where ``corrected``, the estimate is replaced by the tokens of the answer
    when that ends: the bucket gets tokens back, or goes below zero, and nothing passes until it has
    filled up again. A request that ends without an answer reports no usage and costs what was
    booked. One that costs more than ``burst_tokens`` can never pass: 413, not to be retried.

    Source: Microsoft, "Manage Azure OpenAI quota", Understanding rate limits, 2024 (the estimate
    counts prompt and ``max_tokens`` at arrival); Envoy AI Gateway, "Usage-based rate limiting",
    2025 (the cost is taken from the answer's usage).
    """

    refused: ClassVar = Ending("token_limit", 429)
    too_large: ClassVar = Ending("request_too_large", 413, final=True)

    rate_tokens_per_s: Rate
    burst_tokens: Count
    output_estimate_tokens: CountOrZero = 0
    corrected: bool = True

    def limits(self) -> Iterator[Limit]:
        """Yield the limit of the rate and that of one request."""
        rate, burst = self.rate_tokens_per_s, self.burst_tokens
        what = f"beyond {rate:,.15g} tokens/s{self.of_tenant} (burst {burst:,})"
        yield self.refused.at("rate_tokens_per_s", what, name=self.name, value=rate)
        what = f"for a request{self.of_tenant} of more than {burst:,} tokens"
        yield self.too_large.at("burst_tokens", what, name=self.name, value=burst)


class Allowance(Meter):
    """Model tokens that may be used in a period, after which everything is refused with 429.

    Admitted prompts and finished answers count, so requests in flight can go beyond it. The count
    starts again every ``period_s``; None = never within a run. The refusal is marked as not to be
    retried.
    Source: OpenAI, "Error codes", 2024: 429 ``insufficient_quota``, distinct from a rate limit.
    """

    used_up: ClassVar = Ending("quota_exhausted", 429, final=True)

    tokens: Count
    period_s: PositiveSeconds | None = None

    def limits(self) -> Iterator[Limit]:
        """Yield the limit of the tokens used."""
        per = "" if self.period_s is None else f" in {self.period_s:g} s"
        what = f"once {self.tokens:,} tokens{self.of_tenant} are used{per}"
        yield self.used_up.at("tokens", what, name=self.name, value=self.tokens)


class RetryBudget(Part):
    """What may be sent, or admitted, beyond first attempts.

    Over any ``window_s``, retries and hedges are at most ``fraction`` of the first attempts plus
    ``min_per_s`` a second. They are counted in ten slices of ``window_s``, as the source does, so a
    right to a retry lasts between nine tenths of it and all.

    As ``classes[].retry.budget`` it bounds what the callers of a class send: a retry beyond it is
    dropped and its request ends. As ``gateway.retry_budget`` it bounds what the gateway admits: a
    retry beyond it gets 429, marked as not to be retried. The gateway counts a hedge as a retry: it
    only knows that it is not the first attempt.
    Source: Finagle project, ``RetryBudget`` and ``TokenBucket.newLeakyBucket`` (defaults: 10 s, 10
    retries a second, 20 %); the idea: Beyer et al. (eds.), "Site Reliability Engineering", 2016,
    chapter 21, "Deciding to Retry" (10 %).
    """

    owner: Owner = ""
    fraction: NonNegative = 0.2
    min_per_s: NonNegative = 10.0
    """Retries a second that are possible with any traffic."""
    window_s: PositiveSeconds = 10.0
    per_tenant: bool = False
    """Whether each tenant has a budget of its own."""

    @property
    def beyond(self) -> str:
        """Return what is beyond the budget, in words."""
        least = f" plus {self.min_per_s:g}/s" if self.min_per_s else ""
        return f"retries beyond {self.fraction:.0%} of first attempts{least}"
