"""Laws of a time: how long a start, a pause or a warm-up takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field

from capplan.scenario.part import Part, PositiveSeconds, Seconds


class FixedTime(Part):
    """A constant time."""

    kind: Literal["fixed"] = "fixed"
    seconds: Seconds

    @property
    def mean_s(self) -> float:
        """Return the mean, s."""
        return self.seconds


class ExponentialTime(Part):
    """Exponential times."""

    kind: Literal["exponential"] = "exponential"
    mean_s: PositiveSeconds


class LognormalTime(Part):
    """Log-normal times by their median and 95th percentile."""

    kind: Literal["lognormal"] = "lognormal"
    p50_s: PositiveSeconds
    p95_s: PositiveSeconds

    def _broken(self) -> Iterator[str]:
        if self.p50_s > self.p95_s:
            yield "p50_s <= p95_s must hold"

    @property
    def mean_s(self) -> float:
        """Return the mean, s.

        exp(m + s²/2) with m = ln p50 and s = ln(p95 / p50) / 1.645.
        Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", vol. 1,
        2nd ed., 1994, chapter 14.
        """
        sigma = math.log(self.p95_s / self.p50_s) / NormalDist().inv_cdf(0.95)
        return self.p50_s * math.exp(sigma**2 / 2)


Duration = Annotated[FixedTime | LognormalTime, Field(discriminator="kind")]
Time = Annotated[FixedTime | ExponentialTime | LognormalTime, Field(discriminator="kind")]
