"""Whether callers try again: what is final, and the budget that all of a group share."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from capplan.scenario.callers import Retry, RetryBudget
from capplan.simulation.attempt import Failure, Request

SLICES = 10
_ROUNDING = 1e-9


def is_final(retry: Retry, failure: Failure) -> bool:
    """Return whether a failure ends the request, however many attempts are left."""
    return (
        failure.outcome not in retry.retry_on
        or (retry.heeds_final and not failure.can_be_retried)
        or retry.ends_on(failure.reason)
        or failure.status in retry.never_on_status
    )


class Budget:
    """First attempts and retries of one group of callers over the last ``ttl_s``.

    Source: Finagle project, ``util/TokenBucket.scala``, ``newLeakyBucket``: what is put in and
    what is taken out both count for about ``ttl_s``, in ten slices.

    >>> budget = Budget(RetryBudget(fraction=0.5, min_per_s=0.0))
    >>> budget.deposit(0.0), budget.deposit(0.0)
    (None, None)
    >>> [budget.withdraw(at_s) for at_s in (1.0, 1.0, 11.0)]
    [True, False, False]
    """

    def __init__(self, rules: RetryBudget) -> None:
        self._fraction = rules.fraction
        self._reserve = rules.min_per_s * rules.ttl_s
        self._slice_s = rules.ttl_s / SLICES
        self._slice = 0
        self._first = deque([0] * SLICES, maxlen=SLICES)
        self._again = deque([0] * SLICES, maxlen=SLICES)

    def deposit(self, now_s: float) -> None:
        """Count a first attempt."""
        self._turn(now_s)
        self._first[-1] += 1

    def withdraw(self, now_s: float) -> bool:
        """Count one more attempt, if it is within the budget."""
        self._turn(now_s)
        left = self._reserve + self._fraction * sum(self._first) - sum(self._again)
        if left < 1 - _ROUNDING:
            return False
        self._again[-1] += 1
        return True

    def _turn(self, now_s: float) -> None:
        now = int(now_s / self._slice_s + _ROUNDING)
        for _ in range(min(now - self._slice, SLICES)):
            self._first.append(0)
            self._again.append(0)
        self._slice = now


class Budgets:
    """The budgets of all groups of callers; a class without one is not limited."""

    def __init__(self, retries: Mapping[str, Retry]) -> None:
        self._rules = {name: r.budget for name, r in retries.items() if r.budget is not None}
        self._budgets: dict[tuple[str, str], Budget] = {}

    def __bool__(self) -> bool:
        return bool(self._rules)

    def deposit(self, request: Request, now_s: float) -> None:
        """Count the first attempt of a request."""
        if budget := self._of(request):
            budget.deposit(now_s)

    def withdraw(self, request: Request, now_s: float) -> bool:
        """Count one more attempt of a request, if it is within its group's budget."""
        budget = self._of(request)
        return budget is None or budget.withdraw(now_s)

    def _of(self, request: Request) -> Budget | None:
        rules = self._rules.get(request.request_class)
        if rules is None:
            return None
        group = (request.request_class, request.tenant if rules.per == "tenant" else "")
        if group not in self._budgets:
            self._budgets[group] = Budget(rules)
        return self._budgets[group]
