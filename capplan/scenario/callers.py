"""How callers try again, and how they hedge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from capplan.scenario.ending import Ending, Limit, endings, is_final
from capplan.scenario.part import Count, Part, PositiveSeconds, Quantile, Seconds
from capplan.scenario.rate_limits import RetryBudget

LARGEST_EXPONENT = 700
"""Of e, before the power is no floating-point number any more."""


class Retry(Part):
    """How callers of a class try again.

    Attempt ``n + 1`` starts ``backoff_s × multiplier^(n - 1)`` after attempt ``n`` ended, at most
    ``max_backoff_s``; with ``jitter`` it is uniform between 0 and that (full jitter).
    Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    timed_out: ClassVar = Ending("attempt_timeout")

    max_attempts: Count = 1
    attempt_timeout_s: PositiveSeconds | None = None
    """The caller gives up one attempt after this, s; None = only the deadline ends it."""
    backoff_s: Seconds = 0.0
    multiplier: Annotated[float, Field(ge=1)] = 1.0
    max_backoff_s: PositiveSeconds = 60.0
    jitter: bool = False
    retry_on: tuple[Literal["rejected", "timed_out", "failed"], ...] = ("rejected", "failed")
    never_on_status: tuple[Annotated[int, Field(ge=400, le=599)], ...] = ()
    """HTTP statuses that are final to this caller, with any outcome."""
    never_on_reason: tuple[str, ...] = ()
    """Reasons (``requests.reason``) that are final to this caller, with or without the name of the
    limit behind a colon: ``rate_limit`` means all of them, ``rate_limit:a`` that of ``a``."""
    heeds_final: bool = True
    """Whether what is marked as not to be retried (400, 413, a quota used up) is final. A naive
    caller tries it again; see ``gateway.drop_final_retries``."""
    honour_retry_after: bool = True
    max_retry_after_s: PositiveSeconds | None = None
    """The caller waits no longer than this because of a Retry-After, s; None = as it says."""
    budget: RetryBudget | None = None
    """None = as many retries as the other limits allow."""

    def _broken(self) -> Iterator[str]:
        for reason in self.never_on_reason:
            if reason.partition(":")[0] not in (known := endings()):
                yield f"never_on_reason: one of {', '.join(sorted(known))}, got {reason!r}"

    def limits(self) -> Iterator[Limit]:
        """Yield the limits of one attempt and of all retries, if they are set."""
        if (timeout_s := self.attempt_timeout_s) is not None:
            leaves = f"the caller leaves after {timeout_s:g} s"
            yield self.timed_out.at("attempt_timeout_s", leaves)
        if self.budget is not None:
            yield Limit(field="budget", action=f"drops {self.budget.beyond}")

    def ends_on(self, reason: str) -> bool:
        """Return whether a reason is final to this caller.

        >>> [Retry(never_on_reason=("rate_limit",)).ends_on(r) for r in ("rate_limit:a", "crash")]
        [True, False]
        """
        never = self.never_on_reason
        stated = bool(never) and (reason in never or reason.partition(":")[0] in never)
        return stated or (self.heeds_final and is_final(reason))

    def backoff_before(self, attempt: int) -> float:
        """Return the longest wait before an attempt (the first is 1 and waits 0), s.

        >>> [Retry(backoff_s=1, multiplier=2).backoff_before(n) for n in (1, 2, 3)]
        [0.0, 1.0, 2.0]
        """
        if attempt <= 1 or not self.backoff_s:
            return 0.0
        if (attempt - 2) * math.log(self.multiplier) > LARGEST_EXPONENT:
            return self.max_backoff_s
        return min(self.backoff_s * self.multiplier ** (attempt - 2), self.max_backoff_s)


class Hedge(Part):
    """A second attempt while the first goes on; the first whole answer wins.

    It is sent when an attempt has been on its way for ``after_s``, or for longer than the quantile
    ``after_quantile`` of the class's latencies, from the last thousand attempts or as many as leave
    ten beyond the quantile; before that many are known, no hedge is sent. At most ``most`` are sent
    for one request, within the retry budget if there is one. An attempt that loses is cancelled at
    the caller (reason ``hedge_lost``); one that fails while another goes on is not tried again.
    A gateway cannot tell a hedge from a retry: its own budget counts it as one.
    Source: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013, "Hedged requests" (after the
    95th percentile, so that the load grows by about 5 %).
    """

    after_s: PositiveSeconds | None = None
    after_quantile: Quantile | None = None
    most: Count = 1

    def _broken(self) -> Iterator[str]:
        if (self.after_s is None) == (self.after_quantile is None):
            given = f"{self.after_s} and {self.after_quantile}"
            yield f"exactly one of after_s and after_quantile, got {given}"
