"""The gateway: which requests pass, how fast, how many at once, and which are refused first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from capplan.scenario.ending import Ending, Limit
from capplan.scenario.layers import Queue
from capplan.scenario.part import (
    Count,
    CountOrZero,
    Derivable,
    Fraction,
    Owner,
    Part,
    Positive,
    PositiveSeconds,
    Rate,
    Seconds,
    TenantName,
    is_derived,
    together,
)
from capplan.scenario.rate_limits import Allowance, Meter, RequestLimit, RetryBudget, TokenLimit


class ResponseCache(Part):
    """Answers that the gateway keeps, and returns to requests that ask the same again.

    A request asks the same as an earlier one if the ids of prefix blocks in the trace cover both
    prompts and agree, and so do class and length. Where the trace has no ids, the class's
    ``response_cached_fraction`` of its requests is found, independent of what is kept. An answer is
    kept from when it is made for ``ttl_s`` (None = for good). Beyond ``capacity`` (None = no limit)
    the least recently used answer is dropped. Degraded answers are not kept.
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

    Requests wait in it only with a limit of ``concurrency`` or ``overhead_concurrency``.
    """

    status: Literal[429, 503] = 429


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
        """Return how many of its slots are never lent.

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


class Accept(Part):
    """How the gateway accepts new connections; a request on an open connection passes at once.

    It accepts ``rate_per_s`` of them, evenly, and holds at most ``max_open``; others wait in the
    ``backlog``, which is time on the network, and beyond it they are refused. One caller (its
    user, else session, else tenant) holds at most ``max_per_caller`` connections; more are refused.
    A caller that leaves keeps its place in the backlog until it is accepted.
    Source: Linux, listen(2) (backlog: somaxconn, 4096); nginx, ngx_http_limit_conn_module.
    """

    refused: ClassVar = Ending("connection_refused", layer="network")
    too_many: ClassVar = Ending("connections_per_caller", layer="network")

    owner: Owner = ""
    rate_per_s: Rate | None = None
    backlog: CountOrZero = 4096
    max_open: Count | None = None
    max_per_caller: Count | None = None

    def _broken(self) -> Iterator[str]:
        if self.rate_per_s is None and self.max_open is None and self.max_per_caller is None:
            yield (
                "one of rate_per_s, max_open and max_per_caller must be set: without them no "
                "connection waits in the backlog"
            )

    def limits(self) -> Iterator[Limit]:
        """Yield the limit of the backlog and that of one caller."""
        what = f"refuses connections beyond {self.backlog} waiting"
        if (rate := self.rate_per_s) is not None:
            why = "the gateway accepts too few connections"
            yield self.refused.at("backlog", what, value=rate, moved_by="rate_per_s", why=why)
        elif (most := self.max_open) is not None:
            why = "the gateway holds as many connections as it may"
            yield self.refused.at("backlog", what, value=most, moved_by="max_open", why=why)
        if (each := self.max_per_caller) is not None:
            what = f"refuses a caller's connections beyond {each}"
            why = "their callers hold as many connections as they may"
            yield self.too_many.at("max_per_caller", what, value=each, why=why)


class Gateway(Part):
    """The gateway: what it refuses, then concurrency with its own queue, then overhead.

    An attempt that arrives passes in this order: ``accept`` (its connection), retries of what must
    not be retried, ``max_prompt_tokens`` (413), ``max_total_tokens`` (422), ``retry_budget``,
    ``allowances``, then all rate limits together; refused by one, it takes nothing from those after
    it.

    ``concurrency`` limits the requests that the gateway holds open downstream at once.
    ``overhead_s`` is spent on every request before it is passed on (plug-ins: authentication,
    logging, rate limit), by at most ``overhead_concurrency`` workers, for which requests wait in
    the gateway's queue; ``overhead_per_in_flight_s`` comes to it for each request in flight;
    ``overhead_fraction`` is the share of TTFT and E2E that serialisation takes, so an answer that
    would take x takes x / (1 - fraction).

    Slots go to the first in the queue that may have one: tenants within their quota before those
    beyond it, then in the queue's order. A tenant within its quota whose slots are all borrowed
    waits for the ``next_free`` one (so lending slots needs a queue), or (``reclaim: cancel``) gets
    that of the tenant most beyond its quota, whose youngest request ends with 503. If the queue is
    full, the new request is refused, with two exceptions. It takes the place of one of the tenant
    most beyond its quota (open and waiting requests together), if that is further beyond than its
    own tenant would be. With ``displace_lowest`` it takes the place of the least urgent and
    youngest of those less urgent than itself. Admitted requests are not displaced.
    """

    prompt_too_long: ClassVar = Ending("prompt_too_long", 413, final=True)
    too_many_tokens: ClassVar = Ending("too_many_tokens", 422, final=True)
    final_retry: ClassVar = Ending("final_retry", 400, final=True)
    over_retry_budget: ClassVar = Ending("retry_budget", 429, final=True)
    displaced: ClassVar = Ending("displaced")
    reclaimed: ClassVar = Ending("reclaimed", 503)

    owner: Owner = ""
    accept: Accept | None = None
    max_prompt_tokens: Count | None = None
    max_total_tokens: Count | None = None
    """Most tokens of prompt and asked-for answer together; the drawn answer stands for the latter.

    Source: Hugging Face, "Text Generation Inference", launcher arguments, ``max-total-tokens``.
    """
    drop_final_retries: bool = False
    """Whether retries of what was answered "do not retry" (400, 413, quota) are dropped here."""
    retry_budget: RetryBudget | None = None
    allowances: tuple[Allowance, ...] = ()
    rate_limits: tuple[RequestLimit, ...] = ()
    token_limits: tuple[TokenLimit, ...] = ()
    concurrency: Derivable[Count | None] = None
    quotas: tuple[TenantQuota, ...] = ()
    reclaim: Literal["next_free", "cancel"] = "next_free"
    reserves: tuple[Reserve, ...] = ()
    queue: GatewayQueue = GatewayQueue()
    when_full: Literal["refuse_new", "displace_lowest"] = "refuse_new"
    response_cache: ResponseCache | None = None
    """Between the overhead and the pools; what it answers reaches no pool."""
    overhead_s: Seconds = 0.0
    overhead_per_in_flight_s: Seconds = 0.0
    """An engine's front end passes on a token of each before it is free: 14 to 70 µs, measured."""
    overhead_concurrency: Count | None = None
    overhead_fraction: Annotated[Fraction, Field(lt=1)] = 0.0

    @property
    def meters(self) -> dict[str, Meter]:
        """Return every limit that counts the requests of a tenant or class, by its path."""
        return {
            f"{field}.{meter.name or index}": meter
            for field in ("allowances", "rate_limits", "token_limits")
            for index, meter in enumerate(getattr(self, field))
        }

    def limits(self) -> Iterator[Limit]:
        """Yield the limits that are set, in the order in which a request passes them.

        Not that of the queue. Without a rate limit, it is yielded as not set.
        """
        if self.accept is not None:
            for limit in self.accept.limits():
                yield limit.within("accept", owner=self.accept.owner)
        yield from self._of_requests()
        for path, meter in self.meters.items():
            for limit in meter.limits():
                yield limit.within(path, owner=meter.owner, classes=meter.classes)
        if not self.rate_limits:
            yield RequestLimit.refused.at("rate_limits")
        yield from self._of_the_waiting()

    def _of_requests(self) -> Iterator[Limit]:
        if self.drop_final_retries:
            yield self.final_retry.at("drop_final_retries", "to retries of what was final")
        if (longest := self.max_prompt_tokens) is not None:
            why = "their prompts are longer than the gateway takes"
            what = f"beyond {longest:,} prompt tokens"
            yield self.prompt_too_long.at("max_prompt_tokens", what, value=longest, why=why)
        if (most := self.max_total_tokens) is not None:
            what = f"beyond {most:,} tokens of prompt and answer"
            yield self.too_many_tokens.at("max_total_tokens", what, value=most)
        if (budget := self.retry_budget) is not None:
            yield self.over_retry_budget.at(
                "retry_budget", f"to {budget.beyond}", owner=budget.owner
            )

    def _of_the_waiting(self) -> Iterator[Limit]:
        """Yield what ends requests that wait, or compute, in favour of others."""
        status, owner = f"{self.queue.status} to", self.queue.owner
        if self.when_full == "displace_lowest":
            what = f"{status} the least urgent that waits, for one more urgent"
            yield self.displaced.at("when_full", what, owner=owner)
        elif self.quotas:
            what = f"{status} one that waits of the tenant most beyond its quota"
            yield self.displaced.at("quotas", what, owner=owner)
        if self.quotas and self.reclaim == "cancel":
            what = "to the youngest of the tenant most beyond its quota"
            yield self.reclaimed.at("reclaim", what)

    @property
    def holds_waiting(self) -> bool:
        """Return whether a limit makes requests wait in the gateway's queue."""
        slow = self.overhead_s > 0 and self.overhead_concurrency is not None
        return self.concurrency is not None or slow

    def _broken(self) -> Iterator[str]:
        yield from self._names_differ()
        yield from self._shares_fit()
        yield from self._order_is_known_here()
        yield from together(self._what_does_not_act())

    def _names_differ(self) -> Iterator[str]:
        meters = [m.name or f"{path.partition('.')[0]}[no name]" for path, m in self.meters.items()]
        for field, names in (
            ("allowances, rate_limits and token_limits: names", meters),
            ("quotas: tenants", [q.tenant for q in self.quotas]),
        ):
            if twice := sorted(name for name, n in Counter(names).items() if n > 1):
                yield f"{field} must differ, {', '.join(twice)} stands more than once"

    def _shares_fit(self) -> Iterator[str]:
        if not (self.quotas or self.reserves):
            return
        if self.concurrency is None:
            yield "quotas and reserves are shares of concurrency, which has no limit: set it"
            return
        owned = sum(q.concurrency for q in self.quotas)
        kept = max((r.concurrency for r in self.reserves), default=0)
        if not is_derived(self.concurrency) and owned + kept > self.concurrency:
            yield (
                f"quotas ({owned}) and the largest of reserves ({kept}) must fit in concurrency "
                f"({self.concurrency}): {owned + kept - self.concurrency} too many"
            )
        if self.reclaim == "cancel" and self.queue.length == 0:
            yield "reclaim: cancel needs queue.length of at least 1, to wait for the slot in"

    def _order_is_known_here(self) -> Iterator[str]:
        order: str = self.queue.order
        chooses = self.quotas or self.reserves or self.when_full == "displace_lowest"
        rule = "quotas, reserves and displace_lowest need queue.order"
        if chooses and order not in _ORDERS:
            yield f"{rule} to be one of {', '.join(_ORDERS)}, got {order}"
        if chooses and self.queue.ageing_per_s:
            yield f"{rule} without ageing_per_s, got {self.queue.ageing_per_s:g}"

    def _what_does_not_act(self) -> Iterator[str]:
        if self.overhead_concurrency is not None and not self.overhead_s:
            yield (
                "overhead_concurrency needs overhead_s above 0: workers that take no time are "
                "never waited for"
            )
        if self.reclaim == "cancel" and not self.quotas:
            yield "reclaim: cancel needs quotas: without them no slot is borrowed"
        if self.when_full == "displace_lowest" and not (self.holds_waiting and self.queue.length):
            yield (
                "when_full: displace_lowest needs a queue that can be full: set queue.length of at "
                "least 1, and concurrency (or overhead_concurrency)"
            )


_ORDERS = ("fifo", "priority")
