"""The law of the gaps between arrivals, around a planned rate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from capplan.scenario.part import Part, PositiveSeconds

PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Poisson(Part):
    """Independent arrivals: exponential gaps."""

    kind: Literal["poisson"] = "poisson"


class GammaGaps(Part):
    """Renewal arrivals whose gaps are gamma distributed with the given coefficient of variation."""

    kind: Literal["gamma"] = "gamma"
    cv: PositiveNumber


class WeibullGaps(Part):
    """Renewal arrivals whose gaps are Weibull distributed with the given coefficient of variation.

    With cv > 1 its tail is heavier than that of gamma gaps; the cv lies between 0.05 and 20.
    """

    kind: Literal["weibull"] = "weibull"
    cv: Annotated[float, Field(ge=0.05, le=20)]


class Even(Part):
    """Evenly spaced arrivals."""

    kind: Literal["even"] = "even"


class Modulated(Part):
    """Markov-modulated Poisson arrivals: calm and busy times that begin by chance.

    Both last exponential times of mean ``calm_s`` and ``busy_s``; in a busy time the rate is
    ``ratio`` times that of a calm one. Over all time the mean rate is the planned one.
    """

    kind: Literal["modulated"] = "modulated"
    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    busy_s: PositiveSeconds
    calm_s: PositiveSeconds


Arrivals = Annotated[
    Poisson | GammaGaps | WeibullGaps | Even | Modulated, Field(discriminator="kind")
]
