"""Model loads of replicas: bytes over a disk or network that others use at the same time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from capplan.catalog import model
from capplan.replica.memory import weight_bytes
from capplan.scenario.hosts import RATES, Host
from capplan.scenario.placement import load_rate_bytes_per_s
from capplan.scenario.pools import ModelLoad, Pool
from capplan.schema import DataError
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.shared_host import Machine, Rates


def load_bytes(pool: Pool) -> float:
    """Return what one replica loads, bytes: as stated, else the weights on its accelerators.

    Raises :class:`DataError` where neither is known.
    """
    if pool.model_load is not None and pool.model_load.bytes is not None:
        return pool.model_load.bytes
    if pool.model is None and not pool.models:
        raise DataError(
            "bytes, or a model of the catalogue to derive them",
            where=f"pool {pool.name}",
            field="model_load.bytes",
        )
    dtypes = [entry.weight_dtype or pool.weight_dtype for entry in pool.models]
    return pool.tensor_parallel * sum(
        weight_bytes(model(name), dtype=dtype, tensor_parallel=pool.tensor_parallel)
        for name, dtype in zip(pool.model_names, dtypes or [pool.weight_dtype], strict=True)
    )


def load_alone_s(pool: Pool, rules: ModelLoad, host: Host | None) -> float:
    """Return how long a replica takes to load where nobody else uses its host, s."""
    return rules.start_s + load_bytes(pool) / _rate(pool, host)


def _rate(pool: Pool, host: Host | None) -> float:
    rate = load_rate_bytes_per_s(pool, host)
    if rate is None:
        msg = f"pool {pool.name}: a bandwidth, to load a model"
        raise ValueError(msg)
    return rate


class Loader:
    """Loads the model of a pool's replicas, each on its host; None of its own is its own host."""

    def __init__(
        self,
        pool: Pool,
        rules: ModelLoad,
        *,
        hosts: Mapping[str, Host],
        machines: Mapping[str, Machine],
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._rules = rules
        self._bytes = load_bytes(pool)
        self._hosts = hosts
        self._machines = machines
        self._clock = clock

    def load(self, number: int, done: Callable[[], None]) -> Load:
        """Start the load of the pool's replica of that number; ``done`` is called at its end."""
        names = self._pool.hosts
        host = self._hosts[names[number % len(names)]] if names else None
        rate = _rate(self._pool, host)
        taken = tuple(rate if name in self._rules.rates else 0.0 for name in RATES)
        return Load(
            start_s=self._rules.start_s,
            seconds=self._bytes / rate,
            demand=taken,
            machine=None if host is None else self._machines[host.name],
            clock=self._clock,
            done=done,
        )


class Load:
    """One load on its way; on a shared host it gets its share of what it takes."""

    def __init__(
        self,
        *,
        start_s: float,
        seconds: float,
        demand: Rates,
        machine: Machine | None,
        clock: Clock,
        done: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._demand = demand
        self._machine = machine
        self._clock = clock
        self._done = done
        self._end_s = math.inf
        self._start = clock.alarm(clock.now + start_s, Rank.FAULT, self._begin)

    def cancel(self) -> None:
        """Give it up."""
        self._start.cancel()
        self._leave()

    def end_moves(self, end_s: float) -> None:
        """Know that the host gives the load another speed."""
        self._end_s = end_s
        self._clock.at(end_s, Rank.FAULT, self._over, end_s)

    def _begin(self, _: None) -> None:
        self.end_moves(self._clock.now + self._seconds)
        if self._machine is not None:
            self._machine.begin(self, self._seconds, self._demand)

    def _over(self, end_s: float) -> None:
        if end_s == self._end_s:
            self._leave()
            self._done()

    def _leave(self) -> None:
        self._end_s = math.inf
        if self._machine is not None:
            self._machine.end(self)
