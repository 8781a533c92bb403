"""What a replica does before it serves: start, and bring its model into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from capplan.scenario.hosts import RATES
from capplan.scenario.part import Part, Seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capplan.scenario.hosts import Host
    from capplan.scenario.pools import Pool


class ModelLoad(Part):
    """What a replica loads when it returns, and over what; its prefix cache is cold in any case.

    ``bytes`` go from disk (``over: io``), from the network, or from the network onto the disk
    (``both``) at the pool's ``load_bandwidth_bytes_per_s`` per accelerator; None = all that its
    host has. On a shared host they take that rate from it: whoever reads there is slowed, and
    slows the load.
    """

    start_s: Seconds = 0.0
    """Before the load: process start, memory profiling, graph capture."""
    bytes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """On all accelerators of a replica; None = the weights of the pool's model."""
    over: Literal["io", "network", "both"] = "io"

    @property
    def rates(self) -> tuple[str, ...]:
        """Return which of a host's rates it takes."""
        return tuple(
            rate
            for rate in RATES
            if rate != "compute_units" and (self.over == "both" or rate.startswith(self.over))
        )


def load_rate_bytes_per_s(pool: Pool, host: Host | None) -> float | None:
    """Return how fast a replica loads when nobody else does, bytes/s; None = nothing says."""
    if pool.load_bandwidth_bytes_per_s is not None:
        return pool.load_bandwidth_bytes_per_s * pool.accelerators_per_replica
    if pool.model_load is None or host is None:
        return None
    stated = [getattr(host, rate) for rate in pool.model_load.rates]
    return min((rate for rate in stated if rate is not None), default=None)


def without_rate(pools: tuple[Pool, ...], hosts: Mapping[str, Host]) -> str | None:
    """Return the first pool whose model load has no bandwidth, by name; None if there is none."""
    for pool in pools:
        stands_on: list[Host | None] = [hosts[name] for name in pool.hosts] or [None]
        if pool.model_load and any(load_rate_bytes_per_s(pool, h) is None for h in stands_on):
            return pool.name
    return None
