"""Hosts that pools share, and the load of a request class on them."""

from __future__ import annotations

from capplan.scenario.part import Name, NonNegative, Owner, Part, Positive

RATES = ("compute_units", "io_bytes_per_s", "network_bytes_per_s")
"""Resources shared by time: overload slows down all their users."""
SPACES = ("accelerator_memory_bytes", "host_memory_bytes")
"""Resources shared by space: overload is an error."""


class Demand(Part):
    """The load of a class on the host that serves it.

    Rates are of *one request in service* at full speed; requests of a batch add up. Memory is of
    *each replica* of the pool, from its start (weights, index, workspace).
    """

    compute_units: NonNegative = 0.0
    """In the unit of the host's ``compute_units``: cores, accelerators, or shares of them."""
    io_bytes_per_s: NonNegative = 0.0
    network_bytes_per_s: NonNegative = 0.0
    accelerator_memory_bytes: NonNegative = 0.0
    host_memory_bytes: NonNegative = 0.0


class Host(Part):
    """A machine that several pools share; None = no limit.

    While requests in service demand more of a rate than its capacity, all users of it run at
    capacity / demand of their speed (processor sharing); users of several rates at the least.
    """

    name: Name
    owner: Owner = ""
    compute_units: Positive = 1.0
    io_bytes_per_s: Positive | None = None
    network_bytes_per_s: Positive | None = None
    accelerator_memory_bytes: Positive | None = None
    host_memory_bytes: Positive | None = None
