"""The gateway: who may come in, how fast, how many at once, and who is turned away first."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.layers import Queue
from capplan.scenario.part import (
    ClassName,
    Count,
    CountOrZero,
    Fraction,
    Name,
    NonNegative,
    Owner,
    Part,
    Positive,
    PositiveSeconds,
    Rate,
    Seconds,
    TenantName,
)


class ResponseCache(Part):
    """Answers that the gateway keeps, and gives to whoever asks the same again.

    A request asks the same as an earlier one if the ids of prefix blocks in the trace cover both
    prompts and agree, and so do class and length. Where the trace has no ids, the class's
    ``response_cached_fraction`` of its requests is found, whatever is kept. An answer is kept when
    it is made, for ``ttl_s`` (None = for good) whether it is asked for or not, the least recently
    asked for going first when there are more than ``capacity`` (None = no limit). Answers that were
    degraded are not kept.
    Source: RFC 9111, "HTTP Caching", 2022, section 4.2 (freshness counts from when it was made).
    """

    owner: Owner = ""
    capacity: Count | None = None
    ttl_s: PositiveSeconds | None = None
    lookup_s: Seconds = 0.0
    """What every request spends on being looked up, found or not."""
    per_tenant: bool = False
    """Whether tenants get only answers of their own."""
    bytes_per_token: Positive = 4.0
    """Memory of an entry, per token of prompt and answer: text of about four characters a token in
    English (OpenAI, "What are tokens and how to count them?", 2025), one byte each."""


class GatewayQueue(Queue):
    """The gateway's own queue: a full one answers 429, unless the file says otherwise.

    Nobody waits in it without a limit of ``concurrency`` or ``overhead_concurrency``.
    """

    status: Literal[429, 503] = 429


class RateLimit(Part):
    """Token bucket: ``rate_rps`` tokens a second, at most ``burst`` saved; one request one token.

    A request that finds no token is rejected with 429.
    """

    rate_rps: Rate
    burst: Count = 1


class _Meter(Part):
    """Whose requests a limit counts: those of a tenant, of a class, of both, or (None) all.

    In a file, ``each: tenant`` (or ``class``) stands for one limit for each of them; see
    :mod:`capplan.scenario.shorthands`.
    """

    name: Name
    owner: Owner = ""
    tenant: TenantName | None = None
    request_class: ClassName | None = None


class RequestLimit(_Meter):
    """A token bucket of some requests: of a tenant, of a class, of both.

    It stands beside the gateway's ``rate_limit``. A request takes one token from every bucket that
    counts it, or, where one of them lacks it, from none: it is rejected with 429 and the longest
    of the waits as Retry-After.
    """

    rate_rps: Rate
    burst: Count = 1


class TokenLimit(_Meter):
    """A bucket of model tokens instead of requests: what a request costs is not alike.

    When a request comes, a gateway knows its prompt, and of the answer only what the caller asks
    for (``max_tokens``) or what such requests took before: ``output_estimate_tokens``. It books
    prompt + estimate. Where ``corrected``, the estimate is replaced by the tokens of the answer
    when that ends: the bucket gets tokens back, or goes below zero, and nobody passes until it has
    filled up again. What ends without an answer tells no usage and costs what was booked.
    A request that costs more than ``burst_tokens`` can never pass: 413, not to be retried.

    Source: Microsoft, "Manage Azure OpenAI quota", Understanding rate limits, 2024 (the estimate
    counts prompt and ``max_tokens`` at arrival); Envoy AI Gateway, "Usage-based rate limiting",
    2025 (the cost is taken from the answer's usage).
    """

    rate_tokens_per_s: Rate
    burst_tokens: Count
    output_estimate_tokens: CountOrZero = 0
    corrected: bool = True


class Allowance(_Meter):
    """Model tokens that may be used in a period, after which everything is refused with 429.

    Used are the prompts let in and the answers that have ended, so what is in flight can go beyond
    it. The count starts again every ``period_s``; None = never within a run. The refusal is marked
    as not to be retried.
    Source: OpenAI, "Error codes", 2024: 429 ``insufficient_quota``, told apart from a rate limit.
    """

    tokens: Count
    period_s: PositiveSeconds | None = None


class TenantQuota(Part):
    """A tenant's share of the gateway's ``concurrency``, and what of it others may use.

    ``concurrency`` slots are the tenant's own. While it does not use them, others may borrow
    ``lendable_fraction`` of them; the rest stays free. It borrows in turn what others do not use,
    at most ``borrowing_limit`` slots (None = all there are). A tenant without a quota only borrows.
    Source: Kubernetes, "API Priority and Fairness", 2024: nominalConcurrencyShares,
    lendablePercent, borrowingLimitPercent.
    """

    tenant: TenantName
    owner: Owner = ""
    concurrency: Count
    lendable_fraction: Fraction = 1.0
    borrowing_limit: CountOrZero | None = None

    @property
    def withheld(self) -> int:
        """Return how many of its slots nobody borrows.

        >>> TenantQuota(tenant="a", concurrency=10, lendable_fraction=0.75).withheld
        3
        """
        return self.concurrency - math.floor(round(self.concurrency * self.lendable_fraction, 9))


class Reserve(Part):
    """The last free slots of the gateway's ``concurrency``: only for the more urgent.

    The last ``concurrency`` free slots go only to requests whose priority is ``priority`` or more
    urgent (a lower number); with tenant quotas, only to those within their quota.
    Source: Kelly, "Loss networks", Annals of Applied Probability 1(3), 1991 (trunk reservation).
    """

    priority: int
    concurrency: Count
    owner: Owner = ""


class GatewayRetryBudget(Part):
    """How many retries the gateway lets in: a share of the first attempts of a window.

    A retry passes if with it the retries let in during the last ``window_s`` are at most
    ``retry_fraction`` of the first attempts that came in it, plus ``min_retries_rps`` × window:
    without that, none where fewer than 1 / ``retry_fraction`` requests come in a window.
    Beyond that it is dropped with 429, marked as not to be retried. A hedge is a retry, too: the
    gateway can only know that it is not the first attempt.
    Source: Beyer, Jones, Petoff and Murphy (eds.), "Site Reliability Engineering", 2016, chapter
    21 (10 %, "overloaded; don't retry"); Twitter, Finagle, RetryBudget, 2016 (window 10 s).
    """

    owner: Owner = ""
    retry_fraction: Fraction = 0.1
    min_retries_rps: NonNegative = 0.0
    window_s: PositiveSeconds = 10.0


class Accept(Part):
    """How the gateway accepts new connections; who finds its connection open passes at once.

    It accepts ``rate_per_s`` of them, evenly, and holds at most ``max_open``; others wait in the
    ``backlog``, which is time on the network, and beyond it they are refused. One caller (its
    user, else session, else tenant) holds at most ``max_per_caller`` connections; more are refused.
    A caller that leaves keeps its place in the backlog until it is accepted.
    Source: Linux, listen(2) (backlog: somaxconn, 4096); nginx, ngx_http_limit_conn_module.
    """

    owner: Owner = ""
    rate_per_s: Rate | None = None
    backlog: CountOrZero = 4096
    max_open: Count | None = None
    max_per_caller: Count | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> Accept:
        if self.rate_per_s is None and self.max_open is None and self.max_per_caller is None:
            msg = (
                "one of rate_per_s, max_open and max_per_caller must be set: without them nobody "
                "waits in the backlog"
            )
            raise ValueError(msg)
        return self


class Gateway(Part):
    """The gateway: what it refuses, then concurrency with its own queue, then overhead.

    An attempt that arrives passes in this order: ``accept`` (its connection), retries of what must
    not be retried, ``max_prompt_tokens`` (413), ``retry_budget``, ``allowances``, then all rate
    limits together; refused by one, it takes nothing from those after it.

    ``concurrency`` limits the requests that the gateway holds open downstream at once.
    ``overhead_s`` is spent on every request before it is passed on (plug-ins: authentication,
    logging, rate limit), by at most ``overhead_concurrency`` workers, which are waited for in the
    gateway's queue; ``overhead_fraction`` is the share of TTFT and E2E that serialisation
    takes, so an answer that would take x takes x / (1 - fraction).

    Slots go to the first in the queue that may have one: tenants within their quota before those
    beyond it, then in the queue's order. A tenant within its quota that finds its slots borrowed
    waits for the ``next_free`` one (so who lends slots needs a queue), or (``reclaim: cancel``)
    gets that of the tenant most beyond its quota, whose youngest request is ended with 503. If the
    queue is full, the newcomer is refused, except that it takes the place of one of the tenant most
    beyond its quota (open and waiting requests together), if that is further beyond than its own
    tenant would be; and that with ``displace_lowest`` it takes the place of the least urgent and
    youngest of those less urgent than itself. Who has been admitted is not displaced.
    """

    owner: Owner = ""
    accept: Accept | None = None
    max_prompt_tokens: Count | None = None
    drop_final_retries: bool = False
    """Whether retries of what was answered "do not retry" (400, 413, quota) are dropped here."""
    retry_budget: GatewayRetryBudget | None = None
    allowances: tuple[Allowance, ...] = ()
    rate_limit: RateLimit | None = None
    rate_limits: tuple[RequestLimit, ...] = ()
    token_limits: tuple[TokenLimit, ...] = ()
    concurrency: Count | None = None
    quotas: tuple[TenantQuota, ...] = ()
    reclaim: Literal["next_free", "cancel"] = "next_free"
    reserves: tuple[Reserve, ...] = ()
    queue: GatewayQueue = GatewayQueue()
    when_full: Literal["refuse_new", "displace_lowest"] = "refuse_new"
    response_cache: ResponseCache | None = None
    """Between the overhead and the pools; what it answers reaches no pool."""
    overhead_s: Seconds = 0.0
    overhead_concurrency: Count | None = None
    overhead_fraction: Annotated[Fraction, Field(lt=1)] = 0.0

    @property
    def meters(self) -> tuple[Allowance | RequestLimit | TokenLimit, ...]:
        """Return every limit that counts the requests of a tenant or class."""
        return (*self.allowances, *self.rate_limits, *self.token_limits)

    @property
    def holds_waiting(self) -> bool:
        """Return whether anything makes requests wait in the gateway's queue."""
        slow = self.overhead_s > 0 and self.overhead_concurrency is not None
        return self.concurrency is not None or slow

    @model_validator(mode="after")
    def _names_differ(self) -> Gateway:
        for field, names in (
            ("allowances, rate_limits and token_limits: names", [m.name for m in self.meters]),
            ("quotas: tenants", [q.tenant for q in self.quotas]),
        ):
            if twice := sorted(name for name, n in Counter(names).items() if n > 1):
                msg = f"{field} must differ, {', '.join(twice)} stands more than once"
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _shares_fit(self) -> Gateway:
        if not (self.quotas or self.reserves):
            return self
        if self.concurrency is None:
            msg = "quotas and reserves are shares of concurrency, which has no limit: set it"
            raise ValueError(msg)
        owned = sum(q.concurrency for q in self.quotas)
        kept = max((r.concurrency for r in self.reserves), default=0)
        if owned + kept > self.concurrency:
            msg = (
                f"quotas ({owned}) and the largest of reserves ({kept}) must fit in concurrency "
                f"({self.concurrency}): {owned + kept - self.concurrency} too many"
            )
            raise ValueError(msg)
        if self.reclaim == "cancel" and self.queue.length == 0:
            msg = "reclaim: cancel needs queue.length of at least 1, for who waits for its slot"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _order_is_known_here(self) -> Gateway:
        order: str = self.queue.order
        chooses = self.quotas or self.reserves or self.when_full == "displace_lowest"
        rule = "quotas, reserves and displace_lowest need queue.order"
        if chooses and order not in _ORDERS:
            msg = f"{rule} to be one of {', '.join(_ORDERS)}, got {order}"
            raise ValueError(msg)
        if chooses and self.queue.ageing_per_s:
            msg = f"{rule} without ageing_per_s, got {self.queue.ageing_per_s:g}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _what_is_stated_acts(self) -> Gateway:
        bounded = self.holds_waiting and self.queue.length
        clashes = [
            (
                self.overhead_concurrency is not None and not self.overhead_s,
                "overhead_concurrency needs overhead_s above 0: workers of what takes no time "
                "are never waited for",
            ),
            (
                self.reclaim == "cancel" and not self.quotas,
                "reclaim: cancel needs quotas: without them nobody has borrowed a slot",
            ),
            (
                self.when_full == "displace_lowest" and not bounded,
                "when_full: displace_lowest needs a queue that can be full and hold somebody: set "
                "queue.length of at least 1, and concurrency (or overhead_concurrency)",
            ),
        ]
        if told := "; ".join(text for wrong, text in clashes if wrong):
            raise ValueError(told)
        return self


_ORDERS = ("fifo", "priority")
