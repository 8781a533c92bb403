"""The profile of a trace: arrivals, lengths, concurrency, callers, periods."""

from __future__ import annotations

from capplan.traffic.profile.concurrency import (
    DEFAULT_SERVICE_TIME,
    InFlight,
    ServiceTime,
    TokenTime,
    in_flight,
    in_flight_steps,
)
from capplan.traffic.profile.demand import GroupDemand, Period
from capplan.traffic.profile.lengths import Lengths
from capplan.traffic.profile.summary import TrafficProfile, profile

__all__ = [
    "DEFAULT_SERVICE_TIME",
    "GroupDemand",
    "InFlight",
    "Lengths",
    "Period",
    "ServiceTime",
    "TokenTime",
    "TrafficProfile",
    "in_flight",
    "in_flight_steps",
    "profile",
]
