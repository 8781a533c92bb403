"""Hosts that pools share, and what a request of each class takes of them."""

from __future__ import annotations

from capplan.scenario.part import Name, NonNegative, Owner, Part, Positive

RATES = ("compute_units", "io_bytes_per_s", "network_bytes_per_s")
"""Resources shared by time: too much demand makes everything that uses them slower."""
SPACES = ("accelerator_memory_bytes", "host_memory_bytes")
"""Resources shared by space: too much demand does not fit at all."""


class Demand(Part):
    """What a class takes of the host it is served on.

    Rates are those of *one request while it is in service*, at full speed; requests of a batch
    add up. Memory is held by *each replica* of the class's pool from the start (weights, index,
    workspace), whether anything runs or not.
    """

    compute_units: NonNegative = 0.0
    """Of whatever the host's ``compute_units`` count: cores, accelerators, or shares of them."""
    io_bytes_per_s: NonNegative = 0.0
    network_bytes_per_s: NonNegative = 0.0
    accelerator_memory_bytes: NonNegative = 0.0
    host_memory_bytes: NonNegative = 0.0


class Host(Part):
    """A machine that several pools share; a capacity of None is not a limit.

    While the requests in service demand more of a rate than there is, all who use that resource
    are served at capacity / demand of their speed (processor sharing); who uses several gets the
    worst of them.
    """

    name: Name
    owner: Owner = ""
    compute_units: Positive = 1.0
    io_bytes_per_s: Positive | None = None
    network_bytes_per_s: Positive | None = None
    accelerator_memory_bytes: Positive | None = None
    host_memory_bytes: Positive | None = None
