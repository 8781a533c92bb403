"""A budget of retries: a share of first attempts, for callers and for the gateway."""

from __future__ import annotations

from capplan.scenario.part import NonNegative, Owner, Part, PositiveSeconds


class RetryBudget(Part):
    """What may be sent, or let in, beyond first attempts.

    Over any ``window_s``, retries and hedges are at most ``fraction`` of the first attempts plus
    ``min_per_s`` a second. They are counted in ten slices of ``window_s``, as the source does, so a
    right to a retry lasts between nine tenths of it and all.

    As ``classes[].retry.budget`` it bounds what the callers of a class send: a retry beyond it is
    dropped and its request ends. As ``gateway.retry_budget`` it bounds what the gateway lets in: a
    retry beyond it gets 429, marked as not to be retried. The gateway counts a hedge as a retry: it
    only knows that it is not the first attempt.
    Source: Finagle project, ``RetryBudget`` and ``TokenBucket.newLeakyBucket`` (defaults: 10 s, 10
    retries a second, 20 %); the idea: Beyer et al. (eds.), "Site Reliability Engineering", 2016,
    chapter 21, "Deciding to Retry" (10 %).
    """

    owner: Owner = ""
    fraction: NonNegative = 0.2
    min_per_s: NonNegative = 10.0
    """Retries a second that are possible whatever the traffic."""
    window_s: PositiveSeconds = 10.0
    per_tenant: bool = False
    """Whether each tenant has a budget of its own."""

    @property
    def beyond(self) -> str:
        """Return what is beyond the budget, in words."""
        least = f" plus {self.min_per_s:g}/s" if self.min_per_s else ""
        return f"retries beyond {self.fraction:.0%} of first attempts{least}"
