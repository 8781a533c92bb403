"""One run: everything wired together, from a drawn trace to a result."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from capplan.results import RunResult
from capplan.simulation import elastic, faults, timeline
from capplan.simulation.admission import gateway_host
from capplan.simulation.clock import Clock
from capplan.simulation.connections import Connections
from capplan.simulation.crowd import crowd
from capplan.simulation.engines import EngineKind
from capplan.simulation.hedging import callers_of
from capplan.simulation.log import RequestLog, requests_of
from capplan.simulation.machine import Machine, demands_of
from capplan.simulation.poison import poison_of, poisoned_rows
from capplan.simulation.pool import ServingPool
from capplan.simulation.response_cache import cached_responses
from capplan.traffic.closed import is_closed
from capplan.traffic.streams import stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace


class Stream(IntEnum):
    """What each random stream of the simulation is for; never renumber, only append up to 19."""

    BACKOFF = 10
    ROUTING = 11
    SERVICE = 12
    SCALING = 14
    FAULTS = 15
    RESPONSES = 17
    POISON = 16


PAYS_FROM = 50_000
"""Requests of a process from which on it pays to load machine code, which takes half a second."""

_simulated: Counter[str] = Counter()


def simulate(
    scenario: Scenario,
    *,
    trace: Trace | None = None,
    seed: int = 0,
    replication: int = 0,
    engine: EngineKind | None = None,
) -> RunResult:
    """Return what happens to a trace under a scenario.

    The run ends when every request is over and no replica computes, at the latest
    ``scenario.drain_s`` after the last arrival; in a closed loop, after the end of the trace's
    window, at which the users cease to send. Same scenario, trace, seed and replication: the same
    tables.

    Parameters
    ----------
    scenario
        Layers, pools, faults, and how callers of each class try again.
    trace
        The drawn trace, run as it is; None draws it from the scenario's traffic.
    seed, replication
        Name the random numbers: of the drawn trace, and of backoff, routing and service.
    engine
        How the steps of continuous batching are computed: ``fast`` by machine code, where there
        is some for all of a pool's batching, else as ``reference``: in Python, one after the
        other. None = ``fast`` from :data:`PAYS_FROM` requests on. The tables are the same.
    """
    started = time.perf_counter()
    if trace is None:
        from capplan.traffic.draw import draw

        trace = draw(scenario, seed=seed, replication=replication)
    with _no_garbage_collection():
        run = _Run(scenario, trace, seed=seed, replication=replication, engine=engine)
        duration_s = run.play()
        log, timeline = run.tables()
    return RunResult(
        scenario=scenario,
        trace=trace,
        requests=log,
        timeline=timeline,
        seed=seed,
        replication=replication,
        duration_s=duration_s,
        wall_s=time.perf_counter() - started,
    )


class _Run:
    """The parts of one run, wired together."""

    def __init__(
        self,
        scenario: Scenario,
        trace: Trace,
        *,
        seed: int,
        replication: int,
        engine: EngineKind | None = None,
    ) -> None:
        self.clock = clock = Clock()
        closed = is_closed(trace)
        self.last_arrival_s = float(trace.frame["arrival_s"].iloc[-1])
        sent_until_s = self.last_arrival_s
        if closed:
            sent_until_s = math.inf if trace.duration_s is None else trace.duration_s
        self.until_s = sent_until_s + scenario.drain_s
        network_s = scenario.network.one_way_s
        connections = Connections(scenario.network)
        self.callers = callers_of(scenario)(
            crowd(
                requests_of(trace.frame, scenario, block_tokens=trace.prefix_block_tokens),
                closed=closed,
                until_s=sent_until_s,
                clock=clock,
            ),
            log=RequestLog(
                trace.frame,
                network_s=network_s,
                leaves_s=self._leaves_s,
            ),
            retries={c.name: c.retry for c in scenario.classes},
            clock=clock,
            network_s=network_s,
            connections=connections,
            backoff=stream(seed, replication, Stream.BACKOFF),
        )
        self.gateway = gateway_host(
            scenario.gateway,
            network=scenario.network,
            connections=connections,
            clock=clock,
            returned=self.callers.returned,
        )
        machines = {host.name: Machine(host, clock=clock) for host in scenario.hosts}
        responses = cached_responses(
            scenario,
            gateway=self.gateway,
            clock=clock,
            draws=lambda: stream(seed, replication, Stream.RESPONSES),
        )
        demands = demands_of(scenario)
        routing = stream(seed, replication, Stream.ROUTING).spawn(len(scenario.pools))
        service = stream(seed, replication, Stream.SERVICE).spawn(len(scenario.pools))
        engine = engine or _engine_for(len(trace.frame))
        models = {c.name: scenario.model_of(c.name) for c in scenario.classes}
        rng = stream(seed, replication, Stream.POISON)
        poisoned = poisoned_rows(scenario, trace.frame, rng)
        self.pools = {
            pool.name: ServingPool(
                pool,
                clock=clock,
                gateway=responses or self.gateway,
                routing=routing[index],
                service=service[index],
                engine=engine,
                machines=machines,
                demands=demands,
                models=models,
                faults=faults.targets(scenario, pool),
                poison=poison_of(pool, scenario, poisoned),
            )
            for index, pool in enumerate(scenario.pools)
        }
        self.gateway.pools = {
            c.name: self.pools[scenario.pool_of(c.name).name] for c in scenario.classes
        }
        self.breakers = None
        if scenario.breakers:
            from capplan.simulation.breakers import Breakers

            self.breakers = Breakers(
                scenario,
                callers=self.callers,
                gateway=self.gateway,
                pools=self.pools,
                clock=clock,
            )
        if responses is not None:
            self.gateway.pools = responses.fronts(self.gateway.pools)
        faults.wire(
            scenario,
            pools=self.pools,
            callers=self.callers,
            machines=machines,
            clock=clock,
            draws=lambda: stream(seed, replication, Stream.FAULTS),
        )
        self.sampler = timeline.Sampler(
            timeline.probes(
                self.callers, self.gateway, self.pools.values(), machines.values()
            ),
            clock=clock,
            span_s=self.last_arrival_s if math.isinf(sent_until_s) else sent_until_s,
        )

        if responses is not None:
            self.sampler.add(responses.probes())
        elastic.wire(
            scenario,
            pools=self.pools,
            callers=self.callers,
            sampler=self.sampler,
            machines=machines,
            draws=lambda: stream(seed, replication, Stream.SCALING),
        )

    def _leaves_s(self, start_s: Any, made_s: Any) -> Any:
        return self.gateway.leaves_s(start_s, made_s)

    def play(self) -> float:
        """Run to the end; return when that was, s."""
        self.callers.start(self.gateway)
        duration_s = self.clock.run_while(self._busy, self.until_s)
        for pool in self.pools.values():
            pool.write()
        return duration_s

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the request log and the timeline, and forget the attempts."""
        timeline = self.sampler.frame()
        if self.breakers is not None:
            timeline = self.breakers.with_rows(timeline)
        return self.callers.log.frame(), timeline

    def _busy(self) -> bool:
        callers = self.callers
        if callers.pending or not callers.all_arrived:
            return True
        return not all(pool.idle for pool in self.pools.values())


def _engine_for(requests: int) -> EngineKind:
    """Return the quicker engine, by how much this process has simulated and is about to."""
    _simulated["requests"] += requests
    return "fast" if _simulated["requests"] >= PAYS_FROM else "reference"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Spare the collector its walks through all attempts, which no cycle keeps alive."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def simulate_many(
    scenario: Scenario,
    *,
    replications: int,
    seed: int = 0,
    traces: Sequence[Trace] | None = None,
    executor: Executor | None = None,
) -> list[RunResult]:
    """Return independent replications of a run, in order.

    Parameters
    ----------
    scenario
        What is simulated.
    replications
        How many, numbered from 0.
    seed
        Names the random numbers together with the replication.
    traces
        One drawn trace per replication; None draws them.
    executor
        Where they run, for example a ``ProcessPoolExecutor``; None = here, one by one.

    Raises
    ------
    ValueError
        When the number of traces is not that of the replications.
    """
    if traces is not None and len(traces) != replications:
        msg = f"one trace per replication ({replications}), got {len(traces)}"
        raise ValueError(msg)
    asked = [
        (scenario, None if traces is None else traces[index], seed, index)
        for index in range(replications)
    ]
    if executor is None:
        return [_replicate(*one) for one in asked]
    return list(executor.map(_replicate, *zip(*asked, strict=True)))


def _replicate(scenario: Scenario, trace: Trace | None, seed: int, replication: int) -> RunResult:
    return simulate(scenario, trace=trace, seed=seed, replication=replication)
