"""Users who wait for the answer, think, and send again: a closed loop."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.part import Count, Part, PositiveSeconds, Seconds


class FixedThink(Part):
    """The same think time every time; 0 sends again at once, as many load testers do."""

    kind: Literal["fixed"] = "fixed"
    seconds: Seconds

    @property
    def mean_s(self) -> float:
        """Return the mean think time, s."""
        return self.seconds


class ExponentialThink(Part):
    """Exponential think times, as the interactive system of queueing theory has them."""

    kind: Literal["exponential"] = "exponential"
    mean_s: PositiveSeconds


class LognormalThink(Part):
    """Log-normal think times by their median and 95th percentile."""

    kind: Literal["lognormal"] = "lognormal"
    p50_s: PositiveSeconds
    p95_s: PositiveSeconds

    @model_validator(mode="after")
    def _ordered(self) -> LognormalThink:
        if self.p50_s > self.p95_s:
            msg = "p50_s <= p95_s must hold"
            raise ValueError(msg)
        return self

    @property
    def mean_s(self) -> float:
        """Return the mean think time, s.

        exp(m + s²/2) with m = ln p50 and s = ln(p95 / p50) / 1.645.
        Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", vol. 1,
        2nd ed., 1994, chapter 14.
        """
        from statistics import NormalDist

        sigma = math.log(self.p95_s / self.p50_s) / NormalDist().inv_cdf(0.95)
        return self.p50_s * math.exp(sigma**2 / 2)


Think = Annotated[FixedThink | ExponentialThink | LognormalThink, Field(discriminator="kind")]


class ClosedLoop(Part):
    """``users`` who each send, wait for the end of the answer, think, and send again.

    How fast they send depends on how fast they are answered, so there is no planned rate: a slow
    service is asked less. A user is of one class and one tenant; the ``share`` of a class is its
    weight among the users. Users begin evenly over ``ramp_s``. A request that was refused, failed
    or timed out (after all its attempts) ends the wait just as an answer does.

    With ``session_requests`` a user's session ends after each request with probability
    1 / ``session_requests``, and the next one begins after ``between_sessions`` (None = ``think``).
    """

    kind: Literal["closed"] = "closed"
    users: Count
    think: Think
    ramp_s: Seconds = 0.0
    session_requests: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Mean number of requests in a session; None = one session a user."""
    between_sessions: Think | None = None

    @model_validator(mode="after")
    def _sessions_that_end(self) -> ClosedLoop:
        if self.between_sessions is not None and self.session_requests is None:
            msg = "between_sessions needs session_requests, or no session ever ends"
            raise ValueError(msg)
        return self

    @property
    def mean_think_s(self) -> float:
        """Return the mean time between an answer and the user's next request, s.

        >>> pause = FixedThink(seconds=40.0)
        >>> users = ClosedLoop(
        ...     users=1,
        ...     think=FixedThink(seconds=10.0),
        ...     session_requests=3,
        ...     between_sessions=pause,
        ... )
        >>> users.mean_think_s
        20.0
        """
        if self.session_requests is None or self.between_sessions is None:
            return self.think.mean_s
        ends = 1 / self.session_requests
        return ends * self.between_sessions.mean_s + (1 - ends) * self.think.mean_s
