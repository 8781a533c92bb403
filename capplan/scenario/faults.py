"""Faults: what goes wrong, where, when and for how long."""

from __future__ import annotations

from typing import Literal

from capplan.scenario.part import Count, Name, Part, PositiveSeconds, Seconds


class Crash(Part):
    """``count`` replicas of a pool stop at ``at_s``; what they ran fails.

    They return empty after ``down_s``; None = they stay away.
    """

    kind: Literal["crash"] = "crash"
    pool: Name | None = None
    at_s: Seconds
    count: Count = 1
    down_s: PositiveSeconds | None = None


Fault = Crash
