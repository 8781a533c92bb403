"""The profile of a trace: arrivals, lengths, concurrency, callers, periods."""

from __future__ import annotations

from capplan.traffic.profile.concurrency import Service, TokenTime
from capplan.traffic.profile.demand import GroupDemand
from capplan.traffic.profile.lengths import Lengths
from capplan.traffic.profile.summary import TrafficProfile, profile

__all__ = ["GroupDemand", "Lengths", "Service", "TokenTime", "TrafficProfile", "profile"]
