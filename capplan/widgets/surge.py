"""A surge of the load, and what it did: whether the service came back, when, and what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.formatting import counted

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.run_load import Loads

SHOWN_REQUESTS = 1500
"""Requests that are simulated anew for each choice, at the strength that the page opens with."""
BEFORE, AFTER, LATER = 3, 9, 1
"""How long the usual load lasts before the surge and after it, in lengths of the surge; and how
long it goes on, unjudged, for those who came last to meet the same load to their end."""
LONGEST_S = 30.0
"""Longest surge, s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """The usual load, for a short time a multiple of the planned peak, and the usual load again."""

    usual_rps: float
    peak_rps: float
    length_s: float

    @property
    def times_s(self) -> tuple[float, float]:
        """Return when it begins and ends, s."""
        return BEFORE * self.length_s, (BEFORE + 1) * self.length_s

    @property
    def judged_s(self) -> float:
        """Return until when requests are judged, s."""
        return (BEFORE + 1 + AFTER) * self.length_s

    def scenario(self, scenario: Scenario, strength: float) -> Scenario:
        """Return the scenario under a surge of that many planned peaks, without other faults."""
        from capplan.stages.run_load import in_sequence, steady, under_load

        lengths = (BEFORE, 1, AFTER + LATER)
        rates = (self.usual_rps, strength * self.peak_rps, self.usual_rps)
        parts = [(steady(r), n * self.length_s) for r, n in zip(rates, lengths, strict=True)]
        duration_s = sum(lengths) * self.length_s
        return under_load(scenario, in_sequence(*parts), duration_s=duration_s)


def no_surge(scenario: Scenario, loads: Loads) -> str | None:
    """Return why no surge can be played to a scenario; None if one can."""
    shape = scenario.traffic.shape
    if shape.kind == "closed":
        return (
            f"The {counted(shape.users, 'user')} of the closed loop wait for their answers before "
            "they send again: a slow service is asked less, so a surge beyond what it serves "
            "cannot be played to it."
        )
    for planned, rate_rps in (("load", loads.planned_rps), ("peak", loads.peak_rps)):
        if not (math.isfinite(rate_rps) and rate_rps > 0):
            return (
                f"The planned {planned} is unknown, so there is nothing that a surge could exceed."
            )
    return None


def surge_of(loads: Loads, *, strength: float) -> Surge:
    """Return the surge that takes about :data:`SHOWN_REQUESTS` at a strength.

    Raises
    ------
    ValueError
        For a strength that is not positive.
    """
    if not strength > 0:
        msg = f"the strength of a surge must be positive, got {strength}"
        raise ValueError(msg)
    per_s = (BEFORE + AFTER + LATER) * loads.planned_rps + strength * loads.peak_rps
    length_s = min(SHOWN_REQUESTS / per_s, LONGEST_S)
    places = 1 - math.floor(math.log10(length_s))
    length_s = round(length_s, places)
    return Surge(usual_rps=loads.planned_rps, peak_rps=loads.peak_rps, length_s=length_s)
