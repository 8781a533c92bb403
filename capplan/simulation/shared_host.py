"""Hosts that pools share: what runs there at once slows down, and model loads.

Processor sharing per resource: while the steps, batches and loads in service demand more of a rate
than the host has, each that uses it runs at capacity / demand of its full speed, and one that uses
several resources at the worst of these. One resource, batches of one request and equal demands of
the whole capacity are egalitarian processor sharing (M/G/1-PS with Poisson arrivals).
Source: Kleinrock, "Queueing Systems" II, 1976, section 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from capplan.catalog import model
from capplan.replica.job import Job
from capplan.replica.memory import weight_bytes
from capplan.scenario import Scenario
from capplan.scenario.hosts import RATES, Host
from capplan.scenario.placement import load_rate_bytes_per_s
from capplan.scenario.pools import ModelLoad, Pool
from capplan.schema import DataError
from capplan.simulation.attempt import Attempt, Gauge
from capplan.simulation.clock import Clock, Rank

Rates = tuple[float, ...]
"""One number for each of :data:`capplan.scenario.hosts.RATES`."""


class Runner(Protocol):
    """What runs a step, batch or load on a shared host."""

    def end_moves(self, end_s: float) -> None:
        """Move the end of what runs."""


class _Work:
    """A step or batch in service: what is left of it at full speed, and its speed."""

    __slots__ = ("demand", "left_s", "since_s", "speed")

    def __init__(self, left_s: float, demand: Rates, since_s: float) -> None:
        self.left_s = left_s
        self.demand = demand
        self.since_s = since_s
        self.speed = 1.0


class SharedHost:
    """One host, and the steps and batches that run on it now.

    Speeds are set once an instant, after everything that begins and ends in it, so consecutive
    steps of one replica do not disturb the others.
    """

    def __init__(self, host: Host, *, clock: Clock) -> None:
        self.name = host.name
        self._clock = clock
        self._capacity = [getattr(host, rate) for rate in RATES]
        self._works: dict[Runner, _Work] = {}
        self._settling = False

    def begin(self, runner: Runner, seconds: float, demand: Rates) -> None:
        """Run a step or batch from now, of a length at full speed."""
        self._works[runner] = _Work(seconds, demand, self._clock.now)
        self._changed()

    def end(self, runner: Runner) -> None:
        """Remove the step or batch: it is done or lost."""
        if self._works.pop(runner, None) is not None:
            self._changed()

    def left_s(self, runner: Runner) -> float:
        """Return what is left of a step or batch, s at full speed."""
        work = self._works[runner]
        return max(work.left_s - (self._clock.now - work.since_s) * work.speed, 0.0)

    def pressure(self) -> Rates:
        """Return by how much each resource slows down what uses it; 1 = full speed."""
        totals = [sum(work.demand[i] for work in self._works.values()) for i in range(len(RATES))]
        return tuple(
            1.0 if capacity is None else max(1.0, total / capacity)
            for total, capacity in zip(totals, self._capacity, strict=True)
        )

    def gauges(self) -> Iterable[Gauge]:
        """Yield the metrics of the timeline: name, reading, and whether it is a total."""
        for index, rate in enumerate(RATES):
            yield f"{rate}_pressure", partial(self._pressure_at, index), False

    def _pressure_at(self, index: int) -> float:
        return self.pressure()[index]

    def _changed(self) -> None:
        if not self._settling:
            self._settling = True
            self._clock.at(self._clock.now, Rank.SETTLE, self._settle, None)

    def _settle(self, _: None) -> None:
        self._settling = False
        now_s, pressure = self._clock.now, self.pressure()
        for runner, work in self._works.items():
            used = [p for p, demand in zip(pressure, work.demand, strict=True) if demand > 0]
            speed = 1.0 / max(used, default=1.0)
            if speed == work.speed:
                continue
            work.left_s = self.left_s(runner)
            work.since_s, work.speed = now_s, speed
            runner.end_moves(now_s + work.left_s / speed)


class Share:
    """The part of one replica on a shared host.

    ``running`` returns the jobs of the step or batch in service, whose demands add up.
    """

    def __init__(
        self,
        host: SharedHost,
        *,
        demands: Mapping[str, Rates],
        running: Callable[[], Iterable[Job]],
    ) -> None:
        self._host = host
        self._demands = demands
        self._running = running

    def begin(self, runner: Runner, seconds: float) -> None:
        """Run the step or batch that the engine has formed."""
        total = [0.0] * len(RATES)
        for job in self._running():
            if isinstance(job, Attempt):
                for i, rate in enumerate(self._demands[job.request.request_class]):
                    total[i] += rate
        self._host.begin(runner, seconds, tuple(total))

    def left_s(self, runner: Runner) -> float:
        """Return what is left of the step or batch, s at full speed."""
        return self._host.left_s(runner)

    def end(self, runner: Runner) -> None:
        """Remove the step or batch: it is done or lost."""
        self._host.end(runner)


def demands_of(scenario: Scenario) -> dict[str, Rates]:
    """Return what one request in service demands of each rate, by class."""
    return {c.name: tuple(getattr(c.demand, r) for r in RATES) for c in scenario.classes}


def load_bytes(pool: Pool) -> float:
    """Return what one replica loads, bytes: as stated, else the weights on its accelerators.

    Raises :class:`DataError` where neither is known.
    """
    if pool.model_load is not None and pool.model_load.bytes is not None:
        return pool.model_load.bytes
    if pool.model is None and not pool.models:
        rule = "bytes, or a model of the catalogue to derive them"
        raise DataError(rule, where=f"pool {pool.name}", field="model_load.bytes")
    dtypes = [entry.weight_dtype or pool.weight_dtype for entry in pool.models]
    return pool.tensor_parallel * sum(
        weight_bytes(model(name), dtype=dtype, tensor_parallel=pool.tensor_parallel)
        for name, dtype in zip(pool.model_names, dtypes or [pool.weight_dtype], strict=True)
    )


def load_alone_s(pool: Pool, rules: ModelLoad, host: Host | None) -> float:
    """Return how long a replica takes to load on a host that nothing else uses, s."""
    return rules.start_s + load_bytes(pool) / _rate(pool, host)


def _rate(pool: Pool, host: Host | None) -> float:
    rate = load_rate_bytes_per_s(pool, host)
    if rate is None:
        raise ValueError(f"pools.{pool.name}.load_bandwidth_bytes_per_s: needed to load a model")
    return rate


class Loader:
    """Loads the model of a pool's replicas, each on its host; without hosts, undisturbed."""

    def __init__(
        self,
        pool: Pool,
        rules: ModelLoad,
        *,
        hosts: Mapping[str, Host],
        shared_hosts: Mapping[str, SharedHost],
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._rules = rules
        self._bytes = load_bytes(pool)
        self._hosts = hosts
        self._shared_hosts = shared_hosts
        self._clock = clock

    def load(self, number: int, done: Callable[[], None]) -> Load:
        """Start to load the replica of that number; ``done`` is called at the end."""
        names = self._pool.hosts
        host = self._hosts[names[number % len(names)]] if names else None
        rate = _rate(self._pool, host)
        taken = tuple(rate if name in self._rules.rates else 0.0 for name in RATES)
        return Load(
            start_s=self._rules.start_s,
            seconds=self._bytes / rate,
            demand=taken,
            host=None if host is None else self._shared_hosts[host.name],
            clock=self._clock,
            done=done,
        )


class Load:
    """One running load; on a shared host it gets its share of the rates it uses."""

    def __init__(
        self,
        *,
        start_s: float,
        seconds: float,
        demand: Rates,
        host: SharedHost | None,
        clock: Clock,
        done: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._demand = demand
        self._host = host
        self._clock = clock
        self._done = done
        self._end_s = math.inf
        self._start = clock.alarm(clock.now + start_s, Rank.FAULT, self._begin)

    def cancel(self) -> None:
        """Cancel the load."""
        self._start.cancel()
        self._leave()

    def end_moves(self, end_s: float) -> None:
        """Move the end of the load: its shared host changed its speed."""
        self._end_s = end_s
        self._clock.at(end_s, Rank.FAULT, self._finish, end_s)

    def _begin(self, _: None) -> None:
        self.end_moves(self._clock.now + self._seconds)
        if self._host is not None:
            self._host.begin(self, self._seconds, self._demand)

    def _finish(self, end_s: float) -> None:
        if end_s == self._end_s:
            self._leave()
            self._done()

    def _leave(self) -> None:
        self._end_s = math.inf
        if self._host is not None:
            self._host.end(self)


def loader_of(
    pool: Pool, scenario: Scenario, *, shared_hosts: Mapping[str, SharedHost], clock: Clock
) -> Loader | None:
    """Return what loads the model of a pool's replicas; None if the pool has no ``model_load``."""
    if pool.model_load is None:
        return None
    hosts = {host.name: host for host in scenario.hosts}
    return Loader(pool, pool.model_load, hosts=hosts, shared_hosts=shared_hosts, clock=clock)
