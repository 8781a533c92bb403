"""Hosts that pools share, and what a request of each class takes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from capplan.scenario.part import Name, Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capplan.scenario.classes import RequestClass
    from capplan.scenario.pools import Pool

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Capacity = Annotated[float, Field(gt=0, allow_inf_nan=False)]

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

    compute_units: Amount = 0.0
    """Of whatever the host's ``compute_units`` count: cores, accelerators, or shares of them."""
    io_bytes_per_s: Amount = 0.0
    network_bytes_per_s: Amount = 0.0
    accelerator_memory_bytes: Amount = 0.0
    host_memory_bytes: Amount = 0.0


class Host(Part):
    """A machine that several pools share; a capacity of None is not a limit.

    While the requests in service demand more of a rate than there is, all who use that resource
    are served at capacity / demand of their speed (processor sharing); who uses several gets the
    worst of them.
    """

    name: Name
    owner: str = ""
    compute_units: Capacity = 1.0
    io_bytes_per_s: Capacity | None = None
    network_bytes_per_s: Capacity | None = None
    accelerator_memory_bytes: Capacity | None = None
    host_memory_bytes: Capacity | None = None


def replicas_on(host: str, pool: Pool) -> int:
    """Return how many replicas of a pool can stand on a host: replica i on the i-th, in turn."""
    if not pool.hosts:
        return 0
    return sum(pool.hosts[i % len(pool.hosts)] == host for i in range(pool.most_replicas))


def overfull(
    host: Host, served: Iterable[tuple[RequestClass, Pool]]
) -> tuple[str, float, float] | None:
    """Return the first memory that does not hold what stands on a host, the demand and capacity.

    ``served`` pairs each class with its pool. None = everything fits.
    """
    pairs = [(c.demand, replicas_on(host.name, pool)) for c, pool in served]
    for space in SPACES:
        capacity = getattr(host, space)
        demand = sum(getattr(d, space) * n for d, n in pairs)
        if capacity is not None and demand > capacity:
            return space, demand, capacity
    return None
